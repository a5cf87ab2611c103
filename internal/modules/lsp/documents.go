package lsp

import (
	"context"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/internal/files/language"
	"gatehouse/internal/files/merged"
	"gatehouse/internal/files/walk"
)

const (
	mostOpen    = 64     // documents that a server has open
	mostChanged = 32     // of them, files that a task has changed and that the disk does not have so
	mostWatched = 50_000 // files of a root whose changes a server learns of
)

// documents are the files that a server has open, and the state in which it knows the others. It is safe for
// concurrent use.
type documents struct {
	mu      sync.Mutex
	open    map[string]*document // by URI
	known   map[string]stamp     // files below the root, by path
	stale   atomic.Bool          // something below the root changed
	unwatch func()
	clock   int
}

type document struct {
	version int
	content string
	used    int
}

type stamp struct {
	size int64
	time time.Time
}

// sync gives the server the content of a file, and tells it which other files changed. It returns the version of the
// file's document.
func (s *server) sync(
	ctx context.Context, in *view, path, content string,
) (version int, changed bool, err error) {
	d := &s.documents
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := s.syncOthers(ctx, in); err != nil {
		return 0, false, err
	}
	if in != nil && in.layer != nil {
		if err := s.openChanged(ctx, in.layer); err != nil {
			return 0, false, err
		}
	}
	return s.openDocument(ctx, path, content)
}

// openChanged gives the server the files that a task has changed in a layer that no program sees. The server still sees
// on the disk those that the task has deleted. d.mu is held.
func (s *server) openChanged(ctx context.Context, layer *merged.Layer) error {
	var mu sync.Mutex
	names := map[string]string{} // by path
	_, err := walk.Walk(ctx, walk.Options{Root: layer.Upper()}, func(_ int, dir *walk.Dir, entries []walk.Entry) {
		for _, e := range entries {
			name := filepath.FromSlash(dir.Join(e.Name))
			path := filepath.Join(layer.Path(), name)
			if rel, err := filepath.Rel(s.root, path); e.Type&fs.ModeType != 0 || err != nil || !filepath.IsLocal(rel) ||
				!slices.Contains(s.kind.ids, language.ByName(e.Name)) {
				continue
			}
			mu.Lock()
			names[path] = name
			mu.Unlock()
		}
	})
	if err != nil {
		return err
	}
	for i, path := range slices.Sorted(maps.Keys(names)) {
		if i == mostChanged {
			break
		}
		info, err := layer.Upper().Lstat(names[path])
		if err != nil || info.Size() > maxFile {
			continue // deleted meanwhile, or too large
		}
		content, err := layer.Upper().ReadFile(names[path])
		if err != nil {
			continue
		}
		if _, _, err := s.openDocument(ctx, path, string(content)); err != nil {
			return err
		}
	}
	return nil
}

// openDocument gives the server the content of a file. d.mu is held.
func (s *server) openDocument(ctx context.Context, path, content string) (version int, changed bool, err error) {
	d := &s.documents
	d.clock++
	uri := uriOf(path)
	doc := d.open[uri]
	switch {
	case doc == nil:
		if err := s.closeOldest(ctx); err != nil {
			return 0, false, err
		}
		doc = &document{version: 1, content: content}
		err = s.conn.Notify(ctx, "textDocument/didOpen", map[string]any{"textDocument": map[string]any{
			"uri": uri, "languageId": languageID(path), "version": doc.version, "text": content,
		}})
		changed = true
	case doc.content != content:
		doc.version++
		doc.content = content
		err = s.conn.Notify(ctx, "textDocument/didChange", map[string]any{
			"textDocument":   map[string]any{"uri": uri, "version": doc.version},
			"contentChanges": []any{map[string]any{"text": content}},
		})
		changed = true
	}
	if err != nil {
		return 0, false, s.failed(err)
	}
	doc.used = d.clock
	if d.open == nil {
		d.open = map[string]*document{}
	}
	d.open[uri] = doc
	return doc.version, changed, nil
}

func (s *server) closeOldest(ctx context.Context) error {
	d := &s.documents
	if len(d.open) < mostOpen {
		return nil
	}
	oldest := ""
	for uri, doc := range d.open {
		if oldest == "" || doc.used < d.open[oldest].used {
			oldest = uri
		}
	}
	delete(d.open, oldest)
	return s.failed(
		s.conn.Notify(ctx, "textDocument/didClose", map[string]any{"textDocument": textDocument{URI: oldest}}),
	)
}

