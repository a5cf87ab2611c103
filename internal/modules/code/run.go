package code

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/dispatch/toolsearch"
	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/interpreter"
	"gatehouse/internal/sandbox/manager"
	"gatehouse/internal/sandbox/toolchannel"
	"gatehouse/tool"
)

const (
	port        = 7711            // of the channel, on the loopback interface of the sandbox
	folder      = "/tmp/tools"    // of the program and the stubs, in the sandbox
	mostSource  = 256 << 10       // bytes of a program
	mostOutput  = 1 << 20         // bytes that are kept of what a program prints
	expiryGrace = 2 * time.Second // from the exception in an expired program to its end
	listenWait  = 10 * time.Second
)

// run is one program. It is safe for concurrent use. One struct, because its record, its answer and its approval are made
// of all of it.
type run struct {
	m        *programs
	id       string
	owner    string
	language language
	source   string
	code     string          // what runs: the source, or what it was translated to
	args     json.RawMessage // of a saved program
	lines    []int           // of what runs, each with its line of the source; nil if they are the same
	asks     bool            // its view lets it call tools that ask
	began    time.Time

	administrator bool // its sandbox may be one of those that are kept for administrators

	log *callLog

	ctx    context.Context // of the program
	cancel context.CancelCauseFunc
	calls  context.Context // of its calls, which expire before it
	expire context.CancelCauseFunc
	box    *manager.Box
	done   chan struct{} // closed when outcome and err are set

	outcome *runOut
	err     error

	output  transcript
	freezer freezer

	mu       sync.Mutex
	parent   tool.Call // the request that waits for it, or the last that did
	waiters  int
	made     int // calls so far
	busy     int // calls that are being made, without those that wait for an answer
	returned json.RawMessage
	asking   []*asking
	changed  chan struct{} // closed when there is something new for the waiting calls
}

// errExpired ends the calls of a program whose time is up.
var errExpired = errors.New("the time of the program is up")

// start starts a program on a goroutine of its own.
func (m *programs) start(ctx context.Context, c *tool.Call, l language, source string, args json.RawMessage,
	limit time.Duration) (*run, error) {
	tools, err := m.cfg.Tools(ctx, c.Caller)
	if err != nil {
		return nil, err
	}
	text, lines := source, []int(nil)
	if l.program == "program.ts" {
		if text, lines, err = javascriptOf(source); err != nil {
			return nil, err
		}
	}
	release, err := m.cfg.Claim(c.Caller)
	if err != nil {
		return nil, &tool.Refusal{Code: tool.CodeBusy, Message: err.Error(), Next: "Wait for another program to end."}
	}
	r := &run{
		m: m, id: m.deps.NewID("program"), owner: c.Caller.Owner, language: l, source: source, code: text, lines: lines,
		args: args, asks: tools.Asks,
		administrator: m.cfg.Administrator != nil && m.cfg.Administrator(c.Caller),
		began:         time.Now(), done: make(chan struct{}), changed: make(chan struct{}), parent: *c,
	}
	// What the host has put into the context for the calls of this one stays; its end is the program's own.
	r.ctx, r.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(m.life, func() { r.cancel(errClosing) })
	r.calls, r.expire = context.WithCancelCause(r.ctx)
	if r.log, err = m.journal.open(r); err == nil {
		err = m.addRun(r)
	}
	if err != nil {
		stop()
		release()
		return nil, err
	}
	go func() {
		defer m.work.Done()
		defer release()
		defer stop()
		r.outcome, r.err = r.execute(tools, limit)
		r.cancel(nil)
		r.finish()
	}()
	return r, nil
}

// finish makes the outcome known, and keeps it for a while.
func (r *run) finish() {
	ended := "failed"
	if r.outcome != nil {
		ended = r.outcome.Outcome
	}
	r.log.writeOutcome(ended)
	r.mu.Lock()
	close(r.done)
	r.notify()
	r.mu.Unlock()
	time.AfterFunc(keptOutcome, func() { r.m.dropRun(r) })
}

// notify wakes the calls that wait for the program. r.mu is held.
func (r *run) notify() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// programOwner is the owner of the sandboxes of programs, which no tool of a caller reaches: what runs in such a
// sandbox is the program that its approvals show.
func programOwner(owner string) string { return owner + "#program" }

// execute runs the program to its end.
func (r *run) execute(tools toolsearch.Catalog, limit time.Duration) (*runOut, error) {
	boxes, err := r.m.cfg.Boxes()
	if err != nil {
		return nil, err
	}
	b, err := boxes.Create(r.ctx, programOwner(r.owner), manager.Spec{Name: "program", Administrator: r.administrator})
	boxes.Serve() // further programs are likely
	if err != nil {
		return nil, notCreated(err)
	}
	r.box, r.freezer.box = b, b
	defer r.freezer.close()
	defer func() {
		if err := boxes.Destroy(programOwner(r.owner), b.ID); err != nil && !errors.Is(err, manager.ErrNotFound) {
			r.m.log.Warn("a sandbox was not released completely", "error", err)
		}
	}()
	defer b.Use()()
	l, err := r.prepareRun(tools)
	if err != nil {
		return nil, err
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		toolchannel.Serve(r.ctx, l, r)
	}()
	res, err := r.runCode(limit)
	r.cancel(nil) // its calls end with it
	<-served
	if err != nil && res.Outcome == "" {
		return nil, err
	}
	return r.result(res), nil
}

