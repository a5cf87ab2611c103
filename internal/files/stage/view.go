package stage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"gatehouse/internal/exec/overlay"
	"gatehouse/internal/files/filelock"
	"gatehouse/internal/files/merged"
	"gatehouse/tool"
)

// live is the view of a task while this process uses it.
type live struct {
	mu     sync.Mutex
	task   *Task
	holder *overlay.Holder
	roots  map[string]*os.Root      // by folder
	layers map[string]*merged.Layer // by folder, of a task of copies
	calls  map[*View]bool
	lock   *filelock.Lock // shared, while there are calls
	last   time.Time      // of the end of the last call
	sized  time.Time
	loose  bool // programs that outlive their calls were started
	read   read // bases
}

// View is a call in the view of its task.
type View struct {
	m     *Manager
	live  *live
	began time.Time // by the clock that dates files
}

// idleWait is how long a view without calls is held.
const (
	idleWait  = 10 * time.Minute
	sizePause = time.Minute // between two measurements of a task

	longestTick = 10 * time.Millisecond // of the clock that dates files
)

// CannotStage returns why a folder cannot be staged, "" if it can.
func (m *Manager) CannotStage(folder string) string {
	if filepath.Dir(folder) == folder {
		return "the whole file system cannot be staged"
	}
	dir, err := filepath.EvalSymlinks(m.opts.Dir)
	if err != nil {
		dir = m.opts.Dir
	}
	if inside(folder, dir) {
		return fmt.Sprintf("%s contains the data folder of this host", folder)
	}
	if at := mountsWithin(folder); at != "" {
		return fmt.Sprintf("another file system is mounted in %s, at %s", folder, at)
	}
	return ""
}

// Enter gives a call the view of its task. folders are those that the view has, without links. writes means that the
// call may change something. The caller calls Leave.
func (m *Manager) Enter(id string, folders []string, writes bool) (*View, error) {
	asked := time.Now()
	m.mu.Lock()
	l := m.live[id]
	if l == nil {
		l = &live{
			roots: map[string]*os.Root{}, layers: map[string]*merged.Layer{}, calls: map[*View]bool{},
			read: read{total: &m.bases},
		}
		m.live[id] = l
		select {
		case m.viewed <- struct{}{}:
		default:
		}
	}
	m.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	t, err := m.load(id)
	if err != nil {
		return nil, err
	}
	if t.State != Open {
		return nil, &tool.Refusal{
			Code: tool.CodeStale, Message: fmt.Sprintf("task %s is %s", id, t.State),
			Next: "Repeat the call; it begins a new task.",
		}
	}
	l.task, t.read = t, &l.read
	if err := m.fits(l); err != nil {
		return nil, err
	}
	if err := m.open(l, outermost(folders)); err != nil {
		return nil, err
	}
	if len(l.calls) == 0 {
		ctx, cancel := context.WithTimeout(context.Background(), busyWait)
		defer cancel()
		if l.lock, err = filelock.Wait(ctx, filepath.Join(t.dir, "calls"), filelock.Shared); err != nil {
			return nil, fmt.Errorf("task %s is being accepted: %w", id, err)
		}
		if err := m.finishBefore(t); err != nil {
			return nil, errors.Join(err, l.lock.Release())
		}
	}
	if writes && len(l.calls) == 0 { // else the names that this call changes are dated by one that runs
		nextTick(asked)
	}
	v := &View{m: m, live: l, began: fileClock()}
	l.calls[v] = true
	return v, nil
}

// finishBefore finishes what a crash interrupted of a task before a call of it begins: a plan has the content that the
// calls of the task change.
func (m *Manager) finishBefore(t *Task) error {
	begun := errors.New("begun")
	err := t.unfinished(func(string, string, string) error { return begun })
	if errors.Is(err, begun) {
		return m.finish(t.ID)
	}
	return err
}

// nextTick returns when files are dated later than a time by time.Now. So a change before a call can be told from one
// during it. A tick may come late, and a kernel with multigrain timestamps (Linux 6.13) dates some files by the finer
// clock, so a later time by fileClock alone may still be before such a date.
func nextTick(at time.Time) {
	for end := time.Now().Add(10 * longestTick); !fileClock().After(at) && time.Now().Before(end); {
		time.Sleep(longestTick / 20)
	}
}

