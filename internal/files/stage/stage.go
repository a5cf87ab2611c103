// Package stage keeps what calls change in folders apart from the folders, until a person accepts it.
//
// A Task belongs to a principal in a context. It has a view of folders, see package overlay: its calls and the programs
// that they start see the folders with their own changes, and the folders stay as they are. Changes lists what differs,
// Accept copies some or all of it to the folders, Undo takes that back, and Refuse drops the task.
//
// For each name that a task changes it records what the folder had then. A name that was changed in the folder since is
// a conflict: Accept and Undo leave it alone and say so, so that they never overwrite a person's work. What they do is
// written to a plan before, and a plan that a crash interrupted is finished when the tasks are opened again.
//
// Tasks are folders with files, locked while they change, so that commands and hosts share them.
package stage

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/internal/exec/overlay"
	"gatehouse/internal/files/filelock"
	"gatehouse/tool"
)

// The states of a task.
const (
	Open     = "open"
	Accepted = "accepted"
	Refused  = "refused"
	Expired  = "expired"
)

// Layer is one folder of a task.
type Layer struct {
	Lower string `json:"folder"`
}

// Task is what calls of one principal in one context have changed together.
type Task struct {
	ID        string    `json:"id"`
	Principal string    `json:"principal"`
	Context   string    `json:"context"`
	Client    string    `json:"client,omitempty"`
	Session   string    `json:"session,omitempty"`
	State     string    `json:"state"`
	Created   time.Time `json:"created"`
	Used      time.Time `json:"used"`
	Expires   time.Time `json:"expires"`
	Layers    []Layer   `json:"layers"`
	Network   bool      `json:"network,omitempty"` // its programs have the network of the host
	Copies    bool      `json:"copies,omitempty"`  // it has what file tools changed alone, see Options.Copies
	Note      string    `json:"note,omitempty"`

	dir   string
	told  bool      // the administrators, that it expires soon
	noted time.Time // since when calls may have changed names that are not recorded, by fileClock
	read  *read     // of its bases, of a view; nil reads them anew
}

// stored is a task in its file.
type stored struct {
	*Task
	Noted time.Time `json:"noted"`
	Told  bool      `json:"told,omitempty"`
}

// Who is whose call is staged.
type Who struct{ Principal, Context, Client, Session string }

// Options configures a Manager. Dir is required.
type Options struct {
	Dir string
	// Copies reports that views cannot be file systems here. Then they are those of file tools alone, see package
	// merged, and no program runs in one. nil means that they can.
	Copies func() bool
	Covers func() []string   // what children must not see
	Lives  func(string) bool // reports whether a session exists; nil means that none ends
	// Ending is called before a person's decision on a task is carried out, and when it expires, so that programs of it
	// that would be kept are ended: all, or those that have nothing to do. nil means that there are none.
	Ending  func(task string, all bool)
	Expires func(Task) // is called once with a task that expires soon; nil tells the log alone
	Log     *slog.Logger
	Expire  time.Duration // after the last call; 0 means 14 days
	Most    int           // open tasks of one principal; 0 means 50
	Bytes   int64         // of one task; 0 means 20 GiB
	Network bool          // children have the network of the host
	Sockets []string      // outside of the folders, to which programs may connect
	Scratch []string      // folders that programs may change and whose changes are dropped, such as caches
}

// Manager has the tasks of a user's hosts. It is safe for concurrent use.
type Manager struct {
	opts  Options
	any   atomic.Bool  // there may be tasks
	bases atomic.Int64 // that views keep, see mostRead

	viewed chan struct{} // holds a token when a task has got its first view, see Run

	mu   sync.Mutex
	live map[string]*live
	of   map[Who]string // the open task of a caller, so that not every call reads all tasks; "" if it has none
}

// New returns the tasks in a folder, which is made when the first begins.
func New(o Options) *Manager {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Expire == 0 {
		o.Expire = 14 * 24 * time.Hour
	}
	if o.Most == 0 {
		o.Most = 50
	}
	if o.Bytes == 0 {
		o.Bytes = 20 << 30
	}
	m := &Manager{opts: o, viewed: make(chan struct{}, 1), live: map[string]*live{}, of: map[Who]string{}}
	entries, _ := os.ReadDir(o.Dir)
	m.any.Store(len(entries) > 0)
	return m
}

