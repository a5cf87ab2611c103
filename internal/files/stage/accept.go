package stage

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"gatehouse/internal/files/atomicfile"
)

// op puts one name from one state to another.
type op struct {
	Layer int    `json:"layer"`
	Name  string `json:"name"`
	From  State  `json:"from"`
	To    State  `json:"to"`
	Data  string `json:"data,omitempty"` // the content of To, a file in the folder of the plan
	Keep  string `json:"keep,omitempty"` // the content of From
	Temp  string `json:"temp,omitempty"` // in the folder of Name, while it is written
	Same  int    `json:"same,omitempty"` // 1 + the op of which this is a hard link; 0 for none
}

// plan is what an acceptance or its undoing does. It is durable before the first name changes; from then on it is
// finished, if need be by the next host.
type plan struct {
	At  time.Time `json:"at"`
	By  string    `json:"by"`
	Ops []op      `json:"ops"`
	// Folders are those that contain the names, unless the plan makes or removes them.
	Folders []folderTime `json:"folders,omitempty"`
}

// Result is what a plan did.
type Result struct {
	At       time.Time `json:"at"`
	By       string    `json:"by"`
	Done     []string  `json:"done"` // paths
	Conflict []Blocked `json:"conflict,omitempty"`
	Note     string    `json:"note,omitempty"` // that it was interrupted
}

// outcome is a result as it is stored.
type outcome struct {
	Result
	// States are those of the names of the ops afterwards, in their order; the type is "" for one that was left alone.
	States  []State      `json:"states,omitempty"`
	Folders []folderTime `json:"folders,omitempty"` // those of the plan, afterwards
}

// Blocked is a path that was left alone.
type Blocked struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

const (
	planFile   = "plan.json"
	resultFile = "result.json"
	undoFile   = "undo.json"
	undoneFile = "undone.json"
)

// manyOps is how many names a plan may have until what it writes is made durable together, by a sync of the file systems
// instead of one of each file and folder. Tests change it.
var manyOps = manyMost

// temp returns the temporary name of an op.
func (o *op) temp() string { return path.Join(path.Dir(o.Name), o.Temp) }

// partial returns the name of what is being written, so that the temporary name always has everything.
func (o *op) partial() string { return strings.TrimSuffix(o.temp(), ".tmp") + "-part.tmp" }

func tempName() string { return ".gatehouse-" + rand.Text() + ".tmp" }

// accept copies changes to the folders. The caller holds the lock of the task.
func (t *Task) accept(all []Change, by string) (r Result, err error) {
	dir := filepath.Join(t.dir, "accepted", strconv.Itoa(len(t.acceptances())+1))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return r, err
	}
	p := plan{At: time.Now(), By: by}
	many := len(all) > manyOps
	var blocked []Blocked
	linked := map[string]int{}
	for _, c := range all {
		if c.Conflict != "" {
			blocked = append(blocked, Blocked{c.Path, c.Conflict})
			continue
		}
		n := len(p.Ops)
		o := op{Layer: c.Layer, Name: c.name, From: c.Was, To: c.Now, Temp: tempName()}
		if o.Same = linked[c.Linked]; o.Same == 0 {
			if o.Data, err = t.keep(dir, c.Layer, c.name, o.To, true, n, !many); err != nil {
				return r, fmt.Errorf("%s: %w", c.Path, err)
			}
		}
		if c.Now.Type == File && c.Now.Links > 1 {
			linked[c.Path] = n + 1
		}
		if o.Keep, err = t.keep(dir, c.Layer, c.name, o.From, false, n, !many); err != nil {
			return r, fmt.Errorf("%s: %w", c.Path, err)
		}
		p.Ops = append(p.Ops, o)
	}
	if many {
		if err := syncFileSystem(dir); err != nil {
			return r, err
		}
	}
	if err := t.noteFolders(&p); err != nil {
		return r, err
	}
	if err := writeJSON(filepath.Join(dir, planFile), p); err != nil {
		return r, err
	}
	r, err = t.perform(dir, p, resultFile, "")
	r.Conflict = append(blocked, r.Conflict...)
	return r, err
}

