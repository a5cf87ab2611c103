package file

import (
	"context"
	"errors"
	"io"

	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

// copyMost is the largest file that is copied or added to, in bytes, unless
// the configuration says otherwise.
const copyMost = 4 << 30

type writeIn struct {
	Path     string `json:"path" names:"path"`
	Content  string `json:"content"`
	Mode     string `json:"mode,omitempty" enum:"overwrite,create,append,prepend"`
	IfMatch  string `json:"if_match,omitempty" doc:"expected etag"`
	IfAbsent bool   `json:"if_absent,omitempty"`
}

type writeOut struct {
	Success bool   `json:"success"`
	Path    string `json:"path"`
	Size    int64  `json:"size"`
	Created bool   `json:"created,omitempty"`
	ETag    string `json:"etag"`
	Note    string `json:"note,omitempty"`
}

const writeHelp = `Writes a file.

- mode overwrite, the default, replaces the whole content; append and prepend add to it; create, like if_absent,
  refuses a file that exists. A file that is missing is made in every mode.
- prepend puts the content after a byte order mark. append and prepend keep the encoding of a file in UTF-16 or UTF-32,
  which its byte order mark tells; to one that is neither that nor UTF-8 only ASCII is added.
- if_match takes the etag of a read or of an earlier change: if the file is another by now, nothing is written.
- The change is atomic and on disk when the call returns: a reader finds the old file or the new one. Comparing and
  replacing are one step also beside other hosts on the same folder.
- Directories on the way are made (0755). A new file gets 0644, an existing one keeps its mode and, where possible, its owner.
- A symbolic link is written through: the file it leads to changes, inside the workspace. One of several hard links is
  parted from the others, which keep the old content; note says so.
- To change part of a file use file_edit, which also keeps line endings. file_undo takes a write back.`

func (m *files) writeTool() tool.Tool {
	return tool.New(tool.Def{
		Name:        "file_write",
		Title:       "Write a file",
		Description: "Writes a file and makes missing directories. Use file_edit to change a part.",
		Help:        writeHelp,
		Effects:     tool.Writes | tool.Destroys, // to append twice is not to append once
	}, m.write)
}

func (m *files) write(ctx context.Context, c *tool.Call, in writeIn) (out writeOut, err error) {
	p, err := placeToWrite(c, in.Path)
	if err != nil {
		return writeOut{}, err
	}
	err = m.changing(ctx, false, func(h *roots.Hold) (err error) {
		out, err = m.writeAt(ctx, c, h, p, in)
		return err
	}, p)
	return out, err
}

func (m *files) writeAt(ctx context.Context, c *tool.Call, h *roots.Hold, p roots.Place, in writeIn) (writeOut, error) {
	there, err := existing(p)
	if err != nil {
		return writeOut{}, err
	}
	defer there.close()
	if err := in.allowed(p, there); err != nil {
		return writeOut{}, err
	}
	was := there.was()
	if was == nil {
		if err := makeParents(p); err != nil {
			return writeOut{}, err
		}
	}
	content, err := in.content(ctx, m, p, there)
	if err != nil {
		return writeOut{}, err
	}
	before, err := m.keep(p, there)
	if err != nil {
		return writeOut{}, err
	}
	now, err := m.save(ctx, h, p, was, plainMode, content)
	if err != nil {
		m.dropped(before)
		return writeOut{}, err
	}
	out := writeOut{Success: true, Path: in.Path, Size: now.info.Size(), Created: was == nil, ETag: now.etag}
	out.Note = joined(linked(was), m.remember(c, p, change{did: "wrote", was: before, etag: now.etag}))
	return out, nil
}

// allowed holds what is there against what the call wants to be there.
func (in writeIn) allowed(p roots.Place, there *seen) error {
	if there != nil && (in.IfAbsent || in.Mode == "create") {
		return &tool.Refusal{Code: "exists", Message: p.Path + " already exists; nothing was written", Next: "Use mode overwrite to replace it, or file_edit to change a part."}
	}
	if in.IfMatch == "" {
		return nil
	}
	if there == nil {
		return mustMatch(p, "", in.IfMatch)
	}
	etag, err := there.etag(p)
	if err != nil {
		return err
	}
	return mustMatch(p, etag, in.IfMatch)
}

// content is what writes the new content.
func (in writeIn) content(ctx context.Context, m *files, p roots.Place, there *seen) (func(io.Writer) error, error) {
	if there == nil || (in.Mode != "append" && in.Mode != "prepend") {
		return bytesOf([]byte(in.Content)), nil
	}
	if there.f == nil {
		return nil, &tool.Refusal{Code: "denied", Message: "the system does not allow reading " + p.Path}
	}
	if size := there.info.Size(); size > m.copyMost {
		return nil, tool.Refuse("too_large", "%s has %s bytes; files up to %s bytes can be added to", p.Path, commas(size), commas(m.copyMost))
	}
	more, mark, err := added(ctx, p, there, in.Content)
	if err != nil {
		return nil, err
	}
	f := there.content()
	return func(w io.Writer) error {
		if in.Mode == "append" {
			if err := pour(ctx, w, f); err != nil {
				return err
			}
			_, err := w.Write(more)
			return err
		}
		if _, err := io.CopyN(w, f, int64(mark)); err != nil {
			return err
		}
		if _, err := w.Write(more); err != nil {
			return err
		}
		return pour(ctx, w, f)
	}, nil
}

// pour copies a file, in steps between which the call may end.
func pour(ctx context.Context, w io.Writer, r io.Reader) error {
	const step = 32 << 20
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		n, err := io.Copy(w, io.LimitReader(r, step))
		if err != nil || n < step {
			return err
		}
	}
}

// existing looks at the regular file a write is about to replace; nil means
// there is none.
func existing(p roots.Place) (*seen, error) {
	there, err := lookAt(p)
	if there == nil || err != nil {
		return nil, err
	}
	if err := mayWrite(p); err != nil {
		there.close()
		return nil, err
	}
	return there, nil
}

func isCode(err error, code string) bool {
	r, ok := errors.AsType[*tool.Refusal](err)
	return ok && r.Code == code
}

// placeToWrite looks up a file that is to change, past the links to it.
func placeToWrite(c *tool.Call, path string) (roots.Place, error) {
	p, err := findFile(c, path)
	if err == nil {
		p, err = p.Followed(true)
	}
	if err == nil {
		err = p.MayWrite()
	}
	return p, err
}

// etagAt names the state of the regular file at p.
func etagAt(p roots.Place) (string, error) {
	f, info, err := p.Regular()
	if err != nil {
		return "", err
	}
	defer f.Close()
	etag, err := roots.ETagOf(f, info)
	if err != nil {
		return "", p.Refuse(err)
	}
	return etag, nil
}

// mustMatch refuses to change a file that is not what the caller saw.
func mustMatch(p roots.Place, etag, want string) error {
	switch {
	case want == "" || etag == want:
		return nil
	case etag == "":
		return &tool.Refusal{Code: "stale", Message: p.Path + " is not there any more; nothing was written", Next: "Leave out if_match to make it anew."}
	}
	return &tool.Refusal{Code: "stale", Message: p.Path + " has changed: its etag is " + etag + ", not " + want + "; nothing was written", Next: "Read it again and repeat the change."}
}
