package stage

import (
	"bufio"
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// The types of names.
const (
	None     = "none"
	File     = "file"
	Folder   = "folder"
	Link     = "link"
	Pipe     = "pipe"
	Socket   = "socket"
	Device   = "device"
	whiteout = "whiteout" // in an upper folder: the name was deleted
)

// hashMost is the size of a file up to which its content is compared. Larger ones are compared by size and time.
const hashMost = 16 << 20

// State is what has a name at some moment.
type State struct {
	Type       string            `json:"type"`
	Mode       uint32            `json:"mode,omitempty"`
	UID        int               `json:"uid,omitempty"`
	GID        int               `json:"gid,omitempty"`
	Size       int64             `json:"size,omitempty"`
	MTime      int64             `json:"mtime,omitempty"`
	Target     string            `json:"target,omitempty"`
	Hash       string            `json:"hash,omitempty"`
	Attributes map[string][]byte `json:"attributes,omitempty"`

	Dev   uint64 `json:"dev,omitempty"`
	Ino   uint64 `json:"ino,omitempty"`
	CTime int64  `json:"ctime,omitempty"`
	Links uint64 `json:"links,omitempty"`

	opaque bool
}

// same reports whether two states are the same for a person: content, type, mode, attributes. The owner counts for
// neither, and the time only for files whose content is too large to be compared.
func (s State) same(o State) bool {
	if s.Type != o.Type {
		return false
	}
	if s.Type == None {
		return true
	}
	if s.Ino != 0 && s.Ino == o.Ino && s.Dev == o.Dev && s.CTime == o.CTime && s.Size == o.Size && s.MTime == o.MTime {
		return true
	}
	if s.Type != Link && s.Mode != o.Mode || s.Target != o.Target ||
		!maps.EqualFunc(s.Attributes, o.Attributes, func(a, b []byte) bool { return string(a) == string(b) }) {
		return false
	}
	switch {
	case s.Type != File:
		return true
	case s.Hash != "" && o.Hash != "":
		return s.Hash == o.Hash
	}
	return s.Hash == o.Hash && s.Size == o.Size && s.MTime == o.MTime
}

// Change is one name that differs between the folder and the view.
type Change struct {
	Layer int    `json:"-"`
	Path  string `json:"path"` // absolute
	Kind  string `json:"kind"` // created, modified, deleted, replaced or mode
	Was   State  `json:"was"`  // in the folder now
	Now   State  `json:"now"`  // in the view
	// Conflict says why the change cannot be accepted; "" if it can.
	Conflict string `json:"conflict,omitempty"`
	// Linked is an earlier changed path that is the same file.
	Linked string `json:"linked,omitempty"`

	name string // in the folder
}

func (c *Change) kind() string {
	switch {
	case c.Was.Type == None:
		return "created"
	case c.Now.Type == None:
		return "deleted"
	case c.Was.Type != c.Now.Type:
		return "replaced"
	case c.Was.Type == Folder || c.Was.Hash != "" && c.Was.Hash == c.Now.Hash:
		return "mode"
	}
	return "modified"
}

// base is what a name was when the view first had something else.
type base struct {
	Layer  int    `json:"layer"`
	Path   string `json:"path"`
	State  State  `json:"state"`
	Unsure bool   `json:"unsure,omitempty"` // it changed while a call ran, so the call may have seen an earlier one
}

type place struct {
	layer int
	name  string
}

// layerRoots are the folders of a layer, open.
type layerRoots struct {
	lower, upper *os.Root
}

func (t *Task) openLayer(i int) (r layerRoots, err error) {
	if r.lower, err = os.OpenRoot(t.Layers[i].Lower); err != nil {
		return r, err
	}
	if r.upper, err = os.OpenRoot(t.upper(i)); err != nil {
		r.lower.Close()
	}
	return r, err
}

func (r layerRoots) close() {
	r.lower.Close()
	r.upper.Close()
}

// mostChanges limits what one task may hold.
const mostChanges = 2_000_000

var errTooMany = errors.New("more names changed than a task may hold")

// walker compares an upper folder with the folder below it.
type walker struct {
	layerRoots
	layer int
	base  string // path of the folder
	each  func(Change) error
	known map[place]base // names that are not to be reported; nil reports all
	seen  int
}

// walk calls each for every name that the upper folder changes, and for those that do not differ any more.
func (w *walker) walk(name string, merged bool) error {
	names, err := list(w.upper, name)
	if err != nil {
		return err
	}
	has := map[string]bool{}
	for _, n := range names {
		if has[n] = true; isTemp(n) {
			continue
		}
		if err := w.entry(path.Join(name, n), merged); err != nil {
			return err
		}
	}
	if merged {
		return nil
	}
	below, err := list(w.lower, name)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNoFolder) {
			return nil
		}
		return err
	}
	for _, n := range below {
		if !has[n] {
			if err := w.deleted(path.Join(name, n)); err != nil {
				return err
			}
		}
	}
	return nil
}

// entry reports a name of the upper folder; merged means that the folder that contains it shows the lower one too.
func (w *walker) entry(name string, merged bool) error {
	if b, ok := w.known[place{w.layer, name}]; ok {
		return w.enter(name, b)
	}
	now, err := stateOf(w.upper, name)
	if err != nil {
		return err
	}
	if now.Type == None {
		return nil // deleted meanwhile
	}
	if now.Type == whiteout {
		return w.deleted(name)
	}
	was, err := stateOf(w.lower, name)
	if err != nil {
		return err
	}
	if now.Type != Folder && was.Type == Folder {
		if err := w.below(name); err != nil {
			return err
		}
	}
	if err := w.report(name, was, now); err != nil || now.Type != Folder {
		return err
	}
	return w.walk(name, was.Type == Folder && !now.opaque)
}

