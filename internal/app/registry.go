package app

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	nethttp "net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/access/secret"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/packages"
)

// The read API of the MCP registry (v0.1), over the packages whose tools a caller may
// call. It has the newest version of each, which is the only one here.
const (
	registrySpace   = "local.gatehouse/" // begins the names of packages
	registryLimit   = 30
	registryMost    = 100
	registryTexts   = 100 // bytes of titles and descriptions, as the registry's schema says
	registrySchema  = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
	registryLatest  = "latest"
	registryUnknown = "0.0.0" // the version of a package that names none
)

type registryList struct {
	Servers  []registryEntry  `json:"servers"`
	Metadata registryMetadata `json:"metadata"`
}

type registryMetadata struct {
	NextCursor string `json:"nextCursor,omitempty"`
	Count      int    `json:"count"`
}

type registryEntry struct {
	Server registryServer `json:"server"`
	Meta   struct {
		Official registryOfficial `json:"io.modelcontextprotocol.registry/official"`
	} `json:"_meta"`
}

type registryServer struct {
	Schema      string            `json:"$schema"`
	Name        string            `json:"name"`
	Title       string            `json:"title,omitempty"`
	Description string            `json:"description"`
	Version     string            `json:"version"`
	Packages    []registryPackage `json:"packages,omitempty"`
	Remotes     []registryRemote  `json:"remotes,omitempty"`
}

type registryPackage struct {
	Type       string             `json:"registryType"`
	Identifier string             `json:"identifier"`
	Version    string             `json:"version"`
	Transport  registryRemote     `json:"transport"`
	Env        []registryVariable `json:"environmentVariables,omitempty"`
}

type registryVariable struct {
	Name     string `json:"name"`
	Required bool   `json:"isRequired"`
	Secret   bool   `json:"isSecret"`
}

type registryRemote struct {
	Type string `json:"type"`
	URL  string `json:"url,omitempty"`
}

type registryOfficial struct {
	Status    string    `json:"status"`
	Published time.Time `json:"publishedAt"`
	Updated   time.Time `json:"updatedAt"`
	Latest    bool      `json:"isLatest"`
}

// serveRegistry answers a request of the registry's read API.
func (a *App) serveRegistry(w nethttp.ResponseWriter, r *nethttp.Request, who protocol.Caller) {
	mux := nethttp.NewServeMux()
	entries := func(r *nethttp.Request) []registryEntry { return a.registryEntries(r, who) }
	mux.HandleFunc("GET /v0.1/servers", func(w nethttp.ResponseWriter, r *nethttp.Request) {
		list, err := pageOfRegistry(entries(r), r.URL.Query())
		if err != nil {
			writeRegistry(w, nethttp.StatusBadRequest, map[string]string{"error": err.Error()})
			return
		}
		writeRegistry(w, nethttp.StatusOK, list)
	})
	find := func(r *nethttp.Request) (registryEntry, bool) {
		all := entries(r)
		i := slices.IndexFunc(all, func(e registryEntry) bool {
			v := r.PathValue("version")
			return e.Server.Name == r.PathValue("name") && (v == "" || v == registryLatest || v == e.Server.Version)
		})
		if i < 0 {
			return registryEntry{}, false
		}
		return all[i], true
	}
	answer := func(shape func(registryEntry) any) nethttp.HandlerFunc {
		return func(w nethttp.ResponseWriter, r *nethttp.Request) {
			e, ok := find(r)
			if !ok {
				writeRegistry(w, nethttp.StatusNotFound, map[string]string{"error": "Server not found"})
				return
			}
			writeRegistry(w, nethttp.StatusOK, shape(e))
		}
	}
	mux.HandleFunc("GET /v0.1/servers/{name}/versions", answer(func(e registryEntry) any {
		return registryList{[]registryEntry{e}, registryMetadata{Count: 1}}
	}))
	mux.HandleFunc("GET /v0.1/servers/{name}/versions/{version}", answer(func(e registryEntry) any { return e }))
	mux.ServeHTTP(w, r)
}

func writeRegistry(w nethttp.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v) // the caller has gone if it fails
}

