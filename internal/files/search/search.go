// Package search finds files by name and lines by content below a directory of an open root.
//
// The pattern is a regular expression of RE2 or a literal text. The search looks for text that each match must
// contain; an automaton over bytes then selects candidate lines, and Go's regular expressions decide. Binary files
// are skipped. Memory is limited by the query, whatever the number of files and matches.
package search

import (
	"cmp"
	"container/heap"
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"gatehouse/internal/files/symbols"
	"gatehouse/internal/files/walk"
)

// Mode is the kind of result.
type Mode uint8

const (
	Content Mode = iota // the lines that match, files with definitions first
	Files               // the files that contain a match, by path
	Count               // how many matching lines each file has, by path
	Names               // the files whose names match, by path
)

// Query is one search.
type Query struct {
	Mode    Mode
	Pattern *Pattern                     // of the content; unused for Names
	Tree    walk.Options                 // where
	Globs   walk.Globs                   // of files
	Only    func(path, name string) bool // nil for all
	Deny    Denier                       // files with a hit that are left out; nil for none
	Context int                          // lines shown before and after a hit
	PerFile int                          // hits kept of one file; 0 means 20
	Skip    int                          // hits of each file that are not kept, the first ones
	Until   int                          // the last hit of each file that is kept, by number; 0 for no such limit
	Limit   int                          // files kept; 0 means 100
	After   Key                          // files and hits up to this one are left out

	// Progress is called occasionally with the number of searched files; nil means that it is not called. It is
	// called from several goroutines.
	Progress func(files int64)
}

// A Denier reports whether a file must be left out of the result. It receives the open file and its path from the
// start of the walk.
type Denier func(f *os.File, path string) bool

// Key is a position in the order of results. The zero value is before all of them.
type Key struct {
	Rank int // 1 for files with a hit in a definition, 2 for the others
	Path string
	Line int // the last hit of that file that was returned; 0 for the file as a whole
}

func (k Key) compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Rank, o.Rank), strings.Compare(k.Path, o.Path))
}

// File is one file of a result.
type File struct {
	Path  string // from the start of the walk
	Rank  int
	ETag  string // of Content
	Hits  []Hit  // of Content
	Count int    // of matching lines
	More  bool   // there are more hits than were kept
}

// Result is the result of a search.
type Result struct {
	Files    []File // the first of those after the key, in order
	More     bool   // there are more files after these
	Matched  int64  // files in all
	Hits     int64  // matching lines in all
	Longer   bool   // some file has more hits than are kept of each
	Searched int64  // files that were searched
	Binary   int64  // files that were skipped as binary
	Large    int64  // files too large for a search across lines
	Failed   int64  // files that could not be read
	Denied   int64  // files with hits that were left out by Deny
	Tree     walk.Stats
}

// Run searches. If ctx is done first, it returns the cause and what was found until then.
func Run(ctx context.Context, q Query) (Result, error) {
	if q.PerFile <= 0 {
		q.PerFile = 20
	}
	if q.Limit <= 0 {
		q.Limit = 100
	}
	if q.Tree.Workers <= 0 {
		q.Tree.Workers = 2
	}
	r := &run{q: &q, ctx: ctx, scanners: make([]*scanner, q.Tree.Workers)}
	visit := r.searchEntries
	if q.Mode == Names {
		visit = r.matchName
	}
	stats, err := walk.Walk(ctx, q.Tree, visit)
	return r.result(stats), err
}

type run struct {
	q *Query
	// ctx is the context of one search. It is a field because a run is one search.
	ctx      context.Context
	scanners []*scanner // by worker

	searched, binary, large, failed, denied, matched, hits atomic.Int64
	more                                                   atomic.Bool // a file has more hits than are kept of it

	mu    sync.Mutex
	kept  lastFirst
	spare bool // files were left out because there were too many
}

// matchName selects files by name.
func (r *run) matchName(_ int, d *walk.Dir, entries []walk.Entry) {
	for _, e := range entries {
		if e.IsDir() || !r.chosen(d, e.Name) {
			continue
		}
		r.matched.Add(1)
		if f := (File{Path: d.Join(e.Name)}); r.wants(&f) {
			r.addFile(f)
		}
	}
	r.reportProgress(int64(len(entries)))
}

func (r *run) chosen(d *walk.Dir, name string) bool {
	q := r.q
	if q.Globs.Any() && q.Only == nil {
		return true
	}
	path := d.Join(name)
	return q.Globs.Match(path, name) && (q.Only == nil || q.Only(path, name))
}

