package catalog

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/packages"
)

// answering serves fixed answers by path.
func answering(t *testing.T, answers map[string]string) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.UserAgent() != "gatehouse/1.0" { // the crates' API refuses requests that do not say who asks
			http.Error(w, "who asks?", http.StatusForbidden)
			return
		}
		answer, ok := answers[q.URL.EscapedPath()]
		if !ok {
			http.NotFound(w, q)
			return
		}
		fmt.Fprint(w, answer)
	}))
	t.Cleanup(s.Close)
	return s
}

const npmSearch = `{"objects":[
 {"downloads":{"monthly":10,"weekly":2},"package":{"name":"weather-mcp","version":"1.0.0","description":"Few","date":"2026-01-02T00:00:00Z","publisher":{"username":"ann"}}},
 {"downloads":{"monthly":900,"weekly":200},"package":{"name":"@big/weather","version":"3.0.0","description":"An MCP server for weather","links":{"repository":"https://example.com/r"}}},
 {"downloads":{"monthly":9999,"weekly":200},"package":{"name":"weather-icons","version":"3.0.0","description":"Icons"}},
 {"downloads":{"weekly":50},"package":{"name":"../weather-mcp","version":"3.0.0"}}],"total":4}`

const npmPackage = `{"name":"@big/weather","description":"An MCP server","dist-tags":{"latest":"3.0.0"},
 "time":{"created":"2025-01-01T00:00:00Z","3.0.0":"2026-02-01T00:00:00Z"},"maintainers":[{"name":"big"}],
 "versions":{"3.0.0":{"repository":{"url":"git+https://example.com/r.git"},"_npmUser":{"name":"ci"},
 "dist":{"attestations":{"provenance":{"predicateType":"https://slsa.dev/provenance/v1"}},"signatures":[{}]}},
 "2.0.0":{"deprecated":"use 3","dist":{"signatures":[{}]}}}}`

// Hits of the search API of npm are sorted by downloads. A registry without that API is
// asked for the package of exactly that name.
func TestNPMIsSearched(t *testing.T) {
	s := answering(t, map[string]string{"/-/v1/search": npmSearch, "/@big%2fweather": npmPackage})
	o := Options{Search: only(packages.Off), Version: "1.0"}
	o.NPM, o.NPMRegistry = "", func(context.Context) (string, error) { return s.URL + "/", nil }
	c := New(o)
	r := find(t, c, Query{Word: "weather"})
	if got := names(r.Entries); !slices.Equal(got, []string{"@big/weather", "weather-mcp"}) ||
		r.Entries[0].Downloads != 900 {
		t.Errorf("found %v", got)
	}
	e := c.Describe(t.Context(), r.Entries[0])
	facts := strings.Join(e.Facts(&e.Packages[0], day), "\n")
	for _, want := range []string{
		"publisher: npm user ci", "version: 3.0.0",
		"attestations: provenance (https://slsa.dev/provenance/v1), as the registry says",
		"updated: 2026-02-01, 28 days ago", "downloads: 900 in a month", "installs: npm @big/weather@3.0.0",
		"secrets: none declared",
	} {
		if !strings.Contains(facts, want) {
			t.Errorf("the facts lack %q:\n%s", want, facts)
		}
	}
	for name, version := range map[string]string{"@big/weather": "3.0.0", "@big/weather@2.0.0": "2.0.0"} {
		if e, err := c.FromNPM(t.Context(), name); err != nil || e.Version != version ||
			(e.Status == "deprecated") != (version == "2.0.0") {
			t.Errorf("%s: %+v, %v", name, e, err)
		}
	}

	if r.Sources[0].Note != "" {
		t.Errorf("a registry that was searched is noted: %q", r.Sources[0].Note)
	}
	o.NPMRegistry = func(context.Context) (string, error) { return "", errors.New("npm is missing") }
	if r := find(t, New(o), Query{Word: "x"}); !strings.Contains(r.Sources[0].Error, "npm is missing") {
		t.Errorf("found %+v", r)
	}
	if r := find(t, c, Query{Word: "x", Offline: true}); !strings.Contains(r.Sources[0].Error, "no cache") {
		t.Errorf("found %+v", r)
	}
}

