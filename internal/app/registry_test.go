package app

import (
	"encoding/json"
	"fmt"
	"io"
	nethttp "net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/packages"
	"gatehouse/internal/packages/catalog"
)

// The registry's read API names the packages of which the caller may call a tool, in
// the shape that a client of the official registry reads.
func TestPackagesAreServedAsARegistry(t *testing.T) {
	cfg := ruled(t, "package", "file")
	cfg.Listen.HTTP.Open, cfg.Listen.HTTP.Port = true, 0
	a, client := liveOn(t, cfg, Options{})
	admin := client("ann", "admin")
	for _, id := range []string{"alpha", "beta", "gamma-x"} {
		admin.wait(admin.result("package_install",
			strings.Replace(packageArgs(t, id, "good"), `"env":{`, `"env":{"MODE":"value-of-it",`, 1)))
	}
	listener, err := a.NewHTTPServer()
	if err != nil {
		t.Fatal(err)
	}
	site := httptest.NewServer(listener)
	t.Cleanup(site.Close)
	get := func(path, context string) (int, string) {
		t.Helper()
		r, err := nethttp.NewRequestWithContext(t.Context(), "GET", site.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if context != "" {
			r.Header.Set("X-MCP-Context", context)
		}
		w, err := nethttp.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Body.Close()
		b, err := io.ReadAll(w.Body)
		if err != nil {
			t.Fatal(err)
		}
		return w.StatusCode, string(b)
	}
	list := func(query, context string) (names []string, next string) {
		t.Helper()
		status, body := get("/v0.1/servers"+query, context)
		var page struct {
			Servers []struct {
				Server struct{ Name, Version, Description string }
				Meta   map[string]struct {
					Status   string
					IsLatest bool
				} `json:"_meta"`
			}
			Metadata struct {
				NextCursor string
				Count      int
			}
		}
		if err := json.Unmarshal([]byte(body), &page); err != nil || status != 200 || page.Servers == nil ||
			page.Metadata.Count != len(page.Servers) {
			t.Fatalf("%d %s, %v", status, body, err)
		}
		for _, s := range page.Servers {
			official := s.Meta["io.modelcontextprotocol.registry/official"]
			if s.Server.Version != "1.2.3" || s.Server.Description == "" || official.Status != "active" ||
				!official.IsLatest {
				t.Errorf("got %+v", s)
			}
			names = append(names, s.Server.Name)
		}
		if strings.Contains(body, "value-of-it") {
			t.Error("it shows the value of a variable")
		}
		return names, page.Metadata.NextCursor
	}
	all := []string{"local.gatehouse/alpha", "local.gatehouse/beta", "local.gatehouse/gamma-x"}
	if got, next := list("", ""); !slices.Equal(got, all) || next != "" {
		t.Errorf("listed %v, %q", got, next)
	}
	first, next := list("?limit=2", "")
	rest, end := list("?limit=2&cursor="+next, "")
	if !slices.Equal(append(first, rest...), all) || end != "" {
		t.Errorf("pages %v and %v", first, rest)
	}
	for query, want := range map[string]int{
		"?search=GAMMA": 1, "?search=nothing": 0, "?version=latest": 3, "?version=9": 0,
		"?updated_since=2100-01-01T00:00:00Z": 0, "?unknown=1": 3,
	} {
		if got, _ := list(query, ""); len(got) != want {
			t.Errorf("%s: %v", query, got)
		}
	}
	for _, query := range []string{"limit=0", "limit=101", "limit=x", "cursor=%21", "updated_since=x"} {
		if status, body := get("/v0.1/servers?"+query, ""); status != 400 || !strings.Contains(body, "error") {
			t.Errorf("%s: %d %s", query, status, body)
		}
	}

	// What a view does not have, its callers do not see.
	if got, _ := list("", "file"); len(got) != 0 {
		t.Errorf("the context file has %v", got)
	}
	for path, want := range map[string]int{
		"/v0.1/servers/local.gatehouse%2Falpha/versions":        200,
		"/v0.1/servers/local.gatehouse%2Falpha/versions/latest": 200,
		"/v0.1/servers/local.gatehouse%2Falpha/versions/1.2.3":  200,
		"/v0.1/servers/local.gatehouse%2Falpha/versions/2":      404,
		"/v0.1/servers/local.gatehouse%2Fnone/versions":         404, "/v0.1/servers/local.gatehouse%2Falpha": 404,
	} {
		if status, body := get(path, ""); status != want {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if got, _ := list("", "attic"); len(got) != 0 {
		t.Errorf("a context that there is not has %v", got)
	}
	if got, _ := list("", "admin"); len(got) != 0 {
		t.Errorf("the administrators' context has %v", got)
	}
	if status, _ := get("/v0.1/servers/local.gatehouse%2Falpha/versions", "file"); status != 404 {
		t.Errorf("the context file has it: %d", status)
	}

	// Another host finds them there.
	c := catalog.New(catalog.Options{Folder: t.TempDir(), Search: packages.Search{
		Registries: []string{site.URL}, NPM: packages.Off, PyPI: packages.Off, Crates: packages.Off,
	}})
	r, err := c.Search(t.Context(), catalog.Query{Word: "beta"})
	if err != nil || len(r.Entries) != 1 || r.Entries[0].Name != "local.gatehouse/beta" ||
		fmt.Sprint(r.Entries[0].Remotes) != "["+site.URL+"/mcp]" {
		t.Errorf("found %+v, %v", r, err)
	}
}

// A caller who has to say who it is, is asked at the registry too.
//
//redteam:attack What is not yours is not there: a caller without credentials reads which packages a host has
func TestTheRegistryAsksWhoCalls(t *testing.T) {
	cfg := ruled(t, "package")
	cfg.Listen.HTTP.Open, cfg.Listen.HTTP.Port, cfg.Auth.Required = true, 0, true
	a, _ := liveOn(t, cfg, Options{})
	listener, err := a.NewHTTPServer()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/v0.1/servers", "/v0.1/servers/a%2Fb/versions"} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("GET", "http://127.0.0.1"+path, nil)
		listener.ServeHTTP(w, r)
		if w.Code != 401 {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}
