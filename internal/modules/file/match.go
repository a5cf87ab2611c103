package file

import (
	"bytes"
	"slices"
	"strings"
)

// match is what an edit found in a file and what it will put there.
type match struct {
	content []byte
	spans   []span // in order, not overlapping
}

// span is one occurrence, which begins at start. Of it only [from, to) is
// rewritten: what the old and the new text begin and end with alike keeps its
// bytes.
type span struct {
	start    int
	from, to int
	with     string
}

// find looks for old as it is and, if it is not there, with line endings of
// either kind taken for the same.
func find(content []byte, old, with string) *match {
	m := &match{content: content}
	if bytes.HasPrefix(content, []byte(bom)) { // it is not part of the first line
		old, with = strings.TrimPrefix(old, bom), strings.TrimPrefix(with, bom)
	}
	if old == "" {
		return m
	}
	literal := meansReturns(old, with)
	starts := indexes(content, []byte(old))
	if !literal && old[0] == '\n' {
		starts = slices.DeleteFunc(starts, m.splits) // half a line ending is not what is meant
	}
	if len(starts) > 0 {
		m.exact(starts, old, with, literal)
		return m
	}
	if crlf := []byte("\r\n"); bytes.Contains(content, crlf) || strings.Contains(old, "\r\n") {
		m.neutral(unixed(old), unixed(with))
	}
	return m
}

func unixed(s string) string { return strings.ReplaceAll(s, "\r\n", "\n") }

// matchesMost is how many places one edit may have; each takes memory.
const matchesMost = 1 << 20

// indexes are the places of the occurrences, none of which overlap; it stops
// one after the most there may be.
func indexes(b, sub []byte) (at []int) {
	for off := 0; len(at) <= matchesMost; {
		i := bytes.Index(b[off:], sub)
		if i < 0 {
			return at
		}
		at = append(at, off+i)
		off += i + len(sub)
	}
	return at
}

// exact fills in occurrences of old itself.
func (m *match) exact(starts []int, old, with string, literal bool) {
	from, to := 0, 0
	if literal {
		head, tail := common(old, with)
		from, to, with = head, len(old)-tail, with[head:len(with)-tail]
	} else {
		plain := unixed(old)
		with = unixed(with)
		head, tail := common(plain, with)
		back := translator{content: []byte(old)}
		from, to, with = back.to(head), back.to(len(plain)-tail), with[head:len(with)-tail]
	}
	for _, at := range starts {
		s := span{start: at, from: at + from, to: at + to, with: with}
		if !literal {
			s.with = m.ending(at, with)
		}
		m.spans = append(m.spans, s)
	}
}

// meansReturns reports whether an edit is about carriage returns. One that
// copied them from the file but left them out of the new text is not, unless
// taking them out is all it does.
func meansReturns(old, with string) bool {
	if !strings.Contains(old, "\r") {
		return false
	}
	return strings.Contains(with, "\r") || strings.Contains(unixed(old), "\r") || with == unixed(old)
}

// splits reports whether at lies between a \r and its \n.
func (m *match) splits(at int) bool {
	return at > 0 && at < len(m.content) && m.content[at-1] == '\r' && m.content[at] == '\n'
}

// neutral finds old, which has no \r\n, in the content without its own, and
// translates the places back.
func (m *match) neutral(old, with string) {
	if old == "" || old == with {
		return
	}
	plain := bytes.ReplaceAll(m.content, []byte("\r\n"), newline)
	head, tail := common(old, with)
	back := translator{content: m.content}
	for _, at := range indexes(plain, []byte(old)) {
		s := span{start: back.to(at), from: back.to(at + head), to: back.to(at + len(old) - tail)}
		s.with = m.ending(s.start, with[head:len(with)-tail])
		m.spans = append(m.spans, s)
	}
}

// translator turns places in a text whose \r\n became \n into places in the
// original. They must be asked for in order.
type translator struct {
	content []byte
	plain   int // a place in the shortened text
	full    int // the same place in the original
}

func (t *translator) to(plain int) int {
	for t.plain < plain {
		step := plain - t.plain
		i := bytes.Index(t.content[t.full:min(t.full+step+1, len(t.content))], []byte("\r\n"))
		if i < 0 {
			t.plain += step
			t.full += step
			break
		}
		t.plain += i + 1
		t.full += i + 2
	}
	return t.full
}

// common is how many bytes two texts begin and end with alike.
func common(a, b string) (head, tail int) {
	n := min(len(a), len(b))
	for head < n && a[head] == b[head] {
		head++
	}
	for tail < n-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	return head, tail
}

// ending gives text the line endings used around at: those of the line it is
// on or, on the last line, of the line before.
func (m *match) ending(at int, text string) string {
	if !strings.Contains(text, "\n") {
		return text
	}
	i := bytes.IndexByte(m.content[at:], '\n') + at
	if i < at {
		i = bytes.LastIndexByte(m.content[:at], '\n')
	}
	if i > 0 && m.content[i-1] == '\r' {
		return strings.ReplaceAll(text, "\n", "\r\n")
	}
	return text
}

// size is that of the result, in bytes.
func (m *match) size() int64 {
	n := int64(len(m.content))
	for _, s := range m.spans {
		n += int64(len(s.with) - (s.to - s.from))
	}
	return n
}

func (m *match) apply() []byte {
	out := make([]byte, 0, m.size())
	at := 0
	for _, s := range m.spans {
		out = append(out, m.content[at:s.from]...)
		out = append(out, s.with...)
		at = s.to
	}
	return append(out, m.content[at:]...)
}

// lineOf is the number of the line that at lies on.
func lineOf(content []byte, at int) int { return bytes.Count(content[:at], newline) + 1 }
