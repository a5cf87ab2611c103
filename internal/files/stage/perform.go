package stage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"
)

// performer carries out a plan. Each step finds by the state of the name whether it was done before.
type performer struct {
	task   *Task
	dir    string
	plan   *planReader
	roots  map[int]*folders
	upper  map[int]*folders
	again  bool // an earlier host began it
	many   bool // it has many names, and what it writes is made durable together
	done   []bool
	failed map[int]error
	got    map[int]State // what names have got, if it is not what was planned
	kept   touched
	above  struct { // what checkAbove found last
		place
		err error
	}
}

// perform carries out a plan and records its result. note is not empty if an earlier host began it.
func (t *Task) perform(dir, planned, result, note string) (r Result, err error) {
	p, err := openPlan(filepath.Join(dir, planned))
	if err != nil {
		return r, err
	}
	defer p.close()
	f := &performer{
		task: t, dir: dir, plan: p, roots: map[int]*folders{}, upper: map[int]*folders{}, again: note != "",
		many: p.len() > manyOps, done: make([]bool, p.len()), failed: map[int]error{}, got: map[int]State{},
		kept: newTouched(),
	}
	defer func() {
		for _, of := range []map[int]*folders{f.roots, f.upper} {
			for _, one := range of {
				one.close()
				one.top.Close()
			}
		}
	}()
	for i, l := range t.Layers {
		root, err := os.OpenRoot(l.Lower)
		if err != nil {
			return r, err
		}
		f.roots[i] = &folders{top: root}
	}
	if err := f.run(); err != nil {
		return r, err
	}
	out := outcome{Result: Result{At: time.Now(), By: p.By, Note: note}, Left: map[int]bool{}, Folders: f.keepTimes()}
	if f.many {
		if err := f.syncLayers(); err != nil {
			return out.Result, err
		}
	}
	if err := t.learn(f, &out); err != nil {
		return out.Result, err
	}
	done := out.Done
	out.Done, out.Got = nil, f.got // the plan has the paths
	err = writeJSON(filepath.Join(dir, result), out)
	out.Done = done
	return out.Result, err
}

// learn records what the names of a plan have now.
func (t *Task) learn(f *performer, out *outcome) error {
	return t.addBases(func(add func(base) error) error {
		return f.plan.each(func(o *op) error {
			if err := f.failed[o.at]; err != nil {
				out.Left[o.at] = true
				out.Conflict = append(out.Conflict, Blocked{t.pathOf(o), err.Error()})
				return nil
			}
			if o.To.Type != File && o.To.Type != None || o.Same > 0 {
				root, name := f.roots[o.Layer].of(o.Name)
				now, err := stateOf(root, name)
				if err != nil {
					return err
				}
				f.got[o.at] = now
			}
			now, ok := f.got[o.at]
			if !ok {
				now = o.To
			}
			out.Done = append(out.Done, t.pathOf(o))
			return add(base{Layer: o.Layer, Path: o.Name, State: now, Again: true})
		})
	})
}

