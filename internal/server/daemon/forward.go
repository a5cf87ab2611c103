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

// Forwarder forwards one client's messages to a daemon and back, and outlives the daemon: if the
// connection is lost it finds the next one, opens the client's session there again, and sends what the
// daemon before had not received. A tool call that may have run is not sent twice; it is answered with
// an error that says so, unless the tool is declared to change nothing.
type Forwarder struct {
	In  io.Reader
	Out io.Writer
	Log *slog.Logger // nil: nothing is logged

	// Dial connects to the daemon, without starting one; ErrRefused means that the daemon is another
	// program, or is stopping.
	Dial func(context.Context) (net.Conn, About, error)
	// Start starts a daemon if none runs. last is the previous daemon of the client; its PID is 0 at
	// first.
	Start func(ctx context.Context, last About) error
	// Retire ends a daemon that runs an outdated version of this program, and starts a new one. It
	// returns false if this process must not do that.
	Retire func(context.Context, About) (bool, error)
	// Reads returns the tools of the client's view that change nothing. It is called with a new daemon
	// running, after one has crashed; nil means that none are known.
	Reads func(context.Context) (map[string]bool, error)
	// Takeover is called if the daemon is another version of this program, with the state that the
	// successor needs. It does not return if another program has replaced this process; otherwise the
	// error ends the forwarder.
	Takeover func(about About, state []byte) error

	Limit    int           // bytes of one message; 0 means 24 MiB
	Patience time.Duration // for answers after the client has closed its input; 0 means 60 s
	Context  string        // context of the client; "" leaves the choice to the client and the daemon

	in      *input
	t       *clientState
	reading sync.WaitGroup

	mu   sync.Mutex // held while a line is written to Out
	last About      // the present daemon of the client, or the last one
}

const (
	redialEvery  = 100 * time.Millisecond
	patientAfter = 10 * time.Second
	// grace is how long clients wait before they start a daemon after one has stopped in an orderly
	// way, because the process that stopped it may be about to start the next.
	grace        = 3 * time.Second
	replayTime   = 30 * time.Second // for opening the session again at a new daemon
	flushTime    = 10 * time.Second // until a daemon must have accepted a message
	firstTime    = 5 * time.Second  // for the client's first message, if it can only be refused
	readAtOnce   = 64 << 10
	mostFailures = 5
	mostWaiting  = 1024 // messages of the client that are queued while no daemon runs
)

// errClientGone ends the forwarder without an error, because the client has closed the connection.
var errClientGone = errors.New("the client has closed the connection")

// Run forwards messages until the client has closed the connection, ctx is done, or no daemon runs and
// none can be started. state is the state that an earlier process passed to its Takeover; nil starts a
// new conversation.
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

// readClient reads the client's messages until the input ends or is interrupted.
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

// carry serves the client with one daemon after another.
func (f *Forwarder) carry(ctx context.Context, first bool) error {
	lost := time.Time{} // when the last daemon stopped in an orderly way
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
			f.Log.Warn("the session could not be reopened; trying once more", "err", err)
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
		f.Log.Info("the connection to the daemon has ended; looking for the next daemon", "pid", f.last.PID, "stopped",
			end.known)
	}
}

// decide asks the present daemon about the calls that the previous one may have run.
func (f *Forwarder) decide(ctx context.Context) {
	calls := f.t.doubtful()
	if len(calls) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, replayTime)
	defer cancel()
	reads, err := f.Reads(ctx)
	if err != nil {
		f.Log.Warn("cannot find out which calls change nothing, so no call is repeated", "err", err)
	}
	for _, line := range f.t.decide(calls, reads) {
		f.writeClient(line)
	}
}

// errDiffers means that a session cannot continue at a new daemon.
var errDiffers = errors.New("the new daemon cannot continue this session; restart the client")

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
	changes, same := f.t.sameSession(welcome)
	if !same {
		return errDiffers
	}
	for _, line := range others {
		if _, err := c.Write(append(line[:len(line):len(line)], '\n')); err != nil {
			return err
		}
	}
	for _, line := range changes {
		if err := f.writeClient(line); err != nil {
			return err
		}
	}
	return nil
}

// answerTo reads up to the result of a request. It drops the messages before it, which are not meant
// for the client.
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

// reach connects to a daemon, and starts one if messages are waiting: at once if the last one was lost,
// after a grace period if it was stopped.
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
			// the grace period applies, so that a daemon that ends at once is not started in a tight loop
			first, stopped = false, time.Now()
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

// takeover hands this client to the program that the daemon runs.
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

// resume continues with the state of another process.
func (f *Forwarder) resume(state []byte) error {
	if state == nil {
		return nil
	}
	var k kept
	if err := json.Unmarshal(state, &k); err != nil {
		return fmt.Errorf("continue with the client of the previous process: %w", err)
	}
	f.t.restore(k)
	f.in.buf = []byte(k.Rest)
	return nil
}

// giveUp answers waiting requests with an error, because no daemon will serve them. It waits for a
// client that has not sent its first request, so that this one gets an answer as well.
func (f *Forwarder) giveUp(ctx context.Context, err error) error {
	f.t.first(ctx, firstTime)
	if !errors.Is(err, errClientGone) && ctx.Err() == nil {
		for _, line := range f.t.refuseClient("there is no host: " + err.Error()) {
			f.writeClient(line)
		}
	}
	if ctx.Err() != nil {
		return errClientGone // the client gets no further answers
	}
	return err
}

// ending describes the end of a connection.
type ending struct {
	known     bool   // the daemon reported how many lines it received
	announced bool   // the daemon announced that it was stopping
	lines     uint64 // that it received
}

// forward forwards messages over one connection until it ends. It returns an error only if the client's
// side has failed.
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

// writeDaemon sends the client's messages until the connection or the client ends.
func (f *Forwarder) writeDaemon(ctx context.Context, c net.Conn) {
	defer context.AfterFunc(ctx, f.t.wake)()
	switch {
	case f.t.pump(ctx):
		closeWrite(c)
		late := time.AfterFunc(f.Patience, func() { c.SetReadDeadline(time.Now()) })
		defer late.Stop()
		<-ctx.Done()
	case ctx.Err() == nil:
		c.SetReadDeadline(time.Now().Add(flushTime)) // its last lines may have arrived
	}
}

func closeWrite(c net.Conn) {
	if h, ok := c.(interface{ CloseWrite() error }); ok {
		h.CloseWrite()
		return
	}
	c.Close()
}

// readLines passes the daemon's messages to the client until the connection ends.
func (f *Forwarder) readLines(in *bufio.Reader) (end ending, err error) {
	for {
		line, err := wholeLine(in)
		if err != nil {
			return end, nil
		}
		switch word, lines := linkLine(line); word {
		case linkStopping:
			f.t.hold()
			end.announced = true
			continue
		case linkBye:
			end.known, end.lines = true, lines
			continue
		}
		if line = f.t.heard(line); line == nil {
			continue
		}
		if err := f.writeClient(line); err != nil {
			return end, errors.Join(errors.New("writing to the client failed"), err)
		}
	}
}

// connectionEnded processes the messages that were sent over a connection that has ended.
func (f *Forwarder) connectionEnded(end ending) {
	for _, line := range f.t.connectionEnded(end) {
		f.writeClient(line)
	}
}
