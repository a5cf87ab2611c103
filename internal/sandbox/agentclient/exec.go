package agentclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agentprotocol"
)

const (
	sigterm = 15
	sigkill = 9
)

// process is a program in the sandbox, seen from here.
type process struct {
	link  *Link
	id    uint32
	began time.Time
	most  int64 // bytes of each stream; less than 0 means no limit
	ooms  int   // when it began

	ready    chan struct{} // it runs, or over is closed
	over     chan struct{} // the last frame came, or the link broke
	overflow chan struct{} // a stream brought too much
	left     chan struct{} // the host waits for it no more, though it is not over
	done     chan struct{} // all is said: result and err are set
	once     sync.Once     // of overflow
	started  sync.Once     // of ready
	runs     bool          // it was started; set before ready is closed

	stdin          *agentprotocol.Allowance
	stdout, stderr stream
	drains         sync.WaitGroup

	status agentprotocol.Ended // set before over
	reaped bool
	failed error

	result sandbox.Result
	err    error
}

// stream is what comes of one of a program's outputs.
type stream struct {
	kind   agentprotocol.Kind
	inbox  *agentprotocol.Inbox
	to     io.Writer
	closed bool // of the reading goroutine

	mu    sync.Mutex
	wrote int64
	err   error
}

// Exec starts a program. One that is called off while the link is held may have
// started.
func (l *Link) Exec(ctx context.Context, c sandbox.Command) (sandbox.Process, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if len(c.Argv) == 0 {
		return nil, errors.New("there is no program to run: Argv is empty")
	}
	p := newProcess(l, c)
	program := agentprotocol.Program{Argv: c.Argv, Env: c.Env, Dir: c.Dir}
	if c.Terminal != nil {
		program.Size = agentprotocol.Size(*c.Terminal)
	}
	id, err := l.add(p)
	if err != nil {
		return nil, err
	}
	p.id = id
	if err := l.request(agentprotocol.Start, id, program.Body()); err != nil {
		if errors.Is(err, agentprotocol.ErrBroken) {
			return nil, fmt.Errorf("the arguments and the environment are too long, together %d bytes: pass what is long by standard input or a file", len(program.Body()))
		}
		return nil, err
	}
	p.drains.Go(func() { p.drain(&p.stdout) })
	p.drains.Go(func() { p.drain(&p.stderr) })
	go p.attend(ctx, c)
	select {
	case <-p.ready:
	case <-ctx.Done():
		select { // attend sees to that
		case <-p.over:
			<-p.ready
		case <-p.left:
			return p, nil
		}
	}
	if p.runs {
		return p, nil
	}
	<-p.done
	if p.failed != nil {
		return nil, errors.Join(p.failed, context.Cause(ctx))
	}
	return p, nil
}

func newProcess(l *Link, c sandbox.Command) *process {
	p := &process{
		link: l, began: time.Now(), ooms: l.oomKill(), most: int64(l.Limits().OutputBytes),
		ready: make(chan struct{}), over: make(chan struct{}), overflow: make(chan struct{}), left: make(chan struct{}), done: make(chan struct{}),
		stdin:  agentprotocol.NewAllowance(),
		stdout: stream{kind: agentprotocol.Stdout, inbox: agentprotocol.NewInbox(), to: c.Stdout},
		stderr: stream{kind: agentprotocol.Stderr, inbox: agentprotocol.NewInbox(), to: c.Stderr},
	}
	if c.OutputBytes != 0 {
		p.most = int64(c.OutputBytes)
	}
	return p
}

