package file

import (
	"context"
	"errors"

	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

type existsIn struct {
	Path string `json:"path" min:"1" names:"path"`
}

type existsOut struct {
	Exists bool   `json:"exists"`
	IsDir  bool   `json:"isDir"`
	Path   string `json:"path"`
}

func (m *files) existsTool() tool.Tool {
	return tool.New(tool.Def{
		Name:        "file_exists",
		Title:       "Check for a file",
		Description: "Tells whether a path exists and whether it is a directory.",
		Help: "Links are followed inside the workspace. A path that cannot be accessed counts as missing; a " +
			"path outside the workspace is refused.",
		Effects: tool.Reads,
		Task:    tool.TaskNever,
	}, m.exists)
}

func (m *files) exists(_ context.Context, c *tool.Call, in existsIn) (existsOut, error) {
	out := existsOut{Path: in.Path}
	p, err := roots.Locate(c.Roots, in.Path)
	if err == nil {
		info, serr := p.Stat()
		if serr == nil {
			out.Exists, out.IsDir = true, info.IsDir()
			return out, nil
		}
		err = serr
	}
	if r, ok := errors.AsType[*tool.Refusal](err); ok && r.Code == tool.CodeOutsideRoot {
		return out, err
	}
	return out, nil
}
