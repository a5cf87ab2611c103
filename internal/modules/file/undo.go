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

// What is remembered of changes, no longer than the server lives.
const (
	undoMost  = 50        // changes for each owner and folder
	undoBytes = 32 << 20  // of contents for each owner and folder
	undoFile  = 8 << 20   // bytes of one content; a longer one goes to the trash
	undoTotal = 128 << 20 // bytes of all contents
	undoDisk  = 4 << 30   // bytes of all that is in the trash
)

// state is what was at a path before a change.
type state struct {
	content []byte
	stored  string // where the content lies in the trash, if it is long
	link    string // the target, of a symbolic link
	info    fs.FileInfo
	lost    bool // it cannot be brought back
}

// change is one change that can be taken back.
type change struct {
	did   string // edited, wrote, copied, renamed, deleted
	root  string // the folder, without links
	name  string // in it, without links
	was   *state // nil: nothing was there
	etag  string // of what is there since; "" for nothing, or for what has no tag
	from  string // renamed: its old name in the same folder
	moved fs.FileInfo
	trash string // where a deleted directory lies in the trash
	disk  int64  // bytes of what lies in the trash
	seq   int
}

func (c *change) size() int64 {
	if c.was == nil {
		return 0
	}
	return int64(len(c.was.content))
}

// undo remembers the last changes of each owner.
type undo struct {
	drop  func(trash string) // deletes what was kept of a forgotten change
	lasts bool               // the host serves further calls; else nothing is remembered

	mu      sync.Mutex
	of      map[string][]change // by owner, the oldest first
	rubbish []string            // in the trash, no longer remembered
	bytes   int64
	disk    int64
	seq     int
}

// keep notes what a change of the regular file at p is about to replace.
func (m *files) keep(p roots.Place, there *seen) (*state, error) {
	if there == nil {
		return nil, nil
	}
	s := &state{info: there.info}
	switch {
	case !m.undo.lasts, there.f == nil: // it may be written but not read
		s.lost = true
	case there.info.Size() > undoFile:
		var err error
		s.stored, err = m.trash.store(p, there)
		s.lost = err != nil
	default:
		b, err := readAll(there.content(), there.info.Size(), undoFile)
		if errors.Is(err, errTooLarge) {
			return nil, roots.ErrStale
		}
		if err != nil {
			return nil, p.Refuse(err)
		}
		s.content = append(b, 0)[:len(b)] // not nil, even of an empty file
	}
	return s, nil
}

// keepAny is keep of what may be something else than a file.
func (m *files) keepAny(p roots.Place, info fs.FileInfo) (s *state, err error) {
	s = &state{info: info, lost: !m.undo.lasts}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		if s.link, err = p.Root.Readlink(p.Name); err != nil {
			return nil, p.Refuse(err)
		}
	case info.Mode().IsRegular():
		there, err := lookAt(p)
		if err != nil {
			return nil, err
		}
		defer there.close()
		return m.keep(p, there)
	}
	return s, nil
}

// dropped clears away what was kept for a change that did not happen.
func (m *files) dropped(s *state) {
	if s != nil {
		m.trash.drop(s.stored)
	}
}

// kept reports whether all is known that is needed to bring a state back.
func (s *state) kept() bool {
	return s == nil || !s.lost && (s.content != nil || s.stored != "" || s.link != "" || s.info.IsDir())
}

// add remembers a change of the call's owner, and reports whether it can be
// taken back.
func (u *undo) add(c *tool.Call, p roots.Place, x change) bool {
	x.root, x.name = p.Root.Name(), p.Name
	defer u.clear()
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.of == nil {
		u.of = make(map[string][]change)
	}
	if !u.lasts || !x.was.kept() && x.trash == "" || x.size() > undoFile {
		// What came before cannot be taken back past it.
		u.forget(c.Caller.Owner, func(o *change) bool { return o.touches(&x) })
		return false
	}
	if x.was != nil && x.was.stored != "" {
		x.disk += x.was.info.Size()
	}
	u.seq++
	x.seq = u.seq
	u.of[c.Caller.Owner] = append(u.of[c.Caller.Owner], x)
	u.bytes += x.size()
	u.disk += x.disk
	u.trim(c.Caller.Owner, x.root)
	return true
}

