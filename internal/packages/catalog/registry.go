package catalog

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"gatehouse/internal/files/atomicfile"
)

const (
	pageSize     = 100
	mostPages    = 1000
	mostEntries  = 100_000
	maxListing   = 256 << 20 // bytes of a cached listing
	longestEntry = 256 << 10 // bytes of one entry
	listingTime  = 5 * time.Minute

	defaultRefresh = 24 * time.Hour
	retryAfter     = 5 * time.Minute // between two tries to refresh a listing
)

// listing is the cached listing of a registry: the newest version of each server, by
// name. On disk it is one line with its header, and then one line for each server, with
// tabs between name, title, description, status and the entry as the registry sent it.
// A search looks at the first four and decodes only the entries that fit best.
type listing struct {
	head  header
	lines map[string][]byte // by name, without the line break
}

type header struct {
	Base    string    `json:"base"`
	At      time.Time `json:"at"`              // when it was complete and current
	Tried   time.Time `json:"tried,omitzero"`  // the last refresh
	Newest  time.Time `json:"newest,omitzero"` // the latest update of an entry
	Failure string    `json:"failure,omitempty"`
}

func (c *Catalog) cacheFile(base string) string {
	if c.opts.Folder == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(base))
	return filepath.Join(c.opts.Folder, "registry-"+hex.EncodeToString(sum[:8])+".cache")
}

// searchRegistry searches the cached listing of a registry, after refreshing it if it
// is old.
func (c *Catalog) searchRegistry(ctx context.Context, base string, q Query) (found []Entry, r Report, err error) {
	path := c.cacheFile(base)
	head, lines, err := searchFile(path, q)
	missing := err != nil
	stale := missing || c.now().Sub(head.At) > c.refreshAge()
	tried := !missing && c.now().Sub(head.Tried) < retryAfter
	if stale && !q.Offline && (!tried || missing) {
		fresh, refreshErr := c.refresh(ctx, base, path)
		switch {
		case refreshErr == nil:
			head, lines, err = fresh.head, searchLines(fresh.all(), q), nil
		case missing:
			return nil, r, refreshErr
		default:
			r.Offline, r.Error = true, clean(refreshErr.Error(), longestField)
		}
	}
	if err != nil {
		return nil, r, errors.New("there is no listing in the cache; search once without offline")
	}
	r.At, r.Offline = head.At, r.Offline || q.Offline || stale && tried
	for _, line := range lines {
		e, err := parseServer(line)
		if err != nil || e.Status == "deleted" || e.score(q.Word) == 0 {
			continue
		}
		found = append(found, e)
	}
	return rank(q.Word, [][]Entry{found}, mostResults), r, nil
}

func (c *Catalog) refreshAge() time.Duration {
	if c.opts.Refresh > 0 {
		return c.opts.Refresh
	}
	return defaultRefresh
}

// searchFile returns the entries of a cached listing that fit. It reads the file line
// by line and decodes nothing else.
func searchFile(path string, q Query) (h header, found [][]byte, err error) {
	if path == "" {
		return h, nil, os.ErrNotExist
	}
	f, err := os.Open(path)
	if err != nil {
		return h, nil, err
	}
	defer f.Close()
	in := bufio.NewScanner(f)
	in.Buffer(make([]byte, 64<<10), 2*longestEntry)
	if !in.Scan() {
		return h, nil, errors.Join(os.ErrNotExist, in.Err())
	}
	if err := json.Unmarshal(in.Bytes(), &h); err != nil {
		return h, nil, err
	}
	found = searchLines(func(yield func([]byte) bool) {
		for in.Scan() {
			if !yield(in.Bytes()) {
				return
			}
		}
	}, q)
	return h, found, in.Err()
}

// candidate is an entry that fits a query.
type candidate struct {
	score int
	entry []byte
}

// searchLines returns the entries that fit a query best, at most its limit.
func searchLines(lines func(func([]byte) bool), q Query) (found [][]byte) {
	var best []candidate
	byScore := func(a, b candidate) int { return cmp.Compare(b.score, a.score) }
	cut := func() {
		slices.SortStableFunc(best, byScore)
		best = best[:min(len(best), q.Limit)]
	}
	least := 0
	for line := range lines {
		fields := bytes.SplitN(line, []byte{'\t'}, 5)
		if len(fields) < 5 {
			continue
		}
		e := Entry{
			Name: string(fields[0]), Title: string(fields[1]), Description: string(fields[2]),
			Status: string(fields[3]),
		}
		n := e.score(q.Word)
		if n == 0 || n <= least {
			continue
		}
		best = append(best, candidate{n, bytes.Clone(fields[4])})
		if len(best) >= 4*q.Limit {
			cut()
			least = best[len(best)-1].score
		}
	}
	cut()
	for _, b := range best {
		found = append(found, b.entry)
	}
	return found
}

func (l *listing) all() func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for _, name := range slices.Sorted(maps.Keys(l.lines)) {
			if !yield(l.lines[name]) {
				return
			}
		}
	}
}

