package file

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

// Limits of the changes that are kept while the server runs.
const (
	maxUndoChanges = 50        // changes for each owner and folder
	maxUndoBytes   = 32 << 20  // bytes of contents for each owner and folder
	maxUndoContent = 8 << 20   // bytes of one content in memory; a longer one goes to the trash
	maxUndoTotal   = 128 << 20 // bytes of all contents in memory
	maxUndoDisk    = 4 << 30   // bytes of everything in the trash
)

// state is the file, link or directory at a path before a change.
type state struct {
	content []byte
	stored  string // id in the trash, if the content is long
	link    string // the target, if it was a symbolic link
	info    fs.FileInfo
	lost    bool // it cannot be restored
}

// change is one change that can be undone.
type change struct {
	action string // edited, wrote, copied, renamed, deleted
	root   string // the root's path, with links resolved
	name   string // the path in the root, with links resolved
	before *state // nil if nothing was there
	etag   string // of the file after the change; "" if there is none, or none with a tag
	from   string // the old name in the same root, if it was renamed
	moved  fs.FileInfo
	trash  string // id of a deleted directory in the trash
	disk   int64  // bytes in the trash
	seq    int
}

func (c *change) size() int64 {
	if c.before == nil {
		return 0
	}
	return int64(len(c.before.content))
}

// undo keeps the last changes of each owner. It is safe for concurrent use.
type undo struct {
	removeTrash func(trash string) // removes what a forgotten change has in the trash
	enabled     bool               // false if the host serves a single call, after which undo is of no use

	mu        sync.Mutex
	changes   map[string][]change // by owner, oldest first
	removable []string            // ids in the trash that no change refers to
	bytes     int64
	disk      int64
	seq       int
}

// snapshot saves the regular file at p, which a change is about to replace. It
// returns nil if there is none.
func (m *files) snapshot(p roots.Place, there *original) (*state, error) {
	if there == nil {
		return nil, nil
	}
	s := &state{info: there.info}
	switch {
	case !m.undo.enabled, there.f == nil: // the file may be written but not read
		s.lost = true
	case there.info.Size() > maxUndoContent:
		var err error
		s.stored, err = m.trash.store(p, there)
		s.lost = err != nil
	default:
		b, err := readAll(there.content(), there.info.Size(), maxUndoContent)
		if errors.Is(err, errTooLarge) {
			return nil, roots.ErrStale
		}
		if err != nil {
			return nil, p.Refuse(err)
		}
		s.content = append(b, 0)[:len(b)] // not nil, even if the file is empty
	}
	return s, nil
}

// snapshotAny is snapshot for any kind of file, link or directory.
func (m *files) snapshotAny(p roots.Place, info fs.FileInfo) (s *state, err error) {
	s = &state{info: info, lost: !m.undo.enabled}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		if s.link, err = p.Root.Readlink(p.Name); err != nil {
			return nil, p.Refuse(err)
		}
	case info.Mode().IsRegular():
		there, err := openOriginal(p)
		if err != nil {
			return nil, err
		}
		defer there.closeOriginal()
		return m.snapshot(p, there)
	}
	return s, nil
}

// dropSnapshot removes the snapshot of a change that was not made.
func (m *files) dropSnapshot(s *state) {
	if s != nil {
		m.trash.removeItem(s.stored)
	}
}

// restorable reports whether the state can be restored.
func (s *state) restorable() bool {
	return s == nil || !s.lost && (s.content != nil || s.stored != "" || s.link != "" || s.info.IsDir())
}

// addChange records a change of the call's owner, and reports whether it can be undone.
func (u *undo) addChange(c *tool.Call, p roots.Place, x change) bool {
	x.root, x.name = p.Folder(), p.Name
	defer u.removeForgotten()
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.changes == nil {
		u.changes = make(map[string][]change)
	}
	if !u.enabled || !x.before.restorable() && x.trash == "" || x.size() > maxUndoContent {
		// Earlier changes of the file cannot be undone without undoing this one.
		u.dropChanges(c.Caller.Owner, func(o *change) bool { return o.touches(&x) })
		return false
	}
	if x.before != nil && x.before.stored != "" {
		x.disk += x.before.info.Size()
	}
	u.seq++
	x.seq = u.seq
	u.changes[c.Caller.Owner] = append(u.changes[c.Caller.Owner], x)
	u.bytes += x.size()
	u.disk += x.disk
	u.trim(c.Caller.Owner, x.root)
	return true
}

// recordChange calls undo.addChange and returns a note for the result if the change
// cannot be undone.
func (m *files) recordChange(c *tool.Call, p roots.Place, x change) (note string) {
	switch {
	case m.undo.addChange(c, p, x), !m.undo.enabled: // a host that serves a single call cannot undo anything
		return ""
	case x.before != nil && x.before.info.Size() > maxUndoContent:
		return "file_undo cannot undo this: the previous content of " + groupDigits(
			x.before.info.Size(),
		) + " bytes could not be kept"
	}
	return "file_undo cannot undo this: the previous content could not be kept"
}

