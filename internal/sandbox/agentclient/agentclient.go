// Package agentclient is the host's end of the channel to the agent in a sandbox: it
// numbers requests, keeps their output apart, and ends what takes too long.
//
// Nothing the agent sends is trusted. Each stream is bounded, a frame that was
// not to come breaks the link, and a broken link never comes back; whoever owns
// the sandbox then ends it.
package agentclient

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agentprotocol"
)

const (
	writeWait = 10 * time.Second       // for an agent that does not read
	termGrace = 250 * time.Millisecond // from asking a program to end until killing it
	killWait  = 5 * time.Second        // from killing a program until the sandbox is given up
	mostOwed  = 16                     // answers nobody waits for any more, until the sandbox is given up
)

// Channel is what frames go through: a socket, or a virtual machine's port.
type Channel interface {
	io.ReadWriteCloser
	SetWriteDeadline(time.Time) error
}

// Link is safe for concurrent use.
type Link struct {
	limits   atomic.Pointer[sandbox.Limits]
	oomKill  func() int // how often memory ran out so far
	done     chan struct{}
	switched chan Channel // what is read after the one before ended

	dialled, accepted chan struct{} // an element for each connection of that kind

	pace pace
	// sending keeps frames apart. It is another lock than mu, because a write may wait for the
	// agent.
	sending sync.Mutex
	channel Channel // also guarded by mu: who holds either may read it

	// mu guards what follows.
	mu       sync.Mutex
	silent   *silence // the agent says nothing until it is told; nil when it may speak
	last     uint32   // number of a request
	requests map[uint32]receiver
	err      error // why it broke
}

// receiver takes the frames of one request.
type receiver interface {
	take(agentprotocol.Frame) (last bool, err error)
	broken(error) // nothing comes any more
}

// New makes a link of a channel whose agent waits for its plan. oomKills may be
// nil. Whoever makes it calls Close.
func New(channel Channel, limits sandbox.Limits, oomKills func() int) *Link {
	if oomKills == nil {
		oomKills = func() int { return 0 }
	}
	l := &Link{channel: channel, oomKill: oomKills, done: make(chan struct{}), switched: make(chan Channel, 1),
		dialled: make(chan struct{}, mostStreams), accepted: make(chan struct{}, mostStreams),
		requests: map[uint32]receiver{}}
	l.limits.Store(&limits)
	go l.read()
	return l
}

// Done is closed when the link is broken or closed.
func (l *Link) Done() <-chan struct{} { return l.done }

// Limits are those that hold.
func (l *Link) Limits() sandbox.Limits { return *l.limits.Load() }

// Close breaks the link.
func (l *Link) Close() error {
	l.fail(sandbox.ErrClosed)
	<-l.done
	return nil
}

// read hands out frames until the link breaks.
func (l *Link) read() {
	for channel := l.channel; channel != nil; {
		err := l.readAll(channel)
		if channel = l.next(); channel == nil {
			l.fail(err)
		}
	}
	l.mu.Lock()
	left := l.requests
	l.requests = nil
	err := l.err
	l.mu.Unlock()
	close(l.done)
	for _, r := range left {
		r.broken(err)
	}
}

// readAll hands out what comes of one channel until it ends.
func (l *Link) readAll(channel Channel) error {
	in := bufio.NewReaderSize(channel, agentprotocol.MaxBody)
	for {
		f, err := agentprotocol.Read(in)
		if err == nil {
			err = l.hand(f)
		}
		if err != nil {
			return err
		}
	}
}

func (l *Link) hand(f agentprotocol.Frame) error {
	l.mu.Lock()
	r := l.requests[f.ID]
	l.mu.Unlock()
	if r == nil {
		return fmt.Errorf("%w: a frame of kind %d for request %d, which is not under way", agentprotocol.ErrBroken, f.Kind, f.ID)
	}
	last, err := r.take(f)
	if last {
		l.forget(f.ID)
	}
	return err
}

// fail breaks the link for this reason, unless it was broken before.
func (l *Link) fail(err error) {
	if errors.Is(err, io.EOF) {
		err = errors.New("the agent in the sandbox ended")
	}
	l.mu.Lock()
	if l.err == nil {
		if !errors.Is(err, sandbox.ErrClosed) {
			err = fmt.Errorf("%w: %w", sandbox.ErrClosed, err)
		}
		l.err = err
	}
	channel := l.channel
	l.endSilence()
	l.mu.Unlock()
	channel.Close()
}

// add gives a request a number, unless the link is held.
func (l *Link) add(r receiver) (uint32, error) { return l.number(r, l.paused()) }

// number gives a request a number, unless there is a reason against it.
func (l *Link) number(r receiver, against error) (uint32, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := cmp.Or(l.err, against); err != nil {
		return 0, err
	}
	for {
		l.last++
		if _, taken := l.requests[l.last]; l.last != 0 && !taken {
			break
		}
	}
	l.requests[l.last] = r
	return l.last, nil
}

