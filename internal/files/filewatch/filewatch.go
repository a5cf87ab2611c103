// Package filewatch reports changes of files and directories. It uses the events of the system or, if there are
// none, polls.
package filewatch

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"gatehouse/tool"
)

const (
	watchMost = 4096                  // directories one watch is told of, or entries it polls
	quiet     = 50 * time.Millisecond // changes within it are told as one
	polled    = 2 * time.Second       // how often is looked where the system tells nothing
)

// Watcher reports changes. One fsnotify.Watcher serves all watches; it is opened with the first. It is safe for
// concurrent use.
type Watcher struct {
	log   *slog.Logger
	pause time.Duration // between two looks where the system tells nothing
	most  int           // directories the system is asked to tell of for one watch

	mu      sync.Mutex
	system  *fsnotify.Watcher // nil before the first watch, and where there is none
	closed  bool
	dirs    map[string]int // directories the system tells of, and for how many watches
	all     map[*watching]struct{}
	running sync.WaitGroup
}

// New returns a Watcher; a nil log discards messages. The caller closes it.
func New(log *slog.Logger) *Watcher {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Watcher{log: log, pause: polled, most: watchMost, dirs: map[string]int{}, all: map[*watching]struct{}{}}
}

// watching is one watch. Its fields are guarded by Watcher.mu.
type watching struct {
	path    string // absolute, links followed
	below   bool   // it is a directory's
	changed func()
	dirs    []string // of the system's watcher
	due     *time.Timer
	done    chan struct{} // closed when it has ended; nil unless it polls
	ended   bool
}

// Watch calls changed, which must not block, after each change of the file at path or, if it is a directory, of it
// and everything below it. Links are followed when the watch begins. stop may be called at any time, also twice.
// The error is a *tool.Refusal.
//
// The caller must have checked that the path may be read. Only the fact that something changed is reported.
func (w *Watcher) Watch(path string, changed func()) (stop func(), err error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, tool.Refuse(tool.CodeNotFound, "%s is not there any more", path)
	}
	info, err := os.Stat(real)
	if err != nil {
		return nil, tool.Refuse(tool.CodeNotFound, "%s is not there any more", path)
	}
	return w.openWatch(&watching{path: real, below: info.IsDir(), changed: changed})
}

// openWatch starts a watch.
func (w *Watcher) openWatch(x *watching) (stop func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, tool.Refuse(tool.CodeUnsupported, "the module is closing")
	}
	if err = w.listen(); err == nil {
		err = w.addPath(x)
	}
	if err != nil {
		w.releaseDirectories(x)
		w.log.Warn("files are polled for changes", "path", x.path, "err", err)
		x.done = make(chan struct{})
		w.running.Go(func() { w.poll(x) })
	}
	w.all[x] = struct{}{}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.stopWatch(x)
	}, nil
}

// listen opens the system's watcher if it is not open.
func (w *Watcher) listen() error {
	if w.system != nil {
		return nil
	}
	system, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	w.system = system
	w.running.Go(func() { w.hear(system) })
	return nil
}

var errManyDirs = errors.New("it has too many directories")

// addPath watches the directories of a watch: that of a file, because files are replaced by renaming, or all below
// a directory.
func (w *Watcher) addPath(x *watching) error {
	if !x.below {
		return w.addDir(x, filepath.Dir(x.path))
	}
	return w.addBelow(x, x.path)
}

func (w *Watcher) addBelow(x *watching, dir string) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil && path == dir:
			return err
		case err != nil:
			return nil // unreadable, or gone already
		case !e.IsDir():
			return nil
		case e.Name() == ".git" && path != x.path:
			return fs.SkipDir
		}
		return w.addDir(x, path)
	})
}

func (w *Watcher) addDir(x *watching, dir string) error {
	if len(x.dirs) >= w.most {
		return errManyDirs
	}
	if slices.Contains(x.dirs, dir) {
		return nil
	}
	if w.dirs[dir] == 0 {
		if err := w.system.Add(dir); err != nil {
			return err
		}
	}
	w.dirs[dir]++
	x.dirs = append(x.dirs, dir)
	return nil
}

// releaseDirectories stops watching the directories of a watch.
func (w *Watcher) releaseDirectories(x *watching) {
	for _, dir := range x.dirs {
		if w.dirs[dir]--; w.dirs[dir] == 0 {
			delete(w.dirs, dir)
			w.system.Remove(dir) // an error means that the directory is gone, and its watch with it
		}
	}
	x.dirs = nil
}

