package catalog

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/packages"
)

// registryServer is a strict server of the registry's read API, by its published
// OpenAPI document: it refuses parameters that the document does not name, limits above
// 100 and cursors that it did not give.
type registryServer struct {
	*httptest.Server
	mu       sync.Mutex
	entries  map[string]registered
	cursors  map[string]int
	requests []string
	circle   bool // the cursor never ends
	fails    bool
}

type registered struct {
	Server json.RawMessage
	Status string
	At     time.Time
}

func newRegistry(t *testing.T) *registryServer {
	r := &registryServer{entries: map[string]registered{}, cursors: map[string]int{}}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

func (r *registryServer) publish(name, description, version, status string, at time.Time, more string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries[name] = registered{
		json.RawMessage(fmt.Sprintf(`{"$schema":"x","name":%q,"description":%q,"version":%q%s}`, name, description,
			version, more)),
		status, at,
	}
}

func (r *registryServer) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = append(r.requests, q.URL.RequestURI())
	if r.fails {
		http.Error(w, "no", http.StatusBadGateway)
		return
	}
	if q.Method != http.MethodGet || q.URL.Path != "/v0.1/servers" {
		http.NotFound(w, q)
		return
	}
	begin, limit, since := 0, 30, time.Time{}
	for name, values := range q.URL.Query() {
		var err error
		switch value := values[0]; name {
		case "limit":
			limit, err = strconv.Atoi(value)
			if err == nil && (limit < 1 || limit > 100) {
				err = fmt.Errorf("limit %d", limit)
			}
		case "cursor":
			var ok bool
			if begin, ok = r.cursors[value]; !ok {
				err = fmt.Errorf("cursor %q is not one of mine", value)
			}
		case "updated_since":
			since, err = time.Parse(time.RFC3339, value)
		case "version":
			if value != "latest" {
				err = fmt.Errorf("version %q", value)
			}
		default:
			err = fmt.Errorf("parameter %q", name)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
			return
		}
	}
	type official struct {
		Status      string    `json:"status"`
		PublishedAt time.Time `json:"publishedAt"`
		UpdatedAt   time.Time `json:"updatedAt"`
		IsLatest    bool      `json:"isLatest"`
	}
	servers := []any{}
	names := slices.Sorted(maps.Keys(r.entries))
	i := begin
	for ; i < len(names) && len(servers) < limit; i++ {
		e := r.entries[names[i]]
		if e.At.Before(since) || since.IsZero() && e.Status == "deleted" {
			continue
		}
		servers = append(servers, map[string]any{
			"server": e.Server,
			"_meta":  map[string]any{"io.modelcontextprotocol.registry/official": official{e.Status, e.At, e.At, true}},
		})
	}
	metadata := map[string]any{"count": len(servers)}
	if i < len(names) || r.circle {
		cursor := fmt.Sprintf("opaque:%x", i)
		if r.circle {
			cursor = "opaque:again"
		}
		r.cursors[cursor] = i
		metadata["nextCursor"] = cursor
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(map[string]any{"servers": servers, "metadata": metadata})
}

func (r *registryServer) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.requests)
}

// clock is a time that a test moves.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) time() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) forward(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func only(bases ...string) packages.Search {
	return packages.Search{Registries: bases, NPM: packages.Off, PyPI: packages.Off, Crates: packages.Off}
}

func names(entries []Entry) (all []string) {
	for _, e := range entries {
		all = append(all, e.Name)
	}
	return all
}

