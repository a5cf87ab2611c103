package stage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"time"
)

// manyOps is how many names a plan may have until what it writes is made durable together, by a sync of the file systems
// instead of one of each file and folder. Tests change it.
var manyOps = manyMost

// planning writes the plan of an acceptance while the changes are found.
type planning struct {
	task     *Task
	dir      string
	w        *planWriter
	copies   bool // the upper folders may change before the plan is done
	lower    map[int]*folders
	upper    map[int]*folders
	linked   map[string]int // the ops, from 1, of files that have several names, by path
	blocked  []Blocked
	unsynced []string // files that are not durable, up to manyOps
}

// accepted is what was chosen of the changes of a task, and what became of it.
type accepted struct {
	Result
	all, chosen int
	changes     []Change // those chosen, if the choice needs them
}

// accept copies the changes of a choice to the folders. The caller holds the lock of the task. busy means that calls or
// programs may change more meanwhile.
func (t *Task) accept(c Choice, busy bool) (a accepted, err error) {
	dir, err := t.newAcceptance()
	if err != nil {
		return a, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return a, err
	}
	p := planning{
		task: t, dir: dir, linked: map[string]int{}, copies: busy || runtime.GOOS == "windows",
		lower: map[int]*folders{}, upper: map[int]*folders{},
	}
	defer p.close()
	if p.w, err = newPlan(filepath.Join(dir, planFile), c.By); err != nil {
		return a, err
	}
	if a, err = p.choose(c); err != nil {
		p.w.abort()
		return a, errors.Join(err, os.RemoveAll(dir))
	}
	if err := p.finish(); err != nil {
		return a, err
	}
	a.Result, err = t.perform(dir, planFile, resultFile, "")
	a.Conflict = append(p.blocked, a.Conflict...)
	return a, err
}

var errShown = errors.New("the task has changed more since it was shown; look at it again")

// choose adds the changes of a choice to the plan.
func (p *planning) choose(c Choice) (a accepted, err error) {
	wanted, shown := p.task.wanted(c), tag{}
	err = p.task.eachChange(func(one Change) error {
		if a.all++; c.ETag != "" {
			shown.add(&one)
		}
		if !wanted.takes(&one) {
			return nil
		}
		if a.chosen++; c.then != nil {
			a.changes = append(a.changes, one)
		}
		if err := p.add(&one); err != nil {
			return fmt.Errorf("%s: %w", one.Path, err)
		}
		return nil
	})
	if err == nil && c.ETag != "" && c.ETag != shown.sum() {
		err = errShown
	}
	if err == nil {
		err = wanted.missing()
	}
	return a, err
}

// add adds a change, with its content.
func (p *planning) add(c *Change) (err error) {
	if c.Conflict != "" {
		p.blocked = append(p.blocked, Blocked{c.Path, c.Conflict})
		return nil
	}
	n := p.w.n
	o := op{Layer: c.Layer, Name: c.name, From: c.Was, To: c.Now, Temp: tempName(), Same: p.linked[c.Linked]}
	if o.Same == 0 && o.To.Type == File {
		upper, err := p.folders(p.upper, c.Layer, p.task.upper(c.Layer))
		if err != nil {
			return err
		}
		if p.copies {
			o.Data = fmt.Sprintf("new-%d", n)
			err = p.keep(upper, c.name, o.Data)
		} else {
			p.unsync(filepath.Join(p.task.upper(c.Layer), c.name))
		}
		if err != nil {
			return err
		}
	}
	if c.Now.Type == File && c.Now.Links > 1 {
		p.linked[c.Path] = n + 1
	}
	if o.From.Type == File {
		lower, err := p.folders(p.lower, c.Layer, p.task.Layers[c.Layer].Lower)
		if err != nil {
			return err
		}
		o.Keep = fmt.Sprintf("old-%d", n)
		if err := p.keep(lower, c.name, o.Keep); err != nil {
			return err
		}
	}
	return p.w.add(o)
}

func (p *planning) folders(of map[int]*folders, layer int, path string) (*folders, error) {
	if of[layer] == nil {
		root, err := os.OpenRoot(path)
		if err != nil {
			return nil, err
		}
		of[layer] = &folders{top: root}
	}
	return of[layer], nil
}

func (p *planning) close() {
	for _, of := range []map[int]*folders{p.lower, p.upper} {
		for _, f := range of {
			f.close()
			f.top.Close()
		}
	}
}