// keep copies the content of a file to the folder of a plan, and returns its name there. It is durable if sync is set.
func (t *Task) keep(dir string, layer int, name string, s State, upper bool, n int, sync bool) (string, error) {
	if s.Type != File {
		return "", nil
	}
	kind, from := "old", t.Layers[layer].Lower
	if upper {
		kind, from = "new", t.upper(layer)
	}
	root, err := os.OpenRoot(from)
	if err != nil {
		return "", err
	}
	defer root.Close()
	in, err := root.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return "", err
	}
	defer in.Close()
	to := fmt.Sprintf("%s-%d", kind, n)
	out, err := os.OpenFile(filepath.Join(dir, to), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return "", err
	}
	if err = clone(out, in); err == nil && sync {
		err = out.Sync()
	}
	return to, errors.Join(err, out.Close())
}

func writeJSON(file string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return atomicfile.Write(file, b)
}

func readJSON(file string, v any) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// performer carries out a plan. Each step finds by the state of the name whether it was done before.
type performer struct {
	task   *Task
	dir    string
	plan   plan
	roots  map[int]*os.Root
	again  bool // an earlier host began it
	many   bool // it has many names, and what it writes is made durable together
	done   []bool
	failed []error
}

// perform carries out a plan and records its result.
func (t *Task) perform(dir string, p plan, file, note string) (_ Result, err error) {
	var r outcome
	f := &performer{
		task: t, dir: dir, plan: p, roots: map[int]*os.Root{}, again: note != "", many: len(p.Ops) > manyOps,
		done: make([]bool, len(p.Ops)), failed: make([]error, len(p.Ops)),
	}
	defer func() {
		for _, root := range f.roots {
			root.Close()
		}
	}()
	for i := range t.Layers {
		if f.roots[i], err = os.OpenRoot(t.Layers[i].Lower); err != nil {
			return r.Result, err
		}
	}
	f.run()
	r.Folders = f.keepTimes()
	if f.many {
		if err := f.syncLayers(); err != nil {
			return r.Result, err
		}
	}
	r.Result, r.States = Result{At: time.Now(), By: p.By, Note: note}, make([]State, len(p.Ops))
	known, err := t.bases()
	if err != nil {
		return r.Result, err
	}
	var learned []base
	for i, o := range p.Ops {
		at := filepath.Join(t.Layers[o.Layer].Lower, o.Name)
		if f.failed[i] != nil {
			r.Conflict = append(r.Conflict, Blocked{at, f.failed[i].Error()})
			continue
		}
		if r.States[i], err = stateOf(f.roots[o.Layer], o.Name); err != nil {
			return r.Result, err
		}
		r.Done = append(r.Done, at)
		learned = append(learned, base{
			Layer: o.Layer, Path: o.Name, State: r.States[i], Merged: known[place{o.Layer, o.Name}].Merged,
		})
	}
	if err := t.addBases(learned); err != nil {
		return r.Result, err
	}
	return r.Result, writeJSON(filepath.Join(dir, file), r)
}