// fits refuses calls of a task that holds too much. l.mu is held.
func (m *Manager) fits(l *live) error {
	if time.Since(l.sized) < sizePause {
		return nil
	}
	l.sized = time.Now()
	size := sizeOf(filepath.Join(l.task.dir, "layers")) + sizeOf(filepath.Join(l.task.dir, privateFolder))
	if size > m.opts.Bytes {
		return &tool.Refusal{
			Code: tool.CodeTooLarge,
			Message: fmt.Sprintf("task %s holds %d MB, and %d MB is all that one may", l.task.ID, size>>20,
				m.opts.Bytes>>20),
			Next: "Ask the person to run gatehouse review, and to accept or refuse it.",
		}
	}
	return nil
}

// outermost returns the folders that are in no other.
func outermost(all []string) (out []string) {
	all = slices.Sorted(slices.Values(all))
	for _, f := range slices.Compact(all) {
		if !slices.ContainsFunc(out, func(o string) bool { return inside(o, f) }) {
			out = append(out, f)
		}
	}
	return out
}

// open makes the view of a task, unless it is held. l.mu is held.
func (m *Manager) open(l *live, folders []string) error {
	t := l.task
	had, missing := len(t.Layers), false
	for _, f := range folders {
		if slices.ContainsFunc(t.Layers, func(have Layer) bool { return inside(have.Lower, f) }) {
			continue
		}
		why := m.CannotStage(f)
		if t.Copies && slices.ContainsFunc(t.Layers, func(have Layer) bool { return inside(f, have.Lower) }) {
			why = fmt.Sprintf("task %s has a folder in %s, so on this machine it cannot get all of that", t.ID, f)
		}
		if why != "" {
			return &tool.Refusal{
				Code:    tool.CodeUnsupported,
				Message: why,
				Next:    "Use another folder, or another context.",
			}
		}
		t.Layers, missing = append(t.Layers, Layer{f}), true
	}
	if t.Copies && !missing && len(l.layers) == len(t.Layers) {
		return nil
	}
	if l.holder != nil {
		select {
		case <-l.holder.Done():
			m.drop(l)
		default:
			if !missing {
				return nil
			}
			return m.extend(l, had)
		}
	}
	if missing {
		if err := t.save(); err != nil {
			return err
		}
	}
	if t.Copies {
		return m.openLayers(l)
	}
	p, err := m.plan(t)
	if err != nil {
		return err
	}
	h, err := overlay.Hold(p)
	if err != nil {
		return fmt.Errorf("the view of task %s: %w", t.ID, err)
	}
	l.holder = h
	if left := h.Left(); len(left) > 0 {
		m.opts.Log.Warn("programs of a staged task see nothing in folders of which no overlay can be made", "task", t.ID,
			"folders", left)
	}
	return nil
}

// extend adds the last layers of a task, from one on, to the view that is held. Programs that run in it do not see
// them. l.mu is held.
func (m *Manager) extend(l *live, from int) error {
	t := l.task
	p, err := m.plan(t)
	for i := from; i < len(t.Layers) && err == nil; i++ {
		err = l.holder.Add(p.Layers[i])
	}
	if err == nil {
		err = t.save()
	}
	if err != nil {
		t.Layers = t.Layers[:from]
		return fmt.Errorf("the view of task %s: %w", t.ID, err)
	}
	return nil
}

// openLayers opens the layers of a task of copies that are not open. l.mu is held.
func (m *Manager) openLayers(l *live) error {
	for i, one := range l.task.Layers {
		if l.layers[one.Lower] != nil {
			continue
		}
		if err := like(l.task.upper(i), one.Lower); err != nil {
			return err
		}
		layer, err := merged.Open(one.Lower, l.task.layer(i), m.opts.Bytes)
		if err != nil {
			return fmt.Errorf("the view of task %s: %w", l.task.ID, err)
		}
		l.layers[one.Lower] = layer
	}
	return nil
}

// drop ends the holding of a view. l.mu is held, and no call uses the view.
func (m *Manager) drop(l *live) {
	for f, r := range l.roots {
		r.Close()
		delete(l.roots, f)
	}
	for f, layer := range l.layers {
		layer.Close()
		delete(l.layers, f)
	}
	l.read.forget()
	if l.holder != nil {
		l.holder.Close()
		l.holder = nil
	}
}