func (c *change) touches(o *change) bool {
	return c.root == o.root && (c.name == o.name || c.from != "" && c.from == o.name)
}

// trim forgets the oldest changes until the limits are met. u.mu is held.
func (u *undo) trim(owner, root string) {
	n, seq, bytes := 0, 0, int64(0)
	for i := len(u.changes[owner]) - 1; i >= 0; i-- {
		if x := &u.changes[owner][i]; x.root == root {
			if x.seq != seq { // the changes of several files by one call count as one
				n, seq = n+1, x.seq
			}
			bytes += x.size()
			if n > maxUndoChanges || bytes > maxUndoBytes {
				last := x.seq
				u.dropChanges(owner, func(o *change) bool { return o.root == root && o.seq <= last })
				break
			}
		}
	}
	for u.bytes > maxUndoTotal || u.disk > maxUndoDisk {
		oldest := ""
		for owner, list := range u.changes {
			if oldest == "" || list[0].seq < u.changes[oldest][0].seq {
				oldest = owner
			}
		}
		first := u.changes[oldest][0].seq
		u.dropChanges(oldest, func(o *change) bool { return o.seq == first })
	}
}

// dropChanges removes the changes for which which holds. u.mu is held.
func (u *undo) dropChanges(owner string, which func(*change) bool) {
	rest := u.changes[owner][:0:0]
	for _, x := range u.changes[owner] {
		if !which(&x) {
			rest = append(rest, x)
			continue
		}
		u.bytes -= x.size()
		u.disk -= x.disk
		if x.trash != "" {
			u.removable = append(u.removable, x.trash)
		}
		if x.before != nil && x.before.stored != "" {
			u.removable = append(u.removable, x.before.stored)
		}
	}
	if u.changes[owner] = rest; len(rest) == 0 {
		delete(u.changes, owner)
	}
}

// last returns the owner's latest change for which fits holds.
func (u *undo) last(owner string, fits func(*change) bool) (change, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, x := range slices.Backward(u.changes[owner]) {
		if fits(&x) {
			return x, true
		}
	}
	return change{}, false
}

// forgetUndone removes a change that was undone.
func (u *undo) forgetUndone(owner string, seq int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	was := len(u.removable)
	u.dropChanges(owner, func(o *change) bool { return o.seq == seq })
	u.removable = u.removable[:was] // the restored file uses what the change had in the trash
}

// removeForgotten removes from the trash what no change refers to. It may take
// long, and is called without u.mu.
func (u *undo) removeForgotten() {
	u.mu.Lock()
	rubbish := u.removable
	u.removable = nil
	u.mu.Unlock()
	for _, id := range rubbish {
		u.removeTrash(id)
	}
}

type undoIn struct {
	Path  string `json:"path,omitempty" names:"unknown"`
	Steps int    `json:"steps,omitempty" max:"50" doc:"1 by default"`
}

type undoOut struct {
	Undone []string `json:"undone"`
}

const undoHelp = `Undoes your last changes made with file_edit, file_write, file_copy, file_rename and file_delete,
latest first. A change of several files by one call is undone as one.

- With path, it undoes the last change of that file only.
- If another program or caller has changed the file since, the call is refused and the file stays as it is.
- The last 50 changes with at most 32 MB of contents are kept for each caller and folder of the workspace, while the
  server runs. Contents over 8 MB are kept in the trash, up to 1 GB each and 4 GB in all; the note of a change says if
  its previous content could not be kept.
- A directory deleted with recursive is restored from the trash, which keeps it as long as its deletion can be undone.
- An undo cannot be undone. Parent directories that a write made stay.`

func (m *files) undoTool() tool.Tool {
	return tool.New(tool.Def{
		Name:        "file_undo",
		Title:       "Undo a change",
		Description: "Undoes your last changes, of one path or of all.",
		Help:        undoHelp,
		Effects:     tool.Writes | tool.Destroys,
		Task:        tool.TaskNever,
	}, m.undoChanges)
}

func (m *files) undoChanges(ctx context.Context, c *tool.Call, in undoIn) (undoOut, error) {
	fits := func(x *change) bool {
		_, err := roots.Locate(c.Roots, filepath.Join(x.root, x.name))
		return err == nil
	}
	if in.Path != "" {
		p, err := placeToChange(c, in.Path)
		if err == nil {
			if q, ferr := p.Followed(true); ferr == nil {
				p = q
			}
		}
		if err != nil {
			return undoOut{}, err
		}
		at := &change{root: p.Folder(), name: p.Name}
		fits = func(x *change) bool { return x.touches(at) }
	}
	var out undoOut
	for range max(in.Steps, 1) {
		if err := context.Cause(ctx); err != nil {
			return out, err
		}
		x, ok := m.undo.last(c.Caller.Owner, fits)
		if !ok {
			break
		}
		group := m.undo.group(c.Caller.Owner, x)
		if err := m.revertGroup(ctx, c, group); err != nil {
			if len(out.Undone) == 0 {
				return undoOut{}, err
			}
			out.Undone = append(out.Undone, "stopped: "+err.Error())
			return out, nil
		}
		m.undo.forgetUndone(c.Caller.Owner, x.seq)
		for _, x := range group {
			out.Undone = append(out.Undone, x.describeChange())
		}
	}
	if len(out.Undone) == 0 {
		return undoOut{}, &tool.Refusal{
			Code:    tool.CodeNotFound,
			Message: "you have no change that can be undone",
			Next:    "Only changes made with the file tools since the server started can be undone.",
		}
	}
	return out, nil
}