// keep copies a file to the folder of the plan.
func (p *planning) keep(from *folders, name, to string) error {
	root, base := from.of(name)
	in, err := root.OpenFile(base, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	path := filepath.Join(p.dir, to)
	out, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	p.unsync(path)
	return errors.Join(clone(out, in), out.Close())
}

func (p *planning) unsync(path string) {
	if len(p.unsynced) <= manyOps {
		p.unsynced = append(p.unsynced, path)
	}
}

// finish makes the plan durable, after what it needs.
func (p *planning) finish() error {
	err := p.sync()
	var times []folderTime
	if err == nil {
		times, err = p.task.noteFolders(p.w.touched)
	}
	if err != nil {
		p.w.abort()
		return err
	}
	return p.w.finish(times)
}

func (p *planning) sync() error {
	if len(p.unsynced) > manyOps {
		return syncFileSystem(p.dir)
	}
	for _, path := range p.unsynced {
		f, err := openToSync(path)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// openToSync opens a file so that it can be made durable.
func openToSync(path string) (*os.File, error) {
	if runtime.GOOS == "windows" { // where all are copies
		return os.OpenFile(path, os.O_RDWR, 0)
	}
	return os.Open(path)
}

// acceptances returns the folders of what was accepted, in order.
func (t *Task) acceptances() (all []string) {
	for n := 1; ; n++ {
		dir := filepath.Join(t.dir, "accepted", strconv.Itoa(n))
		if _, err := os.Stat(dir); err != nil {
			return all
		}
		if _, err := os.Stat(filepath.Join(dir, planFile)); err == nil { // else it ended before its plan was complete
			all = append(all, dir)
		}
	}
}

// newAcceptance returns the folder of the next acceptance, which does not exist.
func (t *Task) newAcceptance() (dir string, err error) {
	for n := 1; ; n++ {
		dir = filepath.Join(t.dir, "accepted", strconv.Itoa(n))
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return dir, nil
		}
		if _, err := os.Stat(filepath.Join(dir, planFile)); errors.Is(err, fs.ErrNotExist) {
			return dir, os.RemoveAll(dir)
		}
	}
}

// undo takes back what was accepted and not undone, the last first. A name that has another state than the
// acceptance gave it is left alone.
func (t *Task) undo(by string) (r Result, err error) {
	r = Result{At: time.Now(), By: by}
	for _, dir := range slices.Backward(t.acceptances()) {
		var was outcome
		if err := readJSON(filepath.Join(dir, resultFile), &was); err != nil {
			continue // never done, or interrupted: recover finishes it
		}
		if _, err := os.Stat(filepath.Join(dir, undoneFile)); err == nil {
			continue
		}
		if err := t.planUndo(dir, &was, by); err != nil {
			return r, err
		}
		one, err := t.perform(dir, undoFile, undoneFile, "")
		r.Done, r.Conflict = append(r.Done, one.Done...), append(r.Conflict, one.Conflict...)
		if err != nil {
			return r, err
		}
	}
	return r, nil
}

// planUndo writes the plan that takes an acceptance back.
func (t *Task) planUndo(dir string, was *outcome, by string) error {
	p, err := openPlan(filepath.Join(dir, planFile))
	if err != nil {
		return err
	}
	defer p.close()
	w, err := newPlan(filepath.Join(dir, undoFile), by)
	if err != nil {
		return err
	}
	err = p.each(func(o *op) error {
		now, ok := was.of(o)
		if !ok {
			return nil
		}
		return w.add(op{Layer: o.Layer, Name: o.Name, From: now, To: o.From, Data: o.Keep, Temp: tempName()})
	})
	var times []folderTime
	if err == nil {
		times, err = t.foldersBefore(w.touched, p.Folders, was.Folders)
	}
	if err != nil {
		w.abort()
		return err
	}
	return w.finish(times)
}

// pairs are the plans of an acceptance and their results.
var pairs = [][2]string{{planFile, resultFile}, {undoFile, undoneFile}}

// unfinished calls f for each plan that an earlier host began, with the file of its result, until f fails.
func (t *Task) unfinished(f func(dir, planned, result string) error) error {
	for _, dir := range t.acceptances() {
		for _, pair := range pairs {
			if _, err := os.Stat(filepath.Join(dir, pair[0])); err != nil {
				continue
			}
			if _, err := os.Stat(filepath.Join(dir, pair[1])); err == nil {
				continue
			}
			if err := f(dir, pair[0], pair[1]); err != nil {
				return err
			}
		}
	}
	return nil
}

// recover finishes what an earlier host began. It returns what it finished.
func (t *Task) recover() (all []Result, err error) {
	err = t.unfinished(func(dir, planned, result string) error {
		p, err := openPlan(filepath.Join(dir, planned))
		if err != nil {
			return err
		}
		began := p.At
		p.close()
		note := fmt.Sprintf("interrupted after %s, and finished %s", began.UTC().Format(time.RFC3339),
			time.Now().UTC().Format(time.RFC3339))
		r, err := t.perform(dir, planned, result, note)
		if err == nil {
			all = append(all, r)
		}
		return err
	})
	return all, err
}