// plan describes the view of a task, and makes its folders.
func (m *Manager) plan(t *Task) (p overlay.Plan, err error) {
	p.Network, p.Sockets = m.opts.Network, m.opts.Sockets
	if m.opts.Covers != nil {
		p.Covers = m.opts.Covers()
	}
	p.Covers = append(p.Covers, "/run", "/var/run")
	for i, l := range t.Layers {
		if err := like(t.upper(i), l.Lower); err != nil {
			return p, err
		}
		if err := os.MkdirAll(t.work(i), 0o700); err != nil {
			return p, err
		}
		p.Layers = append(p.Layers, overlay.Layer{Lower: l.Lower, Upper: t.upper(i), Work: t.work(i)})
	}
	for i, s := range m.opts.Scratch {
		real, err := filepath.EvalSymlinks(s)
		if err != nil || m.CannotStage(real) != "" || slices.ContainsFunc(p.Layers, func(l overlay.Layer) bool {
			return inside(l.Lower, real) || inside(real, l.Lower)
		}) {
			continue
		}
		dir := filepath.Join(t.dir, "scratch", fmt.Sprintf("cache%d", i)) // more layers may come before it
		if err := errors.Join(like(filepath.Join(dir, "upper"), real),
			os.MkdirAll(filepath.Join(dir, "work"), 0o700)); err != nil {
			return p, err
		}
		p.Layers = append(p.Layers, overlay.Layer{
			Lower: real, Upper: filepath.Join(dir, "upper"), Work: filepath.Join(dir, "work"),
		})
	}
	for i, at := range []string{"/tmp", "/var/tmp"} {
		real, err := filepath.EvalSymlinks(at)
		if err != nil || slices.ContainsFunc(p.Layers, func(l overlay.Layer) bool { return inside(l.Lower, real) }) {
			continue
		}
		b := overlay.Bind{From: filepath.Join(t.dir, "tmp", fmt.Sprint(i)), To: real}
		if err := os.MkdirAll(b.From, 0o700); err != nil {
			return p, err
		}
		os.Chmod(b.From, 0o777|os.ModeSticky)
		for _, l := range p.Layers {
			if err := b.Mountpoint(l.Lower); err != nil {
				return p, err
			}
		}
		p.Binds = append(p.Binds, b)
	}
	return p, nil
}

// like makes a folder with the mode, the owner and the time of another, once.
func like(dir, of string) error {
	info, err := os.Stat(of)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is no folder", of)
	}
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	giveTo(dir, info)
	if err := os.Chmod(dir, info.Mode()); err != nil {
		return err
	}
	return os.Chtimes(dir, info.ModTime(), info.ModTime())
}

// Layer returns the changes of a folder that is in the view of a task of copies, and the function that releases them;
// nil for another task.
func (v *View) Layer(real string) (*merged.Layer, func() error, error) {
	l := v.live
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.task.Copies {
		return nil, nil, nil
	}
	for _, one := range l.task.Layers {
		if !inside(one.Lower, real) {
			continue
		}
		rel, err := filepath.Rel(one.Lower, real)
		if err != nil || rel == "." {
			return l.layers[one.Lower], func() error { return nil }, err
		}
		part, err := l.layers[one.Lower].Part(rel)
		if err != nil {
			return nil, nil, err
		}
		return part, part.ClosePart, nil
	}
	return nil, nil, l.task.outside(real)
}

func (t *Task) outside(real string) error {
	return &tool.Refusal{
		Code: tool.CodeOutsideRoot, Message: real + " is not in the view of task " + t.ID,
		Next: "Use the folders with which the task began.",
	}
}

// Root returns the view of a folder that is a layer or inside one. It is shared: the caller must not close it.
func (v *View) Root(real string) (*os.Root, error) {
	l := v.live
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.roots[real]; r != nil {
		return r, nil
	}
	for _, layer := range l.task.Layers {
		if !inside(layer.Lower, real) {
			continue
		}
		top := l.roots[layer.Lower]
		if top == nil {
			var err error
			if top, err = l.holder.Root(layer.Lower); err != nil {
				return nil, err
			}
			l.roots[layer.Lower] = top
		}
		if real == layer.Lower {
			return top, nil
		}
		rel, err := filepath.Rel(layer.Lower, real)
		if err != nil {
			return nil, err
		}
		r, err := top.OpenRoot(rel)
		if err == nil {
			l.roots[real] = r
		}
		return r, err
	}
	return nil, l.task.outside(real)
}

// Space returns what a child needs to run in the view. loose means that it may outlive the call.
func (v *View) Space(loose bool) (*overlay.Space, error) {
	v.live.mu.Lock()
	defer v.live.mu.Unlock()
	if v.live.task.Copies {
		return nil, errNoPrograms()
	}
	v.live.loose = v.live.loose || loose
	return v.live.holder.Space()
}

