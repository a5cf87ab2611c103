package dir

import (
	"context"
	"errors"
	"io/fs"

	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

type createIn struct {
	Path string `json:"path" doc:"directory to make" min:"1" names:"path"`
}

type createOut struct {
	Success bool   `json:"success"`
	Path    string `json:"path"`
}

func (m *dirs) createTool() tool.Tool {
	return tool.New(tool.Def{
		Name:        "dir_create",
		Title:       "Create a directory",
		Description: "Makes a directory and its missing parents. If it exists, the call succeeds.",
		Help: "The mode of the new directories is 0755. If a file has the name of one of them, the call is " +
			"refused and the file stays as it is.",
		Effects: tool.Writes | tool.Idempotent,
		Task:    tool.TaskNever,
	}, m.create)
}

func (m *dirs) create(_ context.Context, c *tool.Call, in createIn) (createOut, error) {
	p, err := roots.Locate(c.Roots, in.Path)
	if err != nil {
		return createOut{}, err
	}
	if p, err = p.Followed(true); err != nil {
		return createOut{}, err
	}
	if err := p.MayWrite(); err != nil {
		return createOut{}, err
	}
	if err := p.Root.MkdirAll(p.Name, 0o755); err != nil {
		if info, serr := p.Stat(); serr == nil && !info.IsDir() || errors.Is(err, fs.ErrExist) {
			return createOut{}, tool.Refuse(tool.CodeExists, "%s exists and is not a directory", in.Path)
		}
		return createOut{}, p.Refuse(err)
	}
	return createOut{true, in.Path}, nil
}
