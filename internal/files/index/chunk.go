package index

import (
	"bytes"
	"strings"
	"unicode/utf8"

	"gatehouse/internal/files/symbols"
)

// Sizes of chunks in bytes. A chunk ends at the first good place after chunkTarget and never exceeds chunkMost.
const (
	chunkLeast  = 400
	chunkTarget = 1600
	chunkMost   = 2800
	chunkMean   = 1000 // about what it is in sources and documents
)

// Chunk is a part of a document.
type Chunk struct {
	Line, Last int    // lines of the text, from 1
	Page       int    // of a document with pages, from 1; otherwise 0
	Heading    string // headings or symbols around it, the outermost first, separated by " > "
	Text       string
}

// Places where a text can be cut, from good to bad.
const (
	cutAnywhere = iota
	cutBlank    // after a blank line
	cutInner    // before a symbol inside another one, or a lower heading
	cutOuter    // before a heading or a definition on the top level
)

// line is one line of a text with what is known about it.
type line struct {
	text    []byte
	cut     int    // how good it is to begin a chunk with this line
	heading string // the headings that apply from this line on
	page    int
}

// Cut cuts a text into chunks at headings, definitions and paragraphs. language is an id of package language.
func Cut(language string, text []byte) (all []Chunk) {
	text = text[:min(len(text), MaxText)]
	lines := splitLines(language, text)
	from, size := 0, 0
	flush := func(to int) {
		all = appendChunk(all, lines, from, to)
		from, size = to, 0
	}
	for i := range lines {
		n := len(lines[i].text) + 1
		if i > from && size+n > chunkMost {
			flush(bestCut(lines, from, i))
			for _, l := range lines[from:i] {
				size += len(l.text) + 1
			}
		}
		switch cut := lines[i].cut; {
		case i == from:
		case cut == cutOuter && size >= chunkLeast,
			cut == cutInner && size >= chunkTarget*3/4,
			cut == cutBlank && size >= chunkTarget:
			flush(i)
		}
		size += n
	}
	flush(len(lines))
	return all
}

// bestCut returns the line at which to cut a chunk that would be too long with line end.
func bestCut(lines []line, from, end int) (at int) {
	at, best, size := end, -1, 0
	for i := from; i < end; i++ {
		if i > from && size >= chunkLeast && lines[i].cut >= best && lines[i].cut > cutAnywhere {
			at, best = i, lines[i].cut
		}
		size += len(lines[i].text) + 1
	}
	return at
}

// appendChunk adds the lines from, to; a line that is too long becomes several chunks with the same number.
func appendChunk(all []Chunk, lines []line, from, to int) []Chunk {
	for from < to && len(bytes.TrimSpace(lines[from].text)) == 0 {
		from++
	}
	for to > from && len(bytes.TrimSpace(lines[to-1].text)) == 0 {
		to--
	}
	if from == to {
		return all
	}
	c := Chunk{Line: from + 1, Last: to, Page: lines[from].page, Heading: lines[from].heading}
	if to == from+1 && len(lines[from].text) > chunkMost {
		for rest := lines[from].text; len(rest) > 0; {
			n := sentenceEnd(rest)
			c.Text = clean(rest[:n])
			rest = rest[n:]
			if c.Text != "" {
				all = append(all, c)
			}
		}
		return all
	}
	size := 0
	for _, l := range lines[from:to] {
		size += len(l.text) + 1
	}
	var b strings.Builder
	b.Grow(size)
	for _, l := range lines[from:to] {
		b.Write(l.text)
		b.WriteByte('\n')
	}
	c.Text = cleanString(b.String())
	return append(all, c)
}

func clean(b []byte) string { return cleanString(string(b)) }

