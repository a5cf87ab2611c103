package file

import (
	"context"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

type statIn struct {
	Path string `json:"path" names:"path"`
}

type statOut struct {
	Type     string `json:"type"`
	Size     int64  `json:"size"`
	Mode     string `json:"mode"`
	Modified string `json:"modified"`
	ETag     string `json:"etag,omitempty"`
	Links    int    `json:"links,omitempty"`
	Target   string `json:"target,omitempty"`
	Unsaved  string `json:"unsaved,omitempty"`
}

const statHelp = `Describes the file or directory at a path: type, size in bytes, permissions, time of the last change.

- etag identifies the content of a regular file, for if_match; protected and unreadable files have none.
- type is file, directory, link, pipe, socket or device; mode is octal; links is the number of hard links if over 1.
- For a symbolic link, target is where it points, and the rest describes the target. If the target is missing or outside
  the workspace, type is link.`

func (m *files) statTool() tool.Tool {
	return tool.New(tool.Def{
		Name:        "file_stat",
		Title:       "Describe a file",
		Description: "Returns type, size, mode, time and etag of a file or directory.",
		Help:        statHelp,
		Effects:     tool.Reads,
		Task:        tool.TaskNever,
	}, m.stat)
}

func (m *files) stat(ctx context.Context, c *tool.Call, in statIn) (statOut, error) {
	p, err := placeToChange(c, in.Path)
	if err != nil {
		return statOut{}, err
	}
	info, err := p.Lstat()
	if err != nil {
		return statOut{}, err
	}
	var out statOut
	if info.Mode()&fs.ModeSymlink != 0 {
		if out.Target, err = p.Root.Readlink(p.Name); err != nil {
			return statOut{}, p.Refuse(err)
		}
		out.Target = strings.ToValidUTF8(out.Target, "\uFFFD")
		if there, err := p.Stat(); err == nil {
			info = there
		}
	}
	out.Type = kind(info)
	out.Size = info.Size()
	out.Mode = fmt.Sprintf("%04o", info.Mode().Perm())
	out.Modified = info.ModTime().UTC().Format(time.RFC3339Nano)
	if info.Mode().IsRegular() {
		out.ETag, _ = etagAt(p) // none if the file may not be read
		if n := roots.Links(info); n > 1 {
			out.Links = n
		}
	}
	_, out.Unsaved, _ = m.unsavedIn(ctx, c, p)
	return out, nil
}

func kind(info fs.FileInfo) string {
	switch {
	case info.Mode().IsRegular():
		return "file"
	case info.IsDir():
		return "directory"
	}
	return roots.Kind(info.Mode())
}
