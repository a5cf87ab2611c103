package file

import (
	"context"
	"errors"
	"io/fs"

	"gatehouse/internal/roots"
	"gatehouse/tool"
)

type writeIn struct {
	Path    string `json:"path" doc:"file to write" min:"1"`
	Content string `json:"content" doc:"the whole new content, written as it is"`
}

type writeOut struct {
	Success bool   `json:"success"`
	Path    string `json:"path"`
	Size    int64  `json:"size"`
	Created bool   `json:"created,omitempty"`
}

const writeHelp = `Writes a whole file and replaces what was there.

- The change is atomic and on disk when the call returns: whoever looks finds the old file or the new one.
- Directories on the way are made (0755). A new file gets 0644, an existing one keeps its mode and, where possible, its owner.
- A symbolic link is written through: the file it leads to changes, inside the workspace.
- To change part of a file use file_edit, which also keeps line endings.`

func (m *files) writeTool() tool.Tool {
	return tool.New(tool.Def{
		Name:        "file_write",
		Description: "Writes a file, replacing it if it exists, and makes missing directories. Use file_edit to change a part.",
		Help:        writeHelp,
		Effects:     tool.Writes | tool.Destroys | tool.Idempotent,
	}, m.write)
}

func (m *files) write(_ context.Context, c *tool.Call, in writeIn) (writeOut, error) {
	p, err := findFile(c, in.Path)
	if err != nil {
		return writeOut{}, err
	}
	if p, err = p.Followed(true); err != nil {
		return writeOut{}, err
	}
	defer m.changes.lock(p)()
	was, err := existing(p)
	if err != nil {
		return writeOut{}, err
	}
	if was == nil {
		if err := makeParents(p); err != nil {
			return writeOut{}, err
		}
	}
	if err := save(p, was, []byte(in.Content)); err != nil {
		return writeOut{}, err
	}
	return writeOut{true, in.Path, int64(len(in.Content)), was == nil}, nil
}

// existing looks at the regular file a write is about to replace; nil means
// there is none.
func existing(p roots.Place) (fs.FileInfo, error) {
	info, err := p.Lstat()
	if r, ok := errors.AsType[*tool.Refusal](err); ok && r.Code == "not_found" {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := p.MustBeRegular(info); err != nil {
		return nil, err
	}
	return info, mayWrite(p)
}
