package agentclient

import (
	"context"
	"encoding/json"
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

// process is the client's view of a program in the sandbox.
type process struct {
	client *Client
	id     uint32
	began  time.Time
	most   int64 // bytes of each stream; less than 0 means no limit
	ooms   int   // the count of OOM kills when it started

	ready    chan struct{} // closed when the program runs, or with over
	over     chan struct{} // closed when the last frame arrived or the client broke
	overflow chan struct{} // closed when a stream exceeded its limit
	left     chan struct{} // closed when the host stops waiting though it is not over
	done     chan struct{} // closed when result and err are set
	once     sync.Once     // guards closing overflow
	started  sync.Once     // guards closing ready
	runs     bool          // the program was started; set before ready is closed

	stdin          *agentprotocol.Allowance
	stdout, stderr stream
	report         io.Writer // nil if the command has no lists
	drains         sync.WaitGroup

	status agentprotocol.ExitStatus // set before over is closed
	reaped bool
	failed error

	result sandbox.Result
	err    error
}

// stream is one output of a program.
type stream struct {
	kind   agentprotocol.Kind
	inbox  *agentprotocol.Inbox
	to     io.Writer
	closed bool // used only by the goroutine that reads the channel

	mu    sync.Mutex
	wrote int64
	err   error
}

// Exec starts a program. If ctx ends while the client is suspended, the program may have been started.
func (l *Client) Exec(ctx context.Context, c sandbox.Command) (sandbox.Process, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if len(c.Argv) == 0 {
		return nil, errors.New("the command names no program: Argv is empty")
	}
	p := newProcess(l, c)
	program := agentprotocol.Program{Argv: c.Argv, Env: c.Env, Dir: c.Dir}
	if c.Terminal != nil {
		program.Size = agentprotocol.Size(*c.Terminal)
	}
	if c.Lists != nil {
		lists, err := json.Marshal(sandbox.Lists{Allow: c.Lists.Allow, Deny: c.Lists.Deny})
		if err != nil {
			return nil, err
		}
		program.Lists = string(lists)
	}
	id, err := l.addReceiver(p)
	if err != nil {
		return nil, err
	}
	p.id = id
	if err := l.request(agentprotocol.Start, id, program.Body()); err != nil {
		if errors.Is(err, agentprotocol.ErrBroken) {
			return nil, fmt.Errorf("the arguments, the environment and the lists together have %d bytes, which is too "+
				"long: pass long data by standard input or a file", len(program.Body()))
		}
		return nil, err
	}
	p.drains.Go(func() { p.drain(&p.stdout) })
	p.drains.Go(func() { p.drain(&p.stderr) })
	go p.supervise(ctx, c)
	select {
	case <-p.ready:
	case <-ctx.Done():
		select { // the supervising goroutine ends the program
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

func newProcess(l *Client, c sandbox.Command) *process {
	p := &process{
		client: l, began: time.Now(), ooms: l.oomKill(), most: int64(l.Limits().OutputBytes),
		ready:    make(chan struct{}),
		over:     make(chan struct{}),
		overflow: make(chan struct{}),
		left:     make(chan struct{}),
		done:     make(chan struct{}),
		stdin:    agentprotocol.NewAllowance(),
		stdout:   stream{kind: agentprotocol.Stdout, inbox: agentprotocol.NewInbox(), to: c.Stdout},
		stderr:   stream{kind: agentprotocol.Stderr, inbox: agentprotocol.NewInbox(), to: c.Stderr},
	}
	if c.Lists != nil {
		p.report = c.Lists.Report
	}
	if c.OutputBytes != 0 {
		p.most = int64(c.OutputBytes)
	}
	return p
}

// handle is called by the goroutine that reads the channel.
func (p *process) handle(f agentprotocol.Frame) (last bool, err error) {
	switch f.Kind {
	case agentprotocol.Ready:
		p.started.Do(func() {
			p.runs = true
			close(p.ready)
		})
		return false, nil
	case agentprotocol.Stdout:
		return false, p.stdout.receive(f.Body)
	case agentprotocol.Stderr:
		return false, p.stderr.receive(f.Body)
	case agentprotocol.Credit:
		g, err := agentprotocol.ParseGrant(f.Body)
		if err == nil && g.Stream != agentprotocol.Stdin {
			err = fmt.Errorf("%w: a grant for a stream that the agent sends", agentprotocol.ErrBroken)
		}
		if err == nil {
			err = p.stdin.Add(int(g.Bytes))
		}
		return false, err
	case agentprotocol.Judged:
		if p.report == nil {
			return false, fmt.Errorf("%w: a report of a program without lists", agentprotocol.ErrBroken)
		}
		p.report.Write(f.Body) // that it fails is no matter of the sandbox
		return false, nil
	case agentprotocol.Exit:
		status, err := agentprotocol.ParseExitStatus(f.Body)
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
		return false, fmt.Errorf("%w: unexpected frame of kind %d for a program", agentprotocol.ErrBroken, f.Kind)
	}
	p.ended()
	return true, nil
}

func (p *process) broken(err error) {
	p.failed = err
	p.ended()
}

func (p *process) ended() {
	p.stdout.inbox.Close()
	p.stderr.inbox.Close()
	p.stdin.Close()
	close(p.over)
	p.started.Do(func() { close(p.ready) })
}

func (s *stream) receive(body []byte) error {
	if s.closed {
		return fmt.Errorf("%w: data for a stream that was closed", agentprotocol.ErrBroken)
	}
	if len(body) == 0 {
		s.closed = true
		s.inbox.Close()
		return nil
	}
	return s.inbox.Put(body)
}

// drain writes the data of a stream to its Writer and grants the agent as much more. Data beyond the limit, or
// after the Writer failed, is discarded.
func (p *process) drain(s *stream) {
	var debt agentprotocol.Consumed
	for {
		b, ok := s.inbox.Receive()
		if !ok {
			return
		}
		s.writeOutput(b, p)
		n := debt.Add(len(b))
		if n == 0 {
			continue
		}
		select {
		case <-p.over: // the agent needs no grant any more
		default:
			p.client.sendUnless(p.left, agentprotocol.Credit, p.id,
				agentprotocol.Grant{Stream: s.kind, Bytes: n}.Body())
		}
	}
}

func (s *stream) writeOutput(b []byte, p *process) {
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

func (s *stream) totals() (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wrote, s.err
}

// ending is how a program ended.
type ending struct {
	seen sandbox.Evidence
	why  error
}

// supervise ends the program when it must, and judges how it ended. If ctx ends while the agent is stopped,
// the program is abandoned and the host goes on.
func (p *process) supervise(ctx context.Context, c sandbox.Command) {
	over := make(chan ending, 1)
	go func() {
		if c.Stdin == nil {
			p.client.sendFrame(agentprotocol.Stdin, p.id, nil)
		} else {
			go p.feed(c.Stdin)
		}
		late := p.deadline(c)
		seen, why := p.untilOver(ctx, late)
		late.stopTimers()
		over <- ending{seen, why}
	}()
	var e ending
	if p.client.clock.mustAbandon(ctx, p.over) {
		e.why = errAbandoned(ctx)
		p.abandon()
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

// abandon gives up waiting for the program, which the agent still has. Its further output is discarded.
func (p *process) abandon() {
	close(p.left)
	p.stdout.inbox.Close()
	p.stderr.inbox.Close()
	p.stdin.Close()
}

// deadline returns a timer for the program's time limit, which may be infinite.
func (p *process) deadline(c sandbox.Command) *timer {
	most := c.Timeout
	if most == 0 {
		most = p.client.Limits().Call
	}
	if most <= 0 {
		return &timer{clock: &p.client.clock}
	}
	return p.client.clock.after(most)
}

// untilOver waits for the program's end. It ends the program when ctx or the time ends, or when a stream
// overflows.
func (p *process) untilOver(ctx context.Context, late *timer) (seen sandbox.Evidence, why error) {
	select {
	case <-p.over:
		return seen, nil
	case <-late.up:
		seen.TimeUp = true
		p.endProcess(sigterm, termGrace)
	case <-ctx.Done():
		why = context.Cause(ctx)
		p.endProcess(sigterm, termGrace)
	case <-p.overflow:
		seen.OutputFull = true
		p.endProcess(sigkill, termGrace)
	}
	if !p.endProcess(sigkill, killWait) {
		p.client.failWith(errors.New("the agent did not kill a program within the time allowed"))
		<-p.over
	}
	return seen, why
}

// endProcess sends a signal, unless the program has ended, and reports whether it ends within the given time.
func (p *process) endProcess(signal byte, within time.Duration) bool {
	select {
	case <-p.over:
		return true
	default:
	}
	p.client.sendFrame(agentprotocol.Signal, p.id, []byte{signal})
	t := p.client.clock.after(within)
	defer t.stopTimers()
	select {
	case <-p.over:
		return true
	case <-t.up:
		return false
	}
}

// untilDrained waits for the Writers. When ctx has ended it waits at most killWait.
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
	stdout, outErr := p.stdout.totals()
	stderr, errErr := p.stderr.totals()
	select {
	case <-p.overflow: // even if it exited at the same time
		seen.OutputFull = true
	default:
	}
	var status agentprotocol.ExitStatus
	select {
	case <-p.left: // what the agent reports from now on does not count
	default:
		status, seen.Reaped = p.status, p.reaped
		if !p.reaped && why == nil {
			why = p.failed
		}
	}
	seen.Code, seen.Signal = int(status.Code), int(status.Signal)
	if seen.Code != 0 || seen.Signal != 0 || !seen.Reaped {
		seen.OOMKills = p.client.oomKill() - p.ooms + int(status.OOMKills)
	}
	p.result = sandbox.Result{
		Outcome: seen.Outcome(), Code: seen.Code, Signal: seen.Signal,
		Took: time.Since(p.began), CPU: status.CPU, MaxRSS: status.MaxRSS,
		StdoutSize: stdout, StderrSize: stderr,
	}
	p.err = errors.Join(why, outErr, errErr)
}

// feed sends the Reader's data as the program consumes it.
func (p *process) feed(from io.Reader) {
	buf := make([]byte, 32<<10)
	for {
		most := p.stdin.Acquire(len(buf))
		if most == 0 {
			return
		}
		n, err := from.Read(buf[:most])
		p.stdin.Add(most - n)
		if n > 0 && p.client.sendUnless(p.left, agentprotocol.Stdin, p.id, buf[:n]) != nil {
			return
		}
		if err != nil {
			p.client.sendUnless(p.left, agentprotocol.Stdin, p.id, nil)
			return
		}
	}
}

// Signal implements sandbox.Process.
func (p *process) Signal(number int) error {
	if number < 1 || number > 64 {
		return fmt.Errorf("there is no signal %d: %w", number, syscall.EINVAL)
	}
	return p.sendControl(agentprotocol.Signal, []byte{byte(number)})
}

// Resize implements sandbox.Process.
func (p *process) Resize(s sandbox.Size) error {
	return p.sendControl(agentprotocol.Resize, agentprotocol.Size(s).Body())
}

func (p *process) sendControl(k agentprotocol.Kind, body []byte) error {
	select {
	case <-p.over:
		return nil
	default:
	}
	if err := p.client.paused(); err != nil {
		return err
	}
	return p.client.sendFrame(k, p.id, body)
}

// Done implements sandbox.Process.
func (p *process) Done() <-chan struct{} { return p.done }

// Wait implements sandbox.Process.
func (p *process) Wait() (sandbox.Result, error) {
	<-p.done
	return p.result, p.err
}
