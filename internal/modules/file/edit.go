package file

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"gatehouse/internal/files/edit"
	"gatehouse/internal/files/extract"
	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

const (
	// editMost is the largest file that is edited, in bytes, before and after,
	// unless the configuration says otherwise.
	editMost = 64 << 20
	// diffMost is how many lines an edit shows of what it did.
	diffMost = 40
	// editsMost is how many edits one call may have.
	editsMost = 200
)

type editIn struct {
	Path       string    `json:"path" names:"path"`
	OldString  string    `json:"old_string,omitempty" doc:"text to replace; has to occur once"`
	NewString  *string   `json:"new_string,omitempty"`
	ReplaceAll bool      `json:"replace_all,omitempty"`
	NearLine   int       `json:"near_line,omitempty"`
	Edits      []oneEdit `json:"edits,omitempty" doc:"or several at once"`
	IfMatch    string    `json:"if_match,omitempty" doc:"expected etag"`
	DryRun     bool      `json:"dry_run,omitempty"`
	Strict     bool      `json:"strict,omitempty" doc:"never break the syntax"`
}

type oneEdit struct {
	OldString  string `json:"old_string"`
	NewString  string `json:"new_string"`
	ReplaceAll bool   `json:"replace_all,omitempty"`
	NearLine   int    `json:"near_line,omitempty"`
}

type editOut struct {
	Diff         string `json:"diff,omitempty" text:"product"`
	Path         string `json:"path"`
	Success      bool   `json:"success"`
	Replacements int    `json:"replacements"`
	Line         int    `json:"line"`
	Level        string `json:"level"`
	ETag         string `json:"etag"`
	Note         string `json:"note,omitempty"`
}

// Facts says what was done and how the file can be changed again.
func (o editOut) Facts() string {
	level := ""
	if o.Level != edit.Exact.String() {
		level = "found by " + o.Level
	}
	return tool.Facts(count(int64(o.Replacements), "replacement")+" in "+tool.Fact(o.Path),
		"line="+strconv.Itoa(o.Line), level, o.Note, "etag="+o.ETag)
}

const editHelp = `Replaces text in a file: old_string by new_string, or all of edits at once.

old_string must occur exactly once; give replace_all to change every occurrence, or near_line to take the one
nearest to a line. It is looked for in levels, and the first at which it is found counts (level in the answer):

1. exact: byte for byte
2. newlines: line endings, the byte order mark and a missing last newline do not matter
3. trailing blanks
4. indentation: all lines are indented otherwise in one way, with spaces for tabs, deeper, or not at all
5. look-alike characters: typographic quotes and dashes, odd spaces, decomposed letters
6. blank lines: more or fewer of them
7. escapes: \n and \t for the characters they stand for
8. near miss: a few characters differ in lines that stay as they are, and nothing else comes close

At each level there must be one place. If there are several the answer names their lines; if there is none it shows
the nearest and the first column that differs, with · for a space and → for a tab.

- What is written is the difference of old_string and new_string, on the file's own lines: lines that are the same in
  both keep every byte. New lines get the file's indentation and line endings. What cannot be told is refused.
- edits are all found in the file as it is, not as an earlier one leaves it. If two overlap, or one cannot be
  made, nothing is written.
- if_match takes the etag of a read or of an earlier change: if the file is another by now, nothing is written.
- dry_run shows the diff and writes nothing; etag is then that of the file as it is.
- If a Go, JSON, YAML, TOML or XML file could be parsed before and cannot be after, note says so; with strict that is
  refused.
- A file in UTF-16 or UTF-32 keeps its encoding. In one that is in none of these, nor in UTF-8, \xNN stands for the
  byte that file_read shows so, and new text is ASCII.
- The change is atomic; the file keeps its mode. One of several hard links is parted from the others, which keep
  the old content. Files over 64 MB and binary files are refused. file_undo takes an edit back.`

func (m *files) editTool() tool.Tool {
	return tool.New(tool.Def{
		Name:        "file_edit",
		Title:       "Edit a file",
		Description: "Replaces text in a file; blanks, indentation, quotes and line endings need not match exactly. Returns a diff.",
		Help:        editHelp,
		Effects:     tool.Writes | tool.Destroys,
	}, m.edit)
}

