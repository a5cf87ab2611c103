package file

import (
	"context"
	"errors"
	"io"

	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

// defaultMaxCopy is the default of Config.MaxCopy, in bytes.
const defaultMaxCopy = 4 << 30

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
  refuses a file that exists. A missing file is made in every mode.
- prepend inserts the content after a byte order mark. append and prepend keep the encoding of a file with a byte order
  mark of UTF-16 or UTF-32; to a file that is neither that nor UTF-8 only ASCII can be added.
- if_match is the etag of a read or of an earlier change: if the file has changed since, nothing is written.
- The change is atomic and on disk when the call returns: a reader finds the old file or the new one. The comparison and
  the replacement are one step, even if other hosts write to the same folder.
- Missing directories are made (0755). A new file gets mode 0644; an existing file keeps its mode and, if possible, its
  owner.
- If path is a symbolic link inside the workspace, its target is written. If the file has several hard links, the others
  keep the old content, and note says so.
- To change part of a file use file_edit, which also keeps line endings. file_undo undoes a write.`

func (m *files) writeTool() tool.Tool {
	return tool.New(tool.Def{
		Name:        "file_write",
		Title:       "Write a file",
		Description: "Writes a file and makes missing directories. To change a part of a file use file_edit.",
		Help:        writeHelp,
		Effects:     tool.Writes | tool.Destroys, // not idempotent: mode append adds again
	}, m.writeFile)
}

func (m *files) writeFile(ctx context.Context, c *tool.Call, in writeIn) (out writeOut, err error) {
	p, err := placeToWrite(c, in.Path)
	if err != nil {
		return writeOut{}, err
	}
	err = m.withLocks(ctx, false, func(h *roots.Hold) (err error) {
		out, err = m.writeAt(ctx, c, h, p, in)
		return err
	}, p)
	if err == nil {
		out.Note = joinNotes(out.Note, m.unsavedNote(ctx, c, p))
	}
	return out, err
}

func (m *files) writeAt(ctx context.Context, c *tool.Call, h *roots.Hold, p roots.Place, in writeIn) (writeOut, error) {
	there, err := openWritable(p)
	if err != nil {
		return writeOut{}, err
	}
	defer there.closeOriginal()
	if err := in.allowed(p, there); err != nil {
		return writeOut{}, err
	}
	was := there.fileInfo()
	if was == nil {
		if err := makeParents(p); err != nil {
			return writeOut{}, err
		}
	}
	content, err := in.content(ctx, m, p, there)
	if err != nil {
		return writeOut{}, err
	}
	before, err := m.snapshot(p, there)
	if err != nil {
		return writeOut{}, err
	}
	now, err := m.save(ctx, h, p, was, plainMode, content)
	if err != nil {
		m.dropSnapshot(before)
		return writeOut{}, err
	}
	out := writeOut{Success: true, Path: in.Path, Size: now.info.Size(), Created: was == nil, ETag: now.etag}
	out.Note = joinNotes(linkNote(was), m.recordChange(c, p, change{action: "wrote", before: before, etag: now.etag}))
	return out, nil
}

// allowed checks if_absent, mode create and if_match against the present file.
func (in writeIn) allowed(p roots.Place, there *original) error {
	if there != nil && (in.IfAbsent || in.Mode == "create") {
		return &tool.Refusal{
			Code:    tool.CodeExists,
			Message: p.Path + " already exists; nothing was written",
			Next:    "Use mode overwrite to replace it, or file_edit to change a part of it.",
		}
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

// content returns a function that writes the new content.
func (in writeIn) content(
	ctx context.Context, m *files, p roots.Place, there *original,
) (func(io.Writer) error, error) {
	if there == nil || (in.Mode != "append" && in.Mode != "prepend") {
		return writeBytes([]byte(in.Content)), nil
	}
	if there.f == nil {
		return nil, &tool.Refusal{Code: tool.CodeDenied, Message: "the system does not allow reading " + p.Path}
	}
	if size := there.info.Size(); size > m.maxCopy {
		return nil, tool.Refuse(
			tool.CodeTooLarge, "%s has %s bytes; the largest file that can be appended to has %s bytes", p.Path,
			groupDigits(size), groupDigits(m.maxCopy),
		)
	}
	more, mark, err := encodeAddition(ctx, p, there, in.Content)
	if err != nil {
		return nil, err
	}
	f := there.content()
	return func(w io.Writer) error {
		if in.Mode == "append" {
			if err := copyInSteps(ctx, w, f); err != nil {
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
		return copyInSteps(ctx, w, f)
	}, nil
}

// copyInSteps copies r to w. Between steps it checks whether the call was
// cancelled.
func copyInSteps(ctx context.Context, w io.Writer, r io.Reader) error {
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

// openWritable opens the regular file that a write is about to replace. It
// returns nil if there is none, and refuses a read-only file.
func openWritable(p roots.Place) (*original, error) {
	there, err := openOriginal(p)
	if there == nil || err != nil {
		return nil, err
	}
	if err := checkWritable(p); err != nil {
		there.closeOriginal()
		return nil, err
	}
	return there, nil
}

func isCode(err error, code tool.Code) bool {
	r, ok := errors.AsType[*tool.Refusal](err)
	return ok && r.Code == code
}

// placeToWrite resolves the path of a file that is to be written, and follows
// links.
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

// etagAt returns the tag of the regular file at p.
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

// mustMatch refuses to change a file whose tag is not the one the caller gave.
func mustMatch(p roots.Place, etag, want string) error {
	switch {
	case want == "" || etag == want:
		return nil
	case etag == "":
		return &tool.Refusal{
			Code:    tool.CodeStale,
			Message: p.Path + " does not exist; nothing was written",
			Next:    "Leave out if_match to make it.",
		}
	}
	return &tool.Refusal{
		Code:    tool.CodeStale,
		Message: p.Path + " has changed: its etag is " + etag + ", not " + want + "; nothing was written",
		Next:    "Read the file again and repeat the change.",
	}
}