// run does the ops in the order in which folders allow: remove names, remove folders, make folders, put files in their
// place, and give folders their modes and times.
func (f *performer) run() {
	order := make([]int, len(f.plan.Ops))
	for i := range order {
		order[i] = i
	}
	depth := func(i int) int { return strings.Count(f.plan.Ops[i].Name, "/") }
	down := func(a, b int) int { return cmp.Or(depth(a)-depth(b), a-b) }
	up := func(a, b int) int { return down(b, a) }
	slices.SortFunc(order, down)
	f.each(order, f.check)
	gone := func(o *op) bool {
		return o.From.Type != None && (o.To.Type == None || (o.To.Type == Folder) != (o.From.Type == Folder))
	}
	f.each(order, func(o *op, root *os.Root) error {
		if gone(o) && o.From.Type != Folder {
			return f.remove(root, o)
		}
		return nil
	})
	slices.SortFunc(order, up)
	f.each(order, func(o *op, root *os.Root) error {
		if gone(o) && o.From.Type == Folder {
			return f.remove(root, o)
		}
		return nil
	})
	slices.SortFunc(order, down)
	f.each(order, func(o *op, root *os.Root) error {
		if o.To.Type == Folder && o.From.Type != Folder {
			if err := root.Mkdir(o.Name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
		return nil
	})
	slices.Sort(order) // a hard link comes after what it links to
	if f.many {
		f.writeAll(order)
	}
	f.each(order, func(o *op, root *os.Root) error {
		if o.To.Type == Folder || o.To.Type == None {
			return nil
		}
		return f.put(root, o)
	})
	slices.SortFunc(order, up)
	f.each(order, func(o *op, root *os.Root) error {
		if o.To.Type != Folder {
			return nil
		}
		d, err := root.OpenFile(o.Name, os.O_RDONLY, 0)
		if err != nil {
			return err
		}
		defer d.Close()
		return errors.Join(dress(root, o.Name, d, o.To), f.syncFolder(d))
	})
}

// sync makes a file durable, unless that is done for all of them together.
func (f *performer) sync(file *os.File) error {
	if f.many {
		return nil
	}
	return file.Sync()
}

func (f *performer) syncFolder(d *os.File) error {
	if f.many {
		return nil
	}
	return syncFolder(d)
}

// syncLayers makes durable what was written to the folders.
func (f *performer) syncLayers() error {
	var all []error
	for i := range f.task.Layers {
		all = append(all, syncFileSystem(f.task.Layers[i].Lower))
	}
	return errors.Join(all...)
}

// writeAll writes all files under their temporary names, and makes them durable, before the first gets its own name.
// Hard links are made later, when what they link to is there.
func (f *performer) writeAll(order []int) {
	waits := func(o *op) bool { return o.To.Type != Folder && o.To.Type != None && o.Same == 0 }
	for _, i := range order {
		o := &f.plan.Ops[i]
		root := f.roots[o.Layer]
		if f.failed[i] != nil || !waits(o) {
			continue
		}
		if f.done[i], f.failed[i] = f.still(root, o); !f.done[i] && f.failed[i] == nil {
			f.failed[i] = f.writeTemp(root, o)
		}
	}
	if err := f.syncLayers(); err != nil {
		f.each(order, func(o *op, root *os.Root) error {
			if waits(o) {
				return errors.Join(err, root.Remove(o.temp()))
			}
			return nil
		})
	}
}

func (f *performer) each(order []int, step func(*op, *os.Root) error) {
	for _, i := range order {
		if f.failed[i] == nil && !f.done[i] {
			f.failed[i] = step(&f.plan.Ops[i], f.roots[f.plan.Ops[i].Layer])
		}
	}
}

var errChanged = errors.New("it was changed in the folder meanwhile")

// check refuses an op whose name is neither in the state before nor, if an earlier host began the plan, on the way.
func (f *performer) check(o *op, root *os.Root) error {
	if f.again {
		root.Remove(o.partial())
		if err := f.settle(root, o); err != nil {
			return err
		}
	}
	now, err := stateOf(root, o.Name)
	if err == nil && f.again && now.same(o.To) {
		return nil
	}
	for at := path.Dir(o.Name); at != "."; at = path.Dir(at) {
		info, err := root.Lstat(at)
		if err == nil && !info.IsDir() && !f.makes(o.Layer, at) {
			return fmt.Errorf("%s is no folder any more", at)
		}
	}
	switch {
	case err != nil:
		return err
	case now.same(o.From):
		return nil
	case f.again && (now.Type == None || now.Type == Folder && o.To.Type == Folder):
		return nil
	}
	return errChanged
}

// makes reports whether the plan makes a folder.
func (f *performer) makes(layer int, name string) bool {
	return slices.ContainsFunc(f.plan.Ops, func(o op) bool {
		return o.Layer == layer && o.Name == name && o.To.Type == Folder
	})
}

// still reports whether a name still is what an op expects, immediately before it changes.
func (f *performer) still(root *os.Root, o *op) (done bool, err error) {
	now, err := stateOf(root, o.Name)
	switch {
	case err != nil:
		return false, err
	case now.same(o.To):
		return now.MTime == o.To.MTime || o.To.Type == None, nil
	case now.same(o.From), now.Type == None && (f.again || (o.From.Type == Folder) != (o.To.Type == Folder)):
		return false, nil
	}
	return false, errChanged
}

// remove removes a name. A file gets its temporary name first, so that it can be compared when no path leads to it.
func (f *performer) remove(root *os.Root, o *op) error {
	now, err := stateOf(root, o.Name)
	if err != nil || now.Type == None {
		return err
	}
	if !now.same(o.From) {
		if f.again && (now.same(o.To) || now.Type == Folder && o.To.Type == Folder) {
			return nil
		}
		return errChanged
	}
	err = errors.ErrUnsupported
	if o.From.Type != Folder {
		err = moveNew(root, o.Name, o.temp())
	}
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		err = root.Remove(o.Name) // a folder with something in it stays
	case err == nil:
		err = f.settle(root, o)
	}
	if err != nil {
		return err
	}
	return f.syncParent(root, o.Name)
}

// put puts a file, a link or a pipe in its place in one step.
func (f *performer) put(root *os.Root, o *op) error {
	if done, err := f.still(root, o); done || err != nil {
		if f.many {
			root.Remove(o.temp())
		}
		return err
	}
	if !f.many || o.Same > 0 {
		if err := f.writeTemp(root, o); err != nil {
			return err
		}
	}
	if err := f.place(root, o, o.temp()); err != nil {
		root.Remove(o.temp())
		return err
	}
	if err := f.settle(root, o); err != nil {
		return err
	}
	return f.syncParent(root, o.Name)
}

// writeTemp writes what a name is to have under its temporary name.
func (f *performer) writeTemp(root *os.Root, o *op) error {
	partial := o.partial()
	root.Remove(partial)
	err := f.write(root, o, partial)
	if err == nil {
		err = root.Rename(partial, o.temp())
	}
	if err != nil {
		root.Remove(partial)
	}
	return err
}

// place gives the file with the temporary name the name of the op, and the temporary name to what had that.
func (f *performer) place(root *os.Root, o *op, temp string) error {
	now, err := stateOf(root, o.Name)
	if err != nil {
		return err
	}
	if now.Type != None && !now.same(o.From) && !now.same(o.To) {
		return errChanged
	}
	if now.Type == None {
		err = moveNew(root, temp, o.Name)
	} else {
		err = exchange(root, temp, o.Name)
	}
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return root.Rename(temp, o.Name)
	case errors.Is(err, fs.ErrExist), errors.Is(err, fs.ErrNotExist):
		return errChanged
	}
	return err
}

