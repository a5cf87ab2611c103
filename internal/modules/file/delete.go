package file

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"

	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

type deleteIn struct {
	Path      string `json:"path" names:"path"`
	Recursive bool   `json:"recursive,omitempty"`
}

type deleteOut struct {
	Success  bool   `json:"success"`
	Path     string `json:"path"`
	Undoable bool   `json:"undoable"`
}

const deleteHelp = `Deletes one file or one empty directory; with recursive, a directory and everything in it.

- undoable tells whether file_undo can restore it while the server runs. It can restore links, empty directories and
  files up to 1 GB, and a directory that was moved to the trash. The trash is in this host's cache folder; it takes a
  directory on the same file system with up to 100,000 entries and 1 GB. Everything else is deleted permanently.
- If path is a symbolic link, the link is deleted and not its target.
- A folder of the workspace itself, the home directory, a directory that contains one of them, devices, and files with
  protected names (also inside a directory) are refused.`

func (m *files) deleteTool() tool.Tool {
	return tool.New(tool.Def{
		Name:        "file_delete",
		Title:       "Delete a file",
		Description: "Deletes a file or an empty directory; with recursive, a directory and its content.",
		Help:        deleteHelp,
		Effects:     tool.Destroys | tool.Idempotent,
	}, m.delete)
}

func (m *files) delete(ctx context.Context, c *tool.Call, in deleteIn) (deleteOut, error) {
	p, err := placeToChange(c, in.Path)
	if err != nil {
		return deleteOut{}, err
	}
	if err := checkGuard(p); err != nil {
		return deleteOut{}, err
	}
	out := deleteOut{Path: in.Path}
	err = m.withLocks(ctx, true, func(h *roots.Hold) (err error) {
		out.Undoable, err = m.deleteAt(ctx, c, h, p, in)
		return err
	}, p)
	out.Success = err == nil
	return out, err
}

func (m *files) deleteAt(
	ctx context.Context, c *tool.Call, h *roots.Hold, p roots.Place, in deleteIn,
) (undoable bool, err error) {
	info, err := p.Lstat()
	if err != nil {
		return false, err
	}
	if info.Mode()&fs.ModeDevice != 0 {
		return false, tool.Refuse(tool.CodeNotAFile, "%s is a device", in.Path)
	}
	if err := refuseRootOrHome(c, p, info, in.Recursive); err != nil {
		return false, err
	}
	x := change{action: "deleted"}
	if x.before, err = m.snapshotAny(p, info); err != nil {
		return false, err
	}
	err = removePlace(p)
	switch {
	case isCode(err, tool.CodeNotEmpty) && in.Recursive:
		if x.trash, x.disk, err = m.trashOrDelete(ctx, h, p); err == nil && x.trash == "" {
			x.before.lost = true
		}
	case isCode(err, tool.CodeNotEmpty):
		err = &tool.Refusal{
			Code:    tool.CodeNotEmpty,
			Message: in.Path + " is not an empty directory",
			Next:    "Set recursive to delete it with everything in it.",
		}
	}
	if err != nil {
		m.dropSnapshot(x.before)
		return false, err
	}
	return m.undo.addChange(c, p, x), nil
}

// trashOrDelete moves a directory to the trash. If that is not possible, it
// deletes the directory and returns "".
func (m *files) trashOrDelete(ctx context.Context, h *roots.Hold, p roots.Place) (trash string, size int64, err error) {
	small, size, err := measure(ctx, p)
	if err != nil {
		return "", 0, p.Refuse(err)
	}
	if small && m.undo.enabled {
		if trash, err := m.trash.moveIn(p); err == nil {
			return trash, size, nil
		}
	}
	h.Release() // the deletion may take long and is not atomic, so that holding gains nothing
	if err := p.RemoveAll(); err != nil {
		return "", 0, p.Refuse(err)
	}
	return "", 0, nil
}

// checkGuard refuses a name that the guard protects, whatever its target is.
func checkGuard(p roots.Place) error {
	if p.Locked(".") {
		return p.MayWrite()
	}
	return nil
}

// refuseRootOrHome refuses to remove or move a folder of the workspace or the
// home directory. With holding, it also refuses a directory that contains one
// of them.
func refuseRootOrHome(c *tool.Call, p roots.Place, info fs.FileInfo, holding bool) error {
	if !info.IsDir() {
		return nil
	}
	var fixed []string
	for _, r := range c.Roots.List() {
		fixed = append(fixed, r.Path)
	}
	if home, err := os.UserHomeDir(); err == nil {
		fixed = append(fixed, home)
	}
	for _, path := range fixed {
		if real, err := filepath.EvalSymlinks(path); err == nil && onPath(info, real, holding) {
			return tool.Refuse(
				tool.CodeDenied,
				"%s is or contains a folder of the workspace or the home directory; it cannot be deleted or moved",
				p.Path,
			)
		}
	}
	return nil
}

// onPath reports whether info is the directory at path or, with above, one of
// its parent directories.
func onPath(info fs.FileInfo, path string, above bool) bool {
	for {
		if i, err := os.Stat(path); err == nil && os.SameFile(info, i) {
			return true
		}
		up := filepath.Dir(path)
		if !above || up == path {
			return false
		}
		path = up
	}
}