const taskFile = "task.json"

// ErrNotFound is returned for a task that does not exist.
var ErrNotFound = errors.New("there is no such task")

func (m *Manager) load(id string) (*Task, error) {
	t := &Task{dir: filepath.Join(m.opts.Dir, id)}
	if !strings.HasPrefix(id, "st_") || filepath.Base(id) != id {
		return nil, fmt.Errorf("%w: %q", ErrNotFound, id)
	}
	in := stored{Task: t}
	err := readJSON(filepath.Join(t.dir, taskFile), &in)
	t.noted, t.told = in.Noted, in.Told
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	return t, err
}

func (t *Task) save() error {
	return writeJSON(filepath.Join(t.dir, taskFile), stored{t, t.noted, t.told})
}

func (t *Task) layer(i int) string { return filepath.Join(t.dir, "layers", fmt.Sprint(i)) }
func (t *Task) upper(i int) string { return filepath.Join(t.layer(i), "upper") }
func (t *Task) work(i int) string  { return filepath.Join(t.layer(i), "work") }

// List returns the tasks, the newest first; all includes those that are not open any more.
func (m *Manager) List(all bool) (list []*Task, err error) {
	entries, err := os.ReadDir(m.opts.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if t, err := m.load(e.Name()); err == nil && (all || t.State == Open) {
			list = append(list, t)
		}
	}
	slices.SortFunc(list, func(a, b *Task) int { return b.Created.Compare(a.Created) })
	return list, nil
}

// Find returns the one task whose id begins so.
func (m *Manager) Find(id string) (*Task, error) {
	list, err := m.List(true)
	if err != nil {
		return nil, err
	}
	var found []*Task
	for _, t := range list {
		if t.ID == id {
			return t, nil
		}
		if id != "" && strings.HasPrefix(t.ID, id) {
			found = append(found, t)
		}
	}
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("%w: %q", ErrNotFound, id)
	case 1:
		return found[0], nil
	}
	return nil, fmt.Errorf("%d tasks have an ID that begins so; give more of it", len(found))
}