// A registry without a search API is asked for the package of exactly the name, and the report says
// that. An error that says something else is reported as an error.
func TestNPMRegistriesWithoutSearch(t *testing.T) {
	var status int
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		switch q.URL.EscapedPath() {
		case "/-/v1/search":
			http.Error(w, "no", status)
		case "/@big%2fweather":
			fmt.Fprint(w, npmPackage)
		default:
			http.NotFound(w, q)
		}
	}))
	t.Cleanup(s.Close)
	o := Options{Search: only(packages.Off), Version: "1.0"}
	o.NPM = s.URL
	c := New(o)
	const exact, none = "only a package named exactly", "is no name of a package"
	for _, test := range []struct {
		status       int
		word         string
		found        []string
		note, failed string
	}{
		{http.StatusNotFound, "@big/weather", []string{"@big/weather"}, exact, ""},
		{http.StatusNotFound, "nothing", nil, exact, ""},
		{http.StatusNotFound, "issue tracker", nil, none, ""},
		{http.StatusMethodNotAllowed, "@big/weather", []string{"@big/weather"}, exact, ""},
		{http.StatusNotImplemented, "nothing", nil, exact, ""},
		{http.StatusForbidden, "@big/weather", []string{"@big/weather"}, "", "answers 403"},
		{http.StatusInternalServerError, "nothing", nil, "", "answers 500"},
	} {
		status = test.status
		r := find(t, c, Query{Word: test.word})
		got := r.Sources[0]
		if !slices.Equal(names(r.Entries), test.found) {
			t.Errorf("%d, %q: found %v, want %v", test.status, test.word, names(r.Entries), test.found)
		}
		if !strings.Contains(got.Note, test.note) || (got.Note == "") != (test.note == "") {
			t.Errorf("%d, %q: the note is %q, want %q", test.status, test.word, got.Note, test.note)
		}
		if !strings.Contains(got.Error, test.failed) || (got.Error == "") != (test.failed == "") {
			t.Errorf("%d, %q: the error is %q, want %q", test.status, test.word, got.Error, test.failed)
		}
	}
}

// The registry that npm uses on this machine is searched, or, if it has no search, asked for the name.
func TestTheRegistryOfThisMachine(t *testing.T) {
	if testing.Short() {
		t.Skip("asks the npm registry")
	}
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("npm is not installed")
	}
	const name = "@modelcontextprotocol/server-everything"
	r := find(t, New(Options{Search: packages.Search{
		Registries: []string{packages.Off}, PyPI: packages.Off, Crates: packages.Off,
	}, Version: "1.0"}), Query{Word: name})
	if r.Sources[0].Error != "" {
		t.Fatalf("the registry does not answer: %s", r.Sources[0].Error)
	}
	if !slices.Contains(names(r.Entries), name) {
		t.Errorf("found %v, want %s; %s", names(r.Entries), name, r.Sources[0].Note)
	}
}

// PyPI and the crates' API are asked for a package of exactly the name.
func TestExactNames(t *testing.T) {
	s := answering(t, map[string]string{
		"/pypi/mcp-server-time/json": `{"info":{"name":"mcp-server-time","version":"2026.1","summary":"Time","author":"Ann",` +
			`"project_urls":{"Source":"https://example.com/t"}},"urls":[{"upload_time_iso_8601":"2026-02-01T00:00:00Z"}]}`,
		"/api/v1/crates/mcp-server-time": `{"crate":{"name":"mcp-server-time","description":"In Rust","max_stable_version":"0.3.0",` +
			`"recent_downloads":300,"created_at":"2025-01-01T00:00:00Z","updated_at":"2026-01-01T00:00:00Z"}}`,
	})
	o := Options{Search: only(packages.Off), Version: "1.0"}
	o.PyPI, o.Crates = s.URL, s.URL
	r := find(t, New(o), Query{Word: "mcp-server-time"})
	if len(r.Entries) != 2 {
		t.Fatalf("found %+v", r)
	}
	crate, py := r.Entries[0], r.Entries[1]
	if crate.Kind != Crates || crate.Downloads != 100 || py.Kind != PyPI || py.Publisher != "Ann" ||
		py.Repository != "https://example.com/t" {
		t.Errorf("found %+v", r.Entries)
	}
	if r := find(t, New(o), Query{Word: "../x"}); len(r.Entries) != 0 || r.Sources[0].Error != "" {
		t.Errorf("found %+v", r)
	}
	if _, err := crate.Installable(func(string) bool { return false }); err == nil ||
		!strings.Contains(err.Error(), "cargo") {
		t.Errorf("got %v", err)
	}
	p, err := py.Installable(func(name string) bool { return name == "uv" })
	if err != nil {
		t.Fatal(err)
	}
	w, err := py.Wish("time", p, nil)
	if err != nil || w.Source.String() != "pypi:mcp-server-time==2026.1" || w.Args != nil {
		t.Errorf("%+v, %v", w, err)
	}
	if _, err := py.Installable(func(string) bool { return false }); err == nil ||
		!strings.Contains(err.Error(), "needs uv or python3") {
		t.Errorf("got %v", err)
	}
}

