// Package file is the module that reads, searches and changes files inside the
// roots of a call. It can also undo its changes.
//
// Reading returns pages that end at the end of a line and holds no more than a
// page in memory. Writing is atomic: a reader finds the old file or the new
// one, also after a crash or kill -9. The module opens regular files only,
// because opening a pipe or a device may block or have effects.
package file

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"gatehouse/internal/files/filewatch"
	"gatehouse/internal/files/roots"
	"gatehouse/module"
	"gatehouse/tool"
)

// files is the module. It holds the locks that serialise the changes of a file,
// and the data that undo needs.
type files struct {
	offer    module.Offer
	changes  locks
	writer   roots.Writer
	undo     undo
	trash    trash
	journals journals
	watcher  *filewatch.Watcher
	maxEdit  int64 // bytes of the largest file that can be edited
	maxCopy  int64 // bytes of the largest file that can be copied or appended to
	// callTool runs another tool of the caller's view; nil without a host.
	callTool func(context.Context, *tool.Call, string, json.RawMessage) (tool.Result, error)
	// unsaved is Config.Unsaved.
	unsaved func(ctx context.Context, c *tool.Call, path string) (text *string, from string, known bool)
}

// New returns what makes the module with a configuration.
func New(cfg Config) module.New {
	return func(ctx context.Context, d module.Deps) (module.Module, error) {
		m := &files{callTool: d.Call}
		m.offer.Tools = []tool.Tool{
			m.readTool(), m.writeTool(), m.editTool(), m.deleteTool(), m.renameTool(), m.copyTool(), m.statTool(),
			m.existsTool(),
			m.undoTool(), m.searchTool(), m.editAllTool(),
		}
		tool.Stage(m.offer.Tools)
		m.offer.Templates = []module.Resource{m.resource()}
		m.watcher = filewatch.New(d.Log)
		if err := m.configure(cfg, d); err != nil {
			return m, err
		}
		m.recover(ctx)
		return m, nil
	}
}

// Offer implements module.Module.
func (m *files) Offer(context.Context, module.Audience) (*module.Offer, error) { return &m.offer, nil }

// EndOwned implements module.Owned: it forgets the changes that file_undo could
// undo. A change has no time of its own, so match gets the zero time.
func (m *files) EndOwned(_ context.Context, match func(owner string, made time.Time) bool) (ended []string) {
	u := &m.undo
	u.mu.Lock()
	for owner, all := range u.changes {
		if match(owner, time.Time{}) {
			ended = append(ended, fmt.Sprintf("undo of %d changes of files", len(all)))
			u.dropChanges(owner, func(*change) bool { return true })
		}
	}
	u.mu.Unlock()
	u.removeForgotten()
	return ended
}

// Close implements module.Module.
func (m *files) Close(context.Context) error {
	return errors.Join(m.watcher.Close(), m.trash.closeFolder())
}

// findFile resolves a path that must name a file.
func findFile(c *tool.Call, path string) (roots.Place, error) {
	p, err := roots.Locate(c.Roots, path)
	if err != nil {
		return p, err
	}
	if p.NamesDir() {
		return p, &tool.Refusal{
			Code:    tool.CodeIsADirectory,
			Message: path + " names a directory",
			Next:    "Give the path of a file, without a slash at the end.",
		}
	}
	return p, nil
}

// groupDigits formats n with a comma between groups of three digits.
func groupDigits(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
