// Package walk visits the entries below a directory of an open root, with several workers, and leaves out what
// ignore files exclude.
//
// Every directory is opened through the one above it, so a name that is swapped for a link leads nowhere. Links are
// reported and not followed, so there are no loops. Memory grows with the depth and with the directories that wait,
// but not with the number of entries.
package walk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"

	"gatehouse/internal/files/merged"
)

const (
	// MaxDepth is how many levels below its start a walk goes. Each level keeps a directory open.
	MaxDepth = 200

	batchSize = 512 // entries read at once
	shareSize = 64  // entries visited at once, so that workers share a large directory
)

// Options configures a walk. Root is required.
type Options struct {
	Root    merged.Folder
	Start   string // a directory inside Root, with slashes; "" means Root itself
	Depth   int    // levels below Start, 1 for its entries alone; 0 means MaxDepth
	Workers int    // 0 means 2
	All     bool   // includes what ignore files and defaults leave out

	// Skip leaves out an entry even with All; nil for none. The path is relative to Root.
	Skip func(path string, dir bool) bool
}

// Entry is one name in a directory.
type Entry struct {
	Name string
	Type fs.FileMode // its type bits; links are not followed

	listed fs.DirEntry
}

// IsDir reports whether the entry is a directory.
func (e Entry) IsDir() bool { return e.Type.IsDir() }

// Info returns the entry's info from the directory listing; links are not followed.
func (e Entry) Info() (fs.FileInfo, error) { return e.listed.Info() }

// Stats are the counts of a walk.
type Stats struct {
	Dirs       int64 // directories read
	Entries    int64 // entries passed to the visitor
	Ignored    int64 // entries left out by an ignore rule, with everything below them
	Unreadable int64 // directories that could not be opened or read
	TooDeep    int64 // directories below MaxDepth
}

// Dir is an open directory of a walk. It stays open while the visitor runs and until its subdirectories were read.
type Dir struct {
	Path  string // from Start, with slashes; "" is Start itself
	Depth int    // levels below Start

	root   merged.Folder
	parent *Dir
	rules  *rules
	refs   atomic.Int32
}

// Join returns the path of an entry, from Start.
func (d *Dir) Join(name string) string {
	if d.Path == "" {
		return name
	}
	return d.Path + "/" + name
}

// Open opens an entry for reading without blocking; reading from a pipe returns nothing.
func (d *Dir) Open(name string) (*os.File, error) {
	return d.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

func (d *Dir) hold() { d.refs.Add(1) }

func (d *Dir) closeDir() {
	if d.refs.Add(-1) == 0 {
		d.root.Close()
	}
}

// Visit receives some entries of one directory, subdirectories included. It runs on several workers at once, also
// for one directory.
type Visit func(worker int, d *Dir, entries []Entry)

// Walk visits everything below a directory, in no particular order. It stops when ctx is done and returns the
// cause. It returns an error if the start cannot be opened; other directories that cannot be opened are counted.
func Walk(ctx context.Context, o Options, visit Visit) (Stats, error) {
	w := &walk{opts: o, visit: visit, ctx: ctx, prefix: path.Clean(o.Start)}
	if w.opts.Depth <= 0 || w.opts.Depth > MaxDepth {
		w.opts.Depth = MaxDepth
	}
	if w.opts.Workers <= 0 {
		w.opts.Workers = 2
	}
	start := &Dir{}
	var err error
	if start.root, err = merged.Enter(o.Root, w.prefix); err != nil {
		return Stats{}, err
	}
	if !o.All {
		start.rules = rulesAbove(o.Root, w.prefix)
	}
	w.more.L = &w.mu
	start.hold()
	w.push(task{dir: start})
	var workers sync.WaitGroup
	for i := range w.opts.Workers {
		workers.Go(func() { w.guarded(i) })
	}
	workers.Wait()
	if w.panicked != nil {
		panic(w.panicked) // here the caller can recover from it
	}
	return w.stats(), context.Cause(ctx)
}

// task is a directory to read, or some entries of it to visit.
type task struct {
	dir     *Dir // held
	name    string
	entries []Entry // nil: the directory name in dir, or dir itself if name is empty
}

type walk struct {
	opts  Options
	visit Visit
	// ctx is the context of one Walk. It is a field because each step of the recursion uses the same one.
	ctx    context.Context
	prefix string

	dirs, entries, ignored, unreadable, tooDeep atomic.Int64
	stopped                                     atomic.Bool

	mu    sync.Mutex
	more  sync.Cond
	tasks []task // the last is processed first, so that few directories are open
	busy  int

	panicked any // the value of the first panic of a visitor
}

func (w *walk) stats() Stats {
	return Stats{w.dirs.Load(), w.entries.Load(), w.ignored.Load(), w.unreadable.Load(), w.tooDeep.Load()}
}

func (w *walk) push(ts ...task) {
	w.mu.Lock()
	w.tasks = append(w.tasks, ts...)
	w.mu.Unlock()
	if len(ts) > 1 {
		w.more.Broadcast()
	} else {
		w.more.Signal()
	}
}

// nextTask waits for a task. There is none when all workers wait.
func (w *walk) nextTask() (t task, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.tasks) == 0 {
		if w.busy == 0 {
			w.more.Broadcast()
			return task{}, false
		}
		w.more.Wait()
	}
	last := len(w.tasks) - 1
	t = w.tasks[last]
	w.tasks[last] = task{}
	w.tasks = w.tasks[:last]
	w.busy++
	return t, true
}

