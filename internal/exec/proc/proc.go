// Package proc starts every child process, and ensures that it and its descendants end.
//
// A child leads its own group: a process group on Unix, a job object on Windows. When it ends, is
// stopped, or the context it was started with ends, the whole group is ended with it. On Linux the
// child also dies with the host. A process that leaves the group on purpose (setsid) is ended as well
// if Spec.Whole is set; otherwise it does not delay Wait.
//
// Each child occupies one operating system thread from Start until it has ended. Linux requires this:
// the kernel binds the parent-death signal to the thread that started the child, so that thread must
// not end before.
package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"gatehouse/internal/exec/overlay"
	"gatehouse/internal/exec/shield"
)

const (
	defaultGrace = 5 * time.Second
	lastWords    = 250 * time.Millisecond // for the child's descendants, to finish their output
	pipeWait     = time.Second            // for output that is in transit after the group has ended
	countWait    = 250 * time.Millisecond // between two counts, if no cgroup counts the processes
	killWait     = 10 * time.Second       // for the kernel to end killed processes
)

// ErrStopped is State.Stopped after Stop.
var ErrStopped = errors.New("it was stopped")

// ErrTooMany is State.Stopped of a child with more processes than Spec.Processes allows.
var ErrTooMany = errors.New("it became more processes than it may")

// Spec describes the process to start. Only Path is required.
type Spec struct {
	Path string   // a file, or a name to look up in the host's PATH
	Args []string // without the program's name
	Dir  string   // "" means the host's
	Env  []string // the whole environment; nil means BaseEnv()

	// Stdin nil means no input. A Reader that is not an *os.File is read until the child has ended, and
	// for one Read more, so it must not block forever.
	Stdin io.Reader
	// Stdout and Stderr are discarded if nil. The same Writer for both keeps the order of their output
	// and is never used concurrently. A Writer that blocks delays the child, but not its end. A Writer
	// with a method Flush() error is flushed after the last output.
	Stdout, Stderr io.Writer

	Grace time.Duration // from the request to end to the kill; 0 means 5 s

	// Input keeps the child's input open for Process.Type; Stdin is then ignored.
	Input bool
	// Terminal gives the child a terminal of this size. Stdout receives its output, Type writes its
	// input; Stdin and Stderr are ignored.
	Terminal *Size
	// Whole means that what left the group ends with the child too, and all of it
	// with the host. On Linux that is done by a cgroup, or where none can be made by
	// a process above the child, see package keeper; elsewhere it changes nothing.
	Whole bool
	// Processes limits how many processes and threads the child and its descendants may have at once; 0
	// means no limit. It requires Whole. If no cgroup counts them (see Contained), processes without
	// their threads are counted every countWait, and all are ended with ErrTooMany if they exceed the
	// limit.
	Processes int

	// Owner is the principal for whom the child runs; "" means the host. With Whole, and where a cgroup can do that, the
	// children of all owners get the same part of the processors, see package cpushare.
	Owner string

	// Files follow standard error in the child, on Unix. The caller closes them.
	Files []*os.File

	// Own are folders of the host that this child may use; all other folders of the host are hidden
	// from it. See package shield.
	Own []string
	// OwnReadOnly are such folders that this child may read and run programs of, and
	// not write. Where nothing closes folders to children it may write them.
	OwnReadOnly []string

	// Space is the view in which the child runs; nil for the file system of the host. Dir is a path of the view.
	Space *overlay.Space

	cgroups *cgroups // for tests; nil means the host's
}

// Size is the size of a terminal, in characters.
type Size struct{ Cols, Rows int }

// State describes how a child ended.
type State struct {
	Code    int           // exit code; -1 if a signal ended it
	Signal  string        // the name of that signal
	Took    time.Duration // from Start to the end
	CPU     time.Duration // user and system time of the child and of the children that it waited for
	Stopped error         // why this package ended it; nil if it ended by itself
	Unseen  bool          // its end was not observed, so that Code and Signal are not set
	Cut     bool          // a process outside the group still held the output, so the rest of it is lost
}

// Process is a child that was started. It is safe for concurrent use.
type Process struct {
	cmd    *exec.Cmd
	pipes  pipes
	group  group
	whole  whole
	input  input
	grace  time.Duration
	began  time.Time
	exited chan struct{} // the child has ended; its group may still run
	done   chan struct{} // closed when everything has ended: state and err are set

	state State
	err   error

	mu      sync.Mutex
	reaped  bool  // the group's number may have been reused
	stopped error // why this package ended it
}