// remember is undo.add of a change whose result may have a note: it returns one
// if the change cannot be taken back.
func (m *files) remember(c *tool.Call, p roots.Place, x change) (note string) {
	switch {
	case m.undo.add(c, p, x), !m.undo.lasts: // a host of one call has no file_undo to speak of
		return ""
	case x.was != nil && x.was.info.Size() > undoFile:
		return "file_undo cannot take this back: the previous content of " + commas(x.was.info.Size()) + " bytes could not be kept"
	}
	return "file_undo cannot take this back: the previous content could not be kept"
}

func (c *change) touches(o *change) bool {
	return c.root == o.root && (c.name == o.name || c.from != "" && c.from == o.name)
}

// trim forgets the oldest changes until the limits are kept.
func (u *undo) trim(owner, root string) {
	n, bytes := 0, int64(0)
	for i := len(u.of[owner]) - 1; i >= 0; i-- {
		if x := &u.of[owner][i]; x.root == root {
			n++
			bytes += x.size()
			if n > undoMost || bytes > undoBytes {
				last := x.seq
				u.forget(owner, func(o *change) bool { return o.root == root && o.seq <= last })
				break
			}
		}
	}
	for u.bytes > undoTotal || u.disk > undoDisk {
		oldest := ""
		for owner, list := range u.of {
			if oldest == "" || list[0].seq < u.of[oldest][0].seq {
				oldest = owner
			}
		}
		first := u.of[oldest][0].seq
		u.forget(oldest, func(o *change) bool { return o.seq == first })
	}
}

// forget drops changes; the lock is held.
func (u *undo) forget(owner string, which func(*change) bool) {
	rest := u.of[owner][:0:0]
	for _, x := range u.of[owner] {
		if !which(&x) {
			rest = append(rest, x)
			continue
		}
		u.bytes -= x.size()
		u.disk -= x.disk
		if x.trash != "" {
			u.rubbish = append(u.rubbish, x.trash)
		}
		if x.was != nil && x.was.stored != "" {
			u.rubbish = append(u.rubbish, x.was.stored)
		}
	}
	if u.of[owner] = rest; len(rest) == 0 {
		delete(u.of, owner)
	}
}

// last is the owner's latest change that fits.
func (u *undo) last(owner string, fits func(*change) bool) (change, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, x := range slices.Backward(u.of[owner]) {
		if fits(&x) {
			return x, true
		}
	}
	return change{}, false
}

// done forgets a change that was taken back.
func (u *undo) done(owner string, seq int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	was := len(u.rubbish)
	u.forget(owner, func(o *change) bool { return o.seq == seq })
	u.rubbish = u.rubbish[:was] // what it kept is in use again
}

// clear drops what was forgotten; it may take a while.
func (u *undo) clear() {
	u.mu.Lock()
	rubbish := u.rubbish
	u.rubbish = nil
	u.mu.Unlock()
	for _, id := range rubbish {
		u.drop(id)
	}
}

type undoIn struct {
	Path  string `json:"path,omitempty" names:"unknown"`
	Steps int    `json:"steps,omitempty" max:"50" doc:"1 by default"`
}

type undoOut struct {
	Undone []string `json:"undone"`
}

const undoHelp = `Takes back your last changes made with file_edit, file_write, file_copy, file_rename and file_delete, the latest first.

- With path, the last change of that file only.
- A file that has been changed by somebody else since is left alone and the call refused.
- Remembered are the last 50 changes, at most 32 MB of contents, for each caller and folder of the workspace, as long as
  the server runs. Contents over 8 MB are kept in the trash, up to 1 GB each and 4 GB in all; the note of a change says
  if its previous content could not be kept.
- A directory deleted with recursive comes back from the trash, where it stays while its deletion is remembered.
- Taking back cannot be taken back. Directories that a write made on the way stay.`

func (m *files) undoTool() tool.Tool {
	return tool.New(tool.Def{
		Name:        "file_undo",
		Title:       "Undo a change",
		Description: "Takes back your last changes, of one path or of all.",
		Help:        undoHelp,
		Effects:     tool.Writes | tool.Destroys,
		Task:        tool.TaskNever,
	}, m.takeBack)
}