// settle decides about what has the temporary name of an op: it removes what the plan replaces or brings, and gives
// back what a person wrote in the moment before the names were changed.
func (f *performer) settle(root *os.Root, o *op) error {
	temp := o.temp()
	was, err := stateOf(root, temp)
	if err != nil || was.Type == None {
		return err
	}
	if was.same(o.From) || was.same(o.To) {
		return root.Remove(temp)
	}
	now, err := stateOf(root, o.Name)
	switch {
	case err != nil:
		return err
	case now.Type == None:
		err = moveNew(root, temp, o.Name)
	case now.same(o.To):
		if err = exchange(root, temp, o.Name); err == nil {
			err = root.Remove(temp)
		}
	default:
		return fmt.Errorf("%w twice; what it had first is in %s", errChanged, temp)
	}
	if err != nil {
		return fmt.Errorf("%w; what it had is in %s: %w", errChanged, temp, err)
	}
	return errChanged
}

func (f *performer) write(root *os.Root, o *op, temp string) error {
	switch {
	case o.Same > 0:
		first := &f.plan.Ops[o.Same-1]
		if f.failed[o.Same-1] != nil || first.Layer != o.Layer {
			return fmt.Errorf("it is a hard link of %s, which was left alone", first.Name)
		}
		return root.Link(first.Name, temp)
	case o.To.Type == Link:
		if err := root.Symlink(o.To.Target, temp); err != nil {
			return err
		}
		return linkTime(root, temp, o.To.MTime)
	case o.To.Type == Pipe:
		if err := makePipe(root, temp, o.To.Mode); err != nil {
			return err
		}
		return linkTime(root, temp, o.To.MTime)
	case o.To.Type != File:
		return fmt.Errorf("a %s is not copied to the folder", o.To.Type)
	}
	in, err := os.Open(filepath.Join(f.dir, o.Data))
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := root.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err = clone(out, in); err == nil {
		if err = dress(root, temp, out, o.To); err == nil {
			err = f.sync(out)
		}
	}
	return errors.Join(err, out.Close())
}