// stopWatch stops a watch. w.mu is held.
func (w *Watcher) stopWatch(x *watching) {
	if x.ended {
		return
	}
	x.ended = true
	if x.due != nil {
		x.due.Stop()
	}
	if x.done != nil {
		close(x.done)
	}
	w.releaseDirectories(x)
	delete(w.all, x)
}

// hear processes events until the system's watcher is closed.
func (w *Watcher) hear(system *fsnotify.Watcher) {
	for {
		select {
		case e, ok := <-system.Events:
			if !ok {
				return
			}
			w.notify(e)
		case err, ok := <-system.Errors:
			if !ok {
				return
			}
			w.log.Warn("changes of files may have been missed", "err", err)
			w.notify(fsnotify.Event{})
		}
	}
}

// notify passes an event to the watches that it concerns; an event without a name concerns all.
func (w *Watcher) notify(e fsnotify.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.Has(fsnotify.Remove|fsnotify.Rename) && w.dirs[e.Name] > 0 {
		w.lose(e.Name)
	}
	for x := range w.all {
		inside := x.below && strings.HasPrefix(e.Name, x.path+string(filepath.Separator))
		if e.Name != "" && e.Name != x.path && !inside {
			continue
		}
		w.soon(x)
		if inside && e.Has(fsnotify.Create) {
			w.grow(x, e.Name)
		}
	}
}

// lose stops watching a directory that was removed or renamed, because the system reports nothing more of its path.
// A watch of it polls from now on, and notices when the path exists again.
func (w *Watcher) lose(dir string) {
	for x := range w.all {
		i := slices.Index(x.dirs, dir)
		if i < 0 {
			continue
		}
		x.dirs = slices.Delete(x.dirs, i, i+1)
		if w.dirs[dir]--; w.dirs[dir] == 0 {
			delete(w.dirs, dir)
			w.system.Remove(dir) // an error means that it is forgotten already
		}
		if stood := !x.below || dir == x.path; stood && x.done == nil {
			w.releaseDirectories(x)
			w.soon(x)
			x.done = make(chan struct{})
			w.running.Go(func() { w.poll(x) })
		}
	}
}

// grow watches a new directory below a watch.
func (w *Watcher) grow(x *watching, path string) {
	if info, err := os.Lstat(path); err != nil || !info.IsDir() {
		return
	}
	if err := w.addBelow(x, path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.log.Warn("changes below a new directory go untold", "path", path, "err", err)
	}
}

// soon reports a change after a short quiet time.
func (w *Watcher) soon(x *watching) {
	if x.due != nil || x.ended {
		return
	}
	x.due = time.AfterFunc(quiet, func() {
		w.mu.Lock()
		x.due = nil
		ended := x.ended
		w.mu.Unlock()
		if !ended {
			x.changed()
		}
	})
}

// poll checks for changes until the watch ends.
func (w *Watcher) poll(x *watching) {
	tick := time.NewTicker(w.pause)
	defer tick.Stop()
	was := stateOf(x.path)
	for {
		select {
		case <-x.done:
			return
		case <-tick.C:
		}
		if is := stateOf(x.path); is != was {
			was = is
			w.mu.Lock()
			w.soon(x)
			w.mu.Unlock()
		}
	}
}

// stateOf returns a sum of the entries at and below a path: names, sizes and times, of as many entries as a watch
// may have directories.
func stateOf(path string) uint64 {
	h, n := fnv.New64a(), 0
	filepath.WalkDir(path, func(path string, e fs.DirEntry, err error) error {
		if n++; n > watchMost {
			return fs.SkipAll
		}
		fmt.Fprintln(h, path, err != nil)
		if err == nil {
			if info, err := e.Info(); err == nil {
				fmt.Fprintln(h, info.Size(), info.ModTime().UnixNano(), info.Mode())
			}
		}
		return nil
	})
	return h.Sum64()
}

// Close ends all watches and waits for their goroutines.
func (w *Watcher) Close() error {
	w.mu.Lock()
	w.closed = true
	for x := range w.all {
		w.stopWatch(x)
	}
	system := w.system
	w.mu.Unlock()
	var err error
	if system != nil {
		err = system.Close()
	}
	w.running.Wait()
	return err
}
