package file

import (
	"encoding/base64"
	"fmt"
	"math"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"

	"gatehouse/internal/files/search"
	"gatehouse/tool"
)

// searchPrinter formats one page of a search result.
type searchPrinter struct {
	in     *searchIn
	prefix string // the caller's path, in front of the paths of the result
	only   string // the file's path as the caller wrote it, if path names a file

	text  strings.Builder
	sent  int // bytes of text as JSON
	lines int
	last  search.Key // of the last hit or file on the page
}

// jsonLen returns the length of s as JSON, in bytes.
func jsonLen(s string) int {
	n := len(s)
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"', c == '\\', c == '\n', c == '\t', c == '\r':
			n++
		case c < ' ':
			n += len(`\u0000`) - 1
		}
	}
	return n
}

// page formats as much as fits on a page, and returns the cursor of the next one.
func (w *searchPrinter) page(res search.Result) (text, next string) {
	for i := range res.Files {
		if !w.file(&res.Files[i]) {
			return w.text.String(), searchCursor(w.last, w.in.rest)
		}
	}
	if res.More {
		return w.text.String(), searchCursor(w.last, w.in.rest)
	}
	if res.Longer && !w.in.rest && w.only == "" {
		return w.text.String(), searchCursor(search.Key{}, true)
	}
	return w.text.String(), ""
}

// file writes one file and reports whether all of it fitted on the page. The
// first hit of a page is always written.
func (w *searchPrinter) file(f *search.File) bool {
	if w.in.Mode != "content" {
		line := w.path(f.Path)
		if w.in.Mode == "count" {
			line += ": " + strconv.Itoa(f.Count)
		}
		return w.writeText(line+"\n", search.Key{Rank: f.Rank, Path: f.Path})
	}
	head := w.path(f.Path) + " etag=" + f.ETag + "\n"
	if w.text.Len() > 0 {
		head = "\n" + head
	}
	shown := 0
	for i := range f.Hits {
		h := &f.Hits[i]
		var b strings.Builder
		b.WriteString(head)
		until := math.MaxInt
		if i+1 < len(f.Hits) {
			until = f.Hits[i+1].Line
		}
		shown = writeHit(&b, h, shown, until)
		if !w.writeText(b.String(), search.Key{Rank: f.Rank, Path: f.Path, Line: h.Line}) {
			return false
		}
		head = ""
	}
	switch {
	case !f.More:
	case w.in.rest || w.only != "":
		return false // the rest of this file comes next
	default:
		fmt.Fprintf(
			&w.text, "[%d more hits in this file, on the pages after the first hits of all files]\n", f.Count-firstHits,
		)
	}
	return true
}

func (w *searchPrinter) writeText(s string, k search.Key) bool {
	n := jsonLen(s)
	if w.lines > 0 && (w.lines == w.in.Limit || w.sent+n > searchPage) {
		return false
	}
	w.text.WriteString(s)
	w.sent += n
	w.lines++
	w.last = k
	return true
}

func (w *searchPrinter) path(p string) string {
	if w.only != "" {
		return visible(w.only)
	}
	if strings.HasPrefix(w.prefix, "./") || w.prefix == "~" {
		return visible(strings.TrimSuffix(w.prefix, "/") + "/" + p)
	}
	return visible(path.Join(filepath.ToSlash(w.prefix), p))
}

// writeHit writes a hit with the lines of its context after line shown and before
// line until, which the previous and the next hit have. It returns the number of
// the last line it wrote.
func writeHit(b *strings.Builder, h *search.Hit, shown, until int) int {
	first := h.Line - len(h.Before)
	if shown > 0 && first > shown+1 && len(h.Before)+len(h.After) > 0 {
		b.WriteString("--\n")
	}
	for i, line := range h.Before {
		if n := first + i; n > shown {
			fmt.Fprintf(b, "%d- %s\n", n, visible(line))
		}
	}
	n := h.Line
	for i, line := range strings.Split(h.Text, "\n") {
		if i > 0 {
			n++
		}
		if line = visible(strings.TrimSuffix(line, "\r")); n > shown || i == 0 {
			fmt.Fprintf(b, "%d: %s\n", n, line)
		}
	}
	for _, line := range h.After {
		if n++; n >= until {
			return max(shown, n-1)
		}
		fmt.Fprintf(b, "%d- %s\n", n, visible(line))
	}
	return max(shown, n)
}

// total returns the prefix of a number that is a lower bound.
func (o searchOut) total() string {
	if o.atLeast {
		return "at least "
	}
	return ""
}

// Facts returns how much was found and how to read on.
func (o searchOut) Facts() string {
	var s []string
	switch {
	case o.Files == 0:
		s = append(s, "nothing found")
	case o.mode == "content" || o.mode == "count":
		s = append(s, o.total()+plural(o.Hits, "hit")+" in "+plural(o.Files, "file"))
	default:
		s = append(s, o.total()+plural(o.Files, "file"))
	}
	s = append(s, o.Note)
	if o.NextCursor != "" {
		s = append(s, "to read on, call again with cursor="+o.NextCursor)
	}
	return tool.Facts(s...)
}

// searchNote returns what the search skipped, and whether it was stopped.
func searchNote(res search.Result, late, names bool) string {
	var s []string
	add := func(n int64, one, rest string) {
		if n > 0 {
			s = append(s, plural(n, one)+rest)
		}
	}
	if late {
		s = append(
			s,
			fmt.Sprintf(
				"stopped after %v with %d files searched, narrow the search with path or glob", searchTime,
				res.Searched,
			),
		)
	}
	if !names && res.Matched == 0 {
		add(res.Searched, "file", " searched")
		add(res.Binary, "binary file", " skipped")
		add(res.Tree.Ignored, "entry", " ignored")
	}
	add(res.Denied, "protected file", " not shown")
	add(res.Large, "file", " too large for multiline")
	add(res.Failed, "file", " not readable")
	add(res.Tree.Unreadable, "directory", " not readable")
	add(res.Tree.TooDeep, "directory", " too deep")
	return strings.Join(s, ", ")
}

// plural formats a number with a noun.
func plural(n int64, thing string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(thing, "y"):
		thing = strings.TrimSuffix(thing, "y") + "ies"
	default:
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

// searchCursor encodes the key of the last hit or file on a page. rest means that
// the page is one of those after the first hits of all files.
func searchCursor(k search.Key, rest bool) string {
	if rest {
		k.Rank += restRank
	}
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d,%d,%s", k.Rank, k.Line, k.Path))
}

// restRank is added to the rank in a cursor with rest.
const restRank = 10

func searchKey(cursor string) (k search.Key, rest bool, err error) {
	if cursor == "" {
		return k, false, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	parts := strings.SplitN(string(b), ",", 3)
	if err == nil && len(parts) == 3 {
		k.Path = parts[2]
		if k.Rank, err = strconv.Atoi(parts[0]); err == nil {
			k.Line, err = strconv.Atoi(parts[1])
		}
	}
	if err != nil || len(parts) != 3 {
		return k, false, &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: "cursor is not one that file_search returned",
			Next:    "Give next_cursor of the previous page with the same arguments, or no cursor for the first page.",
		}
	}
	if rest = k.Rank >= restRank; rest {
		k.Rank -= restRank
	}
	return k, rest, nil
}

// visible returns s with each NUL and each byte that is not UTF-8 as \xNN, because
// JSON cannot carry them.
func visible(s string) string {
	if utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 {
		return s
	}
	text, _ := escape([]byte(s))
	return text
}
