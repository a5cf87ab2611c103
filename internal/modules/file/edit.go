package file

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"gatehouse/internal/files/edit"
	"gatehouse/internal/files/extract"
	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

const (
	// defaultMaxEdit is the default of Config.MaxEdit, in bytes.
	defaultMaxEdit = 64 << 20
	// maxDiffLines is the number of lines of the diff in a result.
	maxDiffLines = 40
	// maxEdits is the number of edits in one call.
	maxEdits = 200
)

type editIn struct {
	Path       string    `json:"path" names:"path"`
	OldString  string    `json:"old_string,omitempty" doc:"text to replace; must occur once"`
	NewString  *string   `json:"new_string,omitempty"`
	ReplaceAll bool      `json:"replace_all,omitempty"`
	NearLine   int       `json:"near_line,omitempty"`
	Edits      []oneEdit `json:"edits,omitempty" doc:"several edits instead"`
	IfMatch    string    `json:"if_match,omitempty" doc:"expected etag"`
	DryRun     bool      `json:"dry_run,omitempty"`
	Strict     bool      `json:"strict,omitempty" doc:"refuse to break the syntax"`
	Diagnose   bool      `json:"diagnostics,omitempty" doc:"of the language server"`
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
	Diagnostics  string `json:"diagnostics,omitempty"`
}

// Facts returns the number of replacements, where they are, and the etag for the
// next change.
func (o editOut) Facts() string {
	level := ""
	if o.Level != edit.Exact.String() {
		level = "found by " + o.Level
	}
	facts := tool.Facts(plural(int64(o.Replacements), "replacement")+" in "+tool.Fact(o.Path),
		"line="+strconv.Itoa(o.Line), level, o.Note, "etag="+o.ETag)
	if o.Diagnostics != "" {
		facts += "\n" + o.Diagnostics
	}
	return facts
}

const editHelp = `Replaces text in a file: old_string by new_string, or all of edits at once.

old_string must occur exactly once. replace_all changes every occurrence; near_line selects the occurrence nearest to
a line. The search goes through these levels and stops at the first that finds the text (level in the result):

1. exact: byte for byte
2. newlines: ignores line endings, the byte order mark and a missing last newline
3. trailing blanks: ignores blanks at the ends of lines
4. indentation: all lines are indented differently in one way: spaces for tabs, deeper, or not at all
5. look-alike characters: typographic quotes and dashes, special spaces, decomposed letters
6. blank lines: ignores how many there are
7. escapes: \n and \t for the characters they stand for
8. near miss: a few characters differ in lines that do not change, and no other place is similar

A level must find exactly one place. If it finds several, the error names their lines. If no level finds the text, the
error shows the most similar place and the first column that differs, with · for a space and → for a tab.

- Only the difference between old_string and new_string is written: lines that are the same in both keep every byte.
  New lines get the file's indentation and line endings. An ambiguous edit is refused.
- All edits are searched in the file as it is before the call. If two overlap, or one fails, nothing is written.
- if_match is the etag of a read or of an earlier change: if the file has changed since, nothing is written.
- dry_run returns the diff and writes nothing; etag is then that of the unchanged file.
- If the edit makes a Go, JSON, YAML, TOML or XML file unparsable, note says so; with strict the edit is refused.
- A file in UTF-16 or UTF-32 keeps its encoding. In a file that is neither that nor UTF-8, \xNN stands for a byte as
  file_read shows it, and new text must be ASCII.
- The change is atomic; the file keeps its mode. If the file has several hard links, the others keep the old content.
  Files over 64 MB and binary files are refused. file_undo undoes an edit.
- diagnostics returns what the language server reports about the edited file, as lsp_diagnostics does.`

func (m *files) editTool() tool.Tool {
	return tool.New(tool.Def{
		Name:  "file_edit",
		Title: "Edit a file",
		Description: "Replaces text in a file; blanks, indentation, quotes and line endings need not match exactly. " +
			"Returns a diff.",
		Help:    editHelp,
		Effects: tool.Writes | tool.Destroys,
	}, m.edit)
}

// edits returns the edits of a call, from edits or from old_string and new_string.
func (in editIn) edits() ([]edit.Edit, error) {
	if len(in.Edits) == 0 {
		if in.NewString == nil {
			return nil, &tool.Refusal{
				Code:    tool.CodeInvalidArguments,
				Message: "new_string is missing",
				Next:    `Give old_string and new_string ("" deletes the text), or edits.`,
			}
		}
		return []edit.Edit{{Old: in.OldString, New: *in.NewString, All: in.ReplaceAll, Near: in.NearLine}}, nil
	}
	if in.OldString != "" || in.NewString != nil || in.ReplaceAll || in.NearLine != 0 {
		return nil, tool.Refuse(
			tool.CodeInvalidArguments, "edits and old_string exclude each other; put every edit into edits",
		)
	}
	if len(in.Edits) > maxEdits {
		return nil, tool.Refuse(
			tool.CodeInvalidArguments, "one call has at most %[2]d edits, this one has %[1]d", len(in.Edits), maxEdits,
		)
	}
	var all []edit.Edit
	for _, e := range in.Edits {
		all = append(all, edit.Edit{Old: e.OldString, New: e.NewString, All: e.ReplaceAll, Near: e.NearLine})
	}
	return all, nil
}