// syncOthers tells the server which files below its root were made, changed or removed since it learned of them.
// d.mu is held.
func (s *server) syncOthers(ctx context.Context, in *view) error {
	d := &s.documents
	root := (*os.Root)(nil)
	if in != nil && in.layer == nil {
		root = in.root
		d.stale.Store(true) // the view cannot be watched from here
	} else if d.unwatch == nil {
		d.stale.Store(true)
		stop, err := s.pool.watcher.Watch(s.root, func() { d.stale.Store(true) })
		if err != nil { // then every call looks for itself
			stop = func() {}
			d.stale.Store(true)
		}
		d.unwatch = func() { stop() }
		context.AfterFunc(s.pool.ctx, stop)
		s.pool.wg.Go(func() { <-s.child.Done(); stop() })
	}
	if !d.stale.Swap(false) {
		return nil
	}
	if root == nil {
		var err error
		if root, err = os.OpenRoot(s.root); err != nil {
			d.stale.Store(true)
			return err
		}
		defer root.Close()
	}
	now, err := s.stamps(ctx, root)
	if err != nil {
		d.stale.Store(true)
		return err
	}
	first := d.known == nil
	var events []any
	event := func(path string, kind int) {
		events = append(events, map[string]any{"uri": uriOf(path), "type": kind})
	}
	for path, at := range now {
		if was, ok := d.known[path]; !ok {
			event(path, 1)
		} else if was != at {
			event(path, 2)
		}
	}
	for path := range d.known {
		if _, ok := now[path]; !ok {
			event(path, 3)
		}
	}
	d.known = now
	if first || len(events) == 0 { // it reads the files when it starts
		return nil
	}
	for uri := range d.open { // of a document that is open the server knows the content from us alone
		if path := pathOf(uri); path != "" {
			rel, err := filepath.Rel(s.root, path)
			if err != nil {
				continue
			}
			b, err := root.ReadFile(rel)
			doc := d.open[uri]
			if err != nil || string(b) == doc.content {
				continue
			}
			delete(d.open, uri)
			if err := s.conn.Notify(ctx, "textDocument/didClose",
				map[string]any{"textDocument": textDocument{URI: uri}}); err != nil {
				return s.failed(err)
			}
		}
	}
	return s.failed(s.conn.Notify(ctx, "workspace/didChangeWatchedFiles", map[string]any{"changes": events}))
}

// stamps returns the sizes and times of the files that the server watches.
func (s *server) stamps(ctx context.Context, root *os.Root) (map[string]stamp, error) {
	all := map[string]stamp{}
	var mu sync.Mutex
	_, err := walk.Walk(ctx, walk.Options{Root: root}, func(_ int, dir *walk.Dir, entries []walk.Entry) {
		for _, e := range entries {
			if e.Type&fs.ModeType != 0 || !s.kind.watches(e.Name) {
				continue
			}
			info, err := e.Info()
			if err != nil {
				continue
			}
			path := filepath.Join(s.root, filepath.FromSlash(dir.Join(e.Name)))
			mu.Lock()
			if len(all) < mostWatched {
				all[path] = stamp{info.Size(), info.ModTime()}
			}
			mu.Unlock()
		}
	})
	return all, err
}

// published are the diagnostics that the server sent without being asked. It is safe for concurrent use.
type published struct {
	mu      sync.Mutex
	byURI   map[string]*publication
	changed chan struct{} // closed at the next publication
}

type publication struct {
	URI         string       `json:"uri"`
	Version     *int         `json:"version"`
	Diagnostics []diagnostic `json:"diagnostics"`
	count       int          // publications for this URI
}

func (p *published) recordDiagnostics(params json.RawMessage) {
	var one publication
	if json.Unmarshal(params, &one) != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byURI == nil {
		p.byURI = map[string]*publication{}
	}
	path := pathOf(one.URI) // servers differ in what they escape
	if was := p.byURI[path]; was != nil {
		one.count = was.count
	} else if len(p.byURI) >= mostWatched {
		return
	}
	one.count++
	p.byURI[path] = &one
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// latest returns what was published for a file, and a channel that is closed at the next publication.
func (p *published) latest(path string) (publication, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	if one := p.byURI[path]; one != nil {
		return *one, p.changed
	}
	return publication{}, p.changed
}
