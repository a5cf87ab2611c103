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

const mostBackground = 64 // processes of one sandbox, ended ones included

// ErrNoProcess is the answer to every id that is no process of the sandbox.
var ErrNoProcess = errors.New("there is no such process in this sandbox")

// ErrTooManyProcesses is the answer when there are as many as there may be.
var ErrTooManyProcesses = fmt.Errorf("%d processes run in the background of this sandbox, which is the most: end one first", mostBackground)

// Background is a program that goes on after the call that started it. It ends
// with its sandbox.
type Background struct {
	ID, Command string
	Began       time.Time

	p      sandbox.Process
	typing *typing
	log    *journal
}

// Start starts a program that goes on. Its Stdin, Stdout and Stderr are the
// Background's, whatever c says. It has no deadline.
func (b *Box) Start(c sandbox.Command, called string) (*Background, error) {
	b.mu.Lock()
	if len(b.background) >= mostBackground && !b.forgetOne() {
		b.mu.Unlock()
		return nil, ErrTooManyProcesses
	}
	g := &Background{ID: b.manager.o.NewID("process"), Command: called, Began: time.Now(), log: newJournal(b.Limits().OutputBytes)}
	b.background[g.ID] = g // its place is taken
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
		g.log.end()
	}()
	return g, nil
}

// forgetOne makes room by forgetting the ended process that began first. b.mu
// is held.
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

// Process is the one of that id; the error is ErrNoProcess.
func (b *Box) Process(id string) (*Background, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if g := b.background[id]; g != nil && g.p != nil {
		return g, nil
	}
	return nil, ErrNoProcess
}

// Processes are those there are, ended ones included, the oldest first.
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

// Ended tells how it ended, if it has.
func (g *Background) Ended() (sandbox.Result, bool) {
	if !g.over() {
		return sandbox.Result{}, false
	}
	r, _ := g.p.Wait() // why it is lost is in the outcome
	return r, true
}

// Done is closed when it and its output have ended.
func (g *Background) Done() <-chan struct{} { return g.p.Done() }

// Signal sends its process group a signal.
func (g *Background) Signal(number int) error { return g.p.Signal(number) }

// Output is what it printed, both streams as they came in, from
// the byte since on and at most most of it. next is where to go on, lost how
// many bytes before are not kept any more. Without anything new it waits for
// that until ctx ends.
func (g *Background) Output(ctx context.Context, since int64, most int) (text []byte, next, lost int64) {
	return g.log.read(ctx, since, most)
}

// journal keeps the newest part of what is written to it. Nobody who writes to
// it waits.
type journal struct {
	most int

	mu    sync.Mutex
	kept  []byte
	total int64 // bytes that were written
	more  chan struct{}
	ended bool
}

func newJournal(most int) *journal { return &journal{most: max(most, 1), more: make(chan struct{})} }

// Write never fails.
func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.total += int64(len(b))
	j.kept = append(j.kept, b[max(len(b)-j.most, 0):]...)
	if over := len(j.kept) - 2*j.most; over > 0 { // not at every write
		j.kept = slices.Clone(j.kept[len(j.kept)-j.most:])
	}
	j.wake()
	return len(b), nil
}

func (j *journal) end() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ended = true
	j.wake()
}

func (j *journal) wake() {
	close(j.more)
	j.more = make(chan struct{})
}

func (j *journal) read(ctx context.Context, since int64, most int) (text []byte, next, lost int64) {
	for {
		j.mu.Lock()
		since = min(max(since, 0), j.total)
		first := j.total - int64(min(len(j.kept), j.most))
		if since < first {
			lost, since = first-since, first
		}
		fresh := j.kept[len(j.kept)-int(j.total-since):]
		more, ended := j.more, j.ended
		if len(fresh) > 0 || ended || ctx.Err() != nil {
			text = slices.Clone(fresh[:min(len(fresh), most)])
			j.mu.Unlock()
			return text, since + int64(len(text)), lost
		}
		j.mu.Unlock()
		select {
		case <-more:
		case <-ctx.Done():
		}
	}
}
