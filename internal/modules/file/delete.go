package file

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"

	"gatehouse/internal/roots"
	"gatehouse/tool"
)

type deleteIn struct {
	Path string `json:"path" doc:"file or empty directory" min:"1"`
}

type deleteOut struct {
	Success bool   `json:"success"`
	Path    string `json:"path"`
}

const deleteHelp = `Deletes one file or one empty directory, for good.

- Of a symbolic link the link is deleted, not what it leads to.
- A directory with something in it, a folder of the workspace itself, the home directory and devices are refused.`

func (m *files) deleteTool() tool.Tool {
	return tool.New(tool.Def{
		Name:        "file_delete",
		Description: "Deletes a file or an empty directory. It cannot be undone.",
		Help:        deleteHelp,
		Effects:     tool.Destroys | tool.Idempotent,
	}, m.delete)
}

func (m *files) delete(_ context.Context, c *tool.Call, in deleteIn) (deleteOut, error) {
	p, err := roots.Find(c.Roots, in.Path)
	if err != nil {
		return deleteOut{}, err
	}
	if p, err = p.Followed(false); err != nil {
		return deleteOut{}, err
	}
	defer m.changes.lock(p)()
	info, err := p.Lstat()
	if err != nil {
		return deleteOut{}, err
	}
	if info.Mode()&fs.ModeDevice != 0 {
		return deleteOut{}, tool.Refuse("not_a_file", "%s is a device", in.Path)
	}
	if err := mustBeLoose(c, p, info, false); err != nil {
		return deleteOut{}, err
	}
	if err := p.Root.Remove(p.Name); err != nil {
		return deleteOut{}, p.Refuse(err)
	}
	return deleteOut{true, in.Path}, nil
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
