package lang

import (
	"context"
	"errors"
	"io"

	"gatehouse/internal/files/language"
	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

type detectIn struct {
	Path    string `json:"path,omitempty" doc:"file or directory" names:"path"`
	Content string `json:"content,omitempty" doc:"text to judge instead"`
}

type detectOut struct {
	Language     string  `json:"language"`
	Path         string  `json:"path"`
	Method       string  `json:"method"`
	Confidence   float64 `json:"confidence"`
	Alternatives []other `json:"alternatives,omitempty"`
	Shares       []share `json:"shares,omitempty"`
	Files        int     `json:"files,omitempty"`
	Note         string  `json:"note,omitempty"`
}

// other is a language it could also be.
type other struct {
	Language   string  `json:"language"`
	Confidence float64 `json:"confidence"`
}

const detectHelp = `Names the language of a file by its name and, where the name leaves a choice and the file exists, by its content;
of text given as content, whose name path may tell; or the languages of a directory.

- The id is one of lang_list's: go, cpp, csharp, typescript, shell, dockerfile ...; plaintext if nothing is known.
- method tells what settled it: name; content, by marks such as #! lines; words, by the words and lines of the text;
  guess, where several languages share the name and the content favours none, and the most usual one is given;
  unknown; and shares, for a directory.
- confidence is 0 to 1; alternatives are what it could be as well.
- Of a directory shares holds the languages by bytes, the largest first, at most 20; language is the first. What ignore
  files leave out does not count. It ends after 10 s or 200,000 files with what it has, and note says so.
- Only the first 16 kB of a file or text are looked at.`

func (m *langs) detectTool() tool.Tool {
	return tool.New(tool.Def{
		Name:        "lang_detect",
		Title:       "Detect a language",
		Description: "Names the programming language of a file or text, or the languages of a directory.",
		Help:        detectHelp,
		Effects:     tool.Reads,
	}, m.detect)
}

func (m *langs) detect(ctx context.Context, c *tool.Call, in detectIn) (detectOut, error) {
	if in.Content != "" {
		return judged(in.Path, language.Judge(in.Path, []byte(in.Content[:min(len(in.Content), language.HeadSize)]))), nil
	}
	if in.Path == "" {
		return detectOut{}, &tool.Refusal{Code: "invalid_arguments", Message: "there is nothing to look at", Next: "Give path, or content for text."}
	}
	p, err := roots.Find(c.Roots, in.Path)
	if err != nil {
		return detectOut{}, err
	}
	if info, err := p.Stat(); err == nil && info.IsDir() {
		return survey(ctx, p)
	}
	head, err := headOf(p)
	if err != nil {
		return detectOut{}, err
	}
	return judged(in.Path, language.Judge(p.Name, head)), nil
}

func judged(path string, v language.Verdict) detectOut {
	out := detectOut{Language: v.ID, Path: path, Method: v.Method, Confidence: v.Confidence}
	for _, a := range v.Alternatives {
		out.Alternatives = append(out.Alternatives, other{a.ID, a.Confidence})
	}
	return out
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
	return headFrom(f), nil
}

func headFrom(r io.Reader) []byte {
	head := make([]byte, language.HeadSize)
	n, _ := io.ReadFull(r, head)
	return head[:n]
}
