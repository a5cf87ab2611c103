package interpreter

import (
	"context"
	_ "embed" // of what Node runs
	"encoding/binary"
	"encoding/json"
	"io"
	"sync"
	"time"

	"gatehouse/internal/sandbox"
)

//go:embed once.js
var onceText string

// termGrace is the time from asking code to end to killing it.
const termGrace = 250 * time.Millisecond

// A Starter keeps one Node that is running and waits for code. Node cannot fork, so each serves once: it
// becomes the process of the code, with its own streams, and the next one is started at the same time.
type Starter struct {
	// life bounds the Node processes, which outlive the call that starts them, so it must be a field.
	life context.Context
	box  sandbox.Sandbox

	mu     sync.Mutex
	waits  *waitingNode // nil while none waits
	closed bool
	starts sync.WaitGroup // counts starts in progress
}

// StartNode starts a Starter, which lives until life ends or it is closed.
func StartNode(life context.Context, box sandbox.Sandbox) (*Starter, error) {
	s := &Starter{life: life, box: box}
	w, err := awaitNode(life, box)
	if err != nil {
		return nil, err
	}
	s.waits = w
	return s, nil
}

// Alive reports whether a Node waits or is being started.
func (s *Starter) Alive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.closed && (s.waits == nil || s.waits.alive())
}

// Close ends the waiting Node. Running code continues.
func (s *Starter) Close() {
	s.mu.Lock()
	s.closed = true
	w := s.waits
	s.waits = nil
	s.mu.Unlock()
	if w != nil {
		w.closeNode()
	}
	s.starts.Wait()
}

// claim returns the waiting Node and starts the next one.
func (s *Starter) claim() *waitingNode {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.waits
	if s.closed || w == nil || !w.alive() {
		return nil
	}
	s.waits = nil
	s.starts.Go(s.startNext)
	return w
}

// startNext starts a Node. If that fails, the next piece of code finds none.
func (s *Starter) startNext() {
	w, err := awaitNode(s.life, s.box)
	if err != nil {
		w = &waitingNode{} // it is not alive
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.waits = w
		return
	}
	if err == nil {
		go w.closeNode()
	}
}

// Run runs code in a process of its own. It returns ErrBusy while no Node waits. Processes that the code
// started end with it.
func (s *Starter) Run(ctx context.Context, c Code) (Result, error) {
	w := s.claim()
	if w == nil {
		return Result{}, ErrBusy
	}
	return w.runCode(ctx, c, s.box)
}

// waitingNode is a Node that waits for code.
type waitingNode struct {
	p    sandbox.Process // nil if the start failed
	in   *io.PipeWriter
	over context.CancelFunc

	mu   sync.Mutex // guards the Writers of the code
	code *Code      // nil while it waits
	most int64
	out  int64
	err  int64
	full chan struct{}
	once sync.Once // guards closing full
}

func awaitNode(life context.Context, box sandbox.Sandbox) (*waitingNode, error) {
	life, over := context.WithCancel(life)
	r, in := io.Pipe()
	w := &waitingNode{in: in, over: over, full: make(chan struct{})}
	p, err := box.Exec(life, sandbox.Command{
		Argv: []string{"node", "-e", withShow(onceText)}, Stdin: r, Timeout: -1, OutputBytes: -1,
		Stdout: writer(func(b []byte) error { return w.print(b, &w.out, func(c *Code) io.Writer { return c.Stdout }) }),
		Stderr: writer(func(b []byte) error { return w.print(b, &w.err, func(c *Code) io.Writer { return c.Stderr }) }),
	})
	if err != nil {
		over()
		return nil, err
	}
	w.p = p
	return w, nil
}

func (w *waitingNode) alive() bool {
	if w.p == nil {
		return false
	}
	select {
	case <-w.p.Done():
		return false
	default:
		return true
	}
}

// print passes on output up to the limit.
func (w *waitingNode) print(b []byte, passed *int64, to func(*Code) io.Writer) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.code == nil {
		return nil // output before any code was sent
	}
	if w.most >= 0 && *passed+int64(len(b)) > w.most {
		b = b[:w.most-*passed]
		w.once.Do(func() { close(w.full) })
	}
	*passed += int64(len(b))
	if out := to(w.code); out != nil && len(b) > 0 {
		out.Write(b)
	}
	return nil
}

func (w *waitingNode) runCode(ctx context.Context, c Code, box sandbox.Sandbox) (Result, error) {
	began, limits, ooms := time.Now(), box.Limits(), oomKills(box)
	w.mu.Lock()
	w.code, w.most = &c, int64(limits.OutputBytes)
	if c.OutputBytes != 0 {
		w.most = int64(c.OutputBytes)
	}
	w.mu.Unlock()
	show := newResultFile(box)
	go w.submitCode(c, show.name)
	late, free := deadline(c, box)
	defer free()
	seen, why := w.awaitResult(ctx, late)
	r, err := w.p.Wait()
	w.over()
	w.in.Close()
	status(&seen, r)
	if why == nil && !seen.Reaped {
		why = err
	}
	if r.Code != 0 || r.Signal != 0 {
		seen.OOMKills = oomKills(box) - ooms
	}
	select {
	case <-w.full: // even if it exited at the same time
		seen.OutputFull = true
	default:
	}
	r.Outcome, r.Took, r.StdoutSize, r.StderrSize = seen.Outcome(), time.Since(began), w.out, w.err
	return Result{Result: r, Error: show.to(ctx, c)}, why
}

// submitCode sends the code followed by its standard input.
func (w *waitingNode) submitCode(c Code, show string) {
	body, err := json.Marshal(request{Code: c.Source, Env: c.Env, Dir: c.Dir, Shown: show})
	if err != nil {
		body = []byte("{}") // impossible for strings
	}
	b := append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(body)+len(c.Stdin)), uint32(len(body))), body...)
	w.in.Write(append(b, c.Stdin...))
	w.in.Close()
}

// awaitResult waits for the end, and causes it if necessary.
func (w *waitingNode) awaitResult(ctx context.Context, late <-chan struct{}) (seen sandbox.Evidence, why error) {
	signal := 15
	select {
	case <-w.p.Done():
		return seen, nil
	case <-late:
		seen.TimeUp = true
	case <-ctx.Done():
		why = context.Cause(ctx)
	case <-w.full:
		seen.OutputFull, signal = true, 9
	}
	w.p.Signal(signal)
	select {
	case <-w.p.Done():
	case <-time.After(termGrace):
		w.closeNode()
	}
	return seen, why
}

// closeNode kills the process with all its descendants and waits for that.
func (w *waitingNode) closeNode() {
	if w.p == nil {
		return
	}
	w.over()
	w.p.Signal(9)
	<-w.p.Done()
	w.in.Close()
}
