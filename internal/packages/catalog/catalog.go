// Package catalog finds MCP servers that can be installed: in registries of the
// Model Context Protocol, Docker's catalogue files, folders of server.json, npm, PyPI
// and Rust's crates.
//
// What a source says is not trusted: sizes, pages and texts are limited, and nothing
// is installed without a user's yes. The listing of a registry is kept on disk, so
// that a search is fast and works offline; a result from there says its age. The
// module packages and the command line import it. Begin with Catalog.
package catalog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/packages"
)

// Kinds of sources.
const (
	Registry = "registry" // the API of the official registry, v0.1
	Docker   = "docker"   // a catalogue file of Docker's MCP toolkit
	Files    = "files"    // a folder of server.json
	NPM      = "npm"
	PyPI     = "pypi"
	Crates   = "crates"
)

// Kinds returns all kinds of sources, in the order in which their results are listed.
func Kinds() []string { return []string{Registry, Docker, Files, NPM, PyPI, Crates} }

const (
	defaultLimit = 20
	mostResults  = 100
	longestWord  = 200
)

// Options configure a Catalog.
type Options struct {
	packages.Search        // the sources
	Folder          string // of the cache; "" keeps none
	Version         string // of this program, for servers that ask who asks
	Log             *slog.Logger

	Client *http.Client     // nil means one of its own
	Now    func() time.Time // nil means time.Now
	// NPMRegistry returns the address of npm's registry; nil asks npm.
	NPMRegistry func(context.Context) (string, error)
}

// Catalog searches sources. It is safe for concurrent use.
type Catalog struct {
	opts Options
	http *http.Client
	log  *slog.Logger
	now  func() time.Time

	refreshing sync.Mutex // held while a listing is fetched
	npm        func(context.Context) (string, error)
}

// New makes a catalog. It opens nothing.
func New(o Options) *Catalog {
	c := &Catalog{opts: o, http: o.Client, log: o.Log, now: o.Now, npm: o.NPMRegistry}
	if c.http == nil {
		c.http = &http.Client{Timeout: requestTimeout}
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if c.now == nil {
		c.now = time.Now
	}
	if c.npm == nil {
		c.npm = askNPM
	}
	return c
}

// Query is what to search for.
type Query struct {
	Word    string
	Limit   int      // 0 means 20
	Kinds   []string // of sources; nil means all
	Offline bool     // ask no server
}

// Results are what the sources found.
type Results struct {
	Entries []Entry  `json:"entries"`
	Sources []Report `json:"sources"`
}

// Report says how one source answered.
type Report struct {
	Kind  string `json:"kind"`
	From  string `json:"from"`
	Found int    `json:"found"`
	// the answer is from the cache, because the source was not asked or did not answer
	Offline bool      `json:"offline,omitempty"`
	At      time.Time `json:"at,omitzero"` // when the cache was filled
	Error   string    `json:"error,omitempty"`
	Note    string    `json:"note,omitempty"` // what the source could not be asked, although it did answer
}

// source is one place to search.
type source struct {
	kind, from string
	search     func(context.Context, Query) ([]Entry, Report, error)
}

// ErrNoWord is the error of a search for nothing.
var ErrNoWord = errors.New("the word to search for is missing")

// Search asks all sources at once. A source that fails is in the reports; the error is
// for a query that cannot be.
func (c *Catalog) Search(ctx context.Context, q Query) (r Results, err error) {
	q.Word = strings.TrimSpace(q.Word)
	switch {
	case q.Word == "":
		return r, ErrNoWord
	case len(q.Word) > longestWord:
		return r, fmt.Errorf("the word to search for is longer than %d bytes", longestWord)
	}
	for _, k := range q.Kinds {
		if !slices.Contains(Kinds(), k) {
			return r, fmt.Errorf("source %q: expected some of %s", k, strings.Join(Kinds(), ", "))
		}
	}
	q.Limit = min(cmp.Or(q.Limit, defaultLimit), mostResults)
	sources := c.sources(q.Kinds)
	found := make([][]Entry, len(sources))
	r.Sources = make([]Report, len(sources))
	var running sync.WaitGroup
	for i, s := range sources {
		running.Go(func() {
			entries, report, err := s.search(ctx, q)
			report.Kind, report.From = s.kind, s.from
			if err != nil {
				report.Error = clean(err.Error(), 300)
			}
			for j := range entries {
				entries[j].Kind, entries[j].From = s.kind, s.from
			}
			report.Found = len(entries)
			found[i], r.Sources[i] = entries, report
		})
	}
	running.Wait()
	if ctx.Err() != nil {
		return r, context.Cause(ctx)
	}
	r.Entries = rank(q.Word, found, q.Limit)
	return r, nil
}

// rank joins the results of all sources: the best fit first, then by downloads, then in
// the order of the sources. The same package from two sources is listed once.
func rank(word string, found [][]Entry, limit int) []Entry {
	all := []Entry{}
	seen := map[string]bool{}
	for _, entries := range found {
		for _, e := range entries {
			key := e.identity()
			if seen[key] {
				continue
			}
			seen[key] = true
			all = append(all, e)
		}
	}
	slices.SortStableFunc(all, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(b.score(word), a.score(word)), cmp.Compare(b.Downloads, a.Downloads))
	})
	return all[:min(len(all), limit)]
}

// sources returns the sources of the settings that have one of some kinds.
func (c *Catalog) sources(kinds []string) (all []source) {
	add := func(kind, from string, search func(context.Context, Query) ([]Entry, Report, error)) {
		if from != packages.Off && (len(kinds) == 0 || slices.Contains(kinds, kind)) {
			all = append(all, source{kind, from, search})
		}
	}
	o := c.opts.Search
	registries := o.Registries
	if len(registries) == 0 {
		registries = []string{packages.PublicRegistry}
	}
	for _, base := range registries {
		add(Registry, base,
			func(ctx context.Context, q Query) ([]Entry, Report, error) { return c.searchRegistry(ctx, base, q) })
	}
	for _, file := range o.Docker {
		add(Docker, file,
			func(ctx context.Context, q Query) ([]Entry, Report, error) { return c.searchDocker(ctx, file, q) })
	}
	for _, dir := range o.Folders {
		add(Files, dir, func(_ context.Context, q Query) ([]Entry, Report, error) { return c.searchFiles(dir, q) })
	}
	add(NPM, cmp.Or(o.NPM, "npm"), c.searchNPM)
	add(PyPI, cmp.Or(o.PyPI, packages.PublicPyPI), c.searchPyPI)
	add(Crates, cmp.Or(o.Crates, packages.PublicCrates), c.searchCrates)
	return all
}
