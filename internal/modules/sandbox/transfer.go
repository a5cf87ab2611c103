package sandbox

import (
	"context"
	"fmt"
	"io"
	"mime"
	"os"
	"path"
	"reflect"

	"gatehouse/internal/files/roots"
	"gatehouse/internal/sandbox"
	"gatehouse/tool"
)

// mostTransfer is the most bytes of a file that is uploaded or downloaded.
const mostTransfer = 1 << 30

type uploadIn struct {
	ID   string `json:"sandbox_id"`
	From string `json:"from" doc:"a file of the host, inside the roots" min:"1" names:"path"`
	To   string `json:"to,omitempty" doc:"path in the sandbox; default: its name in the home folder"`
}

type transferOut struct {
	Path string `json:"path"`
	Size int64  `json:"size"`
	URI  string `json:"uri,omitempty" doc:"of the file in the sandbox, as a resource"`
}

func (m *sandboxTools) uploadTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "sandbox_upload", Title: "Put a file into a sandbox", Effects: inside, Handle: "sandbox_id",
		Description: "Copies a file from the host's permitted folders into a sandbox, without passing it " +
			"through the conversation.",
	}, func(ctx context.Context, c *tool.Call, in uploadIn) (out transferOut, err error) {
		p, err := roots.Locate(c.Roots, in.From)
		if err == nil {
			err = p.MayRead()
		}
		if err != nil {
			return out, err
		}
		file, info, err := p.Regular()
		if err != nil {
			return out, err
		}
		defer file.Close()
		if info.Size() > mostTransfer {
			return out, &tool.Refusal{
				Code:    tool.CodeTooLarge,
				Message: fmt.Sprintf("the file has %d bytes; up to %d are copied", info.Size(), mostTransfer),
			}
		}
		if in.To == "" {
			in.To = path.Base(info.Name())
		}
		err = m.onFiles(c, in.ID, func(f sandbox.Files) error {
			i, err := f.WriteFile(ctx, in.To, io.LimitReader(file, mostTransfer),
				sandbox.WriteOptions{Parents: true, Mode: info.Mode().Perm()})
			out = transferOut{in.To, i.Size, fileURI(in.ID, in.To)}
			return err
		})
		return out, err
	})
}

type downloadIn struct {
	ID   string `json:"sandbox_id"`
	From string `json:"from" doc:"a file in the sandbox" min:"1"`
	To   string `json:"to,omitempty" doc:"path inside the roots, which must not exist; default: only a link to the file as a resource is returned" names:"path"`
}

func (m *sandboxTools) downloadTool() tool.Tool {
	t := tool.New(tool.Def{
		Name: "sandbox_download", Title: "Take a file out of a sandbox", Effects: tool.Writes, Handle: "sandbox_id",
		Description: "Copies a file from a sandbox into the host's permitted folders, or returns a link by " +
			"which the client fetches it. It never replaces a file.",
		Help: "Files of up to 1 GiB are copied; a link works for files of up to 10 MiB, as long as the sandbox exists.",
	}, func(ctx context.Context, c *tool.Call, in downloadIn) (tool.Result, error) {
		out, err := m.download(ctx, c, in)
		if err != nil {
			return tool.Result{}, err
		}
		return tool.Result{
			Structured: tool.Filled(out),
			Content:    []tool.Content{tool.Link(out.URI, path.Base(in.From), mime.TypeByExtension(path.Ext(in.From)))},
		}, nil
	})
	t.Out = reflect.TypeFor[transferOut]()
	return t
}

func (m *sandboxTools) download(ctx context.Context, c *tool.Call, in downloadIn) (out transferOut, err error) {
	var p roots.Place
	if in.To != "" {
		if p, err = roots.Locate(c.Roots, in.To); err == nil {
			p, err = p.Followed(true)
		}
		if err == nil {
			err = p.MayWrite()
		}
		if err != nil {
			return out, err
		}
	}
	err = m.onFiles(c, in.ID, func(f sandbox.Files) error {
		i, err := f.Stat(ctx, in.From)
		switch {
		case err == nil && i.Size > mostTransfer:
			return &tool.Refusal{
				Code:    tool.CodeTooLarge,
				Message: fmt.Sprintf("the file has %d bytes; up to %d are copied", i.Size, mostTransfer),
			}
		case err == nil && in.To == "" && !i.Mode.IsRegular():
			return &tool.Refusal{Code: tool.CodeInvalidArguments, Message: in.From + " is not a regular file"}
		case err == nil && in.To == "" && i.Size > mostContent:
			return &tool.Refusal{
				Code:    tool.CodeTooLarge,
				Message: fmt.Sprintf("the file has %d bytes; up to %d are read by a link", i.Size, mostContent),
				Next:    "Give the destination in to, or read it in parts with sandbox_read.",
			}
		case in.To == "":
			out = transferOut{in.From, i.Size, fileURI(in.ID, in.From)}
			return err
		}
		out, err = m.takeOut(ctx, f, in, p)
		return err
	})
	return out, err
}

// takeOut writes a file of a sandbox to a new file of the host.
func (m *sandboxTools) takeOut(
	ctx context.Context, f sandbox.Files, in downloadIn, p roots.Place,
) (transferOut, error) {
	var reading error
	info, err := m.writer.Replace(ctx, nil, p, nil, 0o644, func(to *os.File) error {
		_, reading = f.ReadFile(ctx, in.From, 0, 0, &limitedBuffer{to, mostTransfer})
		return reading
	})
	if reading != nil {
		return transferOut{}, reading
	}
	if err != nil {
		return transferOut{}, p.Refuse(err)
	}
	return transferOut{in.To, info.Size(), fileURI(in.ID, in.From)}, nil
}

// limitedBuffer accepts at most left bytes, even if the file grows while it is read.
type limitedBuffer struct {
	w    io.Writer
	left int64
}

func (l *limitedBuffer) Write(b []byte) (int, error) {
	if l.left -= int64(len(b)); l.left < 0 {
		return 0, errTooMuch
	}
	return l.w.Write(b)
}