// Start starts a child, which is ended when ctx ends. The caller must call Wait or Stop.
func Start(ctx context.Context, spec Spec) (*Process, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	p := &Process{grace: spec.Grace, exited: make(chan struct{}), done: make(chan struct{})}
	if p.grace <= 0 {
		p.grace = defaultGrace
	}
	p.cmd = exec.Command(spec.Path, spec.Args...)
	p.cmd.Dir, p.cmd.Env, p.cmd.ExtraFiles = spec.Dir, spec.Env, spec.Files
	if spec.Env == nil {
		p.cmd.Env = BaseEnv()
	}
	started := make(chan error)
	shield.Thread(func() (spoilt bool) { return p.own(ctx, spec, started) })
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Path, explain(err, spec.Dir))
	}
	return p, nil
}

// explain distinguishes a missing folder from a missing program.
func explain(err error, dir string) error {
	if dir != "" {
		if info, e := os.Stat(dir); e != nil {
			return fmt.Errorf("working directory: %w", e)
		} else if !info.IsDir() {
			return fmt.Errorf("working directory: %s is not a directory", dir)
		}
	}
	return err
}

// Pid returns the number of the child, which on Unix is also its group's.
func (p *Process) Pid() int { return p.whole.leader(p.cmd) }

// Done returns a channel that is closed when the child, its group and its output have ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the end of the child, its group and its output, and returns the child's state. An exit
// code other than 0 is not an error; an error means that waiting failed or that a Writer failed. Wait
// may be called more than once.
func (p *Process) Wait() (State, error) {
	<-p.done
	return p.state, p.err
}

// Stop asks the group to end, and kills it after the grace period or when ctx ends. It returns after
// everything has ended, or an error if even the kill had no effect.
func (p *Process) Stop(ctx context.Context) error {
	p.terminate(ErrStopped, ctx.Done())
	select {
	case <-p.done:
		return nil
	case <-time.After(killWait):
		return fmt.Errorf("process %d was killed and is still there", p.Pid())
	}
}

// Kill kills the group at once. It returns after everything has ended, or an error if the kill had no
// effect.
func (p *Process) Kill() error {
	p.first(ErrStopped)
	p.signal(p.group.kill)
	p.signal(p.whole.kill)
	select {
	case <-p.done:
		return nil
	case <-time.After(killWait):
		return fmt.Errorf("process %d was killed and is still there", p.Pid())
	}
}

// terminate asks, waits and kills, until the child has ended. own ends the rest of the group.
func (p *Process) terminate(why error, hurry <-chan struct{}) {
	if p.first(why) {
		p.signal(p.group.requestEnd)
		p.signal(p.whole.requestEnd)
		if p.input.terminal {
			p.signal(p.group.hangUp)
		}
	}
	grace := time.NewTimer(p.grace)
	defer grace.Stop()
	select {
	case <-p.exited:
		return
	case <-grace.C:
	case <-hurry:
	}
	p.signal(p.group.kill)
	p.signal(p.whole.kill)
}

// count ends the child and its descendants when they are more than most processes. It returns when the
// child ends.
func (p *Process) count(most int) {
	tick := time.NewTicker(countWait)
	defer tick.Stop()
	for {
		select {
		case <-p.exited:
			return
		case <-tick.C:
		}
		if u, err := p.Usage(); err == nil && u.Processes > most {
			now := make(chan struct{})
			close(now)
			p.terminate(ErrTooMany, now)
			return
		}
	}
}

func (p *Process) first(why error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.exited:
		return false
	default:
	}
	if p.stopped != nil {
		return false
	}
	p.stopped = why
	return true
}

// signal calls f while the group's number certainly belongs to it.
func (p *Process) signal(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		f()
	}
}

// own manages the child from its start to its end. It stays on one thread, which cannot be reused after
// it has given up the host's folders for the child.
func (p *Process) own(ctx context.Context, spec Spec, started chan<- error) (spoilt bool) {
	spoilt, err := p.start(spec)
	if err != nil {
		started <- err
		return spoilt
	}
	if _, limited := p.Contained(); spec.Whole && spec.Processes > 0 && !limited {
		go p.count(spec.Processes)
	}
	started <- nil
	forget := context.AfterFunc(ctx, func() { p.terminate(context.Cause(ctx), nil) })
	defer forget()

	if !p.whole.await() {
		p.group.await()
	}
	took := time.Since(p.began)
	close(p.exited)
	p.pipes.waitForEnd(lastWords)
	p.signal(p.group.kill)
	p.whole.kill()
	bury(p.cmd.Process.Pid)
	p.mu.Lock()
	if !p.whole.reap() {
		err = p.group.reap()
	}
	p.reaped = true
	stopped := p.stopped
	p.mu.Unlock()
	cut := !p.pipes.waitForEnd(pipeWait)
	p.pipes.close()
	p.group.close()
	p.whole.close()

	if ps := p.cmd.ProcessState; ps != nil {
		p.state = State{
			Code:    ps.ExitCode(),
			Signal:  signalOf(ps),
			Took:    took,
			CPU:     ps.UserTime() + ps.SystemTime(),
			Stopped: stopped,
			Cut:     cut,
		}
	}
	p.whole.correct(&p.state)
	if _, failed := errors.AsType[*exec.ExitError](err); failed {
		err = nil
	}
	p.err = errors.Join(err, p.pipes.failure())
	close(p.done)
	return spoilt
}

