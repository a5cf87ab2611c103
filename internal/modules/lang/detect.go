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
	Content string `json:"content,omitempty" doc:"text to examine instead"`
}

type detectOut struct {
	Language     string        `json:"language"`
	Path         string        `json:"path"`
	Method       string        `json:"method"`
	Confidence   float64       `json:"confidence"`
	Alternatives []alternative `json:"alternatives,omitempty"`
	Shares       []share       `json:"shares,omitempty"`
	Files        int           `json:"files,omitempty"`
	Note         string        `json:"note,omitempty"`
}

// alternative is another possible language.
type alternative struct {
	Language   string  `json:"language"`
	Confidence float64 `json:"confidence"`
}

const detectHelp = `Detects the language of a file by its name and, if the name is ambiguous and the file exists, by its
content; the
language of a text given as content, for which path may give a name; or the languages of a directory.

- The id is one of lang_list: go, cpp, csharp, typescript, shell, dockerfile ...; plaintext if it is unknown.
- method is what decided: name; content, by marks such as #! lines; words, by the words and lines of the text; guess,
  if several languages share the name and the content favours none, which returns the most common one; unknown; and
  shares, for a directory.
- confidence is 0 to 1; alternatives are other possible languages.
- For a directory, shares are its languages by bytes, largest first, at most 20; language is the first. Ignored files
  do not count. After 10 s or 200,000 files it returns what it has found, and note says so.
- Only the first 16 kB of a file or text are examined.`

func (m *langs) detectTool() tool.Tool {
	return tool.New(tool.Def{
		Name:        "lang_detect",
		Title:       "Detect a language",
		Description: "Detects the programming language of a file or text, or the languages of a directory.",
		Help:        detectHelp,
		Effects:     tool.Reads,
	}, m.detect)
}

func (m *langs) detect(ctx context.Context, c *tool.Call, in detectIn) (detectOut, error) {
	if in.Content != "" {
		return newDetectOut(
			in.Path, language.Judge(in.Path, []byte(in.Content[:min(len(in.Content), language.HeadSize)])),
		), nil
	}
	if in.Path == "" {
		return detectOut{}, &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: "path and content are missing",
			Next:    "Give path, or content for text.",
		}
	}
	p, err := roots.Locate(c.Roots, in.Path)
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
	return newDetectOut(in.Path, language.Judge(p.Name, head)), nil
}

func newDetectOut(path string, v language.Verdict) detectOut {
	out := detectOut{Language: v.ID, Path: path, Method: v.Method, Confidence: v.Confidence}
	for _, a := range v.Alternatives {
		out.Alternatives = append(out.Alternatives, alternative{a.ID, a.Confidence})
	}
	return out
}

// headOf reads the beginning of a file. It returns nil for a file that cannot be
// read, whose name then decides; it refuses only a path outside of the roots.
func headOf(p roots.Place) ([]byte, error) {
	f, _, err := p.Regular()
	if r, ok := errors.AsType[*tool.Refusal](err); ok && r.Code == tool.CodeOutsideRoot {
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