// Begin returns the open task of a caller, and makes one if there is none: that of its session, otherwise the newest of
// its principal and context whose session has ended.
func (m *Manager) Begin(who Who) (string, error) {
	if id := m.Current(who); id != "" {
		return id, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	list, err := m.List(false)
	if err != nil {
		return "", err
	}
	mine, old := 0, (*Task)(nil)
	for _, t := range list {
		if t.Principal != who.Principal {
			continue
		}
		mine++
		if t.Context != who.Context || t.Copies != m.copies() {
			continue
		}
		if t.Session == who.Session {
			m.remember(who, t.ID)
			return t.ID, nil
		}
		if old == nil && m.opts.Lives != nil && t.Session != "" && !m.opts.Lives(t.Session) {
			old = t
		}
	}
	if old != nil {
		old.Session, old.Client = who.Session, who.Client
		m.remember(who, old.ID)
		return old.ID, old.save()
	}
	if mine >= m.opts.Most {
		return "", &tool.Refusal{
			Code:    tool.CodeBusy,
			Message: fmt.Sprintf("%d tasks of this caller wait for a person's review, which is all that may", mine),
			Next:    "Ask the person to run gatehouse review, and to accept or refuse some.",
		}
	}
	now := time.Now()
	t := &Task{
		ID: "st_" + strings.ToLower(rand.Text()[:8]), Principal: who.Principal, Context: who.Context, Client: who.Client,
		Session: who.Session, State: Open, Created: now, Used: now, Expires: now.Add(m.opts.Expire),
		Network: m.opts.Network, Copies: m.copies(), noted: fileClock(),
	}
	t.dir = filepath.Join(m.opts.Dir, t.ID)
	if err := os.MkdirAll(t.dir, 0o700); err != nil {
		return "", err
	}
	m.any.Store(true)
	m.remember(who, t.ID)
	m.opts.Log.Info("task begun", "task", t.ID, "principal", who.Principal, "context", who.Context)
	return t.ID, t.save()
}

// Current returns the open task in which a caller's reading calls see the folders, "" if there is none.
func (m *Manager) Current(who Who) string {
	if !m.any.Load() {
		return ""
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if id, known := m.of[who]; known {
		if id == "" {
			return ""
		}
		if t, err := m.load(id); err == nil && t.State == Open && t.has(who) && t.Copies == m.copies() {
			return id
		}
	}
	list, err := m.List(false)
	if err != nil {
		return ""
	}
	for _, t := range list {
		if t.has(who) && t.Copies == m.copies() {
			m.remember(who, t.ID)
			return t.ID
		}
	}
	if who.Session != "" { // no other host has this session, so no other begins its task
		m.remember(who, "")
	}
	return ""
}

// copies reports whether new tasks have what file tools changed alone.
func (m *Manager) copies() bool { return m.opts.Copies != nil && m.opts.Copies() }

// has reports whether a task is that of a caller now.
func (t *Task) has(who Who) bool {
	return t.Principal == who.Principal && t.Context == who.Context && t.Session == who.Session
}

// mostRemembered limits the callers of which a Manager knows the task without reading.
const mostRemembered = 10_000

// remember keeps the task of a caller. m.mu is held.
func (m *Manager) remember(who Who, id string) {
	if len(m.of) >= mostRemembered {
		clear(m.of)
	}
	m.of[who] = id
}

// busyWait is how long a change of a task waits for another one.
const busyWait = 30 * time.Second

// locked runs f with the task while no other process accepts, undoes or refuses it. busy means that calls or programs
// run in its view.
func (m *Manager) locked(id string, f func(t *Task, busy bool) error) error {
	t, err := m.load(id)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), busyWait)
	defer cancel()
	lock, err := filelock.Wait(ctx, filepath.Join(t.dir, "lock"), filelock.Exclusive)
	if err != nil {
		return fmt.Errorf("task %s is being changed: %w", id, err)
	}
	defer lock.Release()
	if t, err = m.load(id); err != nil {
		return err
	}
	busy := len(overlay.Users(t.dir+"/")) > 0
	calls, err := filelock.Try(filepath.Join(t.dir, "calls"), filelock.Exclusive)
	if errors.Is(err, filelock.ErrHeld) {
		busy = true
	} else if err != nil {
		return err
	} else {
		defer calls.Release()
	}
	return f(t, busy)
}

// Changes returns what a task has changed, and as many of the changes as most says; 0 means all.
func (m *Manager) Changes(id string, most int) (t *Task, r Changes, err error) {
	err = m.locked(id, func(now *Task, _ bool) error {
		t = now
		if len(t.Layers) == 0 || t.State != Open {
			r.ETag = (&tag{}).sum()
			return nil
		}
		if err := t.note(t.noted, false); err != nil {
			return err
		}
		r, err = t.changes(most)
		return err
	})
	return t, r, err
}

// Choice is what a person accepts.
type Choice struct {
	Paths []string // and what is in them, unless Exact is set; empty means everything
	Exact bool
	ETag  string // of the changes that the person saw; "" compares nothing
	By    string

	then func(*Task, []Change, *Result) error // is called with what was chosen, and the result, while the task is locked
}

// Accept copies changes of a task to the folders. A task of which nothing is left is closed, unless something runs in
// it.
func (m *Manager) Accept(id string, c Choice) (r Result, err error) {
	if err := m.endIdle(id); err != nil {
		return r, err
	}
	err = m.locked(id, func(t *Task, busy bool) error {
		if _, err := t.recover(); err != nil { // of a host that was killed
			return err
		}
		if err := t.review(); err != nil {
			return err
		}
		a, err := t.accept(c, busy)
		if r = a.Result; err != nil {
			return err
		}
		var after error
		if c.then != nil {
			after = c.then(t, a.changes, &r)
		}
		if a.chosen == a.all && len(r.Conflict) == 0 {
			if busy {
				r.Note = strings.TrimPrefix(
					r.Note+"; calls or programs still run in the task, so it stays open for what they change", "; ")
				return after
			}
			t.State = Accepted
			return errors.Join(after, t.save())
		}
		return after
	})
	return r, err
}

