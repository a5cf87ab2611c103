package file

import (
	"context"
	"fmt"
	"strings"

	"gatehouse/internal/language"
	"gatehouse/tool"
)

type readIn struct {
	Path     string `json:"path" doc:"file to read" min:"1"`
	Offset   int    `json:"offset,omitempty" doc:"first line, from 1; negative: that many lines from the end"`
	Limit    int    `json:"limit,omitempty" doc:"most lines" min:"1"`
	FromByte int64  `json:"from_byte,omitempty" doc:"start at this byte instead of a line" min:"1"`
	MaxBytes int    `json:"max_bytes,omitempty" default:"32768" min:"256" max:"1048576"`
}

type readOut struct {
	Content    string `json:"content" bulk:"true"`
	Language   string `json:"language"`
	Path       string `json:"path"`
	Size       int64  `json:"size" doc:"bytes of the whole file"`
	FirstLine  int    `json:"first_line,omitempty"`
	TotalLines int    `json:"total_lines,omitempty"`
	NextOffset int    `json:"next_offset,omitempty" doc:"offset of the next page"`
	NextByte   int64  `json:"next_byte,omitempty" doc:"from_byte of the next page"`
	Truncated  bool   `json:"truncated,omitempty" doc:"max_bytes ended the page"`
	Note       string `json:"note,omitempty"`
}

const readHelp = `Reads a text file, a page at a time.

- A page ends on a line and holds at most max_bytes. If there is more, next_offset says where to go on.
- offset -50 reads the last 50 lines, of a file of any size.
- A line longer than a page is cut; next_byte, given as from_byte, goes on inside it.
- The text is exactly what the file holds, with its line endings and byte order mark, which note mentions.
  Bytes that are not UTF-8, and NUL bytes, are shown as \xNN.
- total_lines is left out where counting would mean reading more than 16 MB.
- Binary files, pipes, devices and directories are refused. Symbolic links are followed inside the workspace.`

func (m *files) readTool() tool.Tool {
	t := tool.New(tool.Def{
		Name:        "file_read",
		Description: "Reads a text file, by default its first 32 kB. next_offset in the result says where to go on.",
		Help:        readHelp,
		Effects:     tool.Reads,
		Budget:      -1, // it pages itself
	}, m.read)
	run := t.Run
	t.Run = func(ctx context.Context, c *tool.Call) (tool.Result, error) {
		res, err := run(ctx, c)
		if out, ok := res.Structured.(readOut); ok && err == nil {
			if f := out.footer(); f != "" {
				res.Content = append(res.Content, tool.Text(f))
			}
		}
		return res, err
	}
	return t
}

// footer repeats what a model that is shown only the text has to know.
func (o readOut) footer() string {
	var s []string
	switch {
	case o.NextByte > 0:
		s = append(s, fmt.Sprintf("the file goes on; next from_byte=%d of %d", o.NextByte, o.Size))
	case o.NextOffset != 0 && o.TotalLines > 0:
		s = append(s, fmt.Sprintf("lines %d-%d of %d; next offset=%d", o.FirstLine, o.NextOffset-1, o.TotalLines, o.NextOffset))
	case o.NextOffset != 0:
		s = append(s, fmt.Sprintf("the file goes on; next offset=%d", o.NextOffset))
	}
	if o.Note != "" {
		s = append(s, o.Note)
	}
	if len(s) == 0 {
		return ""
	}
	return "[" + strings.Join(s, "; ") + "]"
}

func (m *files) read(ctx context.Context, c *tool.Call, in readIn) (readOut, error) {
	if in.MaxBytes == 0 {
		in.MaxBytes = 32 << 10
	}
	p, err := findFile(c, in.Path)
	if err != nil {
		return readOut{}, err
	}
	f, info, err := p.Regular()
	if err != nil {
		return readOut{}, err
	}
	defer f.Close()
	s, err := newSource(ctx, f, info.Size())
	if err != nil {
		return readOut{}, p.Refuse(err)
	}
	if err := s.mustBeText(in.Path); err != nil {
		return readOut{}, err
	}
	pg, err := s.page(in)
	if err != nil {
		return readOut{}, p.Refuse(err)
	}
	out := readOut{
		Path: in.Path, Size: s.size,
		FirstLine: pg.firstLine, TotalLines: pg.totalLines,
		NextOffset: pg.nextOffset, NextByte: pg.nextByte, Truncated: pg.truncated,
	}
	// Two kilobytes settle most ties, and looking at more would cost more than reading did.
	out.Language, _ = language.Detect(p.Name, s.head[:min(len(s.head), 2<<10)])
	out.Content, out.Note = show(pg.text, pg.start == 0)
	return out, nil
}