func (l *Link) forget(id uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.requests, id)
}

// request sends the first frame of a request; while the link is held it does
// not. On an error the number is free again.
func (l *Link) request(k agentprotocol.Kind, id uint32, body []byte) error {
	l.sending.Lock()
	defer l.sending.Unlock()
	err := l.paused()
	if err == nil {
		err = l.write(k, id, body)
	}
	if err != nil {
		l.forget(id)
	}
	return err
}

// send sends a frame that belongs to a request under way. While the link is
// held it waits.
func (l *Link) send(k agentprotocol.Kind, id uint32, body []byte) error {
	return l.sendUnless(nil, k, id, body)
}

// sendUnless is send that waits no longer than until left is closed.
func (l *Link) sendUnless(left <-chan struct{}, k agentprotocol.Kind, id uint32, body []byte) error {
	for {
		l.sending.Lock()
		let := l.pace.held()
		if let == nil {
			defer l.sending.Unlock()
			return l.write(k, id, body)
		}
		l.sending.Unlock()
		select {
		case <-let:
		case <-left:
			return sandbox.ErrPaused
		case <-l.done:
			return sandbox.ErrClosed
		}
	}
}

// write breaks the link when the agent does not take the frame. The caller
// holds the lock.
func (l *Link) write(k agentprotocol.Kind, id uint32, body []byte) error {
	l.channel.SetWriteDeadline(time.Now().Add(writeWait))
	err := agentprotocol.Write(l.channel, agentprotocol.Frame{Kind: k, ID: id, Body: body})
	if err != nil && !errors.Is(err, agentprotocol.ErrBroken) {
		l.fail(fmt.Errorf("writing to the agent: %w", err))
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.err
	}
	return err
}

// answer waits for one frame.
type answer struct {
	want agentprotocol.Kind
	body string // what it has to be; "" means anything
	then func() // called before anything else is read; may be nil
	came chan error
	owed bool // nobody waits for it any more; guarded by the link's mu
}

func (a *answer) take(f agentprotocol.Frame) (bool, error) {
	switch {
	case f.Kind == a.want && (a.body == "" || a.body == string(f.Body)):
		if a.then != nil {
			a.then()
		}
		a.came <- nil
		return true, nil
	case f.Kind == agentprotocol.Failed:
		why, err := agentprotocol.ParseFailure(f.Body)
		if err == nil {
			a.came <- why
			return true, nil
		}
		return true, err
	}
	return false, fmt.Errorf("%w: a frame of kind %d, where one of kind %d was due", agentprotocol.ErrBroken, f.Kind, a.want)
}

func (a *answer) broken(err error) { a.came <- err }

// ask sends a frame and waits for the one that answers it.
func (l *Link) ask(ctx context.Context, k agentprotocol.Kind, body []byte, want agentprotocol.Kind, echo string) error {
	return l.asked(ctx, k, body, &answer{want: want, body: echo, came: make(chan error, 2)})
}

func (l *Link) asked(ctx context.Context, k agentprotocol.Kind, body []byte, a *answer) error {
	id, err := l.add(a)
	if err != nil {
		return err
	}
	if err := l.request(k, id, body); err != nil {
		return err
	}
	err = a.wait(ctx)
	if ctx.Err() != nil {
		l.owe(a)
	}
	return err
}

// owe notes that nobody waits for an answer any more, which may still come. An
// agent that owes too many is given up.
func (l *Link) owe(a *answer) {
	l.mu.Lock()
	a.owed = true
	owed := 0
	for _, r := range l.requests {
		if other, ok := r.(*answer); ok && other.owed {
			owed++
		}
	}
	l.mu.Unlock()
	if owed > mostOwed {
		l.fail(errors.New("the agent answers no more"))
	}
}

func (a *answer) wait(ctx context.Context) error {
	select {
	case err := <-a.came:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Setup has the agent make the place. It comes first, and once.
func (l *Link) Setup(ctx context.Context, plan agentprotocol.Plan) error {
	return l.ask(ctx, agentprotocol.Setup, plan.Body(), agentprotocol.Ready, "")
}

// Adjust has the agent go by other limits and another environment, and goes by
// them itself.
func (l *Link) Adjust(ctx context.Context, plan agentprotocol.Plan, limits sandbox.Limits) error {
	if err := l.ask(ctx, agentprotocol.Adjust, plan.Body(), agentprotocol.Ready, ""); err != nil {
		return err
	}
	l.limits.Store(&limits)
	return nil
}

// OOMKills is how often memory ran out in the sandbox so far, where that is
// counted.
func (l *Link) OOMKills() int { return l.oomKill() }

// Ping asks whether the agent answers.
func (l *Link) Ping(ctx context.Context) error {
	word := rand.Text()
	return l.ask(ctx, agentprotocol.Ping, []byte(word), agentprotocol.Pong, word)
}
