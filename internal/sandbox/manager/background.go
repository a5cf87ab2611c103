package manager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"gatehouse/internal/sandbox"
)

const mostBackground = 64 // processes of one sandbox, including ended ones

// ErrNoProcess is returned for an id that is not a process of the sandbox.
var ErrNoProcess = errors.New("the process does not exist in this sandbox")

// ErrTooManyProcesses is returned if the sandbox has the most processes allowed.
var ErrTooManyProcesses = fmt.Errorf("%d processes run in the background of this sandbox, which is the most: "+
	"end one first", mostBackground)

// Background is a program that continues after the call that started it. It ends with its sandbox.
type Background struct {
	ID, Command string
	Began       time.Time
	Terminal    bool // it has a terminal, so that Output is what that displays

	p      sandbox.Process
	typing *inputQueue
	log    *outputTail
}

// Start starts a program in the background. Its Stdin, Stdout and Stderr are those of the Background and
// override those of c. It has no deadline.
func (b *Box) Start(c sandbox.Command, called string) (*Background, error) {
	b.mu.Lock()
	if len(b.background) >= mostBackground && !b.forgetOne() {
		b.mu.Unlock()
		return nil, ErrTooManyProcesses
	}
	g := &Background{
		ID:      b.manager.o.NewID("process"),
		Command: called,
		Began:   time.Now(),

		Terminal: c.Terminal != nil,
		log:      newJournal(b.Limits().OutputBytes),
	}
	b.background[g.ID] = g // reserves its place
	b.mu.Unlock()
	r, w := io.Pipe()
	g.typing = newTyping(w)
	c.Env = b.with(c.Env)
	c.Stdin, c.Stdout, c.Stderr, c.Timeout, c.OutputBytes = r, g.log, g.log, -1, -1
	p, err := b.Sandbox.Exec(b.manager.life, c)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		delete(b.background, g.ID)
		w.Close()
		return nil, err
	}
	g.p = p
	go g.typing.pass(p)
	go func() { // it ends with the sandbox at the latest
		<-p.Done()
		w.Close()
		g.log.endOutput()
	}()
	return g, nil
}

// forgetOne removes the oldest process that has ended. The caller holds b.mu.
func (b *Box) forgetOne() bool {
	var oldest *Background
	for _, g := range b.background {
		if g.p != nil && g.over() && (oldest == nil || g.Began.Before(oldest.Began)) {
			oldest = g
		}
	}
	if oldest == nil {
		return false
	}
	delete(b.background, oldest.ID)
	return true
}

// Process returns the process with an id, or ErrNoProcess.
func (b *Box) Process(id string) (*Background, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if g := b.background[id]; g != nil && g.p != nil {
		return g, nil
	}
	return nil, ErrNoProcess
}

// Processes returns all processes, including ended ones, the oldest first.
func (b *Box) Processes() (all []*Background) {
	b.mu.Lock()
	for _, g := range b.background {
		if g.p != nil {
			all = append(all, g)
		}
	}
	b.mu.Unlock()
	slices.SortFunc(all, func(a, b *Background) int { return a.Began.Compare(b.Began) })
	return all
}

func (g *Background) over() bool {
	if g.p == nil {
		return false // it is being started
	}
	select {
	case <-g.p.Done():
		return true
	default:
		return false
	}
}

// Ended returns how it ended, if it has.
func (g *Background) Ended() (sandbox.Result, bool) {
	if !g.over() {
		return sandbox.Result{}, false
	}
	r, _ := g.p.Wait() // the outcome contains the error
	return r, true
}

// Done is closed when the process and its output have ended.
func (g *Background) Done() <-chan struct{} { return g.p.Done() }

// ErrNoTerminal is returned for a process without a terminal.
var ErrNoTerminal = errors.New("the process has no terminal: start it with one")

// Resize changes the size of its terminal.
func (g *Background) Resize(s sandbox.Size) error {
	if !g.Terminal {
		return ErrNoTerminal
	}
	return g.p.Resize(s)
}

// Signal sends a signal to its process group.
func (g *Background) Signal(number int) error { return g.p.Signal(number) }

// Output returns its output, both streams in order of arrival, from the byte since, and at most most bytes.
// next is where to continue, lost how many bytes before are no longer kept. If there is nothing new, it waits
// until ctx ends.
func (g *Background) Output(ctx context.Context, since int64, most int) (text []byte, next, lost int64) {
	return g.log.readSince(ctx, since, most)
}

// outputTail keeps the end of what is written to it. Writers never wait.
type outputTail struct {
	most int

	mu    sync.Mutex
	kept  []byte
	total int64 // bytes that were written
	more  chan struct{}
	ended bool
}

func newJournal(most int) *outputTail {
	return &outputTail{most: max(most, 1), more: make(chan struct{})}
}

// Write never fails.
func (o *outputTail) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.total += int64(len(b))
	o.kept = append(o.kept, b[max(len(b)-o.most, 0):]...)
	if over := len(o.kept) - 2*o.most; over > 0 { // not for every write
		o.kept = slices.Clone(o.kept[len(o.kept)-o.most:])
	}
	o.wake()
	return len(b), nil
}

func (o *outputTail) endOutput() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	o.wake()
}

func (o *outputTail) wake() {
	close(o.more)
	o.more = make(chan struct{})
}

func (o *outputTail) readSince(ctx context.Context, since int64, most int) (text []byte, next, lost int64) {
	for {
		o.mu.Lock()
		since = min(max(since, 0), o.total)
		first := o.total - int64(min(len(o.kept), o.most))
		if since < first {
			lost, since = first-since, first
		}
		fresh := o.kept[len(o.kept)-int(o.total-since):]
		more, ended := o.more, o.ended
		if len(fresh) > 0 || ended || ctx.Err() != nil {
			text = slices.Clone(fresh[:min(len(fresh), most)])
			o.mu.Unlock()
			return text, since + int64(len(text)), lost
		}
		o.mu.Unlock()
		select {
		case <-more:
		case <-ctx.Done():
		}
	}
}
