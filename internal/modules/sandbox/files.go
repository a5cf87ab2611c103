package sandbox

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/sandbox"
	"gatehouse/tool"
)

// onFiles calls do with the files of a sandbox of the caller.
func (m *sandboxTools) onFiles(c *tool.Call, id string, do func(sandbox.Files) error) error {
	b, done, err := m.findBox(c, id)
	if err != nil {
		return err
	}
	defer done()
	f, err := b.Files()
	if err != nil {
		return &tool.Refusal{Code: tool.CodeUnsupported, Message: err.Error()}
	}
	return refused(do(f))
}

// refused converts an error about a file to a refusal.
func refused(err error) error {
	if err == nil {
		return nil
	}
	if r, ok := errors.AsType[*tool.Refusal](err); ok {
		return r
	}
	if errors.Is(err, sandbox.ErrClosed) || errors.Is(err, sandbox.ErrPaused) {
		return gone(err)
	}
	text := err.Error()
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		text = e.Path + ": " + e.Err.Error()
	} else if e, ok := errors.AsType[*os.LinkError](err); ok {
		text = e.Old + " to " + e.New + ": " + e.Err.Error()
	}
	for _, c := range []struct {
		is   error
		code tool.Code
	}{
		{fs.ErrNotExist, tool.CodeNotFound}, {fs.ErrExist, tool.CodeExists}, {fs.ErrPermission, tool.CodeDenied},
		{syscall.EROFS, tool.CodeDenied}, {syscall.EISDIR, tool.CodeIsADirectory},
		{syscall.ENOTDIR, tool.CodeNotADirectory}, {syscall.ENOTEMPTY, tool.CodeNotEmpty},
		{syscall.ENOSPC, tool.CodeDiskFull},
		{syscall.EDQUOT, tool.CodeDiskFull},
		{syscall.EINVAL, tool.CodeInvalidArguments}, {syscall.ENAMETOOLONG, tool.CodeInvalidArguments},
		{syscall.ELOOP, tool.CodeDenied},
	} {
		if errors.Is(err, c.is) {
			return &tool.Refusal{Code: c.code, Message: text}
		}
	}
	return err
}

type readIn struct {
	ID       string `json:"sandbox_id"`
	Path     string `json:"path" doc:"absolute, or relative to the home folder" min:"1"`
	Offset   int64  `json:"offset,omitempty" doc:"bytes to skip" min:"0"`
	Length   int64  `json:"length,omitempty" doc:"bytes to read; default: all, at most 10 MiB" min:"1" max:"10485760"`
	Encoding string `json:"encoding,omitempty" doc:"how the content is returned" enum:"utf8,base64" default:"utf8"`
}

type readOut struct {
	Content  string     `json:"content" text:"product"`
	Encoding string     `json:"encoding,omitempty"`
	Size     int64      `json:"size,omitempty" doc:"of the whole file"`
	Next     int64      `json:"next_offset,omitempty" doc:"the offset to continue at, if there is more"`
	Modified *time.Time `json:"modified,omitempty"`
}

func (m *sandboxTools) readTool() tool.Tool {
	return adapted(m, tool.Def{
		Name: "sandbox_read", Title: "Read a file in a sandbox", Effects: tool.Reads,
		Aliases: []string{"read_file"}, Handle: "sandbox_id",
		Description: "Reads a file in a sandbox, at most 10 MiB at once.",
		Help: "Text is UTF-8; other files are read with `encoding` base64, or as the resource " +
			"`sandbox://{sandbox_id}/{path}`.",
	}, "Failed to read file: ", func(o readOut) any { return map[string]string{"content": o.Content} }, m.readFile)
}

var errTooMuch = errors.New("the content exceeds the limit")

// bounded accepts up to most bytes.
type bounded struct {
	bytes.Buffer
	most int
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > b.most {
		return 0, errTooMuch
	}
	return b.Buffer.Write(p)
}

func (m *sandboxTools) readFile(
	ctx context.Context, c *tool.Call, in readIn,
) (out readOut, _ []tool.Content, err error) {
	err = m.onFiles(c, in.ID, func(f sandbox.Files) error {
		var info sandbox.Info
		out, info, err = readFile(ctx, f, in)
		if errors.Is(err, errTooMuch) {
			return &tool.Refusal{
				Code:    tool.CodeTooLarge,
				Message: sizeText("File", info.Size),
				Next:    "Read it in parts, with offset and length.",
			}
		}
		return err
	})
	return out, nil, err
}

