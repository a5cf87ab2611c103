package daemon

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"gatehouse/internal/mcp/rawjson"
)

// Forwarder carries one client's messages to a daemon and back, and outlives
// the daemon: when the connection is lost it finds the next one, opens the
// client's session there again, and sends what the daemon before had not
// taken. A tool call that may have run is not sent twice; it is answered with
// an error that says so, unless the tool says that it changes nothing.
type Forwarder struct {
	In  io.Reader
	Out io.Writer
	Log *slog.Logger // nil: nothing is logged

	// Dial connects to the daemon, without starting one; ErrRefused means that
	// another program is there, or that it is stopping.
	Dial func(context.Context) (net.Conn, About, error)
	// Start starts a daemon if there is none. last is the one the client had;
	// its PID is 0 at first.
	Start func(ctx context.Context, last About) error
	// Retire ends a daemon that is another program than this one, and outdated,
	// and starts one anew; it reports false when it is not for this one to do.
	Retire func(context.Context, About) (bool, error)
	// Reads returns the tools of the client's view that change nothing. It is
	// called with a daemon there, after one has crashed; nil means that none are
	// known.
	Reads func(context.Context) (map[string]bool, error)
	// Takeover is called when the daemon is another program than this one, with
	// what is needed to go on. It does not return when another process has
	// taken this one's place; otherwise the error ends the forwarder.
	Takeover func(about About, state []byte) error

	Limit    int           // bytes of one message; 0 means 24 MiB
	Patience time.Duration // for answers when the client has said its last; 0 means 60 s
	Context  string        // in which the client is; "" leaves that to the client and the daemon

	in      *input
	t       *clientState
	reading sync.WaitGroup

	mu   sync.Mutex // held while a line is written to Out
	last About      // the daemon the client has, or had
}

const (
	redialEvery  = 100 * time.Millisecond
	patientAfter = 10 * time.Second
	// grace is how long after a daemon has stopped as it should no client starts
	// another: the one that stopped it may be about to.
	grace        = 3 * time.Second
	replayTime   = 30 * time.Second // for a new daemon to open the session again
	flushTime    = 10 * time.Second // until a daemon must have taken a message
	firstTime    = 5 * time.Second  // for the client's first message, where it can only be refused
	readAtOnce   = 64 << 10
	mostFailures = 5
	mostWaiting  = 1024 // messages of the client that are held while there is no daemon
)

// errClientGone ends the forwarder well.
var errClientGone = errors.New("the client has gone")

// Run forwards until the client has gone, ctx is done, or there is no daemon
// and none can be started. state is what a process before this one handed to
// its Takeover; nil begins anew.
func (f *Forwarder) Run(ctx context.Context, state []byte) error {
	if f.Log == nil {
		f.Log = slog.New(slog.DiscardHandler)
	}
	if f.Patience == 0 {
		f.Patience = time.Minute
	}
	if f.Limit == 0 {
		f.Limit = 24 << 20
	}
	f.t = newClientState()
	f.t.asksBack = f.Reads != nil
	f.in = newInput(f.In, f.Limit)
	if err := f.resume(state); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f.reading.Go(func() { f.readClient(ctx) })
	err := f.carry(ctx, state == nil)
	cancel(errClientGone)
	f.in.interrupt()
	f.t.endClient()
	if f.in.interruptible() {
		f.reading.Wait()
	}
	if errors.Is(err, errClientGone) {
		return nil
	}
	return err
}

// readClient takes the client's messages until it ends or is interrupted.
func (f *Forwarder) readClient(ctx context.Context) {
	for {
		line, err := f.in.nextLine()
		switch {
		case err == nil:
			f.t.enqueue(inContext(line, f.Context))
		case errors.Is(err, errTooLong):
			f.writeClient(
				fmt.Appendf(
					nil,
					`{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"the message is longer than %d bytes and was dropped"}}`,
					f.Limit,
				),
			)
		default:
			if ctx.Err() == nil && !errors.Is(err, errInterrupted) {
				f.t.over()
			}
			return
		}
	}
}

