// Package agentclient is the host's end of the channel to the agent in a sandbox. It numbers requests,
// separates their output, and ends those that take too long.
//
// Nothing the agent sends is trusted. Each stream is bounded, an unexpected frame breaks the client, and a
// broken client never recovers; the owner of the sandbox then closes it.
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
	writeWait = 10 * time.Second       // for a write to an agent that does not read
	termGrace = 250 * time.Millisecond // from asking a program to end to killing it
	killWait  = 5 * time.Second        // from killing a program to giving up the sandbox
	maxOwed   = 16                     // answers that no caller waits for any more, before the sandbox is given up
)

// Channel carries the frames: a socket, or a virtual machine's port.
type Channel interface {
	io.ReadWriteCloser
	SetWriteDeadline(time.Time) error
}

// Client sends requests to the agent of one sandbox. It is safe for concurrent use.
type Client struct {
	limits   atomic.Pointer[sandbox.Limits]
	oomKill  func() int // returns how many processes were killed so far because memory ran out
	done     chan struct{}
	switched chan Channel // the channel to read after the current one ends

	dialled, accepted chan struct{} // semaphores: one element for each open connection of that kind

	clock clock
	// sending serializes writes to the channel, which may block for long. If both are locked, sending comes
	// before mu.
	sending sync.Mutex
	channel Channel // written with both mutexes held, so that either suffices for reading

	// mu guards the fields below.
	mu       sync.Mutex
	silent   *silence // not nil while the agent is quiesced
	last     uint32   // number of the last request
	requests map[uint32]receiver
	err      error // why the client broke
}

// receiver handles the frames of one request.
type receiver interface {
	handle(agentprotocol.Frame) (last bool, err error)
	broken(error) // called if no frame will come any more
}

// New returns a client for a channel whose agent waits for its plan. oomKills may be nil. The caller must call
// Close.
func New(channel Channel, limits sandbox.Limits, oomKills func() int) *Client {
	if oomKills == nil {
		oomKills = func() int { return 0 }
	}
	l := &Client{
		channel:  channel,
		oomKill:  oomKills,
		done:     make(chan struct{}),
		switched: make(chan Channel, 1),
		dialled:  make(chan struct{}, mostStreams),
		accepted: make(chan struct{}, mostStreams),
		requests: map[uint32]receiver{},
	}
	l.limits.Store(&limits)
	go l.readLoop()
	return l
}

// Done is closed when the client is broken or closed.
func (l *Client) Done() <-chan struct{} { return l.done }

// Limits returns the limits in force.
func (l *Client) Limits() sandbox.Limits { return *l.limits.Load() }

// Close closes the channel and fails all requests with sandbox.ErrClosed.
func (l *Client) Close() error {
	l.failWith(sandbox.ErrClosed)
	<-l.done
	return nil
}