func find(t *testing.T, c *Catalog, q Query) Results {
	t.Helper()
	r, err := c.Search(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var day = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// A listing of many pages is fetched once, searched from the disk, brought up to date
// by what has changed, and answers without its server with its age.
func TestARegistryIsSearchedFromItsListing(t *testing.T) {
	reg, now := newRegistry(t), &clock{now: day}
	for i := range 250 {
		reg.publish(fmt.Sprintf("io.github.user%d/weather-%d", i, i), "Forecasts", "1.0.0", "active", day, "")
	}
	reg.publish(
		"com.example/weather",
		"Forecasts of the example",
		"2.0.0",
		"active",
		day,
		`,"packages":[{"registryType":"npm","identifier":"@example/weather","version":"2.0.0","transport":{"type":"stdio"}}]`,
	)
	reg.publish("com.example/old-weather", "Forecasts", "1.0.0", "deprecated", day, "")
	reg.publish("com.example/gone-weather", "Forecasts", "1.0.0", "deleted", day, "")
	o := Options{Search: only(reg.URL), Folder: t.TempDir(), Now: now.time}
	r := find(t, New(o), Query{Word: "weather", Limit: 100})
	if len(r.Entries) != 100 || r.Entries[0].Name != "com.example/weather" ||
		r.Entries[0].Publisher != "domain example.com" ||
		slices.Contains(names(r.Entries), "com.example/gone-weather") {
		t.Errorf("found %d: %v", len(r.Entries), names(r.Entries)[:3])
	}
	if n := reg.count(); n != 3 {
		t.Errorf("%d requests", n)
	}
	if got := find(t, New(o), Query{Word: "example forecasts"}); len(got.Entries) != 1 && len(got.Entries) != 2 ||
		reg.count() != 3 {
		t.Errorf("found %v after %d requests", names(got.Entries), reg.count())
	}
	if got := find(t, New(o), Query{Word: "old-weather"}).Entries; len(got) != 1 || got[0].Status != "deprecated" {
		t.Errorf("got %+v", got)
	}

	// A day later only the changes are fetched.
	now.forward(25 * time.Hour)
	reg.publish("com.example/weather", "Forecasts of the example", "2.1.0", "active", now.time(), "")
	reg.publish("io.github.user7/weather-7", "Forecasts", "1.0.0", "deleted", now.time(), "")
	r = find(t, New(o), Query{Word: "weather", Limit: 100})
	if r.Entries[0].Version != "2.1.0" || slices.Contains(names(r.Entries), "io.github.user7/weather-7") {
		t.Errorf("got %+v", r.Entries[0])
	}
	last := reg.requests[3]
	if !strings.Contains(last, "updated_since=2026-03-01T12%3A00%3A00Z") {
		t.Errorf("asked %s", last)
	}

	// Without its server the listing answers, and says of when it is.
	reg.mu.Lock()
	reg.fails = true
	reg.mu.Unlock()
	at := now.time()
	now.forward(48 * time.Hour)
	r = find(t, New(o), Query{Word: "weather"})
	if s := r.Sources[0]; len(r.Entries) == 0 || !s.Offline || !s.At.Equal(at) || !strings.Contains(s.Error, "502") {
		t.Errorf("got %d, %+v", len(r.Entries), s)
	}
	tried := reg.count()
	r = find(t, New(o), Query{Word: "weather"})
	if s := r.Sources[0]; !s.Offline || reg.count() != tried {
		t.Errorf("it is asked again at once: %+v", s)
	}
	r = find(t, New(o), Query{Word: "weather", Offline: true})
	if s := r.Sources[0]; !s.Offline || len(r.Entries) == 0 || reg.count() != tried {
		t.Errorf("got %+v", s)
	}
}

// What a registry should not send ends the refresh, and leaves the other sources.
func TestABadRegistryIsReported(t *testing.T) {
	reg := newRegistry(t)
	reg.publish("com.example/weather", "x", "1", "active", day, "")
	reg.circle = true
	good := newRegistry(t)
	good.publish("com.example/good-weather", "x", "1", "active", day, "")
	junk := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		fmt.Fprint(
			w,
			`{"servers":[1,{"server":{"name":""}},{"server":{"name":"com.example/tall-weather","description":"a\u202eb\nc"}}]}`,
		)
	}))
	t.Cleanup(junk.Close)
	html := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
		q *http.Request) {
		fmt.Fprint(w, `<html>`)
	}))
	t.Cleanup(html.Close)
	r := find(t, New(Options{Search: only(reg.URL, good.URL, junk.URL, html.URL), Folder: t.TempDir()}),
		Query{Word: "weather"})
	if got := names(r.Entries); !slices.Equal(got, []string{"com.example/good-weather", "com.example/tall-weather"}) {
		t.Errorf("found %v", got)
	}
	for i, want := range []string{"circles", "", "", "JSON"} {
		if got := r.Sources[i].Error; want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("source %d: %q", i, got)
		}
	}
	if d := r.Entries[1].Description; strings.ContainsAny(d, "\u202e\n") {
		t.Errorf("described as %q", d)
	}
	if _, err := New(Options{}).Search(t.Context(), Query{Word: " "}); err == nil {
		t.Error("nothing was searched for")
	}
	if _, err := New(Options{}).Search(t.Context(), Query{Word: "x", Kinds: []string{"attic"}}); err == nil {
		t.Error("a source that is none")
	}
	r = find(t, New(Options{Search: only(html.URL), Folder: t.TempDir()}), Query{Word: "x", Offline: true})
	if !strings.Contains(r.Sources[0].Error, "no listing in the cache") {
		t.Errorf("got %+v", r.Sources)
	}
}

