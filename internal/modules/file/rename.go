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

- newPath is the whole new path, not the directory to move into. If it exists, the call is refused; with overwrite a
  file replaces a file in one step. A directory is never replaced.
- The directory to move into must exist; make it with dir_create.
- A directory is not moved if something in it has a protected name that the new path would not protect.
- If oldPath is a symbolic link, the link is moved. Moving to another file system, or between two folders of the
  workspace, is refused; use file_copy. file_undo undoes a rename and restores the file it replaced.`

func (m *files) renameTool() tool.Tool {
	return tool.New(tool.Def{
		Name:        "file_rename",
		Title:       "Move a file",
		Description: "Renames or moves a file or directory. It replaces a file only if overwrite is set.",
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
	if err := errors.Join(checkGuard(from), checkGuard(to)); err != nil {
		return renameOut{}, to.Refuse(err)
	}
	out := renameOut{OldPath: in.OldPath, NewPath: in.NewPath}
	err = m.withLocks(ctx, true, func(*roots.Hold) (err error) {
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
		return "", &tool.Refusal{
			Code:    tool.CodeExists,
			Message: in.NewPath + " names a directory",
			Next:    "Give the whole new path, including the file's name.",
		}
	}
	if !from.InFolderOf(to) {
		return "", &tool.Refusal{
			Code:    tool.CodeUnsupported,
			Message: in.OldPath + " and " + in.NewPath + " are in different folders of the workspace",
			Next:    "Copy the file with file_copy and delete the old one with file_delete.",
		}
	}
	if err := refuseRootOrHome(c, from, info, true); err != nil {
		return "", err
	}
	was, err := m.replaced(to, info, in.Overwrite)
	if err != nil {
		return "", err
	}
	copied := info.IsDir() && from.Layer() != nil && from.Layer().IsCopiedToMove(from.Name)
	if err := move(from, to, info, was != nil); err != nil {
		m.dropSnapshot(was)
		return "", err
	}
	if now, err := to.Lstat(); err == nil {
		info = now // another file number, if the changes of a task are kept as copies
	}
	note = m.recordChange(c, to, change{action: "renamed", from: from.Name, moved: info, before: was})
	if copied {
		note = joinNotes(note, "the task has a copy of the directory, with everything in it, because this host keeps its "+
			"changes as copies")
	}
	return note, nil
}

func placeToChange(c *tool.Call, path string) (roots.Place, error) {
	p, err := roots.Locate(c.Roots, path)
	if err != nil {
		return p, err
	}
	return p.Followed(false)
}

// replaced returns the state of the file that a rename with overwrite replaces,
// or nil if it replaces none.
func (m *files) replaced(to roots.Place, info fs.FileInfo, overwrite bool) (*state, error) {
	there, err := to.Lstat()
	if !overwrite || isCode(err, tool.CodeNotFound) {
		return nil, nil // move checks that itself
	}
	switch {
	case err != nil:
		return nil, err
	case os.SameFile(there, info):
		return nil, nil
	case there.IsDir() || info.IsDir():
		return nil, &tool.Refusal{
			Code:    tool.CodeExists,
			Message: to.Path + " already exists; a directory cannot be replaced or replace another file",
			Next:    "Give another newPath, or delete what is there first.",
		}
	case there.Mode().IsRegular():
		if err := checkWritable(to); err != nil {
			return nil, err
		}
	}
	return m.snapshotAny(to, there)
}

// move moves a file or directory and replaces nothing unless overwrite is set.
// A directory cannot replace anything: the system refuses to rename one onto a
// file, and os.Root onto a directory. A file gets a second name and then loses
// the first, because a rename would replace an existing file silently.
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
			return &tool.Refusal{
				Code:    tool.CodeExists,
				Message: to.Path + " already exists",
				Next:    "Give another newPath, or set overwrite to replace the file.",
			}
		}
		return renamed(from, to) // the same file on a file system that ignores case
	}
	if info.IsDir() {
		return renamed(from, to)
	}
	err := roots.Link(from, to)
	switch {
	case err == nil:
		if err := removePlace(from); err != nil {
			removePlace(to)
			return err
		}
		return nil
	case errors.Is(err, fs.ErrExist),
		errors.Is(err, fs.ErrNotExist),
		errors.Is(err, syscall.EXDEV),
		errors.Is(err, syscall.ENOTDIR):
		return refuseMove(to, err)
	}
	return renamed(from, to) // the file system has no hard links, or not for this file
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
		return &tool.Refusal{
			Code:    tool.CodeNotFound,
			Message: "the directory of " + to.Path + " does not exist",
			Next:    "Make it with dir_create.",
		}
	case errors.Is(err, syscall.EINVAL):
		return tool.Refuse(tool.CodeInvalidArguments, "a directory cannot be moved into itself: %s", to.Path)
	}
	return to.Refuse(err)
}

func otherCase(a, b string) bool {
	return a != b && filepath.Dir(a) == filepath.Dir(b) && strings.EqualFold(a, b)
}
