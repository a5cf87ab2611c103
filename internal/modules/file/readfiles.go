package file

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"gatehouse/tool"
)

// readFacts describes one of several files.
type readFacts struct {
	Path       string `json:"path"`
	Error      string `json:"error,omitempty"`
	FirstLine  int    `json:"first_line,omitempty"`
	TotalLines int    `json:"total_lines,omitempty"`
	NextOffset int    `json:"next_offset,omitempty"`
	NextByte   int64  `json:"next_byte,omitempty"`
	ETag       string `json:"etag,omitempty"`
	Note       string `json:"note,omitempty"`
}

// minShare is the number of bytes that must be left to start another file.
const minShare = 256

// readMany reads files in order until max_bytes is used up. For a file that
// cannot be read, the result has the reason in its place.
func (m *files) readMany(ctx context.Context, c *tool.Call, in readIn) (readOut, error) {
	out := readOut{}
	var b strings.Builder
	var all []readFacts
	left := in.MaxBytes
	for i, path := range in.Paths {
		if err := context.Cause(ctx); err != nil {
			return readOut{}, err
		}
		if left < minShare {
			out.Truncated = true
			out.addNote(
				fmt.Sprintf(
					"ended at max_bytes; %s not read, beginning with %s", plural(int64(len(in.Paths)-i), "file"), path,
				),
			)
			break
		}
		one := in
		one.Path, one.Paths, one.MaxBytes = path, nil, left
		got, err := m.readOne(ctx, c, one)
		f := got.facts(path, err)
		if err != nil && f.Error == "" {
			return readOut{}, err
		}
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "==> %s <==\n", visible(path))
		if f.Error != "" {
			fmt.Fprintf(&b, "[%s]\n", f.Error)
		}
		b.WriteString(got.Content)
		if got.Content != "" && !strings.HasSuffix(got.Content, "\n") {
			b.WriteByte('\n')
		}
		facts := got.Facts()
		if f.Error != "" {
			facts = "[" + f.Error + "]"
		}
		out.each = append(out.each, visible(path)+": "+cmp.Or(facts, "[read]"))
		out.Size += got.Size
		out.media = append(out.media, got.media...)
		left -= len(got.Content)
		for _, block := range got.media {
			left -= len(block.Data)
		}
		all = append(all, f)
	}
	out.Content, out.Files = b.String(), all
	return out, nil
}

func (out *readOut) facts(path string, err error) readFacts {
	f := readFacts{
		Path:       path,
		FirstLine:  out.FirstLine,
		TotalLines: out.TotalLines,
		NextOffset: out.NextOffset,
		NextByte:   out.NextByte,
		ETag:       out.ETag,
		Note:       out.Note,
	}
	if r, ok := errors.AsType[*tool.Refusal](err); ok {
		f.Error = r.Error()
	}
	return f
}