// refresh fetches what has changed in a registry since the cached listing, or all of it,
// and stores it.
func (c *Catalog) refresh(ctx context.Context, base, path string) (*listing, error) {
	c.refreshing.Lock()
	defer c.refreshing.Unlock()
	ctx, cancel := context.WithTimeout(ctx, listingTime)
	defer cancel()
	l, err := readListing(path)
	if err != nil || l.head.Base != base {
		l = &listing{lines: map[string][]byte{}}
	} else if c.now().Sub(l.head.At) <= c.refreshAge() {
		return l, nil // another search has just refreshed it
	}
	begun := c.now().UTC()
	l.head.Base, l.head.Tried, l.head.Failure = base, begun, ""
	if err := c.fetchListing(ctx, base, l); err != nil {
		if len(l.lines) > 0 && !l.head.At.IsZero() {
			err = errors.Join(err, c.noteFailure(path, base, begun))
		}
		return nil, err
	}
	l.head.At = begun
	if path == "" {
		return l, nil
	}
	return l, l.write(path)
}

// noteFailure stores that a refresh was tried, so that not every search waits for a
// registry that does not answer.
func (c *Catalog) noteFailure(path, base string, at time.Time) error {
	l, err := readListing(path)
	if err != nil || l.head.Base != base {
		return nil
	}
	l.head.Tried = at
	return l.write(path)
}

// fetchListing adds to a listing what a registry has, page by page.
func (c *Catalog) fetchListing(ctx context.Context, base string, l *listing) error {
	params := url.Values{"limit": {fmt.Sprint(pageSize)}, "version": {"latest"}}
	if len(l.lines) > 0 && !l.head.Newest.IsZero() {
		params.Set("updated_since", l.head.Newest.UTC().Format(time.RFC3339))
	}
	seen := map[string]bool{}
	for range mostPages {
		var page struct {
			Servers  []json.RawMessage `json:"servers"`
			Metadata struct {
				NextCursor string `json:"nextCursor"`
			} `json:"metadata"`
		}
		if err := c.get(ctx, joinURL(base, "/v0.1/servers?"+params.Encode()), &page); err != nil {
			return err
		}
		if page.Servers == nil {
			return errors.New("the answer of the registry has no servers")
		}
		for _, raw := range page.Servers {
			l.addEntry(raw)
		}
		if len(l.lines) > mostEntries {
			return fmt.Errorf("the registry has more than %d servers", mostEntries)
		}
		next := page.Metadata.NextCursor
		if next == "" {
			return nil
		}
		if seen[next] {
			return errors.New("the pages of the registry go round in circles")
		}
		seen[next] = true
		params.Set("cursor", next)
	}
	return fmt.Errorf("the registry has more than %d pages", mostPages)
}

// addEntry adds an entry, or removes a deleted one. An entry that is not understood is left
// out.
func (l *listing) addEntry(raw json.RawMessage) {
	e, err := parseServer(raw)
	if err != nil || len(raw) > longestEntry {
		return
	}
	if e.Updated.After(l.head.Newest) {
		l.head.Newest = e.Updated
	}
	if e.Status == "deleted" {
		delete(l.lines, e.Name)
		return
	}
	var line bytes.Buffer
	for _, field := range []string{e.Name, e.Title, e.Description, e.Status} {
		line.WriteString(field) // parseServer left no tabs in it
		line.WriteByte('\t')
	}
	if json.Compact(&line, raw) != nil {
		return
	}
	l.lines[e.Name] = line.Bytes()
}

func readListing(path string) (*listing, error) {
	if path == "" {
		return nil, os.ErrNotExist
	}
	b, err := atomicfile.Read(path, maxListing)
	if err != nil {
		return nil, err
	}
	first, rest, _ := bytes.Cut(b, []byte{'\n'})
	l := &listing{lines: map[string][]byte{}}
	if err := json.Unmarshal(first, &l.head); err != nil {
		return nil, err
	}
	for line := range bytes.Lines(rest) {
		line = bytes.TrimSuffix(line, []byte{'\n'})
		if name, _, ok := bytes.Cut(line, []byte{'\t'}); ok {
			l.lines[string(name)] = line
		}
	}
	return l, nil
}

func (l *listing) write(path string) error {
	head, err := json.Marshal(l.head)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	b.Write(append(head, '\n'))
	for line := range l.all() {
		b.Write(line)
		b.WriteByte('\n')
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(path, b.Bytes())
}

// Lookup returns one server of the registries of the settings by its exact name.
func (c *Catalog) Lookup(ctx context.Context, name string) (e Entry, err error) {
	q := Query{Word: name, Kinds: []string{Registry, Docker, Files}, Limit: mostResults}
	r, err := c.Search(ctx, q)
	if err != nil {
		return e, err
	}
	for _, e := range r.Entries {
		if e.Name == name {
			return e, nil
		}
	}
	var errs []error
	for _, s := range r.Sources {
		if s.Error != "" {
			errs = append(errs, fmt.Errorf("%s %s: %s", s.Kind, s.From, s.Error))
		}
	}
	return e, errors.Join(append([]error{fmt.Errorf("no source has a server %q", name)}, errs...)...)
}