func sizeText(what string, n int64) string {
	return tooLarge(what, int(max(n, mostContent+1)), mostContent).(*tool.Refusal).Message
}

func readFile(ctx context.Context, f sandbox.Files, in readIn) (readOut, sandbox.Info, error) {
	if in.Length == 0 {
		info, err := f.Stat(ctx, in.Path)
		if err != nil {
			return readOut{}, info, err
		}
		if info.Mode.IsRegular() && info.Size-in.Offset > mostContent {
			return readOut{}, info, errTooMuch
		}
	}
	b := bounded{most: mostContent}
	info, err := f.ReadFile(ctx, in.Path, in.Offset, in.Length, &b)
	if err != nil {
		return readOut{}, info, err
	}
	out := readOut{Size: info.Size, Modified: new(info.Modified.UTC())}
	content := b.Bytes()
	if in.Encoding != "base64" && !utf8.Valid(content) {
		cut := displaytext.Whole(content) // the part may end inside a character
		if in.Length == 0 || !utf8.Valid(content[:cut]) || cut == 0 {
			return readOut{}, info, &tool.Refusal{
				Code:    tool.CodeBinary,
				Message: in.Path + " is not UTF-8 text",
				Next:    "Read it with encoding base64.",
			}
		}
		content = content[:cut]
	}
	if end := in.Offset + int64(len(content)); end < info.Size {
		out.Next = end
	}
	if out.Content = string(content); in.Encoding == "base64" {
		out.Content, out.Encoding = base64.StdEncoding.EncodeToString(content), "base64"
	}
	return out, info, nil
}

type writeIn struct {
	ID       string `json:"sandbox_id"`
	Path     string `json:"path" doc:"absolute, or relative to the home folder; missing parent folders are created" min:"1"`
	Content  string `json:"content"`
	Encoding string `json:"encoding,omitempty" enum:"utf8,base64" default:"utf8"`
	Append   bool   `json:"append,omitempty" doc:"append to an existing file"`
	Mode     string `json:"mode,omitempty" doc:"permissions of a new file, such as 0755" pattern:"^0?[0-7]{3}$"`
}

type writeOut struct {
	Success bool  `json:"success"`
	Size    int64 `json:"size,omitempty" doc:"of the whole file"`
}

func (m *sandboxTools) writeTool() tool.Tool {
	return adapted(m, tool.Def{
		Name: "sandbox_write", Title: "Write a file in a sandbox", Effects: inside,
		Aliases: []string{"write_file"}, Handle: "sandbox_id",
		Description: "Writes a file in a sandbox, whole or not at all, at most 10 MiB at once.",
	}, "Failed to write file: ", func(o writeOut) any { return successOut{o.Success} }, m.writeFile)
}

func (m *sandboxTools) writeFile(
	ctx context.Context, c *tool.Call, in writeIn,
) (out writeOut, _ []tool.Content, err error) {
	content := []byte(in.Content)
	if in.Encoding == "base64" {
		if len(in.Content) > base64.StdEncoding.EncodedLen(mostContent) {
			return out, nil, tooLarge("Content", base64.StdEncoding.DecodedLen(len(in.Content)), mostContent)
		}
		if content, err = base64.StdEncoding.DecodeString(in.Content); err != nil {
			return out, nil, &tool.Refusal{Code: tool.CodeInvalidArguments, Message: "content: " + err.Error()}
		}
	}
	if err := tooLarge("Content", len(content), mostContent); err != nil {
		return out, nil, err
	}
	how := sandbox.WriteOptions{Append: in.Append, Parents: true, Mode: mode(in.Mode)}
	err = m.onFiles(c, in.ID, func(f sandbox.Files) error {
		info, err := f.WriteFile(ctx, in.Path, bytes.NewReader(content), how)
		out = writeOut{err == nil, info.Size}
		return err
	})
	return out, nil, err
}

func mode(octal string) (m fs.FileMode) {
	for _, d := range strings.TrimPrefix(octal, "0") {
		m = m<<3 | fs.FileMode(d-'0')
	}
	return m
}

