// Package registryapi serves the packages of a host through the read API of the MCP registry (v0.1), in which
// clients and other hosts search.
package registryapi

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/access/secret"
	"gatehouse/internal/packages"
)

const (
	namespace      = "local.gatehouse/" // begins the names of packages
	defaultLimit   = 30
	maxLimit       = 100
	maxText        = 100 // bytes of titles and descriptions, as the registry's schema says
	schema         = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
	latest         = "latest"
	unknownVersion = "0.0.0" // the version of a package that names none
)

type page struct {
	Servers  []entry  `json:"servers"`
	Metadata metadata `json:"metadata"`
}

type metadata struct {
	NextCursor string `json:"nextCursor,omitempty"`
	Count      int    `json:"count"`
}

type entry struct {
	Server server `json:"server"`
	Meta   struct {
		Official official `json:"io.modelcontextprotocol.registry/official"`
	} `json:"_meta"`
}

type server struct {
	Schema      string      `json:"$schema"`
	Name        string      `json:"name"`
	Title       string      `json:"title,omitempty"`
	Description string      `json:"description"`
	Version     string      `json:"version"`
	Packages    []packaged  `json:"packages,omitempty"`
	Remotes     []transport `json:"remotes,omitempty"`
}

type packaged struct {
	Type       string        `json:"registryType"`
	Identifier string        `json:"identifier"`
	Version    string        `json:"version"`
	Transport  transport     `json:"transport"`
	Env        []envVariable `json:"environmentVariables,omitempty"`
}

type envVariable struct {
	Name     string `json:"name"`
	Required bool   `json:"isRequired"`
	Secret   bool   `json:"isSecret"`
}

type transport struct {
	Type string `json:"type"`
	URL  string `json:"url,omitempty"`
}

type official struct {
	Status    string    `json:"status"`
	Published time.Time `json:"publishedAt"`
	Updated   time.Time `json:"updatedAt"`
	Latest    bool      `json:"isLatest"`
}

// Serve answers a request of the read API with the packages of a list, each in the only version that
// is installed. The list is sorted by id and has the packages of which the caller may call a tool. endpoint is
// the address at which this host serves them. The answer names no argument and no value of a variable.
func Serve(w http.ResponseWriter, r *http.Request, list []packages.Info, endpoint string) {
	var all []entry
	for _, i := range list {
		all = append(all, entryOf(i, transport{"streamable-http", endpoint}))
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v0.1/servers", func(w http.ResponseWriter, r *http.Request) {
		list, err := pageOf(all, r.URL.Query())
		if err != nil {
			write(w, http.StatusBadRequest, map[string]string{"error": err.Error()})
			return
		}
		write(w, http.StatusOK, list)
	})
	one := func(shape func(entry) any) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			version := r.PathValue("version")
			i := slices.IndexFunc(all, func(e entry) bool {
				return e.Server.Name == r.PathValue("name") &&
					(version == "" || version == latest || version == e.Server.Version)
			})
			if i < 0 {
				write(w, http.StatusNotFound, map[string]string{"error": "Server not found"})
				return
			}
			write(w, http.StatusOK, shape(all[i]))
		}
	}
	mux.HandleFunc("GET /v0.1/servers/{name}/versions", one(func(e entry) any {
		return page{[]entry{e}, metadata{Count: 1}}
	}))
	mux.HandleFunc("GET /v0.1/servers/{name}/versions/{version}", one(func(e entry) any { return e }))
	mux.ServeHTTP(w, r)
}

func write(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v) // the caller has gone if it fails
}

// pageOf is the part of the entries that a query asks for.
func pageOf(all []entry, q map[string][]string) (list page, err error) {
	get := func(name string) string {
		if len(q[name]) == 0 {
			return ""
		}
		return q[name][0]
	}
	limit := defaultLimit
	if text := get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > maxLimit {
			return list, fmt.Errorf("limit: expected a number from 1 to %d", maxLimit)
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
	list.Servers = []entry{}
	for _, e := range all {
		version := get("version")
		if e.Server.Name <= string(after) && len(after) > 0 || e.Meta.Official.Updated.Before(since) ||
			!strings.Contains(strings.ToLower(e.Server.Name), strings.ToLower(get("search"))) ||
			version != "" && version != latest && version != e.Server.Version {
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

func entryOf(i packages.Info, endpoint transport) (e entry) {
	version := i.Public.Version
	if version == "" {
		version = unknownVersion
	}
	title := displaytext.Cut(displaytext.Line(i.Public.Title), maxText, "...")
	e.Server = server{
		Schema: schema, Name: namespace + i.ID, Title: title,
		Version:     displaytext.Cut(version, maxText, ""),
		Description: displaytext.Cut(fmt.Sprintf("%d tools of %s", i.Public.Tools, title), maxText, "..."),
		Remotes:     []transport{endpoint},
	}
	if i.Source.Kind == packages.NPM {
		name, pinned := i.Source.From, version
		if at := strings.LastIndexByte(name, '@'); at > 0 {
			name = name[:at]
		}
		p := packaged{Type: packages.NPM, Identifier: name, Version: pinned,
			Transport: transport{Type: "stdio"}}
		for variable, value := range i.Env {
			refers, _ := secret.Names(value)
			p.Env = append(p.Env, envVariable{variable, true,
				len(refers) > 0 || secret.Suspicious(variable, value)})
		}
		slices.SortFunc(p.Env, func(a, b envVariable) int { return strings.Compare(a.Name, b.Name) })
		e.Server.Packages = []packaged{p}
	}
	e.Meta.Official = official{"active", i.Installed, i.Installed, true}
	return e
}
