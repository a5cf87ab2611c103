package process

import (
	"context"
	"errors"
	"io"
	"time"

	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/dispatch/hub"
	"gatehouse/internal/exec/proc"
	"gatehouse/internal/exec/terminal"
	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

// maxReplies is the number of replies of a terminal that wait until the program
// reads them.
const maxReplies = 16

// record is one process while it runs and after its end.
type record struct {
	id        string
	owner     string // guarded by manager.mu once the record is registered
	release   func() // gives its place on the host back, once or more; nil if it has none
	counted   bool   // it counts as a running process of its owner; guarded by manager.mu
	context   string // the context of the caller that started it
	session   string // the session with which it ends; "" means none
	command   string
	args      []string
	dir       string
	startedAt time.Time
	child     child
	files     *files  // of a detached process; nil for others
	ending    *ending // of a process that ended before this host was started; nil for others
	log       *outputLog
	terminal  bool
	feed      *hub.Feed   // nil if there is no hub; guarded by manager.mu
	expire    *time.Timer // removes the record; set at its end; guarded by manager.mu
}

// spec describes a process to start.
type spec struct {
	command    string
	args       []string
	dir        string
	env        []string
	contextEnv contextstore.Environment // the environment of the caller's context
	size       *proc.Size               // size of the terminal; nil for none
	input      bool                     // its standard input is an open pipe
	stdin      io.Reader                // its standard input otherwise; nil means empty
	session    string                   // the session with which it ends; "" means none
	detach     bool                     // it outlives the host
	grace      time.Duration
	extra      [2]func([]byte)
}

// startProcess starts a process of the caller. It waits for its turn until call is done; the process is stopped when
// ctx is done.
func (m *manager) startProcess(call, ctx context.Context, c *tool.Call, s *spec) (_ *record, err error) {
	owner, in := c.Caller.Owner, c.Caller.Context
	registered := false // then the end of the process releases what is counted
	release, err := m.claim(c)
	if err != nil {
		return nil, err
	}
	if err := m.reserve(owner, in); err != nil {
		release()
		return nil, err
	}
	defer func() {
		if err != nil && !registered {
			m.releaseInput(owner, in)
			release()
		}
	}()
	where, err := roots.OpenWorkplace(c.Roots, s.dir, "dir")
	if err != nil {
		return nil, err
	}
	defer where.Close()
	if s.contextEnv, err = m.contextEnv(c.Caller); err != nil {
		return nil, err
	}
	env, err := environment(s, where.Path)
	if err != nil {
		return nil, err
	}
	started, err := m.turn(call, c)
	if err != nil {
		return nil, err
	}
	defer started()
	r := &record{
		id:        m.newID("process"),
		owner:     owner,
		context:   in,
		session:   s.session,
		command:   s.command,
		args:      s.args,
		dir:       where.Path,
		startedAt: time.Now(),
		terminal:  s.size != nil,
		release:   release,
	}
	answers := make(chan []byte, maxReplies)
	r.log = newLog(m.cfg.Buffer, r.newScreen(s.size, answers))
	err = m.launch(ctx, c, r, s, where, env)
	started()
	if err != nil {
		if no, ok := errors.AsType[*tool.Refusal](err); ok {
			return nil, no
		}
		return nil, &tool.Refusal{
			Code:    tool.CodeNotStarted,
			Message: where.Says(err),
			Next:    "command is a program and not a command line: give each argument in args, or run sh with -c.",
		}
	}
	if err := m.registerProcess(r, answers); err != nil {
		r.child.Stop(ctx)
		r.dropFiles()
		return nil, err
	}
	registered = true
	// checked after registration, so that the end of the session is not missed
	if err := m.checkSession(r); err != nil {
		m.stopAsync(r)
		return nil, err
	}
	m.tell("process.started", Event{ID: r.id, Owner: owner, Command: r.command, PID: r.child.Pid()})
	return r, nil
}

// launch starts the process of a record.
func (m *manager) launch(
	ctx context.Context, c *tool.Call, r *record, s *spec, where roots.Workplace, env []string,
) error {
	if s.detach {
		d, err := m.detach(c, r, s, where, env)
		if err == nil {
			r.child, r.files = d, d.files
		}
		return err
	}
	space, err := where.Space(true)
	if err != nil {
		return err
	}
	defer space.Close()
	hide := s.contextEnv.Hider()
	p, err := proc.Start(ctx, proc.Spec{
		Path: s.command, Args: s.args, Dir: where.Dir, Env: env,
		Stdin: s.stdin, Input: s.input, Terminal: s.size, Whole: true, Processes: m.cfg.Processes, Grace: s.grace,
		Owner: c.Caller.Principal, Space: space,
		Stdout: hide.Writer(teeWriter{stream{r.log, stdout}, s.extra[stdout]}),
		Stderr: hide.Writer(teeWriter{stream{r.log, stderr}, s.extra[stderr]}),
	})
	if err == nil {
		r.child = p
	}
	return err
}

// registerProcess adds a record and starts the goroutines that follow its process until
// it ends.
func (m *manager) registerProcess(r *record, answers chan []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return tool.Refuse(tool.CodeBusy, "the host is closing")
	}
	m.records[r.id], r.counted = r, true
	m.openFeed(r)
	m.wg.Go(func() {
		for {
			select {
			case b := <-answers:
				r.child.Type(m.ctx, b) // an error means that the process has ended
				continue
			case <-r.unfollowed():
			case <-r.child.Done():
			}
			if _, over := r.ended(); over {
				m.complete(r)
			}
			return
		}
	})
	return nil
}

