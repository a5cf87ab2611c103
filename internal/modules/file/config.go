package file

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"gatehouse/internal/files/roots"
	"gatehouse/module"
	"gatehouse/tool"
)

// Config is the module's configuration. The zero value selects the defaults.
type Config struct {
	Settings

	// Protect replaces the list of protected names, see roots.NewGuard. nil
	// keeps the list of the roots; an empty list protects no name.
	Protect []string
	// Trash is the folder that keeps deleted directories for undo. "" means that
	// they are not kept, so that a program that embeds the module writes to
	// nothing outside of the roots.
	Trash string
	// Journal is the folder, private to the host, with which a change of several files that a killed host left half
	// done is undone. "" means that such a change is left as it is.
	Journal string
	// Unsaved returns the text of a file, by its absolute path, that an editor has not saved, and which editor that is;
	// text is nil if the editor says only that there is one. nil means that editors are not known.
	Unsaved func(ctx context.Context, c *tool.Call, path string) (text *string, from string, known bool)
}

// configure applies the configuration to the module.
func (m *files) configure(cfg Config, d module.Deps) error {
	m.trash.dir = cfg.Trash
	m.unsaved = cfg.Unsaved
	m.journals = journals{dir: cfg.Journal, log: d.Log}
	if m.journals.log == nil {
		m.journals.log = slog.New(slog.DiscardHandler)
	}
	m.maxEdit, m.maxCopy = cmp.Or(cfg.MaxEdit, defaultMaxEdit), cmp.Or(cfg.MaxCopy, defaultMaxCopy)
	m.undo.removeTrash, m.undo.enabled = m.trash.removeItem, !d.OneCall
	if cfg.Protect == nil {
		return nil
	}
	guard, err := roots.NewGuard(cfg.Protect)
	if err != nil {
		return fmt.Errorf("module file: %w", err)
	}
	for i := range m.offer.Tools {
		m.offer.Tools[i].Run = withGuard(m.offer.Tools[i].Run, guard)
	}
	for i := range m.offer.Templates {
		t := &m.offer.Templates[i]
		t.Read, t.Complete = withGuard(t.Read, guard), withGuard(t.Complete, guard)
	}
	return nil
}

// locks serialise changes by base name, because two spellings of one path,
// through links to its directory or through another root, end in the same
// name. Two files may share a lock; then one change waits a few milliseconds
// for the other.
type locks [256]sync.Mutex

// lock acquires the locks of places and returns the function that releases
// them. The links in the names of places must be resolved.
func (l *locks) lock(places ...roots.Place) (unlock func()) {
	var held []uint32
	for _, p := range places {
		h := fnv.New32a()
		h.Write([]byte(strings.ToLower(filepath.Base(p.Name)))) // a file system may ignore case
		held = append(held, h.Sum32()%uint32(len(l)))
	}
	slices.Sort(held) // one order for all callers, so that two of them cannot deadlock
	held = slices.Compact(held)
	for _, i := range held {
		l[i].Lock()
	}
	return func() {
		for _, i := range held {
			l[i].Unlock()
		}
	}
}

// guardedRoots is the set of roots of a call with the guard replaced.
type guardedRoots struct {
	tool.Roots
	guard *roots.Guard
}

func (g guardedRoots) Guard() *roots.Guard { return g.guard }

// Unguarded returns the roots with the guard that they had.
func (g guardedRoots) Unguarded() tool.Roots { return g.Roots }

// Above returns the root that contains root. Package roots calls it for a set
// of roots that may be a part of another set.
func (g guardedRoots) Above(root *os.Root) string {
	if s, ok := g.Roots.(interface{ Above(*os.Root) string }); ok {
		return s.Above(root)
	}
	return ""
}

func withGuard(run tool.Handler, guard *roots.Guard) tool.Handler {
	return func(ctx context.Context, c *tool.Call) (tool.Result, error) {
		own := *c
		own.Roots = guardedRoots{c.Roots, guard}
		return run(ctx, &own)
	}
}