func (w *walk) done() {
	w.mu.Lock()
	w.busy--
	last := w.busy == 0 && len(w.tasks) == 0
	w.mu.Unlock()
	if last {
		w.more.Broadcast()
	}
}

// guarded works until no task is left or a visitor panics, which also stops the others.
func (w *walk) guarded(worker int) {
	defer func() {
		if p := recover(); p != nil {
			w.mu.Lock()
			if w.panicked == nil {
				w.panicked = fmt.Sprintf("%v\n%s", p, debug.Stack())
			}
			w.mu.Unlock()
			w.stopped.Store(true)
			w.done()
			w.guarded(worker) // closes the directories that are still open
		}
	}()
	w.work(worker)
}

func (w *walk) work(worker int) {
	for {
		t, ok := w.nextTask()
		if !ok {
			return
		}
		switch {
		case w.ctx.Err() != nil, w.stopped.Load():
			t.dir.closeDir()
		case t.entries != nil:
			w.visit(worker, t.dir, t.entries)
			t.dir.closeDir()
		default:
			w.readTask(worker, t)
		}
		w.done()
	}
}

// openTask opens the directory of a task. The dot makes the system refuse anything but a directory before opening
// it, because opening a pipe blocks.
func (w *walk) openTask(t task) (*Dir, error) {
	if t.name == "" {
		return t.dir, nil
	}
	defer t.dir.closeDir()
	root, err := merged.Enter(t.dir.root, t.name+"/.")
	if err != nil {
		return nil, err
	}
	d := &Dir{Path: t.dir.Join(t.name), Depth: t.dir.Depth + 1, root: root, parent: t.dir, rules: t.dir.rules}
	d.hold()
	return d, nil
}

func (w *walk) readTask(worker int, t task) {
	d, err := w.openTask(t)
	if err != nil {
		w.unreadable.Add(1)
		return
	}
	defer d.closeDir()
	f, err := merged.List(d.root)
	if err != nil {
		w.unreadable.Add(1)
		return
	}
	defer f.Close()
	w.dirs.Add(1)
	for first := true; w.ctx.Err() == nil && !w.stopped.Load(); first = false {
		list, err := f.ReadDir(batchSize)
		if first && !w.opts.All {
			w.learn(d, list)
		}
		w.batch(worker, d, list)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			w.unreadable.Add(1)
			return
		}
	}
}

// learn adds the directory's own rules. A complete listing shows which ignore files exist.
func (w *walk) learn(d *Dir, list []fs.DirEntry) {
	if len(list) >= batchSize {
		d.rules = readRules(d.root, d.Path, d.rules, allIgnoreFiles)
		return
	}
	var files ignoreFiles
	for _, e := range list {
		files.see(e.Name())
	}
	if files != 0 {
		d.rules = readRules(d.root, d.Path, d.rules, files)
	}
}

// batch passes entries to the visitor and adds tasks for the subdirectories.
func (w *walk) batch(worker int, d *Dir, list []fs.DirEntry) {
	kept := make([]Entry, 0, len(list))
	var tasks []task
	for _, e := range list {
		name, mode := e.Name(), e.Type()
		if w.leavesOut(d, name, mode.IsDir()) {
			continue
		}
		kept = append(kept, Entry{name, mode, e})
		switch {
		case !mode.IsDir() || d.Depth+1 >= w.opts.Depth && w.opts.Depth < MaxDepth:
		case d.Depth+1 >= w.opts.Depth:
			w.tooDeep.Add(1)
		default:
			d.hold()
			tasks = append(tasks, task{dir: d, name: name})
		}
	}
	if len(kept) == 0 {
		return
	}
	w.entries.Add(int64(len(kept)))
	for len(kept) > shareSize {
		d.hold()
		tasks = append(tasks, task{dir: d, entries: kept[:shareSize:shareSize]})
		kept = kept[shareSize:]
	}
	if len(tasks) > 0 {
		w.push(tasks...)
	}
	w.visit(worker, d, kept)
}

func (w *walk) leavesOut(d *Dir, name string, dir bool) bool {
	if w.opts.Skip != nil && w.opts.Skip(path.Join(w.prefix, d.Path, name), dir) {
		return true
	}
	if w.opts.All {
		return false
	}
	if dir && isRepository(name) || d.rules != nil && d.rules.ignore(d.Join(name), name, func() bool { return dir }) {
		w.ignored.Add(1)
		return true
	}
	return false
}