// listener is implemented by sandboxes whose agent can listen for the host.
type listener interface {
	Listen(ctx context.Context, port uint16) (net.Listener, error)
}

// prepareRun writes the files of the program and opens its channel, all at once.
func (r *run) prepareRun(tools toolsearch.Catalog) (net.Listener, error) {
	on, ok := r.box.Sandbox.(listener)
	files, err := r.box.Files()
	if !ok || err != nil {
		return nil, &tool.Refusal{
			Code: tool.CodeUnsupported,
			Message: "sandboxes of the driver " + r.box.Driver +
				" run no programs, because they have no channel to the host",
		}
	}
	ctx, cancel := context.WithTimeout(r.ctx, listenWait)
	defer cancel()
	var l net.Listener
	var failed error
	var all sync.WaitGroup
	var writing sync.Mutex // guards err
	all.Go(func() { l, failed = on.Listen(ctx, port) })
	for name, text := range r.language.files(r, tools) {
		all.Go(func() {
			_, e := files.WriteFile(ctx, folder+"/"+name, strings.NewReader(text), sandbox.WriteOptions{Parents: true})
			writing.Lock()
			defer writing.Unlock()
			err = errors.Join(err, e)
		})
	}
	all.Wait()
	if err = errors.Join(err, failed); err != nil && l != nil {
		l.Close()
	}
	return l, err
}

// runCode runs the program in an interpreter that waits in the sandbox, if one does.
func (r *run) runCode(limit time.Duration) (interpreter.Result, error) {
	late, stop := r.after(limit)
	defer stop()
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-late:
			r.expired()
		case <-ended:
		}
	}()
	return r.box.Code(r.ctx, r.language.interpreter, interpreter.Code{
		Source: r.language.start(), Stdout: &r.output, Stderr: &r.output, Timeout: limit + expiryGrace,
	})
}

// after returns a channel that is closed after so much time in which the sandbox was not frozen.
func (r *run) after(d time.Duration) (<-chan struct{}, func()) {
	if p, ok := r.box.Sandbox.(interface {
		After(time.Duration) (<-chan struct{}, func())
	}); ok {
		return p.After(d)
	}
	up := make(chan struct{})
	t := time.AfterFunc(d, func() { close(up) })
	return up, func() { t.Stop() }
}

// expired raises an exception in every call of the program that is being made or will be.
func (r *run) expired() { r.expire(errExpired) }

// attach waits until the program has ended or asks. answers are those of the caller.
func (r *run) attach(ctx context.Context, c *tool.Call) (tool.Result, error) {
	r.mu.Lock()
	r.parent = *c
	r.waiters++
	r.answer(c.Answers)
	r.mu.Unlock()
	defer r.leave(ctx)
	for {
		r.mu.Lock()
		changed := r.changed
		questions := r.questions()
		r.mu.Unlock()
		select {
		case <-r.done:
			if r.err != nil {
				return tool.Result{}, r.err
			}
			return tool.Typed(*r.outcome), nil
		default:
		}
		if len(questions) > 0 {
			return tool.Result{Input: &tool.Input{
				Questions: questions, State: []byte(r.id), Here: true, Forget: answeredKeys(c.Answers, questions),
			}}, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return tool.Result{}, context.Cause(ctx)
		}
	}
}

// leave ends the program if its caller is gone and no other request waits for it.
func (r *run) leave(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiters--; r.waiters == 0 && ctx.Err() != nil {
		r.cancel(context.Cause(ctx))
	}
}

func notCreated(err error) error {
	if errors.Is(err, manager.ErrFull) {
		return &tool.Refusal{Code: tool.CodeBusy, Message: err.Error()}
	}
	return &tool.Refusal{Code: tool.CodeUnavailable, Message: fmt.Sprintf("no sandbox for the program: %v", err),
		Next: "gatehouse doctor says what this host lacks for sandboxes."}
}

// transcript keeps what a program prints.
type transcript struct {
	mu   sync.Mutex
	b    []byte
	lost int
}

func (t *transcript) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	room := max(0, min(len(b), mostOutput-len(t.b)))
	t.b = append(t.b, b[:room]...)
	t.lost += len(b) - room
	return len(b), nil
}

func (t *transcript) transcriptText() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := displaytext.Visible(t.b)
	if t.lost > 0 {
		text += fmt.Sprintf("\n[%d further bytes of the output were dropped]", t.lost)
	}
	return text
}
