package file

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"gatehouse/internal/files/search"
	"gatehouse/tool"
)

const (
	maxRanges     = 100
	aroundDefault = 41 // lines, with the given one in the middle
)

type lineRange struct{ from, to int }

// parseRanges parses "1-20,80-95,120-"; a range without an end goes to the end of
// the file.
func parseRanges(s string) (all []lineRange, err error) {
	for one := range strings.SplitSeq(s, ",") {
		from, to, span := strings.Cut(strings.TrimSpace(one), "-")
		r := lineRange{to: 1<<31 - 1}
		if r.from, err = strconv.Atoi(strings.TrimSpace(from)); err == nil && !span {
			r.to = r.from
		} else if to = strings.TrimSpace(to); err == nil && to != "" {
			r.to, err = strconv.Atoi(to)
		}
		if err != nil || r.from < 1 || r.to < r.from || len(all) == maxRanges {
			return nil, &tool.Refusal{
				Code:    tool.CodeInvalidArguments,
				Message: fmt.Sprintf("ranges: %.60q is not a list of at most %d line ranges", s, maxRanges),
				Next:    "Give ranges such as 1-20,80-95,120.",
			}
		}
		all = append(all, r)
	}
	return all, nil
}

// readRanges reads several parts until max_bytes is used up. Each part follows
// a line with its line numbers.
func (out *readOut) readRanges(s *source, in *readIn) error {
	all, err := parseRanges(in.Ranges)
	if err != nil {
		return err
	}
	var b strings.Builder
	left := in.MaxBytes
	for i, r := range all {
		one := readIn{Offset: r.from, Limit: r.to - r.from + 1, MaxBytes: left}
		pg, err := s.page(one)
		if err != nil {
			return err
		}
		text, note := printable(pg.text, pg.start == 0)
		if out.Note == "" {
			out.addNote(note)
		}
		last := r.from - 1 + countLines(pg.text)
		fmt.Fprintf(&b, "[lines %d-%d]\n", r.from, last)
		if in.LineNumbers {
			text = numberedLines(text, r.from)
		}
		b.WriteString(text)
		if text != "" && !strings.HasSuffix(text, "\n") {
			b.WriteByte('\n')
		}
		if i == 0 {
			out.FirstLine = 0
		}
		if pg.totalLines > 0 {
			out.TotalLines = pg.totalLines
		}
		if left -= len(pg.text); pg.truncated || left < 1 && i+1 < len(all) {
			out.Truncated = true
			out.addNote("ended at max_bytes; to read on, call again with ranges=" + restOf(all[i:], last+1))
			break
		}
	}
	out.Content = b.String()
	return nil
}

// restOf formats the ranges that are left, beginning at line from of the first.
func restOf(all []lineRange, from int) string {
	var s []string
	for i, r := range all {
		if i == 0 {
			r.from = from
		}
		switch {
		case r.from > r.to:
		case r.to == 1<<31-1:
			s = append(s, fmt.Sprintf("%d-", r.from))
		default:
			s = append(s, fmt.Sprintf("%d-%d", r.from, r.to))
		}
	}
	return strings.Join(s, ",")
}

// resolveAround turns around into offset and limit.
func (in *readIn) resolveAround(ctx context.Context, s *source) error {
	if in.Limit == 0 {
		in.Limit = aroundDefault
	}
	line, err := strconv.Atoi(in.Around)
	if err != nil || line < 1 {
		p, err := search.Compile(in.Around, search.How{})
		if err != nil {
			return &tool.Refusal{Code: tool.CodeInvalidArguments, Message: "around: " + err.Error()}
		}
		if line, err = search.First(ctx, p, io.NewSectionReader(s.f, 0, s.size), s.size); err != nil {
			return err
		}
		if line == 0 {
			return &tool.Refusal{
				Code:    tool.CodeNotFound,
				Message: fmt.Sprintf("no line of the file matches %.100q", in.Around),
				Next:    "Give another regular expression, or search with file_search.",
			}
		}
	}
	in.Offset = max(line-(in.Limit-1)/2, 1)
	return nil
}
