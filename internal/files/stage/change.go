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
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"gatehouse/internal/files/merged"
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

	marks
}

// marks are those of the overlay in an upper folder.
type marks struct {
	opaque bool // the view does not show what the lower folder has
	copied bool // from the lower folder
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

	name   string // in the folder
	merged bool   // the view shows what the folder has below the name
	doubt  doubt
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
	Late   bool   `json:"late,omitempty"`   // it came to the folder where the view did not show the folder any more
	// Merged means that the view showed what the folder has below the name. What comes to the folder there after the
	// view has hidden it was seen by no call.
	Merged bool `json:"merged,omitempty"`
	// Again means that a plan gave the name the state, and Merged is that of the line before.
	Again bool `json:"again,omitempty"`
}

// known is the base of a name as it is kept in memory: most are of names that the folder did not have.
type known struct {
	state                *State
	unsure, late, merged bool
}

var absent = &State{Type: None}

func (b *base) known() known {
	k := known{state: absent, unsure: b.Unsure, late: b.Late, merged: b.Merged}
	if b.State.Type != None {
		k.state = new(State)
		*k.state = b.State
	}
	return k
}

type place struct {
	layer int
	name  string
}

// layerRoots are the folders of a layer, open.
type layerRoots struct {
	lower, upper *os.Root
	cuts         map[string]bool     // names at which the view of file tools does not show lower; empty for an overlay
	cutsIn       map[string][]string // the same by folder
}

func (t *Task) openLayer(i int) (r layerRoots, err error) {
	if r.lower, err = os.OpenRoot(t.Layers[i].Lower); err != nil {
		return r, err
	}
	if r.upper, err = os.OpenRoot(t.upper(i)); err != nil {
		r.lower.Close()
		return r, err
	}
	if r.cuts, err = merged.Cuts(t.layer(i)); err != nil {
		r.close()
		return r, err
	}
	r.cutsIn = map[string][]string{}
	for name := range r.cuts {
		r.cutsIn[path.Dir(name)] = append(r.cutsIn[path.Dir(name)], name)
	}
	return r, nil
}

// inUpper returns the state of a name in upper.
func (r layerRoots) inUpper(name string) (State, error) {
	s, err := stateOf(r.upper, name)
	if r.cuts[name] {
		s.opaque, s.copied = true, true
	}
	return s, err
}

