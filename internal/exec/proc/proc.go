// Package proc starts every child process, and makes sure it and what it
// started end.
//
// A child leads its own group: a process group on Unix, a job object on
// Windows. When it ends, is stopped, or the context it was started with ends,
// the whole group is ended with it. On Linux the child also dies with the host.
// A process that leaves the group on purpose (setsid) is caught where Spec.Whole
// asks for that; otherwise it cannot hold up Wait.
//
// Each child occupies one operating system thread from Start until it has
// ended. On Linux that is needed, not only convenient: the kernel ties "die
// with your parent" to the thread that started the child, so that thread must
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

	"gatehouse/internal/exec/shield"
)

const (
	defaultGrace = 5 * time.Second
	lastWords    = 250 * time.Millisecond // for what the child started, to finish its output
	pipeWait     = time.Second            // for output that is still on its way when the group is gone
	countWait    = 250 * time.Millisecond // between two counts of processes that no cgroup counts
	killWait     = 10 * time.Second       // for the kernel to end what was killed
)

// ErrStopped is State.Stopped after Stop.
var ErrStopped = errors.New("it was stopped")

// ErrTooMany is State.Stopped of a child that became more processes than
// Spec.Processes allows.
var ErrTooMany = errors.New("it became more processes than it may")

// Spec is what to start. Only Path is needed.
type Spec struct {
	Path string   // a file, or a name that is looked up in the host's PATH
	Args []string // without the program's name
	Dir  string   // "" means the host's
	Env  []string // the whole environment; nil means BaseEnv()

	// Stdin nil means nothing to read. A Reader that is not an *os.File is
	// read until the child has ended and then one Read longer, so it should
	// not block for ever.
	Stdin io.Reader
	// Stdout and Stderr nil mean thrown away. The same Writer for both keeps
	// their order and is never used concurrently. A Writer that blocks holds
	// up the child, not the end. One that has a Flush() error is flushed when
	// nothing more comes.
	Stdout, Stderr io.Writer

	Grace time.Duration // from the request to end until it is killed; 0 means 5 s

	// Input keeps the child's input open for Process.Type; Stdin is then not used.
	Input bool
	// Terminal gives the child a terminal of its own, of this size. Stdout gets
	// what it shows, Type types into it; Stdin and Stderr are not used.
	Terminal *Size
	// Whole means that what left the group ends with the child too, and all of it
	// with the host. On Linux that is done by a cgroup, or where none can be made by
	// a process above the child, see package keeper; elsewhere it changes nothing.
	Whole bool
	// Processes limits how many processes and threads the child and what it
	// starts may be at once; 0 means no limit. It needs Whole. Where no cgroup
	// counts them (see Contained) they are counted every countWait, processes
	// alone, and all are ended with ErrTooMany once they are more.
	Processes int

	// Files follow standard error in the child, on Unix. The caller closes them.
	Files []*os.File

	// Own are folders of the host's own that this child may use; all others are
	// closed to it. See package shield.
	Own []string
	// OwnReadOnly are such folders that this child may read and run programs of, and
	// not write. Where nothing closes folders to children it may write them.
	OwnReadOnly []string

	cgroups *cgroups // for tests; nil means those of the host
}

// Size is that of a terminal, in characters.
type Size struct{ Cols, Rows int }

// State is how a child ended.
type State struct {
	Code    int           // exit code; -1 when a signal ended it
	Signal  string        // that signal, in words
	Took    time.Duration // from Start to the end
	CPU     time.Duration // user and system time of the child and what it waited for
	Stopped error         // why we ended it; nil when it ended by itself
	Unseen  bool          // its end was not observed, so that Code and Signal say nothing
	Cut     bool          // something outside the group still held the output, so the rest of it is lost
}

// Process is a child that was started. Safe for concurrent use.
type Process struct {
	cmd    *exec.Cmd
	pipes  pipes
	group  group
	whole  whole
	input  input
	grace  time.Duration
	began  time.Time
	exited chan struct{} // the child has ended; its group may go on
	done   chan struct{} // all is over: state and err are set

	state State
	err   error

	mu      sync.Mutex
	reaped  bool  // the group's number may belong to others
	stopped error // why we ended it
}

// Start starts a child, which is ended when ctx ends. The caller calls
// Wait or Stop.
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

// explain tells a folder that is missing from a program that is.
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

// Pid is the number of the child, and on Unix of its group.
func (p *Process) Pid() int { return p.whole.leader(p.cmd) }

// Done is closed when the child, its group and its output have ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the end of the child, its group and its output, and tells how
// the child ended. A child that fails is no error; the error is that it could
// not be waited for or that a Writer did not take its output. It may be called
// more than once.
func (p *Process) Wait() (State, error) {
	<-p.done
	return p.state, p.err
}

// Stop asks the group to end, and kills it when the grace is over or ctx ends.
// It returns when all is over, or with an error when even that did not help.
func (p *Process) Stop(ctx context.Context) error {
	p.terminate(ErrStopped, ctx.Done())
	select {
	case <-p.done:
		return nil
	case <-time.After(killWait):
		return fmt.Errorf("process %d was killed and is still there", p.Pid())
	}
}

// Kill kills the group at once. It returns when all is over, or with an error
// when even that did not help.
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

// terminate asks, waits and kills, until the child has ended. The rest of its group
// is own's.
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

// count ends the child and all that came of it once that is more than most
// processes. It ends with the child.
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

// signal reaches the group as long as its number is surely its own.
func (p *Process) signal(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		f()
	}
}

// own is the child's life. It stays on one thread, which is spoilt once it has
// given up the host's own folders for the child.
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
	p.pipes.wait(lastWords)
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
	cut := !p.pipes.wait(pipeWait)
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
	if err := p.open(spec); err != nil {
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
	spoilt, err = p.whole.launch(&p.cmd, spec.own())
	p.pipes.started(err == nil)
	if err != nil {
		p.whole.close()
		return spoilt, err
	}
	return spoilt, p.group.start(p.cmd, p.whole.leader(p.cmd))
}

// launch starts a command that prepare has seen, on a thread that gives up the
// host's own folders first.
func (w *whole) launch(cmd **exec.Cmd, own shield.Own) (spoilt bool, err error) {
	if (*cmd).Dir, spoilt, err = shield.Enter((*cmd).Dir, own); err == nil {
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

func (s *Spec) own() shield.Own { return shield.Own{Write: s.Own, Read: s.OwnReadOnly} }

// open makes what the child reads and writes.
func (p *Process) open(spec Spec) error {
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
	return p.pipes.open(p.cmd, spec)
}

// A file that was just written may be held open, for a moment, by a child that
// another thread is starting: until then the system does not run it.
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

// again is a command that failed to start, for one more try.
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
