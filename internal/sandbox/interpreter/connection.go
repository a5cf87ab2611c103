package interpreter

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"gatehouse/internal/sandbox"
)

const (
	mostFrame  = 12 << 20         // bytes of one frame: a part in base64, and its header
	mostParts  = 64               // of one piece of code; further ones are dropped
	startWait  = 20 * time.Second // for the start of an interpreter
	stopGrace  = 5 * time.Second  // from interrupting code to killing the interpreter
	mostStderr = 4 << 10          // bytes kept of an interpreter's own messages
)

// request is a request to Node.
type request struct {
	Code  string   `json:"code"`
	Stdin string   `json:"stdin,omitempty"` // base64
	Env   []string `json:"env,omitempty"`
	Dir   string   `json:"dir,omitempty"`
	Shown string   `json:"shown,omitempty"` // a file for the parts, of a Node that waits
}

// ended is the interpreter's message that code ended.
type ended struct {
	Code, Signal int
	CPU          float64 // seconds
	RSS          int64   // bytes
	Dirty, Gone  bool    // the interpreter ends, because the code left processes behind or ended it
}

// shown is the interpreter's message about a part or an error.
type shown struct{ What, MIME, Data, Name, Message, Traceback string }

// connection is a connection to an interpreter.
type connection struct {
	box  sandbox.Sandbox
	p    sandbox.Process
	in   *io.PipeWriter
	over context.CancelFunc // ends the process

	request func(Code) []byte // encodes a request

	turn sync.Mutex // held while a piece of code runs; locked before mu

	ready chan struct{}
	once  sync.Once

	// mu guards the fields below.
	mu     sync.Mutex
	buf    bytes.Buffer // data received, up to an unfinished frame
	stderr bytes.Buffer
	now    *piece
}

// piece is code that runs.
type piece struct {
	code     Code
	most     int64
	out, err int64 // bytes passed on
	parts    int
	failure  *Failure
	ended    chan ended
	full     chan struct{}
	once     sync.Once // guards closing full
}

// startInterpreter starts an interpreter, which lives until life ends or it is closed.
func startInterpreter(life context.Context, box sandbox.Sandbox, argv []string,
	request func(Code) []byte) (*connection, error) {
	life, over := context.WithCancel(life)
	r, w := io.Pipe()
	t := &connection{box: box, in: w, over: over, request: request, ready: make(chan struct{})}
	p, err := box.Exec(life, sandbox.Command{
		Argv: argv, Stdin: r, Stdout: writer(t.receive), Stderr: writer(t.receiveStderr), Timeout: -1, OutputBytes: -1,
	})
	if err != nil {
		over()
		return nil, err
	}
	t.p = p
	select {
	case <-t.ready:
		return t, nil
	case <-p.Done():
		over()
		return nil, fmt.Errorf("the interpreter exited at once: %s", t.messages())
	case <-time.After(startWait):
		t.closeConn()
		return nil, errors.New("the interpreter was not ready in time")
	case <-life.Done():
		t.closeConn()
		return nil, context.Cause(life)
	}
}

type writer func([]byte) error

func (w writer) Write(b []byte) (int, error) {
	if err := w(b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// messages returns the interpreter's own messages.
func (t *connection) messages() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.stderr.Bytes()))
}

// receiveStderr handles data outside of frames: messages of the interpreter itself, or output of processes that the
// code did not wait for.
func (t *connection) receiveStderr(b []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now != nil {
		t.now.print(t.now.code.Stderr, &t.now.err, b)
		return nil
	}
	if room := mostStderr - t.stderr.Len(); room > 0 {
		t.stderr.Write(b[:min(len(b), room)])
	}
	return nil
}

var errFrame = errors.New("the interpreter sent a malformed frame")

