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

const deleteHelp = `Deletes one file or one empty directory; with recursive, a directory with all that is in it.

- undoable says whether file_undo can take it back, as long as the server runs: links, empty directories, files up to
  1 GB; of other directories those that could be moved to the trash, which is in this host's cache folder and takes
  what lies on the same file system, up to 100,000 entries and 1 GB. Everything else is deleted for good.
- Of a symbolic link the link is deleted, not what it leads to.
- A folder of the workspace itself, the home directory, what holds one of them, devices and files protected by their
  names (also inside of a directory) are refused.`

func (m *files) deleteTool() tool.Tool {
	return tool.New(tool.Def{
		Name:        "file_delete",
		Title:       "Delete a file",
		Description: "Deletes a file or an empty directory; recursive also deletes what is in it.",
		Help:        deleteHelp,
		Effects:     tool.Destroys | tool.Idempotent,
	}, m.delete)
}

func (m *files) delete(ctx context.Context, c *tool.Call, in deleteIn) (deleteOut, error) {
	p, err := placeToChange(c, in.Path)
	if err != nil {
		return deleteOut{}, err
	}
	if err := mayReplace(p); err != nil {
		return deleteOut{}, err
	}
	out := deleteOut{Path: in.Path}
	err = m.changing(ctx, true, func(h *roots.Hold) (err error) {
		out.Undoable, err = m.deleteAt(ctx, c, h, p, in)
		return err
	}, p)
	out.Success = err == nil
	return out, err
}

func (m *files) deleteAt(ctx context.Context, c *tool.Call, h *roots.Hold, p roots.Place, in deleteIn) (undoable bool, err error) {
	info, err := p.Lstat()
	if err != nil {
		return false, err
	}
	if info.Mode()&fs.ModeDevice != 0 {
		return false, tool.Refuse("not_a_file", "%s is a device", in.Path)
	}
	if err := mustBeLoose(c, p, info, in.Recursive); err != nil {
		return false, err
	}
	x := change{did: "deleted"}
	if x.was, err = m.keepAny(p, info); err != nil {
		return false, err
	}
	err = remove(p)
	switch {
	case isCode(err, "not_empty") && in.Recursive:
		if x.trash, x.disk, err = m.discard(ctx, h, p); err == nil && x.trash == "" {
			x.was.lost = true
		}
	case isCode(err, "not_empty"):
		err = &tool.Refusal{Code: "not_empty", Message: in.Path + " is not an empty directory", Next: "Set recursive to delete all that is in it."}
	}
	if err != nil {
		m.dropped(x.was)
		return false, err
	}
	return m.undo.add(c, p, x), nil
}

// discard moves a directory to the trash or, where it cannot, deletes it.
func (m *files) discard(ctx context.Context, h *roots.Hold, p roots.Place) (trash string, size int64, err error) {
	small, size, err := weigh(ctx, p)
	if err != nil {
		return "", 0, p.Refuse(err)
	}
	if small && m.undo.lasts {
		if trash, err := m.trash.take(p); err == nil {
			return trash, size, nil
		}
	}
	h.Release() // it may take long, and is not one step anyway
	parent, base, err := p.Parent()
	if err != nil {
		return "", 0, p.Refuse(err)
	}
	defer parent.Close()
	if err := parent.RemoveAll(base); err != nil {
		return "", 0, p.Refuse(err)
	}
	return "", 0, nil
}

// mayReplace asks the guard about a name itself, wherever it leads.
func mayReplace(p roots.Place) error {
	if p.Locked(".") {
		return p.MayWrite()
	}
	return nil
}

// mustBeLoose refuses to take away a folder of the workspace or the home
// directory; with holding, also a directory that one of them lies in.
func mustBeLoose(c *tool.Call, p roots.Place, info fs.FileInfo, holding bool) error {
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
			return tool.Refuse("denied", "%s is, or holds, a folder of the workspace or the home directory and stays where it is", p.Path)
		}
	}
	return nil
}

// onPath reports whether info is the directory at path or, with above, one of
// those that lead to it.
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
