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

// replies is how many answers of a terminal may wait for a program to read them.
const maxReplies = 16

// record is one process, also after its end.
type record struct {
	id       string
	owner    string // guarded by manager.mu once the record is known
	counted   bool   // it has a place among the running ones of its owner; guarded by manager.mu
	context  string // of the caller that started it
	session  string // it ends with; "" means it does not
	command  string
	args     []string
	dir      string
	startedAt    time.Time
	child        child
	files    *files  // of a detached one; nil for others
	ending      *ending // of one that ended before this host; nil for others
	log      *outputLog
	terminal bool
	feed     *hub.Feed   // nil when nobody can listen; guarded by manager.mu
	expire   *time.Timer // set when it has ended; guarded by manager.mu
}

// spec is what to start.
type spec struct {
	command string
	args    []string
	dir     string
	env     []string
	contextEnv     contextstore.Environment // of the caller's context
	size    *proc.Size               // of a terminal; nil for none
	input   bool                     // it can be typed to
	stdin   io.Reader                // what it reads instead; nil means nothing
	session string                   // it ends with; "" means it does not
	detach  bool                     // it does not end with the host either
	grace   time.Duration
	extra    [2]func([]byte)
}

// start starts a process of the caller's, which is ended when ctx ends.
func (m *manager) start(ctx context.Context, c *tool.Call, s *spec) (_ *record, err error) {
	owner, in := c.Caller.Owner, c.Caller.Context
	if err := m.reserve(owner, in); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			m.release(owner, in)
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
	r := &record{id: m.newID("process"), owner: owner, context: in, session: s.session, command: s.command, args: s.args, dir: where.Path, startedAt: time.Now(), terminal: s.size != nil}
	answers := make(chan []byte, maxReplies)
	r.log = newLog(m.cfg.Buffer, r.newScreen(s.size, answers))
	if err := m.launch(ctx, c, r, s, where, env); err != nil {
		if no, ok := errors.AsType[*tool.Refusal](err); ok {
			return nil, no
		}
		return nil, &tool.Refusal{Code: "not_started", Message: where.Says(err), Next: "Commands are programs, not command lines: give the program as command and each argument in args, or run sh with -c."}
	}
	if err := m.register(r, answers); err != nil {
		r.child.Stop(ctx)
		r.dropFiles()
		return nil, err
	}
	if err := m.checkSession(r); err != nil { // asked when its end can no longer be missed
		m.stopAsync(r)
		return nil, err
	}
	m.tell("process.started", startedEvent{r.id, owner, r.command, r.child.Pid()})
	return r, nil
}

// begin starts the process of a record.
func (m *manager) launch(ctx context.Context, c *tool.Call, r *record, s *spec, where roots.Workplace, env []string) error {
	if s.detach {
		d, err := m.detach(c, r, s, where, env)
		if err == nil {
			r.child, r.files = d, d.files
		}
		return err
	}
	hide := s.contextEnv.Hider()
	p, err := proc.Start(ctx, proc.Spec{
		Path: s.command, Args: s.args, Dir: where.Dir, Env: env,
		Stdin: s.stdin, Input: s.input, Terminal: s.size, Whole: true, Processes: m.cfg.Processes, Grace: s.grace,
		Stdout: hide.Writer(teeWriter{stream{r.log, stdout}, s.extra[stdout]}), Stderr: hide.Writer(teeWriter{stream{r.log, stderr}, s.extra[stderr]}),
	})
	if err == nil {
		r.child = p
	}
	return err
}

// add makes a process known, and follows it to its end.
func (m *manager) register(r *record, answers chan []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return tool.Refuse("busy", "the host is closing")
	}
	m.records[r.id], r.counted = r, true
	m.openFeed(r)
	m.wg.Go(func() {
		for {
			select {
			case b := <-answers:
				r.child.Type(m.ctx, b) // nobody is there to be told
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

// openFeed tells the owner of a process what happens to it. m.mu is held, and
// the manager is not closed.
func (m *manager) openFeed(r *record) {
	if m.cfg.Hub == nil {
		return
	}
	feed := m.cfg.Hub.Open(r.owner, hub.Process+":"+r.id)
	r.feed = feed
	m.wg.Go(func() { r.broadcast(m.ctx, feed) })
}

// finish is what is done when a process has ended.
func (m *manager) complete(r *record) {
	s, err := r.child.Wait()
	if err != nil {
		m.log.Warn("a process was not followed to its end", "process", r.id, "err", err)
	}
	r.log.mu.Lock()
	r.log.wake()
	r.log.mu.Unlock()
	m.recordEnd(r, s)
}

// newScreen is the screen of a terminal. Its answers are thrown away when the
// program does not read them: output is never held up.
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

// left is closed when the host follows a process no more that may go on; it is
// nil for those that end with the host.
func (r *record) unfollowed() <-chan struct{} {
	if d, ok := r.child.(*detached); ok {
		return d.unfollowed
	}
	return nil
}

// letGo leaves a detached process to the next host.
func (r *record) unfollow() {
	if d, ok := r.child.(*detached); ok {
		d.unfollow()
	}
}

// discard forgets, and removes what is on the disk.
func (r *record) dropFiles() {
	r.stopExpiry()
	if r.files != nil {
		r.files.remove()
	}
}

// forget ends the remembering. manager.mu is held, or the manager is closed.
func (r *record) stopExpiry() {
	if r.expire != nil {
		r.expire.Stop()
	}
	if r.feed != nil {
		r.feed.Close()
	}
}

// ended tells how it ended, if it has.
func (r *record) ended() (proc.State, bool) {
	select {
	case <-r.child.Done():
		s, _ := r.child.Wait() // the error has been logged
		return s, true
	default:
		return proc.State{}, false
	}
}

// condition is how a process is, in every result.
type condition struct {
	Status   string `json:"status" enum:"running,exited,killed,lost"`
	ExitCode *int   `json:"exitCode,omitempty" doc:"-1 when a signal ended it; left out when nobody saw it"`
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

// tee writes to a log and tells somebody else.
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