// review refuses a task that is not open, and records what its calls have changed last.
func (t *Task) review() error {
	if t.State != Open {
		return fmt.Errorf("task %s is %s", t.ID, t.State)
	}
	return t.note(t.noted, false)
}

// wanted finds the changes of a choice.
type wanted struct {
	paths []string // empty for all
	found []bool
	exact bool
}

func (t *Task) wanted(c Choice) *wanted {
	w := &wanted{paths: slices.Clone(c.Paths), found: make([]bool, len(c.Paths)), exact: c.Exact}
	for i, p := range w.paths {
		if !filepath.IsAbs(p) && len(t.Layers) > 0 {
			p = filepath.Join(t.Layers[0].Lower, p)
		}
		w.paths[i] = filepath.Clean(p)
	}
	return w
}

// takes reports whether a change is chosen: by its path, or as a new folder that a chosen one needs.
func (w *wanted) takes(c *Change) bool {
	take := len(w.paths) == 0
	for i, p := range w.paths {
		if p == c.Path || !w.exact && inside(p, c.Path) {
			w.found[i], take = true, true
		}
		take = take || c.Now.Type == Folder && c.Was.Type != Folder && inside(c.Path, p)
	}
	return take
}

// missing returns which path of the choice no change has.
func (w *wanted) missing() error {
	if i := slices.Index(w.found, false); i >= 0 {
		return fmt.Errorf("the task changes nothing at %s", w.paths[i])
	}
	return nil
}

func inside(dir, p string) bool {
	const sep = string(filepath.Separator)
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, sep)+sep)
}

// Refuse drops what a task has changed.
func (m *Manager) Refuse(id, by string) error {
	return m.end(id, Refused, "refused by "+by)
}

const (
	idleFile  = "end-idle" // in the folder of a task: another program asks its host to end what has nothing to do
	idleCheck = 500 * time.Millisecond
	idleEnds  = 15 * time.Second // for a host to answer and for its programs to exit
)

