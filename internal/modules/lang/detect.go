package lang

import (
	"context"
	"errors"
	"io"

	"gatehouse/internal/language"
	"gatehouse/internal/roots"
	"gatehouse/tool"
)

type detectIn struct {
	Path string `json:"path" doc:"file, which need not exist" min:"1"`
}

type detectOut struct {
	Language string `json:"language"`
	Path     string `json:"path"`
	Method   string `json:"method" doc:"what settled it: name, content, guess or unknown"`
}

const detectHelp = `Names the language of a file by its name and, where the name leaves a choice and the file exists, by its content.

- The id is one of lang_list's: go, cpp, csharp, typescript, shell, dockerfile ...; plaintext if nothing is known.
- method guess means that several languages share the name and the content favours none; the most usual one is given.`

func (m *langs) detectTool() tool.Tool {
	return tool.New(tool.Def{
		Name:        "lang_detect",
		Description: "Names the programming language of a file by its name and content.",
		Help:        detectHelp,
		Effects:     tool.Reads,
	}, m.detect)
}

func (m *langs) detect(_ context.Context, c *tool.Call, in detectIn) (detectOut, error) {
	p, err := roots.Find(c.Roots, in.Path)
	if err != nil {
		return detectOut{}, err
	}
	head, err := headOf(p)
	if err != nil {
		return detectOut{}, err
	}
	id, method := language.Detect(p.Name, head)
	return detectOut{id, in.Path, method}, nil
}

// headOf reads the beginning of a file. What cannot be read is judged by its
// name; only a path outside the roots is refused.
func headOf(p roots.Place) ([]byte, error) {
	f, _, err := p.Regular()
	if r, ok := errors.AsType[*tool.Refusal](err); ok && r.Code == "outside_root" {
		return nil, err
	}
	if err != nil {
		return nil, nil
	}
	defer f.Close()
	head := make([]byte, language.HeadSize)
	n, _ := io.ReadFull(f, head)
	return head[:n], nil
}