// pageOfRegistry is the part of the entries that a query asks for.
func pageOfRegistry(all []registryEntry, q map[string][]string) (list registryList, err error) {
	get := func(name string) string {
		if len(q[name]) == 0 {
			return ""
		}
		return q[name][0]
	}
	limit := registryLimit
	if text := get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > registryMost {
			return list, fmt.Errorf("limit: expected a number from 1 to %d", registryMost)
		}
	}
	after, err := base64.RawURLEncoding.DecodeString(get("cursor"))
	if err != nil {
		return list, fmt.Errorf("cursor: it is not one that an earlier answer named")
	}
	since := time.Time{}
	if text := get("updated_since"); text != "" {
		if since, err = time.Parse(time.RFC3339, text); err != nil {
			return list, fmt.Errorf("updated_since: expected a time as RFC 3339 writes it")
		}
	}
	list.Servers = []registryEntry{}
	for _, e := range all {
		version := get("version")
		if e.Server.Name <= string(after) && len(after) > 0 || e.Meta.Official.Updated.Before(since) ||
			!strings.Contains(strings.ToLower(e.Server.Name), strings.ToLower(get("search"))) ||
			version != "" && version != registryLatest && version != e.Server.Version {
			continue
		}
		if len(list.Servers) == limit {
			list.Metadata.NextCursor = base64.RawURLEncoding.EncodeToString([]byte(list.Servers[limit-1].Server.Name))
			break
		}
		list.Servers = append(list.Servers, e)
	}
	list.Metadata.Count = len(list.Servers)
	return list, nil
}

// registryEntries are the packages of which a caller may call a tool, sorted by name.
// They name no argument and no value of a variable.
func (a *App) registryEntries(r *nethttp.Request, who protocol.Caller) (all []registryEntry) {
	if who.Bound != "" {
		if who.Context != "" && who.Context != who.Bound {
			return nil
		}
		who.Context = who.Bound
	}
	named := who.Context
	if named == "" {
		who.Context = a.views.Default()
	}
	enters := slices.ContainsFunc(a.views.Open(who.Caller), func(s views.Spec) bool { return s.Name == who.Context })
	if a.manager == nil || !enters {
		return nil
	}
	list, err := a.manager.List()
	if err != nil {
		return nil
	}
	mine := a.tree.callable(who.Caller)
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	remote := registryRemote{"streamable-http", scheme + "://" + r.Host + "/mcp"}
	if named != "" {
		remote.URL += "/" + named
	}
	for _, i := range list {
		if mine[i.ID] && i.State == packages.Installed {
			all = append(all, registryEntryOf(i, remote))
		}
	}
	return all
}

func registryEntryOf(i packages.Info, remote registryRemote) (e registryEntry) {
	version := i.Public.Version
	if version == "" {
		version = registryUnknown
	}
	title := displaytext.Cut(displaytext.Line(i.Public.Title), registryTexts, "...")
	e.Server = registryServer{
		Schema: registrySchema, Name: registrySpace + i.ID, Title: title,
		Version:     displaytext.Cut(version, registryTexts, ""),
		Description: displaytext.Cut(fmt.Sprintf("%d tools of %s", i.Public.Tools, title), registryTexts, "..."),
		Remotes:     []registryRemote{remote},
	}
	if i.Source.Kind == packages.NPM {
		name, pinned := i.Source.From, version
		if at := strings.LastIndexByte(name, '@'); at > 0 {
			name = name[:at]
		}
		p := registryPackage{Type: packages.NPM, Identifier: name, Version: pinned,
			Transport: registryRemote{Type: "stdio"}}
		for variable, value := range i.Env {
			refers, _ := secret.Names(value)
			p.Env = append(p.Env, registryVariable{variable, true,
				len(refers) > 0 || secret.Suspicious(variable, value)})
		}
		slices.SortFunc(p.Env, func(a, b registryVariable) int { return strings.Compare(a.Name, b.Name) })
		e.Server.Packages = []registryPackage{p}
	}
	e.Meta.Official = registryOfficial{"active", i.Installed, i.Installed, true}
	return e
}
