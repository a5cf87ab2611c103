package edit

import (
	"bytes"
	"slices"
	"strings"
)

const bom = "\xEF\xBB\xBF"

var (
	newline = []byte{'\n'}
	crlf    = []byte("\r\n")
)

// findLiteral finds the old text byte for byte or, if it is not there, with \n
// and \r\n as equals.
func (t *text) findLiteral(e Edit) ([]place, Level) {
	old, with := e.Old, e.New
	level := Exact
	if marked := bytes.HasPrefix(t.content, []byte(bom)); marked { // The mark is not part of the first line.
		old, with = strings.TrimPrefix(old, bom), strings.TrimPrefix(with, bom)
	} else if strings.HasPrefix(old, bom) && !bytes.Contains(t.content, []byte(old)) {
		old, with = old[len(bom):], strings.TrimPrefix(with, bom)
		level = Newlines
	}
	if old == "" || old == with {
		return nil, 0
	}
	literal := meansReturns(old, with)
	starts := t.indexes(t.content, old, e.All)
	if !literal && old[0] == '\n' {
		starts = slices.DeleteFunc(starts, t.splitsCRLF) // An edit does not mean half a line ending.
	}
	if len(starts) == 1 && t.indentsTwice(starts[0], old, with) {
		return nil, 0
	}
	if len(starts) > 0 {
		return t.exact(starts, old, with, literal), level
	}
	if bytes.Contains(t.content, crlf) || strings.Contains(old, "\r\n") {
		old, with = withoutCR(old), withoutCR(with)
		places := t.findNeutral(old, with, e.All)
		if len(places) == 1 && t.indentsTwice(places[0].start, old, with) {
			return nil, 0
		}
		if len(places) > 0 {
			return places, Newlines
		}
	}
	return nil, 0
}

// withoutCR replaces \r\n by \n.
func withoutCR(s string) string { return strings.ReplaceAll(s, "\r\n", "\n") }

// indentsTwice reports whether an exact replacement would indent a line twice:
// old begins after the indentation of its first line, new begins with it, and
// another line shows that the edit does not change indentation.
func (t *text) indentsTwice(at int, old, with string) bool {
	start := bytes.LastIndexByte(t.content[:at], '\n') + 1
	indent := string(t.content[start:at])
	if indent == "" || !allBlank(indent) || !strings.HasPrefix(with, indent) || !strings.Contains(old, "\n") ||
		len(old) > maxTolerant {
		return false
	}
	o, n := split(old), split(with)
	if o[0].indent != "" || n[0].indent != indent {
		return false
	}
	of := sameLines(o, n, nil)
	changedLines(o, n, of)
	for j, i := range of {
		if j > 0 && i > 0 && !o[i].blank() && o[i].indent == n[j].indent {
			return true
		}
	}
	return false
}

// indexes returns where old occurs, up to one occurrence more than MaxPlaces.
// The occurrences do not overlap if all are to be replaced. Otherwise they may,
// because an edit of one of two that overlap is ambiguous.
func (t *text) indexes(b []byte, old string, all bool) (at []int) {
	sub := []byte(old)
	step := 1
	if all {
		step = len(sub)
	}
	for off := 0; len(at) <= MaxPlaces; {
		i := bytes.Index(b[off:], sub)
		if i < 0 {
			return at
		}
		at = append(at, off+i)
		off += i + step
	}
	return at
}

// exact makes the places for the occurrences of old.
func (t *text) exact(starts []int, old, with string, literal bool) (places []place) {
	from, to := 0, 0
	if literal {
		head, tail := common(old, with)
		from, to, with = head, len(old)-tail, with[head:len(with)-tail]
	} else {
		bare := withoutCR(old)
		with = withoutCR(with)
		head, tail := common(bare, with)
		back := translator{content: []byte(old)}
		from, to, with = back.to(head), back.to(len(bare)-tail), with[head:len(with)-tail]
	}
	for _, at := range starts {
		p := place{at, at + len(old), splice{at + from, at + to, with}}
		if !literal {
			p.with = t.withLineEndings(at, with)
		}
		places = append(places, p)
	}
	return places
}

// meansReturns reports whether an edit is about carriage returns. It is not if
// old has those of the file and new has none, unless removing them is all it
// does.
func meansReturns(old, with string) bool {
	if !strings.Contains(old, "\r") {
		return false
	}
	return strings.Contains(with, "\r") || strings.Contains(withoutCR(old), "\r") || with == withoutCR(old)
}

// splitsCRLF reports whether a byte lies between \r and \n.
func (t *text) splitsCRLF(at int) bool {
	return at > 0 && at < len(t.content) && t.content[at-1] == '\r' && t.content[at] == '\n'
}

// findNeutral finds old, which has no \r\n, in the content without its own, and
// translates the places back.
func (t *text) findNeutral(old, with string, all bool) (places []place) {
	if old == "" || old == with {
		return nil
	}
	bare := bytes.ReplaceAll(t.content, crlf, newline)
	head, tail := common(old, with)
	starts := t.indexes(bare, old, all)
	start, from, to, end := translator{
		content: t.content,
	}, translator{
		content: t.content,
	}, translator{
		content: t.content,
	}, translator{
		content: t.content,
	}
	for _, at := range starts {
		p := place{start: start.to(at), end: end.to(at + len(old))}
		p.splice = splice{from.to(at + head), to.to(at + len(old) - tail), ""}
		p.with = t.withLineEndings(p.start, with[head:len(with)-tail])
		places = append(places, p)
	}
	return places
}

// translator translates places in a text whose \r\n were replaced by \n into
// places in the original. The places must not decrease from call to call.
type translator struct {
	content []byte
	bare    int // a place in the shortened text
	full    int // the same place in the original
}

func (t *translator) to(bare int) int {
	for t.bare < bare {
		step := bare - t.bare
		i := bytes.Index(t.content[t.full:min(t.full+step+1, len(t.content))], crlf)
		if i < 0 {
			t.bare += step
			t.full += step
			break
		}
		t.bare += i + 1
		t.full += i + 2
	}
	return t.full
}

// common returns how many bytes two texts begin and end with alike.
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

// withLineEndings gives s the line endings that the file uses at a byte: those
// of its line or, on the last line, of the line before.
func (t *text) withLineEndings(at int, s string) string {
	if !strings.Contains(s, "\n") {
		return s
	}
	i := bytes.IndexByte(t.content[at:], '\n') + at
	if i < at {
		i = bytes.LastIndexByte(t.content[:at], '\n')
	}
	if i > 0 && t.content[i-1] == '\r' {
		return strings.ReplaceAll(s, "\n", "\r\n")
	}
	return s
}