// take is called by the goroutine that reads the link.
func (p *process) take(f agentprotocol.Frame) (last bool, err error) {
	switch f.Kind {
	case agentprotocol.Ready:
		p.started.Do(func() {
			p.runs = true
			close(p.ready)
		})
		return false, nil
	case agentprotocol.Stdout:
		return false, p.stdout.take(f.Body)
	case agentprotocol.Stderr:
		return false, p.stderr.take(f.Body)
	case agentprotocol.Credit:
		g, err := agentprotocol.ParseGrant(f.Body)
		if err == nil && g.Stream != agentprotocol.Stdin {
			err = fmt.Errorf("%w: a grant for what the agent sends", agentprotocol.ErrBroken)
		}
		if err == nil {
			err = p.stdin.Add(int(g.Bytes))
		}
		return false, err
	case agentprotocol.Exit:
		status, err := agentprotocol.ParseEnded(f.Body)
		if err != nil {
			return false, err
		}
		p.status, p.reaped = status, true
	case agentprotocol.Failed:
		why, err := agentprotocol.ParseFailure(f.Body)
		if err != nil {
			return false, err
		}
		p.failed = why
	default:
		return false, fmt.Errorf("%w: a frame of kind %d for a program", agentprotocol.ErrBroken, f.Kind)
	}
	p.ended()
	return true, nil
}

func (p *process) broken(err error) {
	p.failed = err
	p.ended()
}

func (p *process) ended() {
	p.stdout.inbox.End()
	p.stderr.inbox.End()
	p.stdin.End()
	close(p.over)
	p.started.Do(func() { close(p.ready) })
}

func (s *stream) take(body []byte) error {
	if s.closed {
		return fmt.Errorf("%w: more of a stream that was closed", agentprotocol.ErrBroken)
	}
	if len(body) == 0 {
		s.closed = true
		s.inbox.End()
		return nil
	}
	return s.inbox.Put(body)
}

// drain writes what comes, and lets the agent send as much more. What comes
// after too much, or after the Writer failed, is thrown away.
func (p *process) drain(s *stream) {
	var debt agentprotocol.Debt
	for {
		b, ok := s.inbox.Take()
		if !ok {
			return
		}
		s.write(b, p)
		n := debt.Took(len(b))
		if n == 0 {
			continue
		}
		select {
		case <-p.over: // nobody waits for a grant any more
		default:
			p.link.sendUnless(p.left, agentprotocol.Credit, p.id, agentprotocol.Grant{Stream: s.kind, Bytes: n}.Body())
		}
	}
}

func (s *stream) write(b []byte, p *process) {
	s.mu.Lock()
	wrote, err := s.wrote, s.err
	s.mu.Unlock()
	if p.most >= 0 && wrote+int64(len(b)) > p.most {
		b = b[:p.most-wrote]
		p.once.Do(func() { close(p.overflow) })
	}
	if s.to != nil && err == nil && len(b) > 0 {
		_, err = s.to.Write(b)
	}
	s.mu.Lock()
	s.wrote, s.err = wrote+int64(len(b)), err
	s.mu.Unlock()
}

func (s *stream) tell() (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wrote, s.err
}

// ending is how a program came to its end.
type ending struct {
	seen sandbox.Evidence
	why  error
}

// attend sees to it that the program ends, and judges how. Where the agent is
// stopped and cannot end it, that is left for later, and the host goes on.
func (p *process) attend(ctx context.Context, c sandbox.Command) {
	over := make(chan ending, 1)
	go func() {
		if c.Stdin == nil {
			p.link.send(agentprotocol.Stdin, p.id, nil)
		} else {
			go p.feed(c.Stdin)
		}
		late := p.deadline(c)
		seen, why := p.untilOver(ctx, late)
		late.stop()
		over <- ending{seen, why}
	}()
	var e ending
	if p.link.pace.lost(ctx, p.over) {
		e.why = calledOff(ctx)
		p.leave()
	} else {
		e = <-over
	}
	if r, ok := c.Stdin.(io.Closer); ok {
		r.Close()
	}
	p.untilDrained(ctx)
	p.judge(e.seen, e.why)
	close(p.done)
}

// leave lets go of the program, which the agent still has. What comes of it from
// here on is for nobody.
func (p *process) leave() {
	close(p.left)
	p.stdout.inbox.End()
	p.stderr.inbox.End()
	p.stdin.End()
}

// deadline is when its time is up, which may be never.
func (p *process) deadline(c sandbox.Command) *timer {
	most := c.Timeout
	if most == 0 {
		most = p.link.Limits().Call
	}
	if most <= 0 {
		return &timer{pace: &p.link.pace}
	}
	return p.link.pace.after(most)
}

