package sandbox

import (
	"bytes"
	"context"
	"errors"
	"path"
	"regexp"
	"syscall"
	"unicode/utf8"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/sandbox"
	"gatehouse/tool"
)

// Limits of one search.
const (
	searchEntries = 20_000  // files and folders examined
	searchFile    = 1 << 20 // bytes of one file; longer files are left out
	searchLine    = 300     // bytes of a line in the result
)

type searchIn struct {
	ID      string `json:"sandbox_id"`
	Path    string `json:"path,omitempty" doc:"the folder to start in; default: the home folder"`
	Name    string `json:"name,omitempty" doc:"a pattern of file names, such as *.py"`
	Text    string `json:"text,omitempty" doc:"a regular expression (RE2) that a line must match"`
	Results int    `json:"results,omitempty" min:"1" max:"1000" default:"100"`
}

type found struct {
	Path string `json:"path"`
	Line int    `json:"line,omitempty"`
	Text string `json:"text,omitempty"`
}

type searchOut struct {
	Found    []found `json:"found"`
	Searched int     `json:"searched" doc:"number of files and folders examined"`
	Cut      bool    `json:"cut,omitempty" doc:"the search or the results were cut off"`
}

func (m *sandboxTools) searchTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "sandbox_search", Title: "Search files in a sandbox", Effects: tool.Reads, Handle: "sandbox_id",
		Description: "Finds files in a sandbox by name, by text, or by both.",
		Help:        "Links are not followed. With `text`, binary files and files longer than 1 MiB are left out.",
	}, m.search)
}

// searcher searches a sandbox.
type searcher struct {
	files sandbox.Files
	in    searchIn
	text  *regexp.Regexp // nil means any text
	out   searchOut
	deep  bool // a path was too long to continue
}

func (m *sandboxTools) search(ctx context.Context, c *tool.Call, in searchIn) (searchOut, error) {
	s := searcher{in: in, out: searchOut{Found: []found{}}}
	if _, err := path.Match(in.Name, ""); err != nil {
		return s.out, &tool.Refusal{Code: tool.CodeInvalidArguments, Message: "name: " + err.Error()}
	}
	if in.Text != "" {
		var err error
		if s.text, err = regexp.Compile(in.Text); err != nil {
			return s.out, &tool.Refusal{Code: tool.CodeInvalidArguments, Message: "text: " + err.Error()}
		}
	}
	begin := in.Path
	if begin == "" {
		begin = "/home/user"
	}
	err := m.onFiles(c, in.ID, func(f sandbox.Files) error {
		s.files = f
		return s.searchFolder(ctx, begin, true)
	})
	s.out.Cut = s.out.Cut || s.deep
	return s.out, err
}

// searchFolder searches a folder and those below. Folders that disappear or cannot be read are skipped, except the
// first.
func (s *searcher) searchFolder(ctx context.Context, dir string, first bool) error {
	for after, more := "", true; more && !s.out.Cut; {
		entries, m, err := s.files.List(ctx, dir, after, 0)
		if err != nil && (first || ctx.Err() != nil) {
			return err
		}
		if err != nil {
			s.deep = s.deep || errors.Is(err, syscall.ENAMETOOLONG)
			return nil
		}
		for _, e := range entries {
			if err := s.entry(ctx, path.Join(dir, e.Name), e); err != nil {
				return err
			}
			after = e.Name
		}
		more = m && len(entries) > 0
	}
	return nil
}

func (s *searcher) entry(ctx context.Context, at string, e sandbox.Info) error {
	if s.out.Cut {
		return nil
	}
	if s.out.Searched++; s.out.Searched >= searchEntries {
		s.out.Cut = true
	}
	fits := s.in.Name == ""
	if !fits {
		fits, _ = path.Match(s.in.Name, e.Name) // the pattern was checked
	}
	switch {
	case fits && s.text == nil:
		s.addHit(found{Path: printableName(at)})
	case fits && e.Mode.IsRegular() && e.Size <= searchFile:
		s.file(ctx, at)
	}
	if e.Mode.IsDir() {
		return s.searchFolder(ctx, at, false)
	}
	return ctx.Err()
}

func (s *searcher) file(ctx context.Context, at string) {
	b := bounded{most: searchFile}
	if _, err := s.files.ReadFile(ctx, at, 0, searchFile, &b); err != nil || !utf8.Valid(b.Bytes()) ||
		bytes.IndexByte(b.Bytes(), 0) >= 0 {
		return
	}
	n := 0
	for line := range bytes.Lines(b.Bytes()) {
		if n++; s.text.Match(bytes.TrimRight(line, "\r\n")) {
			line = bytes.TrimRight(line, "\r\n")
			s.addHit(found{printableName(at), n, displaytext.Visible(line[:min(len(line), searchLine)])})
		}
	}
}

func (s *searcher) addHit(f found) {
	if len(s.out.Found) >= s.in.Results {
		s.out.Cut = true
		return
	}
	s.out.Found = append(s.out.Found, f)
}