// A search of a listing with 3,000 servers takes at most 50 ms at the 95th percentile,
// from the disk each time. With GATEHOUSE_TEST_ALL, on a quiet machine, that is the
// bar; else a search that takes two seconds does something wrong.
func TestASearchOfThousandsIsFast(t *testing.T) {
	bar, rounds, searches := 2*time.Second, 1, 40
	if os.Getenv("GATEHOUSE_TEST_ALL") != "" {
		bar, rounds, searches = 50*time.Millisecond, 5, 200
	}
	reg := newRegistry(t)
	for i := range 3000 {
		reg.publish(
			fmt.Sprintf("io.github.org%d/server-%d", i%700, i),
			fmt.Sprintf("Reads and writes number %d of many things, and tells of them", i),
			"1.0.0",
			"active",
			day,
			fmt.Sprintf(`,"packages":[{"registryType":"npm","identifier":"@org/server-%d","version":"1.0.0",`+
				`"transport":{"type":"stdio"},"environmentVariables":[{"name":"API_KEY","isRequired":true,"isSecret":true,`+
				`"description":"A key for the service that this server talks to"}]}]`, i),
		)
	}
	o := Options{Search: only(reg.URL), Folder: t.TempDir(), Now: (&clock{now: day}).time}
	find(t, New(o), Query{Word: "server-1"})
	words := []string{"server-1", "things", "number 7", "nothing-like-it"}
	p95 := time.Hour
	for range rounds { // the machine may do other work meanwhile
		var took []time.Duration
		for i := range searches {
			begun := time.Now()
			r := find(t, New(o), Query{Word: words[i%4]})
			took = append(took, time.Since(begun))
			if r.Sources[0].Error != "" || i%4 != 3 && len(r.Entries) == 0 {
				t.Fatalf("found %+v", r)
			}
		}
		slices.Sort(took)
		t.Logf("p50 %v, p95 %v", took[len(took)/2], took[len(took)*95/100])
		if p95 = min(p95, took[len(took)*95/100]); p95 <= bar {
			break
		}
	}
	if p95 > bar {
		t.Errorf("p95 %v", p95)
	}
	if reg.count() != 30 {
		t.Errorf("%d requests", reg.count())
	}
}

// A listing that was cut by a crash or is not one is fetched again.
func TestADamagedListingIsFetchedAgain(t *testing.T) {
	reg := newRegistry(t)
	reg.publish("com.example/weather", "x", "1", "active", day, "")
	o := Options{Search: only(reg.URL), Folder: t.TempDir()}
	find(t, New(o), Query{Word: "weather"})
	files, err := filepath.Glob(filepath.Join(o.Folder, "registry-*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, text := range []string{"", "{", "\n"} {
		if err := os.WriteFile(files[0], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if r := find(t, New(o), Query{Word: "weather"}); len(r.Entries) != 1 {
			t.Errorf("%q: %+v", text, r)
		}
	}
}

// A search that is cancelled ends.
func TestASearchEndsWithItsContext(t *testing.T) {
	hangs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { <-q.Context().Done() }))
	t.Cleanup(hangs.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := New(Options{Search: only(hangs.URL)}).Search(ctx, Query{Word: "x"}); err == nil {
		t.Error("it went on")
	}
}