// run does the ops in the order in which folders allow: remove names, each after those in it; make folders and put
// files in their place; give folders their modes and times.
func (f *performer) run() error {
	var gone, dirs []int
	err := f.plan.each(func(o *op) error {
		f.kept.add(o)
		f.step(o, f.check)
		if o.From.Type != None && (o.To.Type == None || (o.To.Type == Folder) != (o.From.Type == Folder)) {
			gone = append(gone, o.at)
		}
		if o.To.Type == Folder {
			dirs = append(dirs, o.at)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := f.backward(gone, f.remove); err != nil {
		return err
	}
	if err := f.write(); err != nil {
		return err
	}
	return f.backward(dirs, f.dressFolder)
}

// step does something for an op, unless it is done or has failed. The op and the root are of the folder that contains
// its name.
func (f *performer) step(o *op, do func(*op, *os.Root) error) {
	if f.done[o.at] || f.failed[o.at] != nil {
		return
	}
	in := *o
	root, name := f.roots[o.Layer].of(o.Name)
	in.path, in.Name = o.Name, name
	if err := do(&in, root); err != nil {
		f.failed[o.at] = err
	}
}

// backward does something for ops, the last first, so that each name comes before the folder which contains it.
func (f *performer) backward(ops []int, do func(*op, *os.Root) error) error {
	for _, i := range slices.Backward(ops) {
		o, err := f.plan.op(i)
		if err != nil {
			return err
		}
		f.step(o, do)
	}
	return nil
}

// write makes folders, and puts files, links and pipes in their places. If there are many, it writes all under their
// temporary names, and makes them durable, before the first of them gets its own name.
func (f *performer) write() error {
	err := f.plan.each(func(o *op) error {
		switch {
		case o.To.Type == Folder && o.From.Type != Folder:
			f.step(o, makeFolder)
		case f.many && o.waits():
			f.step(o, func(o *op, root *os.Root) (err error) {
				if f.done[o.at], err = f.still(root, o); f.done[o.at] || err != nil {
					return err
				}
				return f.writeTemp(o, root)
			})
		}
		return nil
	})
	if err != nil {
		return err
	}
	put := f.put
	if f.many {
		if err := f.syncLayers(); err != nil {
			put = func(o *op, root *os.Root) error {
				if o.waits() {
					root.Remove(o.temp())
				}
				return err
			}
		}
	}
	return f.plan.each(func(o *op) error {
		if o.To.Type != Folder && o.To.Type != None {
			f.step(o, put)
		}
		return nil
	})
}

// waits reports whether a plan of many names writes the op's file before it gets its name. A hard link is made later,
// when what it links to is there.
func (o *op) waits() bool { return o.To.Type != Folder && o.To.Type != None && o.Same == 0 }

func makeFolder(o *op, root *os.Root) error {
	if err := root.Mkdir(o.Name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// dressFolder gives a folder its mode and time. One of which the mode changes keeps its time, unless names came to it
// or left it.
func (f *performer) dressFolder(o *op, root *os.Root) error {
	d, err := root.OpenFile(o.Name, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	if o.From.Type == Folder && !f.kept.in[place{o.Layer, o.path}] {
		o.To.MTime = o.From.MTime
	}
	return errors.Join(dress(root, o.Name, d, o.To), f.syncFolder(d))
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

// syncLayers makes durable what was written to the folders.
func (f *performer) syncLayers() error {
	var all []error
	for i := range f.task.Layers {
		all = append(all, syncFileSystem(f.task.Layers[i].Lower))
	}
	return errors.Join(all...)
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
	if err := f.checkAbove(o); err != nil {
		return err
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

// checkAbove refuses an op if something that the name is in is no folder any more, and the plan makes none of it.
func (f *performer) checkAbove(o *op) error {
	dir := place{o.Layer, path.Dir(o.path)}
	if f.above.place == dir {
		return f.above.err
	}
	f.above.place, f.above.err = dir, nil
	for at := dir.name; at != "."; at = path.Dir(at) {
		info, err := f.roots[o.Layer].top.Lstat(at)
		if err == nil && !info.IsDir() && !f.kept.passing[place{o.Layer, at}] {
			f.above.err = fmt.Errorf("%s is no folder any more", at)
			break
		}
	}
	return f.above.err
}

// still reports whether a name still is what an op expects, immediately before it changes.
func (f *performer) still(root *os.Root, o *op) (done bool, err error) {
	now, err := stateOf(root, o.Name)
	switch {
	case err != nil:
		return false, err
	case now.same(o.To):
		return now.MTime == o.To.MTime || o.To.Type == None || o.From.Type == None, nil
	case now.same(o.From), now.Type == None && (f.again || (o.From.Type == Folder) != (o.To.Type == Folder)):
		return false, nil
	}
	return false, errChanged
}

// remove removes a name. A file gets its temporary name first, so that it can be compared when no path leads to it.
func (f *performer) remove(o *op, root *os.Root) error {
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
func (f *performer) put(o *op, root *os.Root) error {
	if done, err := f.still(root, o); done || err != nil {
		if f.many {
			root.Remove(o.temp())
		}
		return err
	}
	if !f.many || o.Same > 0 {
		if err := f.writeTemp(o, root); err != nil {
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
func (f *performer) writeTemp(o *op, root *os.Root) error {
	partial := o.partial()
	if partial != o.temp() || f.again {
		root.Remove(partial)
	}
	err := f.fill(o, root, partial)
	if err == nil && partial != o.temp() {
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
	if now.Type != None && (o.From.Type == None || !now.same(o.From) && !now.same(o.To)) {
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
	if o.From.Type == None { // it has never got what a person wrote, and may be incomplete
		if f.again {
			root.Remove(temp)
		}
		return nil
	}
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

// fill makes what a name is to have under a temporary one.
func (f *performer) fill(o *op, root *os.Root, temp string) error {
	switch {
	case o.Same > 0:
		return f.link(o, temp)
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
	content, err := f.content(o)
	if err != nil {
		return err
	}
	defer content.Close()
	out, err := root.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err = clone(out, content); err == nil {
		if err = dress(root, temp, out, o.To); err == nil {
			err = errors.Join(f.sync(out), f.noteState(o, out))
		}
	}
	return errors.Join(err, out.Close())
}

// noteState records the state of a file that was written, if it differs from the one planned: the file system may have
// no attributes.
func (f *performer) noteState(o *op, file *os.File) error {
	now, err := openState(file)
	if err != nil {
		return err
	}
	if now.Hash = o.To.Hash; !now.same(o.To) || now.MTime != o.To.MTime {
		f.got[o.at] = now
	}
	return nil
}

// content opens what a name is to have.
func (f *performer) content(o *op) (*os.File, error) {
	if o.Data != "" {
		return os.Open(filepath.Join(f.dir, o.Data))
	}
	if f.upper[o.Layer] == nil {
		root, err := os.OpenRoot(f.task.upper(o.Layer))
		if err != nil {
			return nil, err
		}
		f.upper[o.Layer] = &folders{top: root}
	}
	root, name := f.upper[o.Layer].of(o.path)
	return root.Open(name)
}

// link makes a hard link of the name of an earlier op.
func (f *performer) link(o *op, temp string) error {
	first, err := f.plan.op(o.Same - 1)
	if err != nil {
		return err
	}
	if f.failed[first.at] != nil || first.Layer != o.Layer {
		return fmt.Errorf("it is a hard link of %s, which was left alone", first.Name)
	}
	return f.roots[o.Layer].top.Link(first.Name, path.Join(path.Dir(o.path), path.Base(temp)))
}

// openParent opens the folder of a name, and returns the name in it.
func openParent(root *os.Root, name string) (*os.File, string, error) {
	d, err := root.OpenFile(path.Dir(name), os.O_RDONLY, 0)
	return d, path.Base(name), err
}

// folders opens the folders that contain names. It keeps the last one open, because names of one folder follow each
// other.
type folders struct {
	top  *os.Root
	last *os.Root
	name string
	info fs.FileInfo
}

// of returns the folder that contains a name, and the name in it; the top and the whole name if that is no folder.
func (f *folders) of(name string) (*os.Root, string) {
	dir, base := path.Split(name)
	if dir = path.Clean(dir); dir == "." {
		return f.top, name
	}
	info, err := f.top.Lstat(dir)
	if err != nil || !info.IsDir() {
		return f.top, name
	}
	if f.last != nil && f.name == dir && os.SameFile(info, f.info) {
		return f.last, base
	}
	f.close()
	root, err := f.top.OpenRoot(dir)
	if err != nil {
		return f.top, name
	}
	if now, err := root.Lstat("."); err != nil || !os.SameFile(now, info) { // it was replaced meanwhile
		root.Close()
		return f.top, name
	}
	f.last, f.name, f.info = root, dir, info
	return root, base
}

func (f *folders) close() {
	if f.last != nil {
		f.last.Close()
		f.last = nil
	}
}
