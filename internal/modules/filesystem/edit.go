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

func (m *fileServer) change(ctx context.Context, c *tool.Call, in changeIn) (tool.Result, error) {
	p, err := find(c, in.Path)
	if err != nil {
		return tool.Result{}, err
	}
	if p, err = p.Followed(true); err != nil {
		return tool.Result{}, told(err, "open", in.Path)
	}
	var diff string
	err = m.changing(ctx, p, func(h *roots.Hold) (err error) {
		diff, err = m.changeAt(ctx, h, p, in)
		return err
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return tool.Result{}, cause
	}
	if err != nil {
		return tool.Result{}, told(p.Refuse(err), "open", in.Path)
	}
	return text(diff)
}

func (m *fileServer) changeAt(ctx context.Context, h *roots.Hold, p roots.Place, in changeIn) (diff string, err error) {
	f, was, err := p.Regular()
	if code(err) == "is_a_directory" {
		return "", told(err, "read", in.Path)
	}
	if err != nil {
		return "", err
	}
	defer f.Close() // not before the file was replaced, or another might get its inode
	before, err := readAll(f)
	if err != nil {
		return "", say("File too large: files up to %d bytes can be edited", most)
	}
	if !utf8.Valid(before) || bytes.IndexByte(before, 0) >= 0 {
		return "", say("%s is not UTF-8 text and is left as it is", in.Path)
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
	if len(after) > most {
		return "", say("Content too large: the result would have %d bytes; at most %d are written", len(after), most)
	}
	if !in.DryRun && !bytes.Equal(before, after) {
		if _, err := writable(p); err != nil {
			return "", err
		}
		if err := m.replace(ctx, h, p, was, after); err != nil {
			return "", err
		}
	}
	return fenced(unified(in.Path, before, after)), nil
}

// apply makes one edit in what the edits before it have left. Like the
// original it takes the first place where the text is as it was given, and
// forgives blanks around lines where it is nowhere; more it does not guess.
func apply(content []byte, old, new string) ([]byte, error) {
	if old == "" {
		return nil, say("oldText must not be empty: give the text to replace")
	}
	if old == new && bytes.Contains(content, []byte(old)) {
		return content, nil
	}
	r, err := edit.Apply("the file", content, []edit.Edit{{Old: old, New: new, Near: 1}})
	switch code(err) {
	case "":
	case "unchanged":
		return content, nil
	case "ambiguous": // the first two on one line
		if bytes.Contains(content, []byte(old)) {
			return bytes.Replace(content, []byte(old), []byte(new), 1), nil
		}
	}
	if err != nil || r.Level > edit.Indent {
		return nil, say("Could not find exact match for edit:\n%s", old)
	}
	return r.Content(), nil
}

// fenced puts a diff between marks that are in no line of it.
func fenced(diff string) string {
	marks := "```"
	for strings.Contains(diff, marks) {
		marks += "`"
	}
	return marks + "diff\n" + diff + marks + "\n\n"
}