func errNoPrograms() error {
	return &tool.Refusal{
		Code: tool.CodeUnsupported, Message: "programs cannot be staged on this machine",
		Next: "Use file tools, or ask the person to allow the call.",
	}
}

// Mount returns a folder or a file of the view, whose path has no links, as a mount for a program that has another root
// and may outlive the call. The caller closes it.
func (v *View) Mount(real string, write bool) (*os.File, error) {
	v.live.mu.Lock()
	defer v.live.mu.Unlock()
	if v.live.task.Copies {
		return nil, errNoPrograms()
	}
	if v.live.holder == nil {
		return nil, fmt.Errorf("the view of task %s is not held any more", v.live.task.ID)
	}
	v.live.loose = true
	if err := v.hold(real); err != nil {
		return nil, err
	}
	return v.live.holder.Mount(real, write)
}

// hold adds the folder of a path to the view, unless it is there. v.live.mu is held.
func (v *View) hold(real string) error {
	t := v.live.task
	if slices.ContainsFunc(t.Layers, func(l Layer) bool { return inside(l.Lower, real) }) {
		return nil
	}
	info, err := os.Stat(real)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		real = filepath.Dir(real)
	}
	if why := v.m.CannotStage(real); why != "" {
		return &tool.Refusal{Code: tool.CodeUnsupported, Message: why, Next: "Ask the person to allow the call."}
	}
	had := len(t.Layers)
	t.Layers = append(t.Layers, Layer{real})
	return v.m.extend(v.live, had)
}

// Private returns the path of a folder for what a program of the task writes that is none of its changes, which the
// caller makes. It is dropped with the task, and in no backup.
func (v *View) Private(name string) string {
	return filepath.Join(v.live.task.dir, privateFolder, name)
}

// privateFolder is in the folder of a task.
const privateFolder = "private"

// Leave ends the call. wrote means that it may have changed something.
func (v *View) Leave(wrote bool) error {
	l := v.live
	l.mu.Lock()
	defer l.mu.Unlock()
	since := l.oldest(v.began)
	if l.loose && l.task.noted.Before(since) {
		since = l.task.noted
	}
	delete(l.calls, v)
	if len(l.calls) == 0 {
		for _, layer := range l.layers {
			layer.Settle()
		}
	}
	var err error
	if wrote || l.loose {
		noted := l.oldest(fileClock()) // what calls that still run change is dated from their beginning
		if err = l.task.note(since, true); err == nil {
			l.task.noted = noted
		}
		l.task.Used, l.task.told = time.Now(), false
		l.task.Expires = l.task.Used.Add(v.m.opts.Expire)
		if fresh, lerr := v.m.load(l.task.ID); lerr == nil && fresh.State == Open {
			err = errors.Join(err, l.task.save())
		}
	}
	if len(l.calls) == 0 {
		l.last = time.Now()
		err = errors.Join(err, l.lock.Release())
	}
	return err
}

// oldest returns when the oldest call that runs began, if that was before a time. l.mu is held.
func (l *live) oldest(at time.Time) time.Time {
	for c := range l.calls {
		if c.began.Before(at) {
			at = c.began
		}
	}
	return at
}

// Run ends views that are not used, drops tasks that expired, and answers other programs that ask for the end of idle
// ones, until ctx is done.
func (m *Manager) Run(ctx context.Context) error {
	tick, asked := time.NewTicker(time.Minute), time.NewTicker(idleCheck)
	defer tick.Stop()
	defer asked.Stop()
	asked.Stop() // until there is a task that another program can ask for
	defer m.closeViews(true)
	if err := m.Recover(); err != nil {
		m.opts.Log.Error("tasks could not be recovered", "err", err)
	}
	for n := 1; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-m.viewed:
			asked.Reset(idleCheck)
			continue
		case <-asked.C:
			if m.answerIdle() == 0 {
				asked.Stop()
			}
			continue
		case <-tick.C:
		}
		m.closeViews(false)
		if n++; n%60 == 0 {
			if err := m.Recover(); err != nil {
				m.opts.Log.Error("tasks could not be examined", "err", err)
			}
		}
	}
}

func (m *Manager) closeViews(all bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, l := range m.live {
		l.mu.Lock()
		if all ||
			l.task != nil && len(l.calls) == 0 && time.Since(l.last) > idleWait &&
				len(overlay.Users(l.task.dir+"/")) == 0 {
			m.drop(l)
			if t, err := m.load(id); all || err != nil || t.State != Open {
				delete(m.live, id)
			}
		}
		l.mu.Unlock()
	}
}
