package file

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"gatehouse/internal/files/roots"
	"gatehouse/module"
	"gatehouse/tool"
)

// Config is the module's section of the configuration. The zero value is
// fine.
type Config struct {
	// Protect replaces the list of names that these tools stay away from, see
	// roots.NewGuard; nil leaves it to the folders, an empty list protects none.
	Protect []string
	// Trash is the folder where deleted directories are kept for undo; ""
	// keeps none.
	Trash string
	// MaxEdit is the largest file that is edited, before and after, in bytes;
	// MaxCopy the largest that is copied or added to. 0 means the defaults.
	MaxEdit int64
	MaxCopy int64
}

// configure prepares what changes need.
func (m *files) configure(cfg Config, d module.Deps) error {
	m.trash.dir = cfg.Trash
	m.editMost, m.copyMost = cmp.Or(cfg.MaxEdit, editMost), cmp.Or(cfg.MaxCopy, copyMost)
	m.undo.drop, m.undo.lasts = m.trash.drop, !d.OneCall
	if cfg.Protect == nil {
		return nil
	}
	guard, err := roots.NewGuard(cfg.Protect)
	if err != nil {
		return fmt.Errorf("module file: %w", err)
	}
	for i := range m.offer.Tools {
		m.offer.Tools[i].Run = guarded(m.offer.Tools[i].Run, guard)
	}
	for i := range m.offer.Templates {
		t := &m.offer.Templates[i]
		t.Read, t.Complete = guarded(t.Read, guard), guarded(t.Complete, guard)
	}
	return nil
}

// locks serialise changes by base name: two spellings of one path, through
// links to its directory or through another root, end in the same name. Two
// files may share a lock; then one waits for the other's few milliseconds.
type locks [256]sync.Mutex

// lock waits for the files at places, whose names must have been followed.
func (l *locks) lock(places ...roots.Place) (unlock func()) {
	var held []uint32
	for _, p := range places {
		h := fnv.New32a()
		h.Write([]byte(strings.ToLower(filepath.Base(p.Name)))) // one file on a file system that ignores case
		held = append(held, h.Sum32()%uint32(len(l)))
	}
	slices.Sort(held) // whoever takes two takes them in this order
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

// guardedRoots are the roots of a call with another guard.
type guardedRoots struct {
	tool.Roots
	guard *roots.Guard
}

func (g guardedRoots) Guard() *roots.Guard { return g.guard }

// Above implements what roots asks of a set that may be a part of another.
func (g guardedRoots) Above(root *os.Root) string {
	if s, ok := g.Roots.(interface{ Above(*os.Root) string }); ok {
		return s.Above(root)
	}
	return ""
}

func guarded(run tool.Handler, guard *roots.Guard) tool.Handler {
	return func(ctx context.Context, c *tool.Call) (tool.Result, error) {
		own := *c
		own.Roots = guardedRoots{c.Roots, guard}
		return run(ctx, &own)
	}
}
