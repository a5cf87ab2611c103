package file

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"gatehouse/internal/files/edit"
	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

const (
	maxEditFiles = 500      // files in one call
	maxEditBytes = 64 << 20 // bytes of their contents, before and after
)

type editAllIn struct {
	Paths   []string      `json:"paths" names:"path" min:"1" max:"500"`
	Edits   [][]rangeEdit `json:"edits" doc:"of each path"`
	IfMatch []string      `json:"if_match,omitempty"`
	DryRun  bool          `json:"dry_run,omitempty"`
}

type rangeEdit struct {
	Line      int    `json:"line"`
	Column    int    `json:"column"`
	EndLine   int    `json:"end_line"`
	EndColumn int    `json:"end_column"`
	NewText   string `json:"new_text"`
}

type editAllOut struct {
	Diff  string `json:"diff,omitempty" text:"product"`
	Files int    `json:"files"`
	Edits int    `json:"edits"`
	Note  string `json:"note,omitempty"`
}

const editAllHelp = `Replaces ranges in up to 500 files. Lines and columns begin at 1; columns count characters, and the end is the
first character that stays. A path that does not exist is created by an edit at 1:1 to 1:1.

- All files are changed or none: if one is refused, has another etag than if_match, or changes meanwhile, all keep their
  content. If the host is killed during the change, the next host restores the old contents when it starts.
- The ranges of a file are those of its content before the call, and must not overlap.
- file_undo undoes the change of all files as one.`

func (m *files) editAllTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "file_edit_all", Title: "Edit several files", Effects: tool.Writes | tool.Destroys,
		Description: "Replaces ranges in all of several files or in none.",
		Help:        editAllHelp,
	}, m.editAll)
}

// replacement is a new content of one file of a change of several. It keeps the original open until it is closed.
type replacement struct {
	place  roots.Place
	there  *original // nil if there is none
	before []byte    // nil if there is none
	after  []byte    // nil if the file is removed
	saved  saved
}

func (m *files) editAll(ctx context.Context, c *tool.Call, in editAllIn) (out editAllOut, err error) {
	if len(in.Paths) != len(in.Edits) || len(in.IfMatch) > 0 && len(in.IfMatch) != len(in.Paths) {
		return out, tool.Refuse(tool.CodeInvalidArguments,
			"there are %d paths, %d lists of edits and %d etags; expected one of each for each path", len(in.Paths),
			len(in.Edits), len(in.IfMatch))
	}
	if len(in.Paths) > maxEditFiles {
		return out, tool.Refuse(tool.CodeInvalidArguments, "one call changes at most %d files, this one %d",
			maxEditFiles, len(in.Paths))
	}
	var places []roots.Place
	names := map[string]bool{}
	for _, path := range in.Paths {
		p, err := placeToWrite(c, path)
		if err != nil {
			return out, err
		}
		if at := p.Folder() + "\x00" + p.Name; names[at] {
			return out, tool.Refuse(tool.CodeInvalidArguments, "%s is given twice", path)
		} else {
			names[at] = true
		}
		places = append(places, p)
	}
	err = m.withLocks(ctx, true, func(h *roots.Hold) error {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		out, err = m.editPlaces(ctx, c, h, places, in)
		return err
	}, places...)
	return out, err
}

func (m *files) editPlaces(
	ctx context.Context, c *tool.Call, h *roots.Hold, places []roots.Place, in editAllIn,
) (out editAllOut, err error) {
	var all []*replacement
	defer func() {
		for _, r := range all {
			r.there.closeOriginal()
		}
	}()
	var diff strings.Builder
	left := maxEditBytes
	for i, p := range places {
		match := ""
		if len(in.IfMatch) > 0 {
			match = in.IfMatch[i]
		}
		r, text, err := m.prepare(p, in.Edits[i], match)
		if r != nil {
			all = append(all, r)
		}
		if err != nil {
			return out, err
		}
		if left -= len(r.before) + len(r.after); left < 0 {
			return out, tool.Refuse(tool.CodeTooLarge, "the files have more than %s bytes together, before and after",
				groupDigits(maxEditBytes))
		}
		out.Edits += len(in.Edits[i])
		if lines := maxDiffLines - strings.Count(diff.String(), "\n"); lines > 3 {
			fmt.Fprintf(&diff, "%s\n%s\n", in.Paths[i], text(lines))
		}
	}
	out.Files, out.Diff = len(all), diff.String()
	if in.DryRun {
		out.Note = "nothing was written"
		return out, nil
	}
	if err := m.replaceAll(ctx, h, all); err != nil {
		return editAllOut{}, err
	}
	out.Note = m.recordAll(c, all)
	return out, nil
}