// hidden returns the names in a folder of the view that lower has and the view does not, though upper does not say so.
func (r layerRoots) hidden(dir string, has map[string]bool) (names []string) {
	for _, name := range r.cutsIn[dir] {
		if !has[path.Base(name)] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
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
	known map[place]known // names that are not to be reported, unless the view hides now what is below; nil reports all
	since int64           // when the oldest call began that may have changed what is not known
	quick bool            // leave out what is the same at any later time: what came below names that hide the folder
	seen  int
}

// doubt says why a name of the folder may be another one than that which the calls saw.
type doubt int

const (
	sure doubt = iota
	unsure
	late
)

// walk calls each for every name that the upper folder changes, and for those that do not differ any more. merged means
// that the view shows the lower folder too.
func (w *walker) walk(name string, merged bool, d doubt) error {
	entries, err := list(w.upper, name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNoFolder) {
		entries = nil // deleted meanwhile
	} else if err != nil {
		return err
	}
	var has map[string]bool // of what is needed below
	if !merged || len(w.cutsIn[name]) > 0 {
		has = make(map[string]bool, len(entries))
	}
	for _, e := range entries {
		if has != nil {
			has[e.Name()] = true
		}
		if isTemp(e.Name()) {
			continue
		}
		if err := w.entry(path.Join(name, e.Name()), e.IsDir(), merged, d); err != nil {
			return err
		}
	}
	for _, gone := range w.hidden(name, has) {
		if err := w.deleted(gone, d); err != nil {
			return err
		}
	}
	if merged || w.quick && d == late {
		return nil
	}
	return w.below(name, has, d)
}

// entry reports a name of the upper folder; merged means that the folder that contains it shows the lower one too.
func (w *walker) entry(name string, folder, merged bool, d doubt) error {
	if b, ok := w.known[place{w.layer, name}]; ok {
		if w.quick && !folder && !b.merged {
			return nil
		}
		return w.enter(name, b, folder, merged, d)
	}
	now, err := w.inUpper(name)
	if err != nil {
		return err
	}
	if now.Type == None {
		return nil // deleted meanwhile
	}
	if now.Type == whiteout {
		return w.deleted(name, d)
	}
	was, err := stateOf(w.lower, name)
	if err != nil {
		return err
	}
	if d == sure && was.Type == None && now.copied && w.touched(path.Dir(name)) {
		d = unsure // it was there when the call opened it
	}
	merged = merged && was.Type == Folder && now.Type == Folder && !now.opaque
	if err := w.report(name, was, now, merged, d); err != nil {
		return err
	}
	d = w.inherited(was, merged, d)
	if now.Type == Folder {
		return w.walk(name, merged, d)
	}
	return w.below(name, nil, d)
}

// inherited returns what is known of names in a folder by the folder itself: they keep their times if it is moved.
func (w *walker) inherited(was State, merged bool, d doubt) doubt {
	if d == sure && was.Type == Folder && was.CTime >= w.since && (!merged || was.MTime < w.since) {
		return unsure
	}
	return d
}

// touched reports whether names came to a lower folder, or left it, while a call ran.
func (w *walker) touched(dir string) bool {
	s, err := stateOf(w.lower, dir)
	return err != nil || s.Type != Folder || s.CTime >= w.since
}

// enter looks for names that are not known below one that is.
func (w *walker) enter(name string, b known, folder, merged bool, d doubt) (err error) {
	if folder && merged && b.state.Type == Folder {
		s, err := w.inUpper(name)
		if err != nil {
			return err
		}
		if s.Type == Folder && !s.opaque {
			return w.walk(name, true, d)
		}
	}
	if d, err = w.hide(name, b, d); err != nil {
		return err
	}
	if folder {
		return w.walk(name, false, d)
	}
	return w.below(name, nil, d)
}

// hide reports a name that is known if the view showed, when it became known, what the folder has below it.
func (w *walker) hide(name string, b known, d doubt) (doubt, error) {
	if !b.merged {
		return late, nil
	}
	return d, w.each(Change{Layer: w.layer, name: name})
}

// deleted reports that a name of the folder, with everything in it, is not in the view.
func (w *walker) deleted(name string, d doubt) (err error) {
	if b, ok := w.known[place{w.layer, name}]; ok {
		if d, err = w.hide(name, b, d); err != nil {
			return err
		}
		return w.below(name, nil, d)
	}
	was, err := stateOf(w.lower, name)
	if err != nil {
		return err
	}
	if err := w.report(name, was, State{Type: None}, false, d); err != nil || was.Type != Folder {
		return err
	}
	return w.below(name, nil, w.inherited(was, false, d))
}

// below reports what a lower folder has, but for some names, as deleted.
func (w *walker) below(name string, except map[string]bool, d doubt) error {
	entries, err := list(w.lower, name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNoFolder) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if except[e.Name()] {
			continue
		}
		if err := w.deleted(path.Join(name, e.Name()), d); err != nil {
			return err
		}
	}
	return nil
}

func (w *walker) report(name string, was, now State, merged bool, d doubt) error {
	if w.seen++; w.seen > mostChanges {
		return errTooMany
	}
	if was.Type == None && !now.copied {
		d = sure
	}
	c := Change{
		Layer: w.layer, Path: filepath.Join(w.base, name), Was: was, Now: now, name: name, merged: merged, doubt: d,
	}
	if c.doubt == sure && was.Type != None && was.CTime >= w.since {
		c.doubt = unsure
	}
	c.Kind = c.kind()
	return w.each(c)
}