// untilOver waits for the program's end and brings it about where it must.
func (p *process) untilOver(ctx context.Context, late *timer) (seen sandbox.Evidence, why error) {
	select {
	case <-p.over:
		return seen, nil
	case <-late.up:
		seen.TimeUp = true
		p.end(sigterm, termGrace)
	case <-ctx.Done():
		why = context.Cause(ctx)
		p.end(sigterm, termGrace)
	case <-p.overflow:
		seen.OutputFull = true
		p.end(sigkill, termGrace)
	}
	if !p.end(sigkill, killWait) {
		p.link.fail(errors.New("the agent did not end a program that was to be killed"))
		<-p.over
	}
	return seen, why
}

// end sends a signal, unless it is over, and reports whether it is within this
// time.
func (p *process) end(signal byte, within time.Duration) bool {
	select {
	case <-p.over:
		return true
	default:
	}
	p.link.send(agentprotocol.Signal, p.id, []byte{signal})
	t := p.link.pace.after(within)
	defer t.stop()
	select {
	case <-p.over:
		return true
	case <-t.up:
		return false
	}
}

// untilDrained waits for the Writers. When ctx has ended it does so only for a
// while.
func (p *process) untilDrained(ctx context.Context) {
	drained := make(chan struct{})
	go func() {
		p.drains.Wait()
		close(drained)
	}()
	select {
	case <-drained:
		return
	case <-ctx.Done():
	}
	select {
	case <-drained:
	case <-time.After(killWait):
	}
}

func (p *process) judge(seen sandbox.Evidence, why error) {
	stdout, outErr := p.stdout.tell()
	stderr, errErr := p.stderr.tell()
	select {
	case <-p.overflow: // as it ended by itself
		seen.OutputFull = true
	default:
	}
	var status agentprotocol.Ended
	select {
	case <-p.left: // whatever it is told from here on
	default:
		status, seen.Reaped = p.status, p.reaped
		if !p.reaped && why == nil {
			why = p.failed
		}
	}
	seen.Code, seen.Signal = int(status.Code), int(status.Signal)
	if seen.Code != 0 || seen.Signal != 0 || !seen.Reaped {
		seen.OOMKills = p.link.oomKill() - p.ooms + int(status.OOMKills)
	}
	p.result = sandbox.Result{
		Outcome: seen.Judge(), Code: seen.Code, Signal: seen.Signal,
		Took: time.Since(p.began), CPU: status.CPU, MaxRSS: status.MaxRSS,
		StdoutSize: stdout, StderrSize: stderr,
	}
	p.err = errors.Join(why, outErr, errErr)
}

// feed passes on what is read, as the program takes it.
func (p *process) feed(from io.Reader) {
	buf := make([]byte, 32<<10)
	for {
		most := p.stdin.Take(len(buf))
		if most == 0 {
			return
		}
		n, err := from.Read(buf[:most])
		p.stdin.Add(most - n)
		if n > 0 && p.link.sendUnless(p.left, agentprotocol.Stdin, p.id, buf[:n]) != nil {
			return
		}
		if err != nil {
			p.link.sendUnless(p.left, agentprotocol.Stdin, p.id, nil)
			return
		}
	}
}

// Signal sends a signal to the program's process group.
func (p *process) Signal(number int) error {
	if number < 1 || number > 64 {
		return fmt.Errorf("there is no signal %d: %w", number, syscall.EINVAL)
	}
	return p.tell(agentprotocol.Signal, []byte{byte(number)})
}

// Resize changes the size of its terminal.
func (p *process) Resize(s sandbox.Size) error {
	return p.tell(agentprotocol.Resize, agentprotocol.Size(s).Body())
}

func (p *process) tell(k agentprotocol.Kind, body []byte) error {
	select {
	case <-p.over:
		return nil
	default:
	}
	if err := p.link.paused(); err != nil {
		return err
	}
	return p.link.send(k, p.id, body)
}

// Done is closed when it and its output have ended.
func (p *process) Done() <-chan struct{} { return p.done }

// Wait waits for that.
func (p *process) Wait() (sandbox.Result, error) {
	<-p.done
	return p.result, p.err
}