// endIdle ends programs of a task that have nothing to do. If they are those of another process, it asks that by a
// file, which the host removes when they have exited. If none does in time, what runs is told of as that of any other call.
func (m *Manager) endIdle(id string) error {
	if m.opts.Ending != nil {
		m.ending(id, false)
		return nil
	}
	t, err := m.load(id)
	if err != nil || t.State != Open || len(overlay.Users(t.dir+"/")) == 0 {
		return err
	}
	asked := filepath.Join(t.dir, idleFile)
	if err := os.WriteFile(asked, nil, 0o600); err != nil {
		return err
	}
	for end := time.Now().Add(idleEnds); time.Now().Before(end); time.Sleep(idleCheck / 10) {
		if _, err := os.Stat(asked); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	if err := os.Remove(asked); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// answerIdle ends programs that have nothing to do of the tasks for which another process asked by endIdle. It returns
// how many tasks have had a view and are open.
func (m *Manager) answerIdle() int {
	m.mu.Lock()
	ids := slices.Collect(maps.Keys(m.live))
	m.mu.Unlock()
	for _, id := range ids {
		asked := filepath.Join(m.opts.Dir, id, idleFile)
		if _, err := os.Stat(asked); err != nil {
			continue
		}
		m.ending(id, false)
		if err := os.Remove(asked); err != nil && !errors.Is(err, fs.ErrNotExist) {
			m.opts.Log.Error("a request to end idle programs cannot be answered", "task", id, "err", err)
		}
	}
	return len(ids)
}

// ending has programs of a task ended.
func (m *Manager) ending(id string, all bool) {
	if m.opts.Ending != nil {
		m.opts.Ending(id, all)
	}
}

// IsOpen reports whether calls can be staged in a task.
func (m *Manager) IsOpen(id string) bool {
	t, err := m.load(id)
	return err == nil && t.State == Open
}

func (m *Manager) end(id, state, note string) error {
	m.ending(id, true)
	return m.locked(id, func(t *Task, busy bool) error {
		if t.State != Open {
			return fmt.Errorf("task %s is %s", id, t.State)
		}
		t.State, t.Note = state, note
		if err := t.save(); err != nil {
			return err
		}
		if !busy {
			t.drop()
		}
		return nil
	})
}

// drop removes what a task that is not open any more has changed.
func (t *Task) drop() {
	removeTree(filepath.Join(t.dir, "layers"))
	removeTree(filepath.Join(t.dir, privateFolder))
}

// Undo takes back what was accepted of a task.
func (m *Manager) Undo(id, by string) (r Result, err error) {
	err = m.locked(id, func(t *Task, _ bool) error {
		if len(t.acceptances()) == 0 {
			return fmt.Errorf("nothing of task %s was accepted", id)
		}
		if _, err := t.recover(); err != nil { // of a host that was killed
			return err
		}
		r, err = t.undo(by)
		return err
	})
	return r, err
}

// Recover finishes what a crash interrupted, and removes what expired.
func (m *Manager) Recover() error {
	list, err := m.List(true)
	if err != nil {
		return err
	}
	var errs []error
	for _, t := range list {
		if t.State == Open && !t.told && time.Until(t.Expires) < m.notice() {
			errs = append(errs, m.tell(t.ID))
			continue
		}
		if t.State == Open && time.Now().After(t.Expires) {
			m.opts.Log.Warn("task expired, and what it changed is dropped", "task", t.ID, "principal", t.Principal)
			errs = append(errs, m.end(t.ID, Expired, "nobody reviewed it in time"))
			continue
		}
		if t.State != Open && time.Now().After(t.Used.Add(2*m.opts.Expire)) && len(overlay.Users(t.dir+"/")) == 0 {
			m.opts.Log.Info("task removed: what was accepted of it can be undone no longer", "task", t.ID)
			removeTree(t.dir)
			continue
		}
		errs = append(errs, m.finish(t.ID))
	}
	return errors.Join(errs...)
}

// finish finishes what a crash interrupted of a task.
func (m *Manager) finish(id string) error {
	return m.locked(id, func(t *Task, busy bool) error {
		done, err := t.recover()
		for _, r := range done {
			m.opts.Log.Warn("an interrupted acceptance was finished", "task", id, "files", len(r.Done),
				"conflicts", len(r.Conflict))
		}
		if err == nil && t.State != Open && !busy {
			t.drop()
		}
		return err
	})
}

// notice is how long before a task expires its administrators are told.
func (m *Manager) notice() time.Duration { return m.opts.Expire / 5 }

// tell says that a task expires soon, which is not before a notice has passed: no host may have run for weeks.
func (m *Manager) tell(id string) error {
	var soon *Task
	err := m.locked(id, func(t *Task, _ bool) error {
		if t.State != Open || t.told {
			return nil
		}
		if t.told = true; time.Until(t.Expires) < m.notice()/2 {
			t.Expires = time.Now().Add(m.notice())
		}
		soon = t
		return t.save()
	})
	if err != nil || soon == nil {
		return err
	}
	m.opts.Log.Warn("task expires soon: gatehouse review shows it", "task", id, "at", soon.Expires.Format(time.DateTime))
	if m.opts.Expires != nil {
		m.opts.Expires(*soon)
	}
	return m.finish(id)
}

// Results returns what was accepted and undone of a task, in order.
func (m *Manager) Results(t *Task) (accepted, undone []Result) {
	for _, dir := range t.acceptances() {
		if r, err := t.readOutcome(dir, planFile, resultFile); err == nil {
			accepted = append(accepted, r.Result)
		}
		if u, err := t.readOutcome(dir, undoFile, undoneFile); err == nil {
			undone = append(undone, u.Result)
		}
	}
	return accepted, undone
}

// removeTree removes a folder, also where a program or the kernel left folders without permissions.
func removeTree(dir string) {
	if os.RemoveAll(dir) == nil {
		return
	}
	filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			os.Chmod(p, 0o700)
		}
		return nil
	})
	os.RemoveAll(dir)
}