// receive handles data from the interpreter, which consists of frames.
func (t *connection) receive(b []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Write(b)
	for {
		head := t.buf.Bytes()
		if len(head) < 5 {
			return nil
		}
		size := int(binary.BigEndian.Uint32(head[1:]))
		if size > mostFrame {
			t.p.Signal(9)
			return errFrame
		}
		if len(head) < 5+size {
			return nil
		}
		if err := t.frame(head[0], head[5:5+size]); err != nil {
			t.over()
			return err
		}
		t.buf.Next(5 + size)
	}
}

func (t *connection) frame(kind byte, body []byte) error {
	if kind == 'r' {
		t.once.Do(func() { close(t.ready) })
		return nil
	}
	p := t.now
	if p == nil {
		return nil // of code that was abandoned
	}
	switch kind {
	case 'o':
		p.print(p.code.Stdout, &p.out, body)
	case 'e':
		p.print(p.code.Stderr, &p.err, body)
	case 'd':
		var s shown
		if err := json.Unmarshal(body, &s); err != nil {
			return errFrame
		}
		p.showOutput(s)
	case 'x':
		var e ended
		if err := json.Unmarshal(body, &e); err != nil || e.Code < 0 || e.Code > 255 || e.Signal < 0 ||
			e.Signal > 64 || e.CPU < 0 || e.RSS < 0 {
			return errFrame
		}
		t.now = nil
		p.ended <- e
	default:
		return errFrame
	}
	return nil
}

// print passes on output up to the limit.
func (p *piece) print(w io.Writer, passed *int64, b []byte) {
	if p.most >= 0 && *passed+int64(len(b)) > p.most {
		b = b[:p.most-*passed]
		p.once.Do(func() { close(p.full) })
	}
	*passed += int64(len(b))
	if w != nil && len(b) > 0 {
		w.Write(b)
	}
}

func (p *piece) showOutput(s shown) {
	if s.What == "error" {
		p.failure = &Failure{s.Name, s.Message, s.Traceback}
		return
	}
	data, err := base64.StdEncoding.DecodeString(s.Data)
	if p.parts++; err != nil || p.parts > mostParts || p.code.Show == nil {
		return
	}
	p.code.Show(Part{s.MIME, data})
}

// runCode runs code. stop interrupts code whose time is up, before it is killed together with its interpreter; nil
// kills it at once.
func (t *connection) runCode(ctx context.Context, c Code, stop func()) (Result, error) {
	began := time.Now()
	limits := t.box.Limits()
	p := &piece{code: c, most: int64(limits.OutputBytes), ended: make(chan ended, 1), full: make(chan struct{})}
	if c.OutputBytes != 0 {
		p.most = int64(c.OutputBytes)
	}
	ooms := oomKills(t.box)
	t.mu.Lock()
	t.now = p
	t.mu.Unlock()
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		t.submitCode(c)
	}()
	late, free := deadline(c, t.box)
	defer free()
	seen, e, why := t.awaitPiece(ctx, p, late, stop)
	t.mu.Lock()
	if t.now == p {
		t.now = nil
	}
	t.mu.Unlock()
	<-asked // at once: the request was sent, or its reader has ended
	if e == nil {
		e = t.last(&seen)
	} else {
		seen.Reaped = true
	}
	seen.Code, seen.Signal = e.Code, e.Signal
	if e.Code != 0 || e.Signal != 0 {
		seen.OOMKills = oomKills(t.box) - ooms
	}
	return Result{
		Result: sandbox.Result{
			Outcome: seen.Outcome(), Code: e.Code, Signal: e.Signal, Took: time.Since(began),
			CPU: time.Duration(e.CPU * float64(time.Second)), MaxRSS: e.RSS, StdoutSize: p.out, StderrSize: p.err,
		},
		Error: p.failure, StateLost: e.Gone,
	}, why
}

// submitCode sends one request.
func (t *connection) submitCode(c Code) {
	body := t.request(c)
	t.in.Write(append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(body)), uint32(len(body))), body...))
}