// writeClient writes a line to the client.
func (f *Forwarder) writeClient(line []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.Out.Write(append(line[:len(line):len(line)], '\n'))
	return err
}

// carry goes from daemon to daemon.
func (f *Forwarder) carry(ctx context.Context, first bool) error {
	lost := time.Time{} // when the last one stopped as it should
	failed := 0
	for {
		c, err := f.reach(ctx, first, lost)
		if err != nil {
			return f.giveUp(ctx, err)
		}
		in := bufio.NewReaderSize(c, readAtOnce)
		if err := f.replay(ctx, c, in); err != nil {
			c.Close()
			if failed++; failed == mostFailures || errors.Is(err, errDiffers) {
				return f.giveUp(ctx, err)
			}
			f.Log.Warn("the session could not be opened again; trying once more", "err", err)
			f.connectionEnded(ending{})
			continue
		}
		first, failed = false, 0
		f.decide(ctx)
		end, err := f.forward(ctx, c, in)
		if err != nil {
			return err
		}
		f.connectionEnded(end)
		if f.t.done() {
			return errClientGone
		}
		lost = time.Time{}
		if end.known {
			lost = time.Now()
		}
		f.Log.Info("the daemon has gone; looking for the next", "pid", f.last.PID, "stopped", end.known)
	}
}

// decide asks the daemon that is there about the calls that the one before may
// have run.
func (f *Forwarder) decide(ctx context.Context) {
	calls := f.t.doubtful()
	if len(calls) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, replayTime)
	defer cancel()
	reads, err := f.Reads(ctx)
	if err != nil {
		f.Log.Warn("which calls change nothing is not known, so none is made again", "err", err)
	}
	for _, line := range f.t.decide(calls, reads) {
		f.writeClient(line)
	}
}

// errDiffers is why a session cannot go on with a new daemon.
var errDiffers = errors.New("the new daemon does not go on with this session; start the client again")

// replay opens the client's session at a new daemon.
func (f *Forwarder) replay(ctx context.Context, c net.Conn, in *bufio.Reader) error {
	id, first, others := f.t.session()
	if first == nil {
		return nil
	}
	defer context.AfterFunc(ctx, func() { c.Close() })()
	c.SetDeadline(time.Now().Add(replayTime))
	defer c.SetDeadline(time.Time{})
	if _, err := c.Write(append(first[:len(first):len(first)], '\n')); err != nil {
		return err
	}
	welcome, err := answerTo(in, id)
	if err != nil {
		return err
	}
	news, same := f.t.sameSession(welcome)
	if !same {
		return errDiffers
	}
	for _, line := range others {
		if _, err := c.Write(append(line[:len(line):len(line)], '\n')); err != nil {
			return err
		}
	}
	for _, line := range news {
		if err := f.writeClient(line); err != nil {
			return err
		}
	}
	return nil
}

// answerTo reads up to the result of a request. What is said before it is for
// no client.
func answerTo(in *bufio.Reader, id []byte) ([]byte, error) {
	for {
		line, err := wholeLine(in)
		if err != nil {
			return nil, err
		}
		if rawjson.Kind(line) != '{' {
			continue
		}
		at, method, _ := parts(line)
		if method != "" || !bytes.Equal(at, id) {
			continue
		}
		if result, ok := rawjson.Get(line, "result"); ok {
			return result, nil
		}
		return nil, errDiffers
	}
}