// openParent opens the folder of a name, and returns the name in it.
func openParent(root *os.Root, name string) (*os.File, string, error) {
	d, err := root.OpenFile(path.Dir(name), os.O_RDONLY, 0)
	return d, path.Base(name), err
}

func (f *performer) syncParent(root *os.Root, name string) error {
	if f.many {
		return nil
	}
	d, _, err := openParent(root, name)
	if err != nil {
		return err
	}
	defer d.Close()
	return syncFolder(d)
}

// acceptances returns the folders of what was accepted, in order.
func (t *Task) acceptances() (all []string) {
	for n := 1; ; n++ {
		dir := filepath.Join(t.dir, "accepted", strconv.Itoa(n))
		if _, err := os.Stat(dir); err != nil {
			return all
		}
		all = append(all, dir)
	}
}

// undo takes back what was accepted and not undone, the last first. A name that has another state than the
// acceptance gave it is left alone.
func (t *Task) undo(by string) (r Result, err error) {
	r = Result{At: time.Now(), By: by}
	for _, dir := range slices.Backward(t.acceptances()) {
		var p plan
		var was outcome
		if err := readJSON(filepath.Join(dir, resultFile), &was); err != nil {
			continue // never done, or interrupted: recover finishes it
		}
		if readJSON(filepath.Join(dir, undoneFile), &Result{}) == nil {
			continue
		}
		if err := readJSON(filepath.Join(dir, planFile), &p); err != nil {
			return r, err
		}
		back := plan{At: time.Now(), By: by}
		for i, o := range p.Ops {
			if was.States[i].Type == "" {
				continue
			}
			back.Ops = append(back.Ops, op{
				Layer: o.Layer, Name: o.Name, From: was.States[i], To: o.From, Data: o.Keep, Temp: tempName(),
			})
		}
		if back.Folders, err = t.foldersBefore(&p, &back, was.Folders); err != nil {
			return r, err
		}
		if err := writeJSON(filepath.Join(dir, undoFile), back); err != nil {
			return r, err
		}
		one, err := t.perform(dir, back, undoneFile, "")
		r.Done, r.Conflict = append(r.Done, one.Done...), append(r.Conflict, one.Conflict...)
		if err != nil {
			return r, err
		}
	}
	return r, nil
}

// recover finishes what an earlier host began. It returns what it finished.
func (t *Task) recover() (all []Result, err error) {
	for _, dir := range t.acceptances() {
		for _, pair := range [][2]string{{planFile, resultFile}, {undoFile, undoneFile}} {
			var p plan
			if readJSON(filepath.Join(dir, pair[0]), &p) != nil {
				continue
			}
			if _, err := os.Stat(filepath.Join(dir, pair[1])); err == nil {
				continue
			}
			note := fmt.Sprintf("interrupted after %s, and finished %s", p.At.UTC().Format(time.RFC3339),
				time.Now().UTC().Format(time.RFC3339))
			r, err := t.perform(dir, p, pair[1], note)
			if err != nil {
				return all, err
			}
			all = append(all, r)
		}
	}
	return all, nil
}