// prepare reads a file and computes its new content. diff returns the difference in at most so many lines.
func (m *files) prepare(
	p roots.Place, edits []rangeEdit, match string,
) (r *replacement, diff func(lines int) string, err error) {
	r = &replacement{place: p}
	r.there, r.before, err = m.readEditable(p)
	if isCode(err, tool.CodeNotFound) && match == "" {
		r.there, r.before, err = nil, nil, nil
		if len(edits) != 1 || edits[0].Line != 1 || edits[0].Column != 1 || edits[0].EndLine != 1 ||
			edits[0].EndColumn != 1 {
			return nil, nil, tool.Refuse(tool.CodeNotFound, "%s does not exist; nothing was written", p.Path)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	if r.there != nil {
		if err := mustMatch(p, roots.ETag(r.there.info, r.before), match); err != nil {
			return r, nil, err
		}
		if err := checkWritable(p); err != nil {
			return r, nil, err
		}
	}
	text, enc, err := decodeText(p, r.before)
	if err != nil {
		return r, nil, err
	}
	ranges := make([]edit.Range, len(edits))
	for i, e := range edits {
		if enc.bytes && !ascii(e.NewText) {
			return r, nil, errEncoding(p, "new_text")
		}
		ranges[i] = edit.Range{
			Line:      e.Line,
			Column:    e.Column,
			EndLine:   e.EndLine,
			EndColumn: e.EndColumn,
			New:       e.NewText,
		}
	}
	changed, err := edit.Replace(p.Path, text, ranges)
	if err != nil {
		return r, nil, err
	}
	if changed.Size() > m.maxEdit {
		return r, nil, tool.Refuse(tool.CodeTooLarge, "%s would have %s bytes; at most %s can be written", p.Path,
			groupDigits(changed.Size()), groupDigits(m.maxEdit))
	}
	r.after = enc.encodeText(changed.Content())
	return r, changed.Diff, nil
}

// recordAll records a change of several files, which undo takes as one.
func (m *files) recordAll(c *tool.Call, all []*replacement) (note string) {
	var changes []change
	for _, r := range all {
		x := change{action: "edited", root: r.place.Folder(), name: r.place.Name, etag: r.saved.etag}
		if r.before != nil {
			x.before = &state{content: append(r.before, 0)[:len(r.before)], info: r.there.info}
		}
		changes = append(changes, x)
	}
	if !m.undo.addGroup(c.Caller.Owner, changes) && m.undo.enabled {
		return "file_undo cannot undo this: the previous contents could not be kept"
	}
	return ""
}

// addGroup records changes of different files that are undone together: they share their number.
func (u *undo) addGroup(owner string, all []change) bool {
	defer u.removeForgotten()
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.changes == nil {
		u.changes = make(map[string][]change)
	}
	bytes := int64(0)
	for i := range all {
		bytes += all[i].size()
	}
	if !u.enabled || bytes > maxUndoBytes {
		for i := range all {
			u.dropChanges(owner, func(o *change) bool { return o.touches(&all[i]) })
		}
		return false
	}
	u.seq++
	touched := map[string]bool{}
	for _, x := range all {
		x.seq = u.seq
		u.changes[owner] = append(u.changes[owner], x)
		u.bytes += x.size()
		touched[x.root] = true
	}
	for root := range touched {
		u.trim(owner, root)
	}
	return true
}

// group returns the changes that are undone together with x.
func (u *undo) group(owner string, x change) (all []change) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, o := range u.changes[owner] {
		if o.seq == x.seq {
			all = append(all, o)
		}
	}
	return all
}

// revertAll undoes the changes of several files as one: all or none.
func (m *files) revertAll(ctx context.Context, c *tool.Call, group []change) error {
	var places []roots.Place
	for _, x := range group {
		p, err := roots.Locate(c.Roots, filepath.Join(x.root, x.name))
		if err == nil {
			p, err = p.Followed(false)
		}
		if err == nil {
			err = p.MayWrite()
		}
		if err != nil {
			return err
		}
		p.Path = x.name
		places = append(places, p)
	}
	return m.withLocks(ctx, true, func(h *roots.Hold) error {
		var all []*replacement
		defer func() {
			for _, r := range all {
				r.there.closeOriginal()
			}
		}()
		for i, x := range group {
			there, content, err := m.readEditable(places[i])
			if isCode(err, tool.CodeNotFound) {
				return changedSince(places[i])
			}
			if err != nil {
				return err
			}
			r := &replacement{place: places[i], there: there, before: content}
			if all = append(all, r); roots.ETag(there.info, content) != x.etag {
				return changedSince(places[i])
			}
			if x.before != nil {
				r.after = x.before.content
			}
		}
		return m.replaceAll(ctx, h, all)
	}, places...)
}