var errNoFolder = errors.New("it is not a folder")

// list returns what is in a folder, by name.
func list(root *os.Root, name string) ([]fs.DirEntry, error) {
	info, err := root.Lstat(name) // because opening follows links
	if errors.Is(err, syscall.ENOTDIR) {
		return nil, errNoFolder
	}
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
	entries, err := readDir(d)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return cmp.Compare(a.Name(), b.Name()) })
	return entries, err
}

// isTemp reports whether a name is that of a temporary file that a killed writer left.
func isTemp(name string) bool {
	return strings.HasPrefix(name, ".gatehouse-") && strings.HasSuffix(name, ".tmp")
}

// Changes is what a task has changed.
type Changes struct {
	First []Change // by path
	Total int
	ETag  string // identifies all of them
}

// changes returns what differs between the folders and the view of a task, and as many of the changes as most says; 0
// means all. The task must be locked or idle for the result to stay true.
func (t *Task) changes(most int) (r Changes, err error) {
	shown := tag{}
	byPath := func(a, b Change) int { return cmp.Compare(a.Path, b.Path) }
	err = t.eachChange(func(c Change) error {
		r.Total++
		shown.add(&c)
		if r.First = append(r.First, c); most > 0 && len(r.First) >= 2*most {
			slices.SortFunc(r.First, byPath)
			r.First = r.First[:most]
		}
		return nil
	})
	slices.SortFunc(r.First, byPath)
	if r.ETag = shown.sum(); most > 0 {
		r.First = r.First[:min(most, len(r.First))]
	}
	return r, err
}