func cleanString(s string) string {
	return strings.TrimRight(strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", " "), "\uFFFD"), " \t\r\n")
}

// sentenceEnd returns where to cut a long line: after a sentence if there is one, or else after a word.
func sentenceEnd(b []byte) int {
	if len(b) <= chunkMost {
		return len(b)
	}
	head := b[:chunkMost]
	for _, end := range []string{". ", "? ", "! ", "; ", ", ", " "} {
		if i := bytes.LastIndex(head, []byte(end)); i >= chunkLeast {
			return i + len(end)
		}
	}
	n := chunkMost
	for n > chunkMost-utf8.UTFMax && !utf8.RuneStart(b[n]) {
		n--
	}
	return n
}

// splitLines splits a text, and finds its headings and definitions.
func splitLines(language string, text []byte) []line {
	lines := make([]line, 0, bytes.Count(text, []byte("\n"))+1)
	blank, page := false, 0
	for part := range bytes.Lines(text) {
		part = bytes.TrimRight(part, "\r\n")
		l := line{text: part}
		if n := pageNumber(part); n > 0 {
			page, l.cut = n, cutOuter
		} else if blank {
			l.cut = cutBlank
		}
		l.page = page
		blank = len(bytes.TrimSpace(part)) == 0
		lines = append(lines, l)
	}
	markSymbols(lines, language, symbols.Of(language, text))
	return lines
}

// pageNumber returns the number of a line as package extract writes it before each page.
func pageNumber(b []byte) (n int) {
	b, begins := bytes.CutPrefix(b, []byte("[page "))
	b, ends := bytes.CutSuffix(b, []byte("]"))
	if !begins || !ends || len(b) == 0 || len(b) > 6 {
		return 0
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0
		}
		n = 10*n + int(c-'0')
	}
	return n
}

// maxHeading is the number of bytes of the headings of a chunk.
const maxHeading = 400

// markSymbols marks the lines at which definitions or headings begin, and names what each line lies in.
func markSymbols(lines []line, language string, all []symbols.Symbol) {
	prose := language == "markdown" || language == "restructuredtext" || language == "html"
	var open []symbols.Symbol
	next, heading := 0, ""
	for i := range lines {
		for len(open) > 0 && !prose && open[len(open)-1].End > 0 && open[len(open)-1].End < i+1 {
			open = open[:len(open)-1]
			heading = headingOf(open, prose)
		}
		for ; next < len(all) && all[next].Line <= i+1; next++ {
			s := all[next]
			for len(open) > 0 && open[len(open)-1].Depth >= s.Depth {
				open = open[:len(open)-1]
			}
			open = append(open, s)
			heading = headingOf(open, prose)
			cut := cutInner
			if s.Depth == 0 || prose {
				cut = cutOuter
			}
			at := i
			for !prose && at > 0 && isAttached(lines[at-1].text) {
				at-- // the comment above a definition belongs to it
			}
			lines[at].cut = max(lines[at].cut, cut)
			for j := at; j < i; j++ {
				lines[j].heading = heading
			}
		}
		lines[i].heading = heading
	}
}

// isAttached reports whether a line is a comment or an attribute of what follows it.
func isAttached(b []byte) bool {
	b = bytes.TrimSpace(b)
	for _, sign := range []string{"//", "#", "*", "/*", "--", "@", "\"\"\"", ";"} {
		if bytes.HasPrefix(b, []byte(sign)) {
			return true
		}
	}
	return false
}

func headingOf(open []symbols.Symbol, prose bool) string {
	var b strings.Builder
	for i, s := range open {
		if i > 0 {
			b.WriteString(" > ")
		}
		text := s.Text
		if prose {
			text = strings.TrimSpace(strings.TrimLeft(text, "#"))
		}
		if b.Len()+len(text) > maxHeading {
			break
		}
		b.WriteString(text)
	}
	return b.String()
}

// titleOf returns the title of a document: its first heading, or else its first line if that is short.
func titleOf(language string, text []byte) string {
	for part := range bytes.Lines(text[:min(len(text), 4<<10)]) {
		part = bytes.TrimSpace(part)
		if len(part) == 0 || bytes.HasPrefix(part, []byte("---")) {
			continue
		}
		if rest := bytes.TrimLeft(part, "#"); language == "markdown" && len(rest) < len(part) {
			return clean(bytes.TrimSpace(rest[:min(len(rest), 200)]))
		}
		if language == "plaintext" && len(part) <= 200 {
			return clean(part)
		}
		if language != "markdown" {
			return ""
		}
	}
	return ""
}