// openFeed starts to publish the events of a process to its owner. m.mu is held,
// and the manager is not closed.
func (m *manager) openFeed(r *record) {
	if m.cfg.Hub == nil {
		return
	}
	feed := m.cfg.Hub.Open(r.owner, hub.Process+":"+r.id)
	r.feed = feed
	m.wg.Go(func() { r.broadcast(m.ctx, feed) })
}

// complete is called once when a process has ended.
func (m *manager) complete(r *record) {
	s, err := r.child.Wait()
	if err != nil {
		m.log.Warn("cannot wait for the end of a process", "process", r.id, "err", err)
	}
	r.log.mu.Lock()
	r.log.wake()
	r.log.mu.Unlock()
	m.recordEnd(r, s)
}

// newScreen returns the screen of a terminal. It drops its replies if the program
// does not read them, so that they never block the output.
func (r *record) newScreen(size *proc.Size, answers chan<- []byte) *terminal.Screen {
	if size == nil {
		return nil
	}
	s := terminal.New(size.Cols, size.Rows)
	s.Reply = func(b []byte) {
		select {
		case answers <- b:
		default:
		}
	}
	return s
}

// unfollowed returns a channel that is closed when the host no longer follows a
// detached process. It is nil for a process that ends with the host.
func (r *record) unfollowed() <-chan struct{} {
	if d, ok := r.child.(*detached); ok {
		return d.unfollowed
	}
	return nil
}

// unfollow releases a detached process, so that the next host can adopt it.
func (r *record) unfollow() {
	if d, ok := r.child.(*detached); ok {
		d.unfollow()
	}
}

// dropFiles stops the expiry and removes the files of the process.
func (r *record) dropFiles() {
	r.stopExpiry()
	if r.files != nil {
		r.files.removeFiles()
	}
}

// stopExpiry stops the timer and closes the feed. manager.mu is held, or the
// manager is closed.
func (r *record) stopExpiry() {
	if r.expire != nil {
		r.expire.Stop()
	}
	if r.feed != nil {
		r.feed.Close()
	}
}

// ended returns how the process ended, and false if it runs.
func (r *record) ended() (proc.State, bool) {
	select {
	case <-r.child.Done():
		s, _ := r.child.Wait() // complete has logged the error
		return s, true
	default:
		return proc.State{}, false
	}
}

// condition is the status of a process; every result has it.
type condition struct {
	Status   string `json:"status" enum:"running,exited,killed,lost"`
	ExitCode *int   `json:"exitCode,omitempty" doc:"-1 if a signal ended it; missing if not known"`
	Signal   string `json:"signal,omitempty"`
}

func (r *record) condition() condition {
	s, over := r.ended()
	switch {
	case !over:
		return condition{Status: "running"}
	case r.ending != nil && r.ending.Lost:
		return condition{Status: "lost"}
	case s.Unseen && s.Stopped != nil:
		return condition{Status: "killed"}
	case s.Unseen:
		return condition{Status: "exited"}
	case s.Signal != "" || s.Stopped != nil:
		return condition{"killed", &s.Code, s.Signal}
	}
	return condition{"exited", &s.Code, ""}
}

// teeWriter writes to a log and calls extra with the same bytes.
type teeWriter struct {
	stream
	extra func([]byte)
}

func (t teeWriter) Write(b []byte) (int, error) {
	if t.extra != nil {
		t.extra(b)
	}
	return t.stream.Write(b)
}