func (m *files) edit(ctx context.Context, c *tool.Call, in editIn) (out editOut, err error) {
	edits, err := in.edits()
	if err != nil {
		return editOut{}, err
	}
	p, err := placeToWrite(c, in.Path)
	if err != nil {
		return editOut{}, err
	}
	err = m.withLocks(ctx, false, func(h *roots.Hold) (err error) {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		out, err = m.editAt(ctx, c, h, p, in, edits)
		return err
	}, p)
	if err == nil {
		out.Note = joinNotes(out.Note, m.unsavedNote(ctx, c, p))
	}
	if err == nil && in.Diagnose && !in.DryRun {
		out.Diagnostics = m.diagnostics(ctx, c, in.Path)
	}
	return out, err
}

// diagnostics returns what the language server reports about a file, or why there is nothing. The edit was made and
// stays, whatever comes of this.
func (m *files) diagnostics(ctx context.Context, c *tool.Call, path string) string {
	const absent = "diagnostics: not available: "
	if m.callTool == nil {
		return absent + "this host has no language servers"
	}
	args, err := json.Marshal(map[string]string{"path": path})
	if err != nil {
		return absent + err.Error()
	}
	res, err := m.callTool(ctx, c, "lsp_diagnostics", args)
	if err != nil {
		return absent + err.Error()
	}
	var text strings.Builder
	if b, err := json.Marshal(res.Structured); err == nil && !res.IsError {
		var out struct{ Text string }
		if json.Unmarshal(b, &out) == nil {
			return "diagnostics:\n" + out.Text + res.Facts
		}
	}
	for _, block := range res.Content {
		text.WriteString(block.Text)
	}
	return absent + text.String()
}

func (m *files) editAt(
	ctx context.Context, c *tool.Call, h *roots.Hold, p roots.Place, in editIn, edits []edit.Edit,
) (editOut, error) {
	there, content, err := m.readEditable(p)
	if err != nil {
		return editOut{}, err
	}
	defer there.closeOriginal()
	was := there.info
	etag := roots.ETag(was, content)
	if err := mustMatch(p, etag, in.IfMatch); err != nil {
		return editOut{}, err
	}
	text, enc, err := decodeText(p, content)
	if err != nil {
		return editOut{}, err
	}
	if edits, err = enc.parseEscapes(p, text, edits); err != nil {
		return editOut{}, err
	}
	r, err := edit.Apply(p.Path, text, edits)
	if err != nil {
		return editOut{}, err
	}
	if r.Size() > m.maxEdit {
		return editOut{}, tool.Refuse(
			tool.CodeTooLarge, "the edited file would have %s bytes; at most %s can be written", groupDigits(r.Size()),
			groupDigits(m.maxEdit),
		)
	}
	newText := r.Content()
	after := enc.encodeText(newText)
	out := editOut{
		Path:         in.Path,
		Success:      true,
		Replacements: r.Replacements,
		Line:         r.Line,
		Level:        r.Level.String(),
		ETag:         etag,
		Diff:         r.Diff(maxDiffLines),
	}
	if broken := edit.Broken(p.Name, text, newText); broken != "" {
		if in.Strict {
			return editOut{}, &tool.Refusal{
				Code: tool.CodeBroken,
				Message: fmt.Sprintf(
					"the edit would break the syntax of %s: %s; nothing was written\n%s", p.Path, broken, out.Diff,
				),
				Next: "Correct new_string, or leave out strict.",
			}
		}
		out.Note = "the file could be parsed before the edit, and now it cannot: " + broken
	}
	if err := checkWritable(p); err != nil || in.DryRun {
		out.note("nothing was written", in.DryRun)
		return out, err
	}
	before := &state{content: content, info: was}
	if len(content) > maxUndoContent {
		if before, err = m.snapshot(p, there); err != nil {
			return editOut{}, err
		}
	}
	now, err := m.save(ctx, h, p, was, plainMode, writeBytes(after))
	if err != nil {
		m.dropSnapshot(before)
		return editOut{}, err
	}
	out.ETag = now.etag
	out.note(linkNote(was), true)
	out.note(m.recordChange(c, p, change{action: "edited", before: before, etag: out.ETag}), true)
	return out, nil
}

func (o *editOut) note(s string, when bool) {
	if when {
		o.Note = joinNotes(o.Note, s)
	}
}

// joinNotes joins two notes, each of which may be empty.
func joinNotes(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

// readEditable opens and reads a text file that is to be edited. The caller
// closes the returned file.
func (m *files) readEditable(p roots.Place) (there *original, content []byte, err error) {
	f, was, err := p.Regular()
	if err != nil {
		return nil, nil, err
	}
	there = &original{was, f}
	defer func() {
		if err != nil {
			there.closeOriginal()
		}
	}()
	content, err = readAll(f, was.Size(), m.maxEdit)
	switch {
	case errors.Is(err, errTooLarge):
		return nil, nil, tool.Refuse(
			tool.CodeTooLarge, "%s has %s bytes; the largest file that can be edited has %s bytes", p.Path,
			groupDigits(was.Size()), groupDigits(m.maxEdit),
		)
	case err != nil:
		return nil, nil, p.Refuse(err)
	}
	if kind := binaryKind(content[:min(len(content), sniffBytes)]); kind != "" && !extract.IsWide(content) {
		return nil, nil, tool.Refuse(tool.CodeBinary, "%s is not text: %s", p.Path, kind)
	}
	return there, content, nil
}
