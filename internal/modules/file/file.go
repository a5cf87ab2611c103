// Package file reads, searches and changes files inside the roots of a call,
// and takes changes back.
//
// Reading gives pages that end on a line and never holds more than a page in
// memory. Writing is atomic: a reader, a crash or kill -9 finds the old file
// or the new one. Only regular files are opened.
package file

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gatehouse/internal/files/filewatch"
	"gatehouse/internal/files/roots"
	"gatehouse/module"
	"gatehouse/tool"
)

// files is the module. It holds the locks that let one change at a time happen
// to a file, and what is needed to take changes back.
type files struct {
	offer      module.Offer
	changes    locks
	writer     roots.Writer
	undo       undo
	trash      trash
	watcher    *filewatch.Watcher
	editMost   int64         // bytes of the largest file that is edited
	copyMost   int64         // likewise copied, or added to
	converting chan struct{} // holds a token for each document that is being converted
}

// New makes the module; Config says what can be configured.
func New(cfg Config) module.New {
	return func(_ context.Context, d module.Deps) (module.Module, error) {
		m := &files{converting: make(chan struct{}, 1)}
		m.offer.Tools = []tool.Tool{
			m.readTool(), m.writeTool(), m.editTool(), m.deleteTool(), m.renameTool(), m.copyTool(), m.statTool(), m.existsTool(),
			m.undoTool(), m.searchTool(),
		}
		m.offer.Templates = []module.Resource{m.resource()}
		m.watcher = filewatch.New(d.Log)
		return m, m.configure(cfg, d)
	}
}

// Offer implements module.Module.
func (m *files) Offer(context.Context, module.Audience) (*module.Offer, error) { return &m.offer, nil }

// EndOwned implements module.Owned: it forgets the changes that file_undo could
// take back. They are of this host's time, and have no time of their own.
func (m *files) EndOwned(_ context.Context, match func(owner string, made time.Time) bool) (ended []string) {
	u := &m.undo
	u.mu.Lock()
	for owner, all := range u.of {
		if match(owner, time.Time{}) {
			ended = append(ended, fmt.Sprintf("undo of %d changes of files", len(all)))
			u.forget(owner, func(*change) bool { return true })
		}
	}
	u.mu.Unlock()
	u.clear()
	return ended
}

// Close implements module.Module.
func (m *files) Close(context.Context) error {
	return errors.Join(m.watcher.Close(), m.trash.close())
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