// enter looks for names that are not known below one that is.
func (w *walker) enter(name string, b base) error {
	info, err := w.upper.Lstat(name)
	if err != nil || !info.IsDir() {
		return nil
	}
	now, err := stateOf(w.upper, name)
	if err != nil {
		return err
	}
	return w.walk(name, b.State.Type == Folder && !now.opaque)
}

// deleted reports that a name of the folder, with everything in it, is not in the view.
func (w *walker) deleted(name string) error {
	if b, ok := w.known[place{w.layer, name}]; ok && b.State.Type != Folder {
		return nil
	}
	was, err := stateOf(w.lower, name)
	if err != nil || was.Type == None {
		return err
	}
	if was.Type == Folder {
		if err := w.below(name); err != nil {
			return err
		}
	}
	return w.report(name, was, State{Type: None})
}

func (w *walker) below(name string) error {
	names, err := list(w.lower, name)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := w.deleted(path.Join(name, n)); err != nil {
			return err
		}
	}
	return nil
}

func (w *walker) report(name string, was, now State) error {
	if _, ok := w.known[place{w.layer, name}]; ok {
		return nil
	}
	if w.seen++; w.seen > mostChanges {
		return errTooMany
	}
	c := Change{Layer: w.layer, Path: filepath.Join(w.base, name), Was: was, Now: now, name: name}
	c.Kind = c.kind()
	return w.each(c)
}

var errNoFolder = errors.New("it is not a folder")

func list(root *os.Root, name string) ([]string, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, errNoFolder
	}
	d, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

// isTemp reports whether a name is that of a temporary file that a killed writer left.
func isTemp(name string) bool {
	return strings.HasPrefix(name, ".gatehouse-") && strings.HasSuffix(name, ".tmp")
}

// Changes returns what differs between the folders and the view of a task, by path. The task must be locked or idle for
// the result to stay true.
func (t *Task) Changes() (all []Change, err error) {
	known, err := t.bases()
	if err != nil {
		return nil, err
	}
	files := map[[2]uint64]string{}
	for i := range t.Layers {
		err := t.walkLayer(i, nil, func(c Change) error {
			if c.Was.same(c.Now) {
				return nil
			}
			if b, ok := known[place{i, c.name}]; ok {
				c.Conflict = b.conflict(c.Was)
			}
			if c.Now.Type == File && c.Now.Links > 1 {
				id := [2]uint64{c.Now.Dev, c.Now.Ino}
				if c.Linked = files[id]; c.Linked == "" {
					files[id] = c.Path
				}
			}
			if c.Now.Type == Socket || c.Now.Type == Device {
				c.Conflict = "a " + c.Now.Type + " is not copied to the folder"
			}
			all = append(all, c)
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.Layers[i].Lower, err)
		}
	}
	slices.SortFunc(all, func(a, b Change) int { return cmp.Compare(a.Path, b.Path) })
	return all, nil
}

func (t *Task) walkLayer(i int, known map[place]base, each func(Change) error) error {
	r, err := t.openLayer(i)
	if err != nil {
		return err
	}
	defer r.close()
	w := &walker{layerRoots: r, layer: i, base: t.Layers[i].Lower, each: each, known: known}
	was, err := stateOf(r.lower, ".")
	if err != nil {
		return err
	}
	now, err := stateOf(r.upper, ".")
	if err != nil {
		return err
	}
	if was.Mode != now.Mode {
		if err := w.report(".", was, now); err != nil {
			return err
		}
	}
	return w.walk(".", true)
}

func (b base) conflict(was State) string {
	switch {
	case b.Unsure:
		return "it was changed in the folder while a call of the task ran"
	case !b.State.same(was):
		return "it was changed in the folder after the task had changed it"
	}
	return ""
}

// ETag identifies a list of changes.
func ETag(all []Change) string {
	h := sha256.New()
	for _, c := range all {
		b, _ := json.Marshal([]any{c.Path, c.Kind, c.Now.Mode, c.Now.Size, c.Now.Target, c.Now.Hash, c.Now.Attributes})
		h.Write(b)
	}
	return strings.ToLower(base32.StdEncoding.EncodeToString(h.Sum(nil))[:12])
}

// note records the states of names that the view has changed for the first time. since is when the oldest call began
// that may have changed them.
func (t *Task) note(since time.Time) error {
	known, err := t.bases()
	if err != nil {
		return err
	}
	var fresh []base
	for i := range t.Layers {
		err := t.walkLayer(i, known, func(c Change) error {
			fresh = append(fresh, base{i, c.name, c.Was, c.Was.Type != None && c.Was.CTime >= since.UnixNano()})
			return nil
		})
		if err != nil {
			return fmt.Errorf("%s: %w", t.Layers[i].Lower, err)
		}
	}
	return t.addBases(fresh)
}

func (t *Task) basesFile() string { return filepath.Join(t.dir, "base.jsonl") }

func (t *Task) bases() (map[place]base, error) {
	all := map[place]base{}
	f, err := os.Open(t.basesFile())
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadBytes('\n')
		var b base
		if json.Unmarshal(line, &b) == nil { // else a crash cut it off
			all[place{b.Layer, b.Path}] = b
		}
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (t *Task) addBases(all []base) error {
	if len(all) == 0 {
		return nil
	}
	f, err := os.OpenFile(t.basesFile(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(f)
	out.WriteByte('\n') // after a line that a crash cut off
	enc := json.NewEncoder(out)
	for _, b := range all {
		if err := enc.Encode(b); err != nil {
			f.Close()
			return err
		}
	}
	return errors.Join(out.Flush(), f.Sync(), f.Close())
}