type folderIn struct {
	ID    string `json:"sandbox_id"`
	Path  string `json:"path" doc:"absolute, or relative to the home folder" min:"1"`
	After string `json:"after,omitempty" doc:"list only names that sort after this one, to continue a list"`
	Limit int    `json:"limit,omitempty" min:"1" max:"1000" default:"1000"`
}

type listedFile struct {
	Name     string `json:"name"`
	IsDir    bool   `json:"is_dir"`
	Size     int64  `json:"size"`
	Mode     string `json:"mode,omitempty"`
	Modified string `json:"modified,omitempty"`
	Link     string `json:"link,omitempty" doc:"target of a symbolic link"`
}

type folderOut struct {
	Entries []listedFile `json:"entries"`
	More    bool         `json:"more,omitempty" doc:"there are more; call again with after"`
}

func (m *sandboxTools) folderTool() tool.Tool {
	return adapted(m, tool.Def{
		Name: "sandbox_dir", Title: "List a folder in a sandbox", Effects: tool.Reads,
		Aliases: []string{"list_directory"}, Handle: "sandbox_id",
		Description: "Lists a folder in a sandbox, sorted by name.",
	}, "Failed to list directory: ", func(o folderOut) any {
		type plain struct {
			Name  string `json:"name"`
			IsDir bool   `json:"is_dir"`
			Size  int64  `json:"size"`
		}
		all := []plain{}
		for _, e := range o.Entries {
			all = append(all, plain{e.Name, e.IsDir, e.Size})
		}
		return map[string]any{"entries": all}
	}, func(ctx context.Context, c *tool.Call, in folderIn) (out folderOut, _ []tool.Content, err error) {
		err = m.onFiles(c, in.ID, func(f sandbox.Files) error {
			entries, more, err := f.List(ctx, in.Path, in.After, in.Limit)
			out = folderOut{[]listedFile{}, more}
			for _, e := range entries {
				out.Entries = append(out.Entries, described(e))
			}
			return err
		})
		return out, nil, err
	})
}

func described(i sandbox.Info) listedFile {
	return listedFile{printableName(i.Name), i.Mode.IsDir(), i.Size, i.Mode.String(),
		i.Modified.UTC().Format(time.RFC3339), printableName(i.Link)}
}

// printableName returns the name of a file as text.
func printableName(s string) string { return displaytext.Visible([]byte(s)) }

type pathIn struct {
	ID   string `json:"sandbox_id"`
	Path string `json:"path" doc:"absolute, or relative to the home folder" min:"1"`
}

func (m *sandboxTools) statTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "sandbox_stat", Title: "Describe a file in a sandbox", Effects: tool.Reads, Handle: "sandbox_id",
		Description: "Returns type, size, permissions and time of a file or folder in a sandbox, without " +
			"following a link.",
	}, func(ctx context.Context, c *tool.Call, in pathIn) (out listedFile, err error) {
		err = m.onFiles(c, in.ID, func(f sandbox.Files) error {
			i, err := f.Stat(ctx, in.Path)
			out = described(i)
			return err
		})
		return out, err
	})
}

type moveIn struct {
	ID   string `json:"sandbox_id"`
	From string `json:"from" min:"1"`
	To   string `json:"to" min:"1" doc:"an existing file is replaced; the parent folder must exist"`
}

func (m *sandboxTools) moveTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "sandbox_move", Title: "Move a file in a sandbox", Effects: inside, Handle: "sandbox_id",
		Description: "Moves or renames a file or folder in a sandbox.",
	}, func(ctx context.Context, c *tool.Call, in moveIn) (successOut, error) {
		err := m.onFiles(c, in.ID, func(f sandbox.Files) error { return f.Rename(ctx, in.From, in.To) })
		return successOut{err == nil}, err
	})
}

type removeIn struct {
	ID        string `json:"sandbox_id"`
	Path      string `json:"path" min:"1"`
	Recursive bool   `json:"recursive,omitempty" doc:"remove a folder with its contents"`
}

func (m *sandboxTools) removeTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "sandbox_remove", Title: "Remove a file in a sandbox", Effects: tool.Destroys, Handle: "sandbox_id",
		Description: "Removes a file or folder in a sandbox.",
	}, func(ctx context.Context, c *tool.Call, in removeIn) (successOut, error) {
		err := m.onFiles(c, in.ID, func(f sandbox.Files) error {
			return f.Remove(ctx, path.Clean(in.Path), in.Recursive)
		})
		return successOut{err == nil}, err
	})
}