// readLoop dispatches frames until the client breaks.
func (l *Client) readLoop() {
	for channel := l.channel; channel != nil; {
		err := l.readAll(channel)
		if channel = l.nextChannel(); channel == nil {
			l.failWith(err)
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

// readAll dispatches the frames of one channel until it ends.
func (l *Client) readAll(channel Channel) error {
	in := bufio.NewReaderSize(channel, agentprotocol.MaxBody)
	for {
		f, err := agentprotocol.Read(in)
		if err == nil {
			err = l.dispatch(f)
		}
		if err != nil {
			return err
		}
	}
}

func (l *Client) dispatch(f agentprotocol.Frame) error {
	l.mu.Lock()
	r := l.requests[f.ID]
	l.mu.Unlock()
	if r == nil {
		return fmt.Errorf("%w: unexpected frame of kind %d for request %d, which is not in progress",
			agentprotocol.ErrBroken, f.Kind, f.ID)
	}
	last, err := r.handle(f)
	if last {
		l.removeRequest(f.ID)
	}
	return err
}

// failWith breaks the client with an error, unless it is broken already.
func (l *Client) failWith(err error) {
	if errors.Is(err, io.EOF) {
		err = errors.New("the agent in the sandbox exited")
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

// addReceiver assigns a number to a request, or fails if the client is suspended.
func (l *Client) addReceiver(r receiver) (uint32, error) { return l.assign(r, l.paused()) }

// assign assigns a number to a request, unless the error against is not nil.
func (l *Client) assign(r receiver, against error) (uint32, error) {
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

func (l *Client) removeRequest(id uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.requests, id)
}

// request sends the first frame of a request, or fails if the client is suspended. On an error the number is free
// again.
func (l *Client) request(k agentprotocol.Kind, id uint32, body []byte) error {
	l.sending.Lock()
	defer l.sending.Unlock()
	err := l.paused()
	if err == nil {
		err = l.writeFrame(k, id, body)
	}
	if err != nil {
		l.removeRequest(id)
	}
	return err
}

// sendFrame sends a further frame of a request. While the client is suspended it waits.
func (l *Client) sendFrame(k agentprotocol.Kind, id uint32, body []byte) error {
	return l.sendUnless(nil, k, id, body)
}

// sendUnless is like send but stops waiting when left is closed.
func (l *Client) sendUnless(left <-chan struct{}, k agentprotocol.Kind, id uint32, body []byte) error {
	for {
		l.sending.Lock()
		let := l.clock.paused()
		if let == nil {
			defer l.sending.Unlock()
			return l.writeFrame(k, id, body)
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

// writeFrame sends a frame. It breaks the client if the channel fails. The caller holds sending.
func (l *Client) writeFrame(k agentprotocol.Kind, id uint32, body []byte) error {
	l.channel.SetWriteDeadline(time.Now().Add(writeWait))
	err := agentprotocol.Write(l.channel, agentprotocol.Frame{Kind: k, ID: id, Body: body})
	if err != nil && !errors.Is(err, agentprotocol.ErrBroken) {
		l.failWith(fmt.Errorf("write to the agent: %w", err))
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.err
	}
	return err
}

// answer waits for one frame.
type answer struct {
	want agentprotocol.Kind
	body string // the expected body; "" means any
	then func() // called before the next frame is read; may be nil
	came chan error
	owed bool // its caller has stopped waiting; guarded by the client's mu
}

func (a *answer) handle(f agentprotocol.Frame) (bool, error) {
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
	return false, fmt.Errorf("%w: unexpected frame of kind %d; expected kind %d", agentprotocol.ErrBroken,
		f.Kind, a.want)
}

func (a *answer) broken(err error) { a.came <- err }

// requestReply sends a frame and waits for its answer.
func (l *Client) requestReply(ctx context.Context, k agentprotocol.Kind, body []byte, want agentprotocol.Kind,
	echo string) error {
	return l.askWith(ctx, k, body, &answer{want: want, body: echo, came: make(chan error, 2)})
}

func (l *Client) askWith(ctx context.Context, k agentprotocol.Kind, body []byte, a *answer) error {
	id, err := l.addReceiver(a)
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

// owe records that the caller of a has stopped waiting. If the agent owes too many answers, the sandbox is
// given up.
func (l *Client) owe(a *answer) {
	l.mu.Lock()
	a.owed = true
	owed := 0
	for _, r := range l.requests {
		if other, ok := r.(*answer); ok && other.owed {
			owed++
		}
	}
	l.mu.Unlock()
	if owed > maxOwed {
		l.failWith(errors.New("the agent does not answer"))
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

// Setup sends the plan of the sandbox to the agent and waits until it is set up. It must be called first, and
// once.
func (l *Client) Setup(ctx context.Context, plan agentprotocol.Plan) error {
	return l.requestReply(ctx, agentprotocol.Setup, plan.Body(), agentprotocol.Ready, "")
}

// Adjust applies other limits and another environment, in the agent and in the client.
func (l *Client) Adjust(ctx context.Context, plan agentprotocol.Plan, limits sandbox.Limits) error {
	if err := l.requestReply(ctx, agentprotocol.Adjust, plan.Body(), agentprotocol.Ready, ""); err != nil {
		return err
	}
	l.limits.Store(&limits)
	return nil
}

// OOMKills returns how many processes were killed so far because memory ran out, if that is counted.
func (l *Client) OOMKills() int { return l.oomKill() }

// Ping checks that the agent answers.
func (l *Client) Ping(ctx context.Context) error {
	word := rand.Text()
	return l.requestReply(ctx, agentprotocol.Ping, []byte(word), agentprotocol.Pong, word)
}
