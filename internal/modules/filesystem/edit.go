package filesystem

import (
	"bytes"
	"context"
	"strings"
	"unicode/utf8"

	"gatehouse/internal/files/edit"
	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

type changeIn struct {
	Path  string `json:"path" names:"path"`
	Edits []struct {
		Old string `json:"oldText"`
		New string `json:"newText"`
	} `json:"edits"`
	DryRun bool `json:"dryRun"`
}

func (m *fileServer) editFile(ctx context.Context, c *tool.Call, in changeIn) (tool.Result, error) {
	p, err := findPlace(c, in.Path)
	if err != nil {
		return tool.Result{}, err
	}
	if p, err = p.Followed(true); err != nil {
		return tool.Result{}, nodeError(err, "open", in.Path)
	}
	var diff string
	err = m.withHold(ctx, p, func(h *roots.Hold) (err error) {
		diff, err = m.changeAt(ctx, h, p, in)
		return err
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return tool.Result{}, cause
	}
	if err != nil {
		return tool.Result{}, nodeError(p.Refuse(err), "open", in.Path)
	}
	return textResult(diff)
}

func (m *fileServer) changeAt(ctx context.Context, h *roots.Hold, p roots.Place, in changeIn) (diff string, err error) {
	f, was, err := p.Regular()
	if code(err) == tool.CodeIsADirectory {
		return "", nodeError(err, "read", in.Path)
	}
	if err != nil {
		return "", err
	}
	defer f.Close() // after the file was replaced, so that no other file gets its inode before
	before, err := readAll(f)
	if err != nil {
		return "", refusef("File too large: the largest file that can be edited has %d bytes", maxBytes)
	}
	if !utf8.Valid(before) || bytes.IndexByte(before, 0) >= 0 {
		return "", refusef("%s is not UTF-8 text; it was not changed", in.Path)
	}
	after := before
	for _, e := range in.Edits {
		if err := context.Cause(ctx); err != nil {
			return "", err
		}
		if after, err = apply(after, e.Old, e.New); err != nil {
			return "", err
		}
	}
	if len(after) > maxBytes {
		return "", refusef(
			"Content too large: the result would have %d bytes; at most %d are written", len(after), maxBytes,
		)
	}
	if !in.DryRun && !bytes.Equal(before, after) {
		if _, err := checkWritable(p); err != nil {
			return "", err
		}
		if err := m.replace(ctx, h, p, was, after); err != nil {
			return "", err
		}
	}
	return fenced(unified(in.Path, before, after)), nil
}

// apply makes one edit on the result of the previous edits. Like the original it
// replaces the first exact occurrence of the text. If there is none, it ignores
// blanks around lines, and nothing else.
func apply(content []byte, old, new string) ([]byte, error) {
	if old == "" {
		return nil, refusef("oldText must not be empty: give the text to replace")
	}
	if old == new && bytes.Contains(content, []byte(old)) {
		return content, nil
	}
	r, err := edit.Apply("the file", content, []edit.Edit{{Old: old, New: new, Near: 1}})
	switch code(err) {
	case "":
	case tool.CodeUnchanged:
		return content, nil
	case tool.CodeAmbiguous: // the first two occurrences are on one line
		if bytes.Contains(content, []byte(old)) {
			return bytes.Replace(content, []byte(old), []byte(new), 1), nil
		}
	}
	if err != nil || r.Level > edit.Indent {
		return nil, refusef("Could not find exact match for edit:\n%s", old)
	}
	return r.Content(), nil
}

// fenced puts a diff into a code fence that does not occur in it.
func fenced(diff string) string {
	marks := "```"
	for strings.Contains(diff, marks) {
		marks += "`"
	}
	return marks + "diff\n" + diff + marks + "\n\n"
}