func (p *Process) start(spec Spec) (spoilt bool, err error) {
	if err := p.openStreams(spec); err != nil {
		return false, err
	}
	p.group.prepare(p.cmd)
	if spec.Terminal != nil {
		leadSession(p.cmd)
	}
	if spec.Whole {
		p.whole.prepare(p.cmd, &spec)
	}
	p.began = time.Now()
	if err := spec.enterSandbox(p.cmd); err != nil {
		p.pipes.started(false)
		p.whole.close()
		return false, err
	}
	spoilt, err = p.whole.launch(&p.cmd, &spec)
	p.pipes.started(err == nil)
	if err != nil {
		p.whole.close()
		return spoilt, err
	}
	return spoilt, p.group.start(p.cmd, p.whole.leader(p.cmd))
}

// launch starts a command that prepare has seen, on a thread that gives up the
// host's own folders first. The command has a lower priority than the host.
func (w *whole) launch(cmd **exec.Cmd, spec *Spec) (spoilt bool, err error) {
	restore := lowerPriority()
	defer func() { spoilt = !restore() || spoilt }()
	if spec.Space == nil { // else the view covers the host's own folders
		(*cmd).Dir, spoilt, err = shield.Enter((*cmd).Dir, spec.own())
	}
	if err == nil {
		w.enterShare(spec.Owner)
		err = w.launchKept(cmd)
		if errors.Is(err, errNotKept) {
			err = launch(cmd)
		}
		if err != nil && w.withdraw(*cmd) {
			*cmd = again(*cmd)
			err = launch(cmd)
		}
	}
	w.started(*cmd)
	if err == nil {
		bear((*cmd).Process.Pid)
	}
	return spoilt, err
}

// enterSandbox makes a command enter the view of the spec, if it has one.
func (s *Spec) enterSandbox(cmd *exec.Cmd) error {
	if s.Space == nil {
		return nil
	}
	return s.Space.Prepare(cmd)
}

func (s *Spec) own() shield.Own { return shield.Own{Write: s.Own, Read: s.OwnReadOnly} }

// openStreams makes what the child reads and writes.
func (p *Process) openStreams(spec Spec) error {
	switch {
	case spec.Terminal != nil:
		return p.pipes.openTerminal(p.cmd, spec, &p.input)
	case spec.Input:
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		p.pipes.theirs, p.pipes.ours = append(p.pipes.theirs, r), append(p.pipes.ours, w)
		p.input.to, spec.Stdin = w, r
	}
	return p.pipes.openPipes(p.cmd, spec)
}

// A file that was just written may be held open, for a moment, by a child that another thread is
// starting; until then the kernel refuses to run it, so that launch tries again.
const (
	busyTries = 40
	busyWait  = 50 * time.Millisecond
)

// errNotKept means that a command is to be started without a keeper.
var errNotKept = errors.New("there is no keeper")

// launch starts a command.
func launch(cmd **exec.Cmd) error {
	err := (*cmd).Start()
	for try := 0; try < busyTries && errors.Is(err, syscall.ETXTBSY); try++ {
		time.Sleep(busyWait)
		*cmd = again(*cmd)
		err = (*cmd).Start()
	}
	return err
}

// again returns a copy of a command that failed to start, for another try.
func again(c *exec.Cmd) *exec.Cmd {
	return &exec.Cmd{
		Path:        c.Path,
		Args:        c.Args,
		Env:         c.Env,
		Dir:         c.Dir,
		Stdin:       c.Stdin,
		Stdout:      c.Stdout,
		Stderr:      c.Stderr,
		ExtraFiles:  c.ExtraFiles,
		SysProcAttr: c.SysProcAttr,
		Err:         c.Err,
	}
}
