package file

import (
	"context"
	"io"

	"gatehouse/internal/roots"
	"gatehouse/tool"
)

type copyIn struct {
	OldPath   string `json:"oldPath"`
	NewPath   string `json:"newPath"`
	Overwrite bool   `json:"overwrite,omitempty"`
}

type copyOut struct {
	NewPath string `json:"newPath"`
	Size    int64  `json:"size"`
	ETag    string `json:"etag"`
}

const copyHelp = `Copies a file, also from one folder of the workspace to another.

- newPath is the whole new path. What exists there is refused; with overwrite a file is replaced.
- The copy is there in one step, with the mode of the original; missing directories are made. Links are followed.
- Directories and files over 4 GB are refused. file_undo takes a copy back.`

func (m *files) copyTool() tool.Tool {
	return tool.New(tool.Def{
		Name:        "file_copy",
		Description: "Copies a file.",
		Help:        copyHelp,
		Effects:     tool.Writes | tool.Destroys,
	}, m.copy)
}

func (m *files) copy(ctx context.Context, c *tool.Call, in copyIn) (copyOut, error) {
	from, err := findFile(c, in.OldPath)
	if err != nil {
		return copyOut{}, err
	}
	to, err := placeToWrite(c, in.NewPath)
	if err != nil {
		return copyOut{}, err
	}
	f, info, err := from.Regular()
	if err != nil {
		return copyOut{}, err
	}
	defer f.Close()
	if info.Size() > m.copyMost {
		return copyOut{}, tool.Refuse("too_large", "%s has %s bytes; files up to %s bytes are copied", in.OldPath, commas(info.Size()), commas(m.copyMost))
	}
	defer m.changes.lock(to)()
	was, err := existing(to)
	if err != nil {
		return copyOut{}, err
	}
	if was != nil && !in.Overwrite {
		return copyOut{}, &tool.Refusal{Code: "exists", Message: in.NewPath + " already exists", Next: "Choose another name, or set overwrite to replace it."}
	}
	if was == nil {
		if err := makeParents(to); err != nil {
			return copyOut{}, err
		}
	}
	before, err := keep(to, was)
	if err != nil {
		return copyOut{}, err
	}
	now, err := m.saveBy(to, was, func(w io.Writer) error { return pour(ctx, w, f) })
	if err != nil {
		return copyOut{}, err
	}
	if was == nil {
		if err := to.Root.Chmod(to.Name, info.Mode().Perm()); err != nil {
			return copyOut{}, to.Refuse(err)
		}
	}
	return m.copied(c, to, in, change{did: "copied", was: before}, now.Size())
}

func (m *files) copied(c *tool.Call, to roots.Place, in copyIn, x change, size int64) (out copyOut, err error) {
	if x.etag, err = etagAt(to); err != nil {
		return out, err
	}
	m.undo.add(c, to, x)
	return copyOut{in.NewPath, size, x.etag}, nil
}