// encodeJSON encodes a request for Node.
func encodeJSON(c Code) []byte {
	r := request{Code: c.Source, Env: c.Env, Dir: c.Dir}
	if len(c.Stdin) > 0 {
		r.Stdin = base64.StdEncoding.EncodeToString(c.Stdin)
	}
	b, err := json.Marshal(r)
	if err != nil {
		return []byte("{}") // impossible for strings
	}
	return b
}

// encodeFields encodes a request for Python, which decodes it without importing anything.
func encodeFields(c Code) (b []byte) {
	for _, f := range append([]string{c.Source, string(c.Stdin), c.Dir}, c.Env...) {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(f))), f...)
	}
	return b
}

// deadline returns a channel that is closed when the time of the code is up; nil means never. The time stops
// while the sandbox is paused. stop releases the timer.
func deadline(c Code, box sandbox.Sandbox) (late <-chan struct{}, stop func()) {
	most := c.Timeout
	if most == 0 {
		most = box.Limits().Call
	}
	if most < 0 {
		return nil, func() {}
	}
	if p, ok := box.(interface {
		After(time.Duration) (<-chan struct{}, func())
	}); ok {
		return p.After(most)
	}
	up := make(chan struct{})
	t := time.AfterFunc(most, func() { close(up) })
	return up, func() { t.Stop() }
}

// awaitPiece waits for the end of the code, and causes it if necessary. If e is nil, the interpreter has ended too.
func (t *connection) awaitPiece(ctx context.Context, p *piece, late <-chan struct{},
	stop func()) (seen sandbox.Evidence, e *ended, why error) {
	select {
	case got := <-p.ended:
		return seen, t.waitIfEnding(got), nil
	case <-t.p.Done():
		select {
		case got := <-p.ended:
			return seen, &got, nil
		default:
			return seen, nil, nil
		}
	case <-late:
		seen.TimeUp = true
	case <-ctx.Done():
		why = context.Cause(ctx)
	case <-p.full:
		seen.OutputFull = true
	}
	if stop != nil {
		stop()
		select {
		case got := <-p.ended:
			return seen, t.waitIfEnding(got), why
		case <-t.p.Done():
		case <-time.After(stopGrace):
		}
	}
	t.closeConn()
	return seen, nil, why
}

// waitIfEnding waits for an interpreter that announced its end.
func (t *connection) waitIfEnding(e ended) *ended {
	if e.Dirty || e.Gone {
		t.closeConn()
	}
	return &e
}

// last returns how the interpreter ended, if the code ended it.
func (t *connection) last(seen *sandbox.Evidence) *ended {
	r, _ := t.p.Wait()
	status(seen, r)
	return &ended{Code: r.Code, Signal: r.Signal, CPU: r.CPU.Seconds(), RSS: r.MaxRSS, Gone: true}
}

// status adds the driver's report of an interpreter's end to the evidence. If the interpreter ended with its
// sandbox there is no status, even though the fields are zero.
func status(seen *sandbox.Evidence, r sandbox.Result) {
	seen.Code, seen.Signal = r.Code, r.Signal
	seen.Reaped = r.Code != 0 || r.Signal != 0 || r.Outcome == sandbox.OK
	if !seen.Reaped && r.Outcome == sandbox.OutOfMemory {
		seen.OOMKills = 1
	}
}

// alive reports whether the interpreter runs.
func (t *connection) alive() bool {
	select {
	case <-t.p.Done():
		return false
	default:
		return true
	}
}

// closeConn kills the interpreter with all its descendants and waits for that. In a paused sandbox it does not
// wait: they end when the sandbox is resumed.
func (t *connection) closeConn() {
	t.over()
	t.p.Signal(9)
	<-t.p.Done()
	t.in.Close()
}

// oomKills returns how many processes were killed so far because memory ran out, if that is known.
func oomKills(box sandbox.Sandbox) int {
	if m, ok := box.(interface{ OOMKills() int }); ok {
		return m.OOMKills()
	}
	return 0
}
