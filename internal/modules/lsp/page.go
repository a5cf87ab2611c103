package lsp

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

// place is a range in a file.
type place struct {
	path string
	span
}

// places returns the locations in files, sorted by path and position, each once.
func places(all []location) []place {
	var out []place
	for _, l := range all {
		if l.TargetURI != "" {
			l.URI, l.Range = l.TargetURI, l.TargetRange
		}
		if path := pathOf(l.URI); path != "" {
			out = append(out, place{path, l.Range})
		}
	}
	slices.SortFunc(out, place.compare)
	return slices.CompactFunc(out, func(a, b place) bool { return a.compare(b) == 0 })
}

// compare orders places as their keys do.
func (p place) compare(o place) int {
	return cmp.Or(strings.Compare(p.path, o.path), p.Start.Line-o.Start.Line, p.Start.Character-o.Start.Character)
}

func (p place) key() string {
	return fmt.Sprintf("%s\x00%08d\x00%08d", p.path, p.Start.Line, p.Start.Character)
}

// pageOut is one page of a list.
type pageOut struct {
	Text       string `json:"text" text:"product"`
	Total      int    `json:"total"`
	Shown      int    `json:"shown"`
	Hidden     int    `json:"hidden,omitempty" doc:"left out because the caller may not read the files"`
	NextCursor string `json:"next_cursor,omitempty"`

	what string
}

// Facts implements tool.Facter.
func (o pageOut) Facts() string {
	words := []string{fmt.Sprintf("%s: %d", o.what, o.Total)}
	if o.Shown < o.Total {
		words = append(words, fmt.Sprintf("shown: %d", o.Shown))
	}
	if o.Hidden > 0 {
		words = append(words, fmt.Sprintf("left out, since you may not read the files: %d", o.Hidden))
	}
	if o.NextCursor != "" {
		words = append(words, "to read on, call again with cursor="+o.NextCursor)
	}
	return tool.Facts(words...)
}

// item is an entry of a list: its place in the order, and a function that words it.
type item struct {
	key  string
	word func() (line string, hidden bool)
}

// page words the items after a cursor, as many as fit.
func page(what string, items []item, cursor string) (pageOut, error) {
	out := pageOut{Total: len(items), what: what}
	from := 0
	if cursor != "" {
		b, err := base64.RawURLEncoding.DecodeString(cursor)
		if err != nil || len(b) == 0 {
			return out, &tool.Refusal{
				Code:    tool.CodeInvalidArguments,
				Message: "cursor is not one that this tool returned",
				Next:    "Give next_cursor of the previous page with the same arguments, or no cursor for the first page.",
			}
		}
		for from < len(items) && items[from].key <= string(b) {
			from++
		}
	}
	var text strings.Builder
	for i, it := range items[from:] {
		line, hidden := it.word()
		if hidden {
			out.Hidden++
			continue
		}
		// A cursor has a third more bytes than the key in it.
		if text.Len() > 0 && text.Len()+len(line)+len(it.key)*4/3 > pageSize {
			out.NextCursor = base64.RawURLEncoding.EncodeToString([]byte(items[from+i-1].key))
			break
		}
		text.WriteString(line + "\n")
		out.Shown++
	}
	out.Text = text.String()
	if out.Text == "" {
		out.Text = "Nothing was found.\n"
	}
	return out, nil
}

// reader reads the files of an answer, each once.
type reader struct {
	m    *service
	c    *tool.Call
	seen map[string]*file
	errs map[string]error
}

func (m *service) reader(c *tool.Call) *reader {
	return &reader{m, c, map[string]*file{}, map[string]error{}}
}

func (r *reader) openFile(path string) (*file, error) {
	if f, ok := r.seen[path]; ok {
		return f, r.errs[path]
	}
	f, err := r.m.openFile(r.c, path)
	r.seen[path], r.errs[path] = f, err
	return f, err
}

// item returns the entry of a place: path:line:column and the text of the line, or what is given.
func (r *reader) item(p place, encoding, say string) item {
	return item{p.key(), func() (string, bool) {
		at := fmt.Sprintf("%s:%d", r.shown(p.path), p.Start.Line+1)
		f, err := r.openFile(p.path)
		if err != nil {
			if located, err := roots.Locate(r.c.Roots, p.path); err == nil && located.MayRead() != nil {
				return "", true
			}
			return fmt.Sprintf("%s: %s(outside of your folders)", at, orSpace(say)), false
		}
		at += fmt.Sprintf(":%d", f.column(p.Start, encoding))
		return at + ": " + orSpace(say) + cutText(strings.TrimSpace(f.line(p.Start.Line))), false
	}}
}

func orSpace(s string) string {
	if s == "" {
		return ""
	}
	return s + ": "
}

// shown returns a path as the caller writes it: relative to the first folder.
func (r *reader) shown(path string) string {
	if list := r.c.Roots.List(); len(list) > 0 {
		if rel, err := filepath.Rel(list[0].Path, path); err == nil && filepath.IsLocal(rel) {
			return rel
		}
	}
	return path
}

// cutText shortens the text of a line.
func cutText(s string) string {
	if len(s) <= lineText {
		return s
	}
	s = s[:lineText]
	for !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s + "…"
}
