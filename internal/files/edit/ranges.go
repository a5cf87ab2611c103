package edit

import (
	"cmp"
	"slices"
	"unicode/utf8"

	"gatehouse/tool"
)

// Range is a part of a text, and what replaces it. Lines and columns begin at 1, and columns count characters. The end
// is the first character that stays.
type Range struct {
	Line, Column, EndLine, EndColumn int
	New                              string
}

// Replace replaces ranges of content, which it does not change and in which they are found. The error is a
// *tool.Refusal, in which name stands for the file: a range does not exist, or two overlap.
func Replace(name string, content []byte, ranges []Range) (*Result, error) {
	r := &Result{before: content, Replacements: len(ranges)}
	r.lines.b = content
	for i, b := range content {
		if b == '\n' {
			r.lines.newlines = append(r.lines.newlines, i)
		}
	}
	for _, x := range ranges {
		from, ok := r.lines.offset(x.Line, x.Column)
		to, ok2 := r.lines.offset(x.EndLine, x.EndColumn)
		if !ok || !ok2 || to < from {
			return nil, tool.Refuse(tool.CodeInvalidArguments, "%s has no range %d:%d to %d:%d; nothing was written",
				name, x.Line, x.Column, x.EndLine, x.EndColumn)
		}
		r.changes = append(r.changes, splice{from, to, x.New})
	}
	slices.SortStableFunc(r.changes, func(a, b splice) int { return cmp.Or(a.from-b.from, a.to-b.to) })
	for i := 1; i < len(r.changes); i++ {
		if r.changes[i].from < r.changes[i-1].to {
			return nil, tool.Refuse(tool.CodeOverlap, "two edits of %s overlap; nothing was written", name)
		}
	}
	return r, nil
}

// offset returns the offset of a line and column. The line after the last one has a first column.
func (x *index) offset(line, column int) (int, bool) {
	at, end := 0, len(x.b)
	if line < 1 || column < 1 {
		return 0, false
	}
	if line > 1 {
		if line-2 >= len(x.newlines) {
			return end, line == x.lineCount()+1 && column == 1
		}
		at = x.newlines[line-2] + 1
	}
	if line-1 < len(x.newlines) {
		end = x.newlines[line-1]
	}
	for range column - 1 {
		if at >= end {
			return 0, false
		}
		_, n := utf8.DecodeRune(x.b[at:end])
		at += n
	}
	return at, true
}
