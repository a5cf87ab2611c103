// Package file reads, writes, edits, deletes and renames files inside the
// roots of a call.
//
// Reading gives pages that end on a line and never holds more than a page in
// memory. Writing is atomic: a reader, a crash or kill -9 finds the old file
// or the new one. Only regular files are opened.
package file

import (
	"context"
	"fmt"
	"hash/fnv"
	"path/filepath"
	"strings"
	"sync"

	"gatehouse/internal/roots"
	"gatehouse/module"
	"gatehouse/tool"
)

// files is the module. It holds no state but the locks that let one change at
// a time happen to a file.
type files struct {
	offer      module.Offer
	changes    locks
	converting chan struct{} // holds a token for each document that is being converted
}

// New makes the module. It takes no configuration.
func New(_ context.Context, _ module.Deps) (module.Module, error) {
	m := &files{converting: make(chan struct{}, 2)}
	m.offer.Tools = []tool.Tool{
		m.readTool(), m.writeTool(), m.editTool(), m.deleteTool(), m.renameTool(), m.existsTool(),
		m.searchTool(),
	}
	return m, nil
}

// Offer implements module.Module.
func (m *files) Offer(context.Context, module.Audience) (*module.Offer, error) { return &m.offer, nil }

// Close implements module.Module.
func (m *files) Close(context.Context) error { return nil }

// locks serialise changes by base name: two spellings of one path, through
// links to its directory or through another root, end in the same name. Two
// files may share a lock; then one waits for the other's few milliseconds.
type locks [256]sync.Mutex

// lock waits for the file at p, whose name must have been followed.
func (l *locks) lock(p roots.Place) (unlock func()) {
	h := fnv.New32a()
	h.Write([]byte(strings.ToLower(filepath.Base(p.Name)))) // one file on a file system that ignores case
	m := &l[h.Sum32()%uint32(len(l))]
	m.Lock()
	return m.Unlock
}

// findFile looks up a path that has to be a file's.
func findFile(c *tool.Call, path string) (roots.Place, error) {
	p, err := roots.Find(c.Roots, path)
	if err != nil {
		return p, err
	}
	if p.NamesDir() {
		return p, &tool.Refusal{Code: "is_a_directory", Message: path + " names a directory", Next: "Give the path of a file, without a slash at its end."}
	}
	return p, nil
}

// commas writes a number of bytes for people.
func commas(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