// revertGroup undoes the changes of one call.
func (m *files) revertGroup(ctx context.Context, c *tool.Call, group []change) error {
	if len(group) == 1 {
		return m.revert(ctx, c, group[0])
	}
	return m.revertAll(ctx, c, group)
}

func (c *change) describeChange() string {
	switch {
	case c.action == "renamed":
		return fmt.Sprintf("renamed %s back to %s", c.name, c.from)
	case c.before == nil:
		return "removed " + c.name
	}
	return "restored " + c.name
}

// revert undoes one change. It refuses if the file was changed since.
func (m *files) revert(ctx context.Context, c *tool.Call, x change) error {
	p, err := roots.Locate(c.Roots, filepath.Join(x.root, x.name))
	if err != nil {
		return err
	}
	if p, err = p.Followed(false); err != nil {
		return err
	}
	if err := p.MayWrite(); err != nil {
		return err
	}
	p.Path = x.name
	if x.action == "renamed" {
		return m.revertRename(ctx, c, p, x)
	}
	return m.withLocks(ctx, true, func(h *roots.Hold) error { return m.restore(ctx, h, p, x) }, p)
}

// restore restores the state of p before x. The directory is held.
func (m *files) restore(ctx context.Context, h *roots.Hold, p roots.Place, x change) error {
	now, err := p.Lstat()
	if err != nil && !isCode(err, tool.CodeNotFound) {
		return err
	}
	if (now != nil) != (x.etag != "") {
		return changedSince(p)
	}
	var there *original
	if now != nil {
		if !now.Mode().IsRegular() {
			return changedSince(p)
		}
		if there, err = openOriginal(p); err != nil {
			return err
		}
		defer there.closeOriginal()
		if there == nil {
			return changedSince(p)
		}
		if etag, err := there.etag(p); err != nil || etag != x.etag {
			return errors.Join(err, changedSince(p))
		}
	}
	switch {
	case x.before == nil:
		return removePlace(p)
	case x.trash != "":
		return m.trash.moveBack(p, x.trash)
	case x.before.link != "":
		err = p.Root.Symlink(x.before.link, p.Name)
	case x.before.info.IsDir():
		err = p.Root.Mkdir(p.Name, x.before.info.Mode().Perm())
	default:
		if now == nil {
			err = makeParents(p)
		}
		if err == nil {
			err = m.restoreContent(ctx, h, p, there.fileInfo(), x.before)
		}
	}
	if err != nil {
		return p.Refuse(err)
	}
	return nil
}

// restoreContent writes the content of before with the mode and the owner it had.
func (m *files) restoreContent(ctx context.Context, h *roots.Hold, p roots.Place, now fs.FileInfo, was *state) error {
	data := writeBytes(was.content)
	if was.stored != "" {
		f, err := m.trash.reopen(was.stored)
		if err != nil {
			return err
		}
		defer f.Close()
		data = func(w io.Writer) error { return copyInSteps(ctx, w, f) }
	}
	if _, err := m.save(ctx, h, p, now, mode{was.info.Mode().Perm(), true}, data); err != nil {
		return err
	}
	m.dropSnapshot(was)
	return nil
}

// removePlace deletes the file or empty directory at p in the directory that was
// checked before.
func removePlace(p roots.Place) error {
	if err := p.Remove(); err != nil {
		return p.Refuse(err)
	}
	return nil
}

func changedSince(p roots.Place) error {
	return &tool.Refusal{
		Code:    tool.CodeStale,
		Message: p.Path + " was changed by another program or caller since; it was left as it is",
		Next:    "Read it and edit it, or give path to undo a change of another file.",
	}
}

// revertRename moves a file back, and restores the file that it had replaced.
func (m *files) revertRename(ctx context.Context, c *tool.Call, p roots.Place, x change) error {
	to, err := roots.Locate(c.Roots, filepath.Join(x.root, x.from))
	if err != nil {
		return err
	}
	to.Path = x.from
	return m.withLocks(ctx, true, func(h *roots.Hold) error {
		now, err := p.Lstat()
		if err != nil || !os.SameFile(now, x.moved) {
			return changedSince(p)
		}
		if err := move(p, to, now, false); err != nil {
			return err
		}
		x.etag = ""
		if x.before == nil {
			return nil
		}
		return m.restore(ctx, h, p, x)
	}, p, to)
}
