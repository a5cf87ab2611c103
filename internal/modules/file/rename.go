package file

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

type renameIn struct {
	OldPath   string `json:"oldPath" names:"path"`
	NewPath   string `json:"newPath" doc:"whole new path" names:"path"`
	Overwrite bool   `json:"overwrite,omitempty"`
}

type renameOut struct {
	Success bool   `json:"success"`
	OldPath string `json:"oldPath"`
	NewPath string `json:"newPath"`
	Note    string `json:"note,omitempty"`
}

const renameHelp = `Renames or moves a file or directory.

- newPath is the whole new path, not the directory to move into. What exists there is refused; with overwrite a file
  is replaced by a file, in one step. A directory never is.
- The directory to move into must exist; make it with dir_create.
- A directory is not moved if that would take something in it out of the names the server protects.
- A symbolic link itself is moved. Moving to another file system, or between two folders of the workspace, is refused;
  there is file_copy. file_undo takes a rename back, with what it replaced.`

func (m *files) renameTool() tool.Tool {
	return tool.New(tool.Def{
		Name:        "file_rename",
		Title:       "Move a file",
		Description: "Renames or moves a file or directory. It replaces nothing unless overwrite is set.",
		Help:        renameHelp,
		Effects:     tool.Writes | tool.Destroys,
		Task:        tool.TaskNever,
	}, m.rename)
}

func (m *files) rename(ctx context.Context, c *tool.Call, in renameIn) (renameOut, error) {
	from, err := placeToChange(c, in.OldPath)
	if err != nil {
		return renameOut{}, err
	}
	to, err := placeToChange(c, in.NewPath)
	if err != nil {
		return renameOut{}, err
	}
	if err := errors.Join(mayReplace(from), mayReplace(to)); err != nil {
		return renameOut{}, to.Refuse(err)
	}
	out := renameOut{OldPath: in.OldPath, NewPath: in.NewPath}
	err = m.changing(ctx, true, func(*roots.Hold) (err error) {
		out.Note, err = m.renameAt(c, from, to, in)
		return err
	}, from, to)
	out.Success = err == nil
	return out, err
}

func (m *files) renameAt(c *tool.Call, from, to roots.Place, in renameIn) (note string, err error) {
	info, err := from.Lstat()
	if err != nil {
		return "", err
	}
	if to.NamesDir() && !info.IsDir() {
		return "", &tool.Refusal{Code: "exists", Message: in.NewPath + " names a directory", Next: "Give the whole new path, with the file's name."}
	}
	if from.Root != to.Root {
		return "", &tool.Refusal{Code: "unsupported", Message: in.OldPath + " and " + in.NewPath + " lie in different folders of the workspace", Next: "Copy it with file_copy and delete the old file."}
	}
	if err := mustBeLoose(c, from, info, true); err != nil {
		return "", err
	}
	was, err := m.replaced(to, info, in.Overwrite)
	if err != nil {
		return "", err
	}
	if err := move(from, to, info, was != nil); err != nil {
		m.dropped(was)
		return "", err
	}
	return m.remember(c, to, change{did: "renamed", from: from.Name, moved: info, was: was}), nil
}

func placeToChange(c *tool.Call, path string) (roots.Place, error) {
	p, err := roots.Find(c.Roots, path)
	if err != nil {
		return p, err
	}
	return p.Followed(false)
}

// replaced is what a rename with overwrite is about to replace; nil means
// nothing.
func (m *files) replaced(to roots.Place, info fs.FileInfo, overwrite bool) (*state, error) {
	there, err := to.Lstat()
	if !overwrite || isCode(err, "not_found") {
		return nil, nil // move looks for itself
	}
	switch {
	case err != nil:
		return nil, err
	case os.SameFile(there, info):
		return nil, nil
	case there.IsDir() || info.IsDir():
		return nil, &tool.Refusal{Code: "exists", Message: to.Path + " already exists; a directory is not replaced and replaces nothing", Next: "Delete it first if it is not needed, or choose another name."}
	case there.Mode().IsRegular():
		if err := mayWrite(to); err != nil {
			return nil, err
		}
	}
	return m.keepAny(to, there)
}

// move replaces nothing unless it is told to. A directory cannot: the system
// refuses to rename one onto a file, os.Root onto a directory. A file gets a
// second name and loses the first, because a rename would replace silently.
func move(from, to roots.Place, info fs.FileInfo, overwrite bool) error {
	if info.IsDir() {
		if err := from.MayMove(to); err != nil {
			return err
		}
	}
	if overwrite {
		return renamed(from, to)
	}
	if there, err := to.Lstat(); err == nil {
		if !os.SameFile(there, info) || !otherCase(from.Name, to.Name) {
			return &tool.Refusal{Code: "exists", Message: to.Path + " already exists", Next: "Choose another name, or set overwrite to replace a file."}
		}
		return renamed(from, to) // the same file on a file system that ignores case
	}
	if info.IsDir() {
		return renamed(from, to)
	}
	err := roots.Link(from, to)
	switch {
	case err == nil:
		if err := remove(from); err != nil {
			remove(to)
			return err
		}
		return nil
	case errors.Is(err, fs.ErrExist), errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.EXDEV), errors.Is(err, syscall.ENOTDIR):
		return refuseMove(to, err)
	}
	return renamed(from, to) // no second names on this file system, or not for this file
}

func renamed(from, to roots.Place) error {
	if err := roots.Rename(from, to); err != nil {
		return refuseMove(to, err)
	}
	return nil
}

func refuseMove(to roots.Place, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &tool.Refusal{Code: "not_found", Message: "the directory of " + to.Path + " does not exist", Next: "Make it with dir_create."}
	case errors.Is(err, syscall.EINVAL):
		return tool.Refuse("invalid_arguments", "a directory cannot be moved into itself: %s", to.Path)
	}
	return to.Refuse(err)
}

func otherCase(a, b string) bool {
	return a != b && filepath.Dir(a) == filepath.Dir(b) && strings.EqualFold(a, b)
}