// reach finds a daemon, and starts one when there is something to say: at once
// when the last one was lost, after a grace when it was stopped.
func (f *Forwarder) reach(ctx context.Context, first bool, stopped time.Time) (net.Conn, error) {
	began := time.Now()
	for {
		c, about, err := f.Dial(ctx)
		if err == nil {
			f.last = about
			return c, nil
		}
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case f.t.done():
			return nil, errClientGone
		case errors.Is(err, ErrUnfit):
			return nil, err
		case errors.Is(err, ErrRefused) && about.Ready:
			if retired, err := f.Retire(ctx, about); err != nil {
				return nil, err
			} else if !retired {
				return nil, f.takeover(about)
			}
		case errors.Is(err, ErrRefused): // it is starting or stopping
		case first, f.t.waiting() && time.Since(stopped) > grace:
			if err := f.Start(ctx, f.last); err != nil {
				return nil, err
			}
			first, stopped = false, time.Now() // one that ends at once is not started without end
			continue
		}
		pause := redialEvery
		if time.Since(began) > patientAfter {
			pause *= 5
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

// takeover hands this client to the program that the daemon is.
func (f *Forwarder) takeover(about About) error {
	if !f.in.interruptible() {
		return fmt.Errorf("a daemon of another version runs, %s as process %d", about.Version, about.PID)
	}
	f.t.endClient()  // no goroutine waits for space any longer
	f.in.interrupt() // and nothing more is read
	f.reading.Wait()
	state, err := json.Marshal(f.t.snapshot(f.in.rest()))
	if err != nil {
		return err
	}
	return f.Takeover(about, state)
}

// resume goes on where another process was.
func (f *Forwarder) resume(state []byte) error {
	if state == nil {
		return nil
	}
	var k kept
	if err := json.Unmarshal(state, &k); err != nil {
		return fmt.Errorf("go on with the client of the process before: %w", err)
	}
	f.t.restore(k)
	f.in.buf = []byte(k.Rest)
	return nil
}

// giveUp answers what waits, because no daemon will. A client begins by asking
// something, and one that is still about to is told why as well.
func (f *Forwarder) giveUp(ctx context.Context, err error) error {
	f.t.first(ctx, firstTime)
	if !errors.Is(err, errClientGone) && ctx.Err() == nil {
		for _, line := range f.t.refuseClient("there is no host: " + err.Error()) {
			f.writeClient(line)
		}
	}
	if ctx.Err() != nil {
		return errClientGone // the client has ended this process
	}
	return err
}

// ending is how a connection ended.
type ending struct {
	known bool   // the daemon said how much it took
	told  bool   // the daemon said that it was stopping
	lines uint64 // that it took
}

// forward carries messages over one connection until it ends. The error is one
// of the client's side.
func (f *Forwarder) forward(ctx context.Context, c net.Conn, in *bufio.Reader) (ending, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { c.SetDeadline(time.Now()) })()
	var writing sync.WaitGroup
	f.t.flow(c.Write)
	writing.Go(func() { f.writeDaemon(ctx, c) })
	end, err := f.readLines(in)
	f.t.hold()
	cancel(nil)
	c.Close()
	writing.Wait()
	return end, err
}

// writeDaemon sends what the client says until the connection or the client ends.
func (f *Forwarder) writeDaemon(ctx context.Context, c net.Conn) {
	defer context.AfterFunc(ctx, f.t.wake)()
	switch {
	case f.t.pump(ctx):
		closeWrite(c)
		late := time.AfterFunc(f.Patience, func() { c.SetReadDeadline(time.Now()) })
		defer late.Stop()
		<-ctx.Done()
	case ctx.Err() == nil:
		c.SetReadDeadline(time.Now().Add(flushTime)) // its last words may be there
	}
}

func closeWrite(c net.Conn) {
	if h, ok := c.(interface{ CloseWrite() error }); ok {
		h.CloseWrite()
		return
	}
	c.Close()
}

// readLines hands what the daemon says to the client until the connection ends.
func (f *Forwarder) readLines(in *bufio.Reader) (end ending, err error) {
	for {
		line, err := wholeLine(in)
		if err != nil {
			return end, nil
		}
		switch word, lines := linkLine(line); word {
		case linkStopping:
			f.t.hold()
			end.told = true
			continue
		case linkBye:
			end.known, end.lines = true, lines
			continue
		}
		if line = f.t.heard(line); line == nil {
			continue
		}
		if err := f.writeClient(line); err != nil {
			return end, errors.Join(errors.New("the output failed"), err)
		}
	}
}

// connectionEnded sorts what was sent over a connection that has ended.
func (f *Forwarder) connectionEnded(end ending) {
	for _, line := range f.t.connectionEnded(end) {
		f.writeClient(line)
	}
}