// eachChange calls f for what differs between the folders and the view of a task, for a folder before what is in it.
func (t *Task) eachChange(f func(Change) error) error {
	bases, err := t.bases()
	if err != nil {
		return err
	}
	files := map[[2]uint64]string{}
	for i := range t.Layers {
		err := t.walkLayer(i, &walker{since: math.MaxInt64}, func(c Change) error {
			if c.Was.same(c.Now) {
				return nil
			}
			if b, ok := bases[place{i, c.name}]; ok {
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
			return f(c)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", t.Layers[i].Lower, err)
		}
	}
	return nil
}

// walkLayer calls each for the changes of a layer that w does not leave out.
func (t *Task) walkLayer(i int, w *walker, each func(Change) error) error {
	r, err := t.openLayer(i)
	if err != nil {
		return err
	}
	defer r.close()
	w.layerRoots, w.layer, w.base, w.each = r, i, t.Layers[i].Lower, each
	was, err := stateOf(r.lower, ".")
	if err != nil {
		return err
	}
	now, err := stateOf(r.upper, ".")
	if err != nil {
		return err
	}
	if _, ok := w.known[place{i, "."}]; !ok && was.Mode != now.Mode {
		if err := w.report(".", was, now, true, sure); err != nil {
			return err
		}
	}
	return w.walk(".", true, sure)
}

func (b known) conflict(was State) string {
	switch {
	case b.late:
		return "it came to the folder after the task had deleted or replaced what it is in"
	case b.unsure:
		return "it was changed in the folder while a call of the task ran"
	case !b.state.same(was):
		return "it was changed in the folder after the task had changed it"
	}
	return ""
}

// tag makes the ETag of changes in any order.
type tag struct{ all []tagged }

type tagged struct {
	path string
	sum  [sha256.Size]byte
}

func (t *tag) add(c *Change) {
	b, _ := json.Marshal([]any{c.Path, c.Kind, c.Now.Mode, c.Now.Size, c.Now.Target, c.Now.Hash, c.Now.Attributes})
	t.all = append(t.all, tagged{c.Path, sha256.Sum256(b)})
}

func (t *tag) sum() string {
	slices.SortFunc(t.all, func(a, b tagged) int { return cmp.Compare(a.path, b.path) })
	h := sha256.New()
	for i := range t.all {
		h.Write(t.all[i].sum[:])
	}
	return strings.ToLower(base32.StdEncoding.EncodeToString(h.Sum(nil))[:12])
}

// note records the states of names that the view has changed for the first time. since is when the oldest call began
// that may have changed them. quick leaves to a later call without it what it would record as well.
func (t *Task) note(since time.Time, quick bool) error {
	bases, err := t.bases()
	if err != nil {
		return err
	}
	return t.addBases(func(add func(base) error) error {
		for i := range t.Layers {
			w := &walker{known: bases, since: since.UnixNano(), quick: quick}
			err := t.walkLayer(i, w, func(c Change) error {
				if b, ok := bases[place{i, c.name}]; ok {
					return add(base{Layer: i, Path: c.name, State: *b.state, Unsure: b.unsure, Late: b.late})
				}
				return add(base{
					Layer: i, Path: c.name, State: c.Was, Unsure: c.doubt == unsure, Late: c.doubt == late,
					Merged: c.merged,
				})
			})
			if err != nil {
				return fmt.Errorf("%s: %w", t.Layers[i].Lower, err)
			}
		}
		return nil
	})
}

func (t *Task) basesFile() string { return filepath.Join(t.dir, "base.jsonl") }

// read are the bases that were read of a file, to which bases are added alone.
type read struct {
	all     map[place]known
	upto    int64
	counted int           // how many of all are in total
	total   *atomic.Int64 // that all views keep
}

// forget drops what was read.
func (r *read) forget() {
	r.total.Add(-int64(r.counted))
	*r = read{total: r.total}
}

// The bases that views keep in memory between their calls, with some 300 bytes each: of all views, and what each may
// keep in any case.
const (
	mostRead  = 100_000
	leastRead = 20_000
)

// bases returns the bases of a task. The caller must not change them.
func (t *Task) bases() (map[place]known, error) {
	have := t.read
	if have == nil || have.all == nil {
		have = &read{all: map[place]known{}}
	}
	f, err := os.Open(t.basesFile())
	if errors.Is(err, fs.ErrNotExist) {
		return have.all, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, err := f.Seek(have.upto, io.SeekStart); err != nil {
		return nil, err
	}
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil && err != io.EOF {
			return nil, err
		}
		if err == io.EOF { // a crash cut the line off, and the next one begins with a line end
			all := have.all // have may be what keepBases forgets
			t.keepBases(have)
			return all, nil
		}
		have.upto += int64(len(line))
		var b base
		if json.Unmarshal(line, &b) == nil {
			at := place{b.Layer, b.Path}
			b.Merged = b.Merged || b.Again && have.all[at].merged
			have.all[at] = b.known()
		}
	}
}

// keepBases keeps what was read for the next call of the view, if there is one.
func (t *Task) keepBases(r *read) {
	kept := t.read
	if kept == nil {
		return
	}
	grown := int64(len(r.all) - kept.counted)
	if grown > 0 && kept.total.Add(grown) > mostRead && len(r.all) > leastRead {
		kept.total.Add(-grown)
		kept.forget()
		return
	}
	*kept = read{all: r.all, upto: r.upto, counted: len(r.all), total: kept.total}
}

// addBases adds those that each gives to add.
func (t *Task) addBases(each func(add func(base) error) error) error {
	var f *os.File
	var out *bufio.Writer
	var enc *json.Encoder
	err := each(func(b base) (err error) {
		if f == nil {
			if f, err = os.OpenFile(t.basesFile(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
				return err
			}
			out = bufio.NewWriter(f)
			out.WriteByte('\n') // after a line that a crash cut off
			enc = json.NewEncoder(out)
		}
		return enc.Encode(b)
	})
	if f == nil {
		return err
	}
	return errors.Join(err, out.Flush(), f.Sync(), f.Close())
}