func (m *files) takeBack(ctx context.Context, c *tool.Call, in undoIn) (undoOut, error) {
	fits := func(x *change) bool {
		_, err := roots.Find(c.Roots, filepath.Join(x.root, x.name))
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
		at := &change{root: p.Root.Name(), name: p.Name}
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
		if err := m.revert(ctx, c, x); err != nil {
			if len(out.Undone) == 0 {
				return undoOut{}, err
			}
			out.Undone = append(out.Undone, "stopped: "+err.Error())
			return out, nil
		}
		m.undo.done(c.Caller.Owner, x.seq)
		out.Undone = append(out.Undone, x.said())
	}
	if len(out.Undone) == 0 {
		return undoOut{}, &tool.Refusal{Code: "not_found", Message: "there is no change of yours to take back", Next: "Only changes made with these tools since the server started are remembered."}
	}
	return out, nil
}

func (c *change) said() string {
	switch {
	case c.did == "renamed":
		return fmt.Sprintf("renamed %s back to %s", c.name, c.from)
	case c.was == nil:
		return "removed " + c.name
	}
	return "restored " + c.name
}

// revert takes one change back, if nobody has changed the file since.
func (m *files) revert(ctx context.Context, c *tool.Call, x change) error {
	p, err := roots.Find(c.Roots, filepath.Join(x.root, x.name))
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
	if x.did == "renamed" {
		return m.revertRename(ctx, c, p, x)
	}
	return m.changing(ctx, true, func(h *roots.Hold) error { return m.bringBack(ctx, h, p, x) }, p)
}

// bringBack puts what was at p there again. The directory is held.
func (m *files) bringBack(ctx context.Context, h *roots.Hold, p roots.Place, x change) error {
	now, err := p.Lstat()
	if err != nil && !isCode(err, "not_found") {
		return err
	}
	if (now != nil) != (x.etag != "") {
		return changedSince(p)
	}
	var there *seen
	if now != nil {
		if !now.Mode().IsRegular() {
			return changedSince(p)
		}
		if there, err = lookAt(p); err != nil {
			return err
		}
		defer there.close()
		if there == nil {
			return changedSince(p)
		}
		if etag, err := there.etag(p); err != nil || etag != x.etag {
			return errors.Join(err, changedSince(p))
		}
	}
	switch {
	case x.was == nil:
		return remove(p)
	case x.trash != "":
		return m.trash.giveBack(p, x.trash)
	case x.was.link != "":
		err = p.Root.Symlink(x.was.link, p.Name)
	case x.was.info.IsDir():
		err = p.Root.Mkdir(p.Name, x.was.info.Mode().Perm())
	default:
		if now == nil {
			err = makeParents(p)
		}
		if err == nil {
			err = m.saveAs(ctx, h, p, there.was(), x.was)
		}
	}
	if err != nil {
		return p.Refuse(err)
	}
	return nil
}

// saveAs writes a content with the mode and the owner it had.
func (m *files) saveAs(ctx context.Context, h *roots.Hold, p roots.Place, now fs.FileInfo, was *state) error {
	data := bytesOf(was.content)
	if was.stored != "" {
		f, err := m.trash.reopen(was.stored)
		if err != nil {
			return err
		}
		defer f.Close()
		data = func(w io.Writer) error { return pour(ctx, w, f) }
	}
	if _, err := m.save(ctx, h, p, now, mode{was.info.Mode().Perm(), true}, data); err != nil {
		return err
	}
	m.dropped(was)
	return nil
}

// remove deletes what is at p, in the directory that was judged.
func remove(p roots.Place) error {
	parent, base, err := p.Parent()
	if err != nil {
		return p.Refuse(err)
	}
	defer parent.Close()
	if err := parent.Remove(base); err != nil {
		return p.Refuse(err)
	}
	return nil
}

func changedSince(p roots.Place) error {
	return &tool.Refusal{Code: "stale", Message: p.Path + " has been changed since by somebody else; it was left alone", Next: "Read it and change it by hand, or give path to take back a change of another file."}
}

// revertRename moves a file back, and brings back what it replaced.
func (m *files) revertRename(ctx context.Context, c *tool.Call, p roots.Place, x change) error {
	to, err := roots.Find(c.Roots, filepath.Join(x.root, x.from))
	if err != nil {
		return err
	}
	to.Path = x.from
	return m.changing(ctx, true, func(h *roots.Hold) error {
		now, err := p.Lstat()
		if err != nil || !os.SameFile(now, x.moved) {
			return changedSince(p)
		}
		if err := move(p, to, now, false); err != nil {
			return err
		}
		x.etag = ""
		if x.was == nil {
			return nil
		}
		return m.bringBack(ctx, h, p, x)
	}, p, to)
}
