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
	mostFrame  = 12 << 20         // bytes of one frame: a part in base64, and its head
	mostParts  = 64               // of one piece of code; what is more is dropped
	startWait  = 20 * time.Second // for an interpreter to be ready
	stopGrace  = 5 * time.Second  // from interrupting code until the interpreter is killed
	mostStderr = 4 << 10          // bytes of what an interpreter says of itself
)

// request is what Node is asked.
type request struct {
	Code  string   `json:"code"`
	Stdin string   `json:"stdin,omitempty"` // base64
	Env   []string `json:"env,omitempty"`
	Dir   string   `json:"dir,omitempty"`
	Shown string   `json:"shown,omitempty"` // a file for what it shows, of a Node that waits
}

// ended is how it says that code ended.
type ended struct {
	Code, Signal int
	CPU          float64 // seconds
	RSS          int64   // bytes
	Dirty, Gone  bool    // the interpreter ends: the code left something behind, or took it along
}

// shown is what else it says.
type shown struct{ What, MIME, Data, Name, Message, Traceback string }

// talk is a conversation with an interpreter.
type talk struct {
	box  sandbox.Sandbox
	p    sandbox.Process
	in   *io.PipeWriter
	over context.CancelFunc // ends the process

	request func(Code) []byte // how it is asked

	// turn lets one piece of code run at a time. It is taken before mu.
	turn sync.Mutex

	ready chan struct{}
	once  sync.Once

	// mu guards what follows.
	mu     sync.Mutex
	buf    bytes.Buffer // of what came, an unfinished frame
	stderr bytes.Buffer
	now    *piece
}

// piece is code that runs.
type piece struct {
	code     Code
	most     int64
	out, err int64 // bytes that were passed on
	parts    int
	failure  *Failure
	ended    chan ended
	full     chan struct{}
	once     sync.Once // of full
}

// begin starts an interpreter, which lives until life ends or it is closed.
func begin(life context.Context, box sandbox.Sandbox, argv []string, request func(Code) []byte) (*talk, error) {
	life, over := context.WithCancel(life)
	r, w := io.Pipe()
	t := &talk{box: box, in: w, over: over, request: request, ready: make(chan struct{})}
	p, err := box.Exec(life, sandbox.Command{
		Argv: argv, Stdin: r, Stdout: writer(t.take), Stderr: writer(t.complain), Timeout: -1, OutputBytes: -1,
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
		return nil, fmt.Errorf("the interpreter ended at once: %s", t.words())
	case <-time.After(startWait):
		t.close()
		return nil, errors.New("the interpreter was not ready in time")
	case <-life.Done():
		t.close()
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

// words are the last an interpreter said.
func (t *talk) words() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.stderr.Bytes()))
}

// complain takes what comes outside of frames: words of the interpreter itself,
// or output of what the code started and did not wait for.
func (t *talk) complain(b []byte) error {
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

var errFrame = errors.New("the interpreter said something it should not")

// take takes what comes of the interpreter, which are frames.
func (t *talk) take(b []byte) error {
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

func (t *talk) frame(kind byte, body []byte) error {
	if kind == 'r' {
		t.once.Do(func() { close(t.ready) })
		return nil
	}
	p := t.now
	if p == nil {
		return nil // of code nobody waits for any more
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
		p.show(s)
	case 'x':
		var e ended
		if err := json.Unmarshal(body, &e); err != nil || e.Code < 0 || e.Code > 255 || e.Signal < 0 || e.Signal > 64 || e.CPU < 0 || e.RSS < 0 {
			return errFrame
		}
		t.now = nil
		p.ended <- e
	default:
		return errFrame
	}
	return nil
}

// print passes on what may still be.
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

func (p *piece) show(s shown) {
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

// run has code run. stop is done to code that has to end before it is killed
// together with its interpreter; nil means it is killed at once.
func (t *talk) run(ctx context.Context, c Code, stop func()) (Result, error) {
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
		t.ask(c)
	}()
	late, free := deadline(c, t.box)
	defer free()
	seen, e, why := t.await(ctx, p, late, stop)
	t.mu.Lock()
	if t.now == p {
		t.now = nil
	}
	t.mu.Unlock()
	<-asked // at once: the request was taken, or its reader is gone
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
			Outcome: seen.Judge(), Code: e.Code, Signal: e.Signal, Took: time.Since(began),
			CPU: time.Duration(e.CPU * float64(time.Second)), MaxRSS: e.RSS, StdoutSize: p.out, StderrSize: p.err,
		},
		Error: p.failure, Forgot: e.Gone,
	}, why
}

// ask sends one request.
func (t *talk) ask(c Code) {
	body := t.request(c)
	t.in.Write(append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(body)), uint32(len(body))), body...))
}

// asJSON is a request as Node reads it.
func asJSON(c Code) []byte {
	r := request{Code: c.Source, Env: c.Env, Dir: c.Dir}
	if len(c.Stdin) > 0 {
		r.Stdin = base64.StdEncoding.EncodeToString(c.Stdin)
	}
	b, err := json.Marshal(r)
	if err != nil {
		return []byte("{}") // strings
	}
	return b
}

// asFields is a request as Python reads it, without importing anything.
func asFields(c Code) (b []byte) {
	for _, f := range append([]string{c.Source, string(c.Stdin), c.Dir}, c.Env...) {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(f))), f...)
	}
	return b
}

// deadline is closed when the time of code is up; nil means never. Where the
// sandbox can be paused its time stands still then. stop lets go of it.
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

// await waits for the end of code and brings it about where it must. Without
// an ended the interpreter has ended too.
func (t *talk) await(ctx context.Context, p *piece, late <-chan struct{}, stop func()) (seen sandbox.Evidence, e *ended, why error) {
	select {
	case got := <-p.ended:
		return seen, t.settled(got), nil
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
			return seen, t.settled(got), why
		case <-t.p.Done():
		case <-time.After(stopGrace):
		}
	}
	t.close()
	return seen, nil, why
}

// settled waits for an interpreter that said it is about to end.
func (t *talk) settled(e ended) *ended {
	if e.Dirty || e.Gone {
		t.close()
	}
	return &e
}

// last is how the interpreter itself ended, when code took it along.
func (t *talk) last(seen *sandbox.Evidence) *ended {
	r, _ := t.p.Wait()
	status(seen, r)
	return &ended{Code: r.Code, Signal: r.Signal, CPU: r.CPU.Seconds(), RSS: r.MaxRSS, Gone: true}
}

// status adds what the driver says of an interpreter's end to what was seen. One
// that ended with its sandbox has no status, whatever its zeros look like.
func status(seen *sandbox.Evidence, r sandbox.Result) {
	seen.Code, seen.Signal = r.Code, r.Signal
	seen.Reaped = r.Code != 0 || r.Signal != 0 || r.Outcome == sandbox.OK
	if !seen.Reaped && r.Outcome == sandbox.OutOfMemory {
		seen.OOMKills = 1
	}
}

// alive reports whether it can be talked to.
func (t *talk) alive() bool {
	select {
	case <-t.p.Done():
		return false
	default:
		return true
	}
}

// close ends the interpreter and all that came of it, and waits for that. In a
// sandbox that is paused it does not wait: they end when that goes on.
func (t *talk) close() {
	t.over()
	t.p.Signal(9)
	<-t.p.Done()
	t.in.Close()
}

// oomKills is how often memory ran out in a sandbox so far, where that is known.
func oomKills(box sandbox.Sandbox) int {
	if m, ok := box.(interface{ OOMKills() int }); ok {
		return m.OOMKills()
	}
	return 0
}