// Crates are searched, those about the protocol are found, the most used first, and the exact name is looked up beside.
func TestCratesAreSearched(t *testing.T) {
	s := answering(t, map[string]string{
		"/api/v1/crates": `{"crates":[
 {"name":"weather-mcp","description":"Few","max_stable_version":"1.0.0","recent_downloads":30,"keywords":null},
 {"name":"big-weather","description":"Weather","max_stable_version":"3.0.0","recent_downloads":900,"keywords":["mcp"]},
 {"name":"weather-icons","description":"Icons","max_stable_version":"2.0.0","recent_downloads":9000},
 {"name":"../weather-mcp","max_stable_version":"3.0.0"}],"meta":{"total":4}}`,
		"/api/v1/crates/weather": `{"crate":{"name":"weather","description":"A library","max_stable_version":"0.1.0"}}`,
	})
	o := Options{Search: packages.Search{Registries: []string{packages.Off}, NPM: packages.Off, PyPI: packages.Off},
		Version: "1.0"}
	o.Crates = s.URL
	r := find(t, New(o), Query{Word: "weather"})
	got := names(r.Entries)
	slices.Sort(got)
	if !slices.Equal(got, []string{"big-weather", "weather", "weather-mcp"}) || r.Sources[0].Note != "" {
		t.Errorf("found %v: %+v", got, r.Sources)
	}
	for _, e := range r.Entries {
		if e.Name == "big-weather" && e.Downloads != 300 {
			t.Errorf("%+v", e)
		}
	}
}

const dockerFile = `version: 2
name: docker-mcp
displayName: Docker MCP Catalog
registry:
  brave:
    description: Search the Web
    title: Brave Search
    type: server
    dateAdded: "2025-05-05T20:09:23Z"
    image: mcp/brave-search@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
    source: https://example.com/brave
    secrets:
      - {name: brave.api_key, env: BRAVE_API_KEY, example: KEY}
    env:
      - {name: MODE, value: fast}
    command: [--transport, stdio]
    volumes: ["{{paths}}:/data"]
    allowHosts: [api.search.brave.com:443]
    tools: [{name: brave_web_search}]
    metadata: {owner: brave, pulls: 12}
  asana:
    title: Asana
    description: Projects
    type: remote
    remote: {url: https://mcp.asana.com/sse, transport_type: sse}
`

// Catalogue files of Docker's are read from a path and from an address, which is kept
// for when it does not answer.
func TestDockersCatalogues(t *testing.T) {
	file := filepath.Join(t.TempDir(), "catalog.yaml")
	if err := os.WriteFile(file, []byte(dockerFile), 0o600); err != nil {
		t.Fatal(err)
	}
	s := answering(t, map[string]string{"/catalog.yaml": dockerFile})
	o := Options{Search: only(packages.Off), Version: "1.0", Folder: t.TempDir()}
	o.Docker = []string{file, s.URL + "/catalog.yaml"}
	r := find(t, New(o), Query{Word: "brave"})
	if len(r.Entries) != 1 || r.Sources[1].Found != 1 {
		t.Fatalf("found %+v", r)
	}
	e := r.Entries[0]
	nothing := func(string) bool { return false } // no program is needed for images
	p, err := e.Installable(nothing)
	if err != nil {
		t.Fatal(err)
	}
	facts := strings.Join(e.Facts(p, day), "\n")
	for _, want := range []string{"publisher: brave", "secrets: BRAVE_API_KEY", "domains: api.search.brave.com:443",
		"folders: {{paths}}:/data", "pinned by digest"} {
		if !strings.Contains(facts, want) {
			t.Errorf("the facts lack %q:\n%s", want, facts)
		}
	}
	w, err := e.Wish("brave", p, func(in Input) ([]string, secret.Text, bool, error) {
		return nil, secret.New("the-key"), in.Secret, nil
	})
	want := packages.OCI + ":docker.io/mcp/brave-search@sha256:" + strings.Repeat("a", 64)
	if err != nil || w.Source.String() != want || !slices.Equal(w.Args, []string{"--transport", "stdio"}) ||
		w.Env["MODE"] != "fast" ||
		w.Env["BRAVE_API_KEY"] != "${secret:BRAVE_API_KEY}" || w.Secrets["BRAVE_API_KEY"].Reveal() != "the-key" {
		t.Errorf("%+v, %v", w, err)
	}
	asana := find(t, New(o), Query{Word: "asana"}).Entries[0]
	if _, err := asana.Installable(nothing); err == nil || !strings.Contains(err.Error(), "https://mcp.asana.com/sse") {
		t.Errorf("got %v", err)
	}
	s.Close()
	if r := find(t, New(o), Query{Word: "brave"}); !r.Sources[1].Offline || r.Sources[1].At.IsZero() ||
		r.Sources[1].Error == "" {
		t.Errorf("got %+v", r.Sources[1])
	}
	o.Docker = []string{file + ".missing"}
	if r := find(t, New(o), Query{Word: "brave"}); r.Sources[0].Error == "" {
		t.Errorf("got %+v", r.Sources)
	}
}