// wanted are the edits of a call, in the one or the other form.
func (in editIn) wanted() ([]edit.Edit, error) {
	if len(in.Edits) == 0 {
		if in.NewString == nil {
			return nil, &tool.Refusal{Code: "invalid_arguments", Message: "new_string is missing", Next: `Give old_string and new_string, which is "" to delete, or edits.`}
		}
		return []edit.Edit{{Old: in.OldString, New: *in.NewString, All: in.ReplaceAll, Near: in.NearLine}}, nil
	}
	if in.OldString != "" || in.NewString != nil || in.ReplaceAll || in.NearLine != 0 {
		return nil, tool.Refuse("invalid_arguments", "edits and old_string exclude each other; put all of them into edits")
	}
	if len(in.Edits) > editsMost {
		return nil, tool.Refuse("invalid_arguments", "%d edits are too many for one call; at most %d", len(in.Edits), editsMost)
	}
	var all []edit.Edit
	for _, e := range in.Edits {
		all = append(all, edit.Edit{Old: e.OldString, New: e.NewString, All: e.ReplaceAll, Near: e.NearLine})
	}
	return all, nil
}

func (m *files) edit(ctx context.Context, c *tool.Call, in editIn) (out editOut, err error) {
	edits, err := in.wanted()
	if err != nil {
		return editOut{}, err
	}
	p, err := placeToWrite(c, in.Path)
	if err != nil {
		return editOut{}, err
	}
	err = m.changing(ctx, false, func(h *roots.Hold) (err error) {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		out, err = m.editAt(ctx, c, h, p, in, edits)
		return err
	}, p)
	return out, err
}

func (m *files) editAt(ctx context.Context, c *tool.Call, h *roots.Hold, p roots.Place, in editIn, edits []edit.Edit) (editOut, error) {
	there, content, err := m.editable(p)
	if err != nil {
		return editOut{}, err
	}
	defer there.close()
	was := there.info
	etag := roots.ETag(was, content)
	if err := mustMatch(p, etag, in.IfMatch); err != nil {
		return editOut{}, err
	}
	text, enc, err := decoded(p, content)
	if err != nil {
		return editOut{}, err
	}
	if edits, err = enc.asRead(p, text, edits); err != nil {
		return editOut{}, err
	}
	r, err := edit.Apply(p.Path, text, edits)
	if err != nil {
		return editOut{}, err
	}
	if r.Size() > m.editMost {
		return editOut{}, tool.Refuse("too_large", "the result would have %s bytes; at most %s are written", commas(r.Size()), commas(m.editMost))
	}
	newText := r.Content()
	after := enc.encoded(newText)
	out := editOut{Path: in.Path, Success: true, Replacements: r.Replacements, Line: r.Line, Level: r.Level.String(), ETag: etag, Diff: r.Diff(diffMost)}
	if broken := edit.Broken(p.Name, text, newText); broken != "" {
		if in.Strict {
			return editOut{}, &tool.Refusal{Code: "broken", Message: fmt.Sprintf("the edit would break the syntax of %s: %s; nothing was written\n%s", p.Path, broken, out.Diff), Next: "Correct new_string, or leave out strict."}
		}
		out.Note = "the file could be parsed before and cannot be now: " + broken
	}
	if err := mayWrite(p); err != nil || in.DryRun {
		out.note("nothing was written", in.DryRun)
		return out, err
	}
	before := &state{content: content, info: was}
	if len(content) > undoFile {
		if before, err = m.keep(p, there); err != nil {
			return editOut{}, err
		}
	}
	now, err := m.save(ctx, h, p, was, plainMode, bytesOf(after))
	if err != nil {
		m.dropped(before)
		return editOut{}, err
	}
	out.ETag = now.etag
	out.note(linked(was), true)
	out.note(m.remember(c, p, change{did: "edited", was: before, etag: out.ETag}), true)
	return out, nil
}

func (o *editOut) note(s string, when bool) {
	if when {
		o.Note = joined(o.Note, s)
	}
}

// joined makes one note of two; either may be empty.
func joined(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

// editable reads a text file that is to change. The caller closes it.
func (m *files) editable(p roots.Place) (there *seen, content []byte, err error) {
	f, was, err := p.Regular()
	if err != nil {
		return nil, nil, err
	}
	there = &seen{was, f}
	defer func() {
		if err != nil {
			there.close()
		}
	}()
	content, err = readAll(f, was.Size(), m.editMost)
	switch {
	case errors.Is(err, errTooLarge):
		return nil, nil, tool.Refuse("too_large", "%s has %s bytes; files up to %s bytes can be edited", p.Path, commas(was.Size()), commas(m.editMost))
	case err != nil:
		return nil, nil, p.Refuse(err)
	}
	if kind := binaryKind(content[:min(len(content), sniffed)]); kind != "" && !extract.IsWide(content) {
		return nil, nil, tool.Refuse("binary", "%s is not text: %s", p.Path, kind)
	}
	return there, content, nil
}
