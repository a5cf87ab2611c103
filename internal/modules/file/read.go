package file

import (
	"context"
	"fmt"
	"strings"

	"gatehouse/tool"
)

type readIn struct {
	Path        string   `json:"path,omitempty" names:"path"`
	Paths       []string `json:"paths,omitempty" doc:"several files, which share max_bytes" max:"200" names:"path"`
	Offset      int      `json:"offset,omitempty" doc:"first line, from 1; negative: lines from the end"`
	Limit       int      `json:"limit,omitempty" doc:"maximum of lines" min:"1"`
	Head        int      `json:"head,omitempty" doc:"first lines" min:"1"`
	Tail        int      `json:"tail,omitempty" doc:"last lines" min:"1"`
	Ranges      string   `json:"ranges,omitempty" doc:"lines, as 1-20,80-95"`
	Around      string   `json:"around,omitempty" doc:"line number or regexp; limit lines around it"`
	FromByte    int64    `json:"from_byte,omitempty" min:"1"`
	MaxBytes    int      `json:"max_bytes,omitempty" default:"32768" min:"256" max:"1048576"`
	LineNumbers bool     `json:"line_numbers,omitempty"`
	As          string   `json:"as,omitempty" enum:"raw,text,outline,unsaved" doc:"outline: definitions"`
}

type readOut struct {
	Content    string      `json:"content" text:"product"`
	Language   string      `json:"language"`
	Path       string      `json:"path"`
	Size       int64       `json:"size" doc:"bytes of the file"`
	FirstLine  int         `json:"first_line,omitempty"`
	TotalLines int         `json:"total_lines,omitempty"`
	NextOffset int         `json:"next_offset,omitempty"`
	NextByte   int64       `json:"next_byte,omitempty"`
	Truncated  bool        `json:"truncated,omitempty" doc:"the page ended at max_bytes"`
	ETag       string      `json:"etag,omitempty"`
	Files      []readFacts `json:"files,omitempty"`
	Note       string      `json:"note,omitempty"`

	format string         // line endings and indentation; set on the first page of a file
	media  []tool.Content // images and audio beside the text
	each   []string       // the facts of each file, if several were read
}

// pageBytes is the default of max_bytes.
const pageBytes = 32 << 10

const readHelp = `Reads a file, a page at a time, or several files at once.

- A page ends at the end of a line and has at most max_bytes. If the file goes on, next_offset is the offset of the
  next page.
- offset -50 or tail 50 reads the last 50 lines of a file of any size; ranges reads several parts; around reads the
  lines near a line number or near the first match of a regular expression, 41 lines unless limit is given.
- A line longer than a page is cut; give next_byte as from_byte to read on inside it. If a page counted from the end
  would begin in a line of more than 64 MiB, it begins near the end of that line.
- If an editor has changes of the file that are not saved, note says so. as unsaved returns the text in the editor, as far
  as the editor has given it, in one page; line numbers of other tools are those of the saved file.
- The text is exactly the content of the file, with its line endings and byte order mark, which note mentions.
  Bytes that are not UTF-8, and NUL bytes, are shown as \xNN. UTF-16 is decoded.
- A second block of the result has the line numbers, the line endings and indentation, and the etag, which file_edit
  and file_write accept as if_match.
- paths reads up to 200 files in order until max_bytes is used up; a file that cannot be read does not stop the
  others. files describes each file; in the text each file follows its path.
- as outline lists the definitions in a source file, with line numbers. PDF, office documents, EPUB and notebooks are
  converted to text, HTML only with as text; as raw returns a notebook as JSON.
- Images and audio are returned as such. Other binary files are refused with their type, size and first bytes; pipes,
  devices and directories are refused too. Symbolic links are followed inside the workspace.
- total_lines is missing if counting would read more than 16 MB.`

func (m *files) readTool() tool.Tool {
	t := tool.New(tool.Def{
		Name:  "file_read",
		Title: "Read a file",
		Description: "Reads a file, by default its first 32 kB; next_offset in the result is where the next page " +
			"begins. Also reads documents, images and several files at once.",
		Help:    readHelp,
		Effects: tool.Reads,
		Budget:  -1, // it pages itself
	}, m.readFile)
	run := t.Run
	t.Run = func(ctx context.Context, c *tool.Call) (tool.Result, error) {
		res, err := run(ctx, c)
		if out, ok := res.Structured.(readOut); ok && err == nil {
			res.Content = append(res.Content, out.media...)
		}
		return res, err
	}
	return t
}

// Facts returns which lines the result has and how to read on.
func (o readOut) Facts() string {
	if len(o.each) > 0 {
		lines := strings.Join(o.each, "\n")
		if o.Note != "" {
			lines += "\n" + tool.Facts(o.Note)
		}
		return lines
	}
	s := make([]string, 0, 5)
	if o.FirstLine > 0 && o.TotalLines > 0 {
		last := o.FirstLine - 1 + strings.Count(o.Content, "\n")
		if o.Content != "" && !strings.HasSuffix(o.Content, "\n") {
			last++
		}
		if o.NextOffset > 0 {
			last = o.NextOffset - 1
		}
		s = append(s, fmt.Sprintf("lines %d-%d of %d", o.FirstLine, last, o.TotalLines))
	}
	switch {
	case o.NextByte > 0:
		s = append(s, fmt.Sprintf("to read on, call again with from_byte=%d of %d", o.NextByte, o.Size))
	case o.NextOffset != 0:
		s = append(s, fmt.Sprintf("to read on, call again with offset=%d", o.NextOffset))
	}
	s = append(s, o.format, o.Note)
	if o.ETag != "" {
		s = append(s, "etag="+o.ETag)
	}
	return tool.Facts(s...)
}

func (m *files) readFile(ctx context.Context, c *tool.Call, in readIn) (readOut, error) {
	if err := in.normalize(); err != nil {
		return readOut{}, err
	}
	if c.Unpaged && in.MaxBytes == pageBytes {
		in.MaxBytes = tool.MostUnpaged
	}
	if len(in.Paths) > 0 {
		return m.readMany(ctx, c, in)
	}
	return m.readOne(ctx, c, in)
}

// normalize checks the arguments and turns head and tail into offset and limit.
func (in *readIn) normalize() error {
	if in.MaxBytes == 0 {
		in.MaxBytes = pageBytes
	}
	if (in.Path == "") == (len(in.Paths) == 0) {
		return &tool.Refusal{Code: tool.CodeInvalidArguments, Message: "give either path or paths"}
	}
	ways := 0
	for _, used := range []bool{
		in.Offset != 0 || in.Limit != 0 && in.Around == "", in.Head > 0, in.Tail > 0, in.Ranges != "", in.Around != "",
		in.FromByte > 0,
	} {
		if used {
			ways++
		}
	}
	if ways > 1 {
		return &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: "offset with limit, head, tail, ranges, around and from_byte exclude each other",
			Next:    "Give one of them.",
		}
	}
	if in.Head > 0 {
		in.Limit = in.Head
	}
	if in.Tail > 0 {
		in.Offset = -in.Tail
	}
	return nil
}