const serverFile = `{"$schema":"https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
 "name":"io.github.ann/notes","description":"Notes","title":"Notes of Ann","version":"1.2.0",
 "packages":[{"registryType":"oci","identifier":"docker.io/ann/notes:1","transport":{"type":"stdio"}},
  {"registryType":"npm","identifier":"@ann/notes","version":"1.2.0","transport":{"type":"streamable-http","url":"http://x"}},
  {"registryType":"npm","identifier":"@ann/notes","version":"1.2.0","transport":{"type":"stdio"},
  "packageArguments":[{"type":"positional","valueHint":"folder","format":"filepath","isRequired":true,"description":"Where notes are"},
   {"type":"named","name":"--mode","value":"{mode}","variables":{"mode":{"default":"fast"}}},{"type":"named","name":"--verbose"},
   {"type":"named","name":"--level","default":"3"}],
  "environmentVariables":[{"name":"API_KEY","isRequired":true,"isSecret":true},{"name":"REGION","default":"eu"},{"name":"EXTRA"}]}]}`

// A folder of server.json is searched, and what an entry asks for becomes a package.
func TestAFolderOfServerJSON(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"a/server.json": serverFile, "b.json": "{", "c/other.json": serverFile} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700),
			os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	o := Options{Search: only(packages.Off)}
	o.Folders = []string{dir}
	r := find(t, New(o), Query{Word: "notes"})
	if len(r.Entries) != 1 || r.Entries[0].Publisher != "GitHub user ann" {
		t.Fatalf("found %+v", r)
	}
	e := r.Entries[0]
	npm := func(name string) bool { return name == "npm" }
	p, err := e.Installable(npm)
	if err != nil || p.Transport != "stdio" {
		t.Fatalf("%+v, %v", p, err)
	}
	w, err := e.Wish("notes", p, func(in Input) ([]string, secret.Text, bool, error) {
		switch in.Label() {
		case "folder":
			return []string{"/notes"}, secret.Text{}, true, nil
		case "API_KEY":
			return nil, secret.New("the-key"), true, nil
		}
		return nil, secret.Text{}, false, nil
	})
	if err != nil || w.Source.String() != "npm:@ann/notes@1.2.0" ||
		!slices.Equal(w.Args, []string{"/notes", "--mode=fast", "--level=3"}) ||
		w.Env["REGION"] != "eu" || w.Env["API_KEY"] != "${secret:NOTES_API_KEY}" || len(w.Env) != 2 {
		t.Errorf("%+v, %v", w, err)
	}
	_, err = e.Wish("notes", p,
		func(Input) ([]string, secret.Text, bool, error) { return nil, secret.Text{}, false, nil })
	if err == nil || !strings.Contains(err.Error(), "folder is required: Where notes are") {
		t.Errorf("got %v", err)
	}
	if facts := strings.Join(e.Facts(p, day), "\n"); !strings.Contains(facts, "folders: folder") ||
		!strings.Contains(facts, "secrets: API_KEY") {
		t.Errorf("the facts are %s", facts)
	}
	if got, err := New(o).Lookup(t.Context(), "io.github.ann/notes"); err != nil || got.Version != "1.2.0" {
		t.Errorf("%+v, %v", got, err)
	}
}

// Choices are kept, listed and forgotten; a damaged file is not overwritten.
func TestChoicesAreRemembered(t *testing.T) {
	p := In(t.TempDir())
	if all, err := p.List(); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
	if err := p.Remember(" Notes", Entry{Kind: NPM, From: "npm", Name: "@ann/notes"}, time.Now()); err != nil {
		t.Fatal(err)
	}
	if one, ok, err := p.Find("notes"); err != nil || !ok || one.Name != "@ann/notes" || one.Kind != NPM {
		t.Errorf("%+v, %v, %v", one, ok, err)
	}
	if all, err := p.List(); err != nil || len(all) != 1 || all[0].Word != "notes" {
		t.Errorf("%v, %v", all, err)
	}
	if was, err := p.Forget("NOTES"); err != nil || !was {
		t.Errorf("%v, %v", was, err)
	}
	if was, err := p.Forget("notes"); err != nil || was {
		t.Errorf("%v, %v", was, err)
	}
	if err := os.WriteFile(p.Path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.Remember("x", Entry{Name: "x"}, time.Now()); err == nil {
		t.Error("a damaged file was replaced")
	}
}
