package file

import (
	"context"
	"io"

	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

type copyIn struct {
	OldPath   string `json:"oldPath" names:"path"`
	NewPath   string `json:"newPath" names:"path"`
	Overwrite bool   `json:"overwrite,omitempty"`
}

type copyOut struct {
	NewPath string `json:"newPath"`
	Size    int64  `json:"size"`
	ETag    string `json:"etag"`
	Note    string `json:"note,omitempty"`
}

const copyHelp = `Copies a file, also from one folder of the workspace to another.

- newPath is the whole new path. If it exists, the call is refused, unless overwrite is set and it is a file.
- The copy appears in one step, with the mode of the original. Missing directories are made. Links are followed.
- Directories and files over 4 GB are refused. file_undo undoes a copy.`

func (m *files) copyTool() tool.Tool {
	return tool.New(tool.Def{
		Name:        "file_copy",
		Title:       "Copy a file",
		Description: "Copies a file.",
		Help:        copyHelp,
		Effects:     tool.Writes | tool.Destroys,
	}, m.copy)
}

func (m *files) copy(ctx context.Context, c *tool.Call, in copyIn) (out copyOut, err error) {
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
	if info.Size() > m.maxCopy {
		return copyOut{}, tool.Refuse(
			tool.CodeTooLarge, "%s has %s bytes; the largest file that can be copied has %s bytes", in.OldPath,
			groupDigits(info.Size()), groupDigits(m.maxCopy),
		)
	}
	err = m.withLocks(ctx, false, func(h *roots.Hold) (err error) {
		out, err = m.copyTo(ctx, c, h, to, &original{info, f}, in)
		return err
	}, to)
	return out, err
}

func (m *files) copyTo(
	ctx context.Context, c *tool.Call, h *roots.Hold, to roots.Place, from *original, in copyIn,
) (copyOut, error) {
	there, err := openWritable(to)
	if err != nil {
		return copyOut{}, err
	}
	defer there.closeOriginal()
	if there != nil && !in.Overwrite {
		return copyOut{}, &tool.Refusal{
			Code:    tool.CodeExists,
			Message: in.NewPath + " already exists",
			Next:    "Give another newPath, or set overwrite to replace the file.",
		}
	}
	if there == nil {
		if err := makeParents(to); err != nil {
			return copyOut{}, err
		}
	}
	before, err := m.snapshot(to, there)
	if err != nil {
		return copyOut{}, err
	}
	now, err := m.save(ctx, h, to, there.fileInfo(), mode{from.info.Mode().Perm(), true}, func(w io.Writer) error {
		return copyInSteps(ctx, w, from.content())
	})
	if err != nil {
		m.dropSnapshot(before)
		return copyOut{}, err
	}
	note := m.recordChange(c, to, change{action: "copied", before: before, etag: now.etag})
	return copyOut{in.NewPath, now.info.Size(), now.etag, note}, nil
}