// searchEntries searches the files among the entries.
func (r *run) searchEntries(worker int, d *walk.Dir, entries []walk.Entry) {
	s := r.scanners[worker]
	if s == nil {
		s = r.scanner()
		r.scanners[worker] = s
	}
	n := int64(0)
	for _, e := range entries {
		if e.Type.IsRegular() && r.chosen(d, e.Name) {
			r.file(s, d, e.Name)
			n++
			if r.ctx.Err() != nil {
				break
			}
		}
	}
	r.reportProgress(n)
}

func (r *run) scanner() *scanner {
	s := &scanner{m: r.q.Pattern.matcher(), context: r.q.Context}
	switch r.q.Mode {
	case Files:
		s.only1 = true
	case Content:
		s.most, s.defines, s.skip, s.until = r.q.PerFile, symbols.Defines, r.q.Skip, r.q.Until
	}
	return s
}

// progressEvery is the number of files between two reports of progress.
const progressEvery = 512

func (r *run) reportProgress(n int64) {
	if now := r.searched.Add(n); r.q.Progress != nil && now/progressEvery != (now-n)/progressEvery {
		r.q.Progress(now)
	}
}

func (r *run) file(s *scanner, d *walk.Dir, name string) {
	f, err := d.Open(name)
	if err != nil {
		r.failed.Add(1)
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return // a file of size 0 may be generated by the system, and reading it may block
	}
	s.after = 0
	if r.q.After.Line > 0 && d.Join(name) == r.q.After.Path {
		s.after = r.q.After.Line
	}
	got, err := s.scan(r.ctx, f, info.Size())
	switch {
	case err != nil:
		r.failed.Add(1)
		return
	case got.binary:
		r.binary.Add(1)
		return
	case got.large:
		r.large.Add(1)
		return
	case got.count == 0:
		return
	}
	file := File{Path: d.Join(name), Count: got.count, Hits: got.hits, More: got.more, Rank: r.rank(got.defined)}
	if r.q.Deny != nil && r.q.Deny(f, file.Path) {
		r.denied.Add(1)
		return
	}
	r.matched.Add(1)
	r.hits.Add(int64(got.count))
	if got.more {
		r.more.Store(true)
	}
	if r.q.Mode == Content && len(file.Hits) == 0 || !r.wants(&file) {
		return // there are no more hits
	}
	if r.q.Mode == Content {
		file.ETag, err = s.etag(f, info)
		if err != nil {
			r.failed.Add(1)
		}
	}
	r.addFile(file)
}

func (r *run) rank(defined bool) int {
	switch {
	case r.q.Mode != Content:
		return 0
	case defined:
		return 1
	}
	return 2
}

// wants reports whether a file is among the first ones after the key, as far as is known. It drops the hits up to
// the key.
func (r *run) wants(f *File) bool {
	if c := f.key().compare(r.q.After); c < 0 || c == 0 && !f.skipTo(r.q.After.Line) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.kept) < r.q.Limit || f.key().compare(r.kept[0].key()) < 0 {
		return true
	}
	r.spare = true
	return false
}

func (r *run) addFile(f File) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.kept) < r.q.Limit {
		heap.Push(&r.kept, f)
		return
	}
	r.spare = true
	if f.key().compare(r.kept[0].key()) < 0 {
		r.kept[0] = f
		heap.Fix(&r.kept, 0)
	}
}

// skipTo drops the hits up to a line, and reports whether any are left.
func (f *File) skipTo(line int) bool {
	i := slices.IndexFunc(f.Hits, func(h Hit) bool { return h.Line > line })
	if line == 0 || i < 0 {
		return false
	}
	f.Hits = f.Hits[i:]
	return true
}

func (f *File) key() Key { return Key{Rank: f.Rank, Path: f.Path} }

func (r *run) result(stats walk.Stats) Result {
	slices.SortFunc(r.kept, func(a, b File) int { return a.key().compare(b.key()) })
	return Result{
		Files: r.kept, More: r.spare, Matched: r.matched.Load(), Hits: r.hits.Load(), Searched: r.searched.Load(),
		Binary: r.binary.Load(), Large: r.large.Load(), Failed: r.failed.Load(),
		Denied: r.denied.Load(), Longer: r.more.Load(), Tree: stats,
	}
}

// lastFirst is a heap whose top is the file that is dropped first.
type lastFirst []File

func (h lastFirst) Len() int           { return len(h) }
func (h lastFirst) Less(i, j int) bool { return h[i].key().compare(h[j].key()) > 0 }
func (h lastFirst) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *lastFirst) Push(x any)        { *h = append(*h, x.(File)) }
func (h *lastFirst) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}
