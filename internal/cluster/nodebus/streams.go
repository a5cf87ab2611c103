package nodebus

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"gatehouse/internal/cluster"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/tool"
)

// Streams are the streams of this node over which calls are sent to others as frames. The goroutine of a call writes
// its request and reads its answer.
type Streams struct {
	Dial func(node, service string) net.Conn // as cluster.Node.DialOwn: nil if none is ready

	mu    sync.Mutex
	idle  map[string][]*frameStream // by node, the one that was used last at the end
	sweep *time.Timer               // set while there are idle streams
}

// frameStream is one end of a stream.
type frameStream struct {
	net.Conn
	in    *bufio.Reader
	out   []byte
	since time.Time // when it became idle
}

func newFrameStream(c net.Conn) *frameStream { return &frameStream{Conn: c, in: bufio.NewReader(c)} }

// send writes the frame that was encoded to s.out.
func (s *frameStream) send() error {
	_, err := s.Write(endFrame(s.out))
	if cap(s.out) > largeFrame {
		s.out = nil
	}
	return err
}

// take returns a stream to a node; nil if none is ready.
func (s *Streams) take(node string) *frameStream {
	s.mu.Lock()
	if all := s.idle[node]; len(all) > 0 {
		defer s.mu.Unlock()
		last := all[len(all)-1]
		s.idle[node] = all[:len(all)-1]
		return last
	}
	s.mu.Unlock()
	if c := s.Dial(node, FrameService); c != nil {
		return newFrameStream(c)
	}
	return nil
}

// keep keeps a stream for the next call.
func (s *Streams) keep(node string, c *frameStream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.idle == nil {
		s.idle = map[string][]*frameStream{}
	}
	c.since = time.Now()
	s.idle[node] = append(s.idle[node], c)
	if s.sweep == nil {
		s.sweep = time.AfterFunc(idleTime, func() { s.closeIdle(time.Now().Add(-idleTime)) })
	}
}

// closeIdle closes the streams that have been idle since a time or longer.
func (s *Streams) closeIdle(since time.Time) {
	var ended []*frameStream
	s.mu.Lock()
	for node, all := range s.idle {
		old := 0
		for old < len(all) && !all[old].since.After(since) {
			old++
		}
		ended = append(ended, all[:old]...)
		if s.idle[node] = all[old:]; old == len(all) {
			delete(s.idle, node)
		}
	}
	if s.sweep != nil && len(s.idle) > 0 {
		s.sweep.Reset(idleTime / 2)
	} else {
		s.sweep = nil
	}
	s.mu.Unlock()
	for _, c := range ended {
		c.Close()
	}
}

// Close closes the streams that wait for calls.
func (s *Streams) Close() { s.closeIdle(time.Now()) }

// errNoStream means that a call must be sent in another way: nothing was run.
var errNoStream = errors.New("no stream of frames")

// do runs a request on another node. The error is errNoStream if there is no stream that can carry it.
func (s *Streams) do(ctx context.Context, node string, r *bus.Request, n bus.Notes) (bus.Outcome, error) {
	for {
		c := s.take(node)
		if c == nil {
			return bus.Outcome{}, errNoStream
		}
		var err error
		c.out, err = appendCall(beginFrame(c.out[:0], frameCall), r, r.Caller)
		if err != nil || len(c.out) > mostFrame { // the other way says what is wrong
			c.out = nil
			s.keep(node, c)
			return bus.Outcome{}, errNoStream
		}
		stop := context.AfterFunc(ctx, func() { c.Close() })
		out, err, answered := c.exchange(n)
		if stop() && answered {
			s.keep(node, c)
		} else {
			c.Close()
		}
		switch {
		case answered:
			return out, err
		case ctx.Err() != nil:
			return out, fmt.Errorf("node %s: %w: %w", node, bus.ErrLost, context.Cause(ctx))
		case errors.Is(err, cluster.ErrNotRun): // an idle one may have been ended meanwhile
			continue
		}
		return out, fmt.Errorf("node %s: %w: %w", node, bus.ErrLost, err)
	}
}

// exchange sends the request in c.out and reads the answer. answered means that the node has answered, so that the
// stream can be used again.
func (c *frameStream) exchange(n bus.Notes) (out bus.Outcome, err error, answered bool) {
	if err := c.send(); err != nil {
		return out, err, false
	}
	for {
		kind, body, err := readFrame(c.in)
		if err != nil {
			return out, err, false
		}
		switch kind {
		case frameOutcome:
			out, err = readOutcome(body)
			return out, err, err == nil
		case frameError:
			var e end
			if err := json.Unmarshal(body, &e); err != nil {
				return out, err, false
			}
			out, err = e.result()
			return out, err, true
		case frameNote:
			var l line
			if err := json.Unmarshal(body, &l); err != nil {
				return out, err, false
			}
			if n != nil {
				l.report(n)
			}
		case frameFormat:
			return out, fmt.Errorf("%w: it answered %s", bus.ErrAbsent, body), true
		default:
			return out, fmt.Errorf("a frame of the kind %q", kind), false
		}
	}
}

// ServeFrames runs the calls that other nodes send as frames on the local bus until ctx is done. Idle streams end then,
// others with their calls, which are cancelled after patience. Only nodes may reach the listener, because it trusts the
// caller that they name.
func ServeFrames(ctx context.Context, ln net.Listener, local bus.Bus, patience time.Duration, log *slog.Logger) {
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		ln.Close()
		time.AfterFunc(patience, cancel)
	})()
	var serving sync.WaitGroup
	defer serving.Wait()
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		s := &servedStream{frameStream: newFrameStream(c), base: base, local: local, log: log}
		serving.Go(func() { s.serve(ctx) })
	}
}

// servedStream is the end of a stream that runs its calls, one after the other, on one goroutine. What watches whether
// the other end closes it during a call reads it instead of that goroutine, from some milliseconds of the call on.
type servedStream struct {
	*frameStream
	base  context.Context // of its calls: a field, because the stream outlives each
	local bus.Bus
	log   *slog.Logger

	// writing guards s.out and ended while a frame is encoded and written.
	writing sync.Mutex
	ended   bool // the call has ended, so that no more notes are sent

	// mu guards what follows. It is separate from writing, so that a call ends while a note waits for the other end.
	mu     sync.Mutex
	timer  *time.Timer
	set    bool               // the timer will run
	call   uint64             // odd while a call runs
	seen   uint64             // the call that the timer saw last
	cancel context.CancelFunc // of the call that runs
	watch  chan struct{}      // closed when the stream is no longer watched; nil if it is not
}

const (
	watchAfter  = 5 * time.Millisecond
	aMomentPast = 1 // unix time of a deadline that ends a read at once
)

func (s *servedStream) serve(ctx context.Context) {
	defer s.Close()
	defer context.AfterFunc(s.base, func() { s.Close() })()
	defer context.AfterFunc(ctx, func() { // an idle one ends at once
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.call%2 == 0 {
			s.SetReadDeadline(time.Unix(aMomentPast, 0))
		}
	})()
	for ctx.Err() == nil {
		kind, body, err := readFrame(s.in)
		if err != nil || kind != frameCall {
			return
		}
		r, format, err := readCall(body)
		if err != nil {
			s.log.Error("another node sent a call that cannot be read", "err", err)
			return
		}
		if format > cluster.Format {
			err = s.answer(frameFormat, func(b []byte) ([]byte, error) {
				return append(b, cluster.CheckFormat("the call", format).Error()...), nil
			})
		} else {
			err = s.run(r)
		}
		if err != nil {
			return
		}
	}
}

// run runs one call and sends its outcome.
func (s *servedStream) run(r *bus.Request) error {
	var ctx context.Context
	var cancel context.CancelFunc
	if r.Left > 0 {
		ctx, cancel = context.WithTimeout(s.base, r.Left)
	} else {
		ctx, cancel = context.WithCancel(s.base)
	}
	defer cancel()
	s.writing.Lock()
	s.ended = false
	s.writing.Unlock()
	s.beginWatch(cancel)
	out, err, panicked := s.do(ctx, r)
	s.endWatch()
	if panicked {
		return errors.New("the call ended without an answer")
	}
	if err == nil {
		err = s.answer(frameOutcome, func(b []byte) ([]byte, error) {
			b, err := appendOutcome(b, out)
			if err == nil && len(b) > mostFrame {
				err = fmt.Errorf("the outcome has %d bytes, more than %d", len(b), mostFrame)
			}
			return b, err
		})
		if _, encoding := errors.AsType[*encodingError](err); !encoding {
			return err
		}
	}
	return s.answer(frameError, func(b []byte) ([]byte, error) {
		raw, err := encode(endOf(bus.Outcome{}, err))
		return append(b, raw...), err
	})
}

// do runs a call. A panic, such as that of a handler that ends in the middle, ends the stream.
func (s *servedStream) do(ctx context.Context, r *bus.Request) (out bus.Outcome, err error, panicked bool) {
	defer func() {
		if v := recover(); v != nil {
			panicked = true
			if v == http.ErrAbortHandler {
				return
			}
			s.log.Error("a call of another node panicked", "panic", v, "stack", string(debug.Stack()))
		}
	}()
	out, err = s.local.Do(ctx, r, s)
	return out, err, false
}

// encodingError means that a frame was not sent because it cannot be encoded.
type encodingError struct{ error }

// answer sends a frame. That of an outcome or an error is the last one of its call.
func (s *servedStream) answer(kind byte, body func([]byte) ([]byte, error)) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.ended {
		return nil
	}
	b, err := body(beginFrame(s.out[:0], kind))
	if err != nil {
		return &encodingError{err}
	}
	s.out = b
	s.ended = kind != frameNote
	return s.send()
}

func (s *servedStream) note(l line) {
	s.answer(frameNote, func(b []byte) ([]byte, error) {
		raw, err := encode(l) // a number that JSON does not know is an error
		return append(b, raw...), err
	})
}

// Progress implements bus.Notes.
func (s *servedStream) Progress(done, total float64, note string) {
	s.note(line{Progress: &progress{done, total, note}})
}

// Log implements bus.Notes.
func (s *servedStream) Log(level slog.Level, params json.RawMessage) {
	s.note(line{Level: level, Log: params})
}

// Output implements bus.Notes.
func (s *servedStream) Output(chunk []byte) { s.note(line{Output: chunk}) }

// Detach implements bus.Notes.
func (s *servedStream) Detach() { s.note(line{Detach: true}) }

// Keep reports false: what the call's node keeps cannot be run again by this one.
func (s *servedStream) Keep(map[string]json.RawMessage) bool { return false }

// beginWatch has the stream watched from a moment of the call on. One timer serves consecutive calls, because one for
// each would cost as much as a short call.
func (s *servedStream) beginWatch(cancel context.CancelFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.call++
	s.cancel = cancel
	s.setTimer()
}

// setTimer lets look run. s.mu is held.
func (s *servedStream) setTimer() {
	switch {
	case s.set:
		return
	case s.timer == nil:
		s.timer = time.AfterFunc(watchAfter, s.look)
	default:
		s.timer.Reset(watchAfter)
	}
	s.set = true
}

// look watches the stream if the call still runs that it saw the last time: it cancels the call if the stream ends.
func (s *servedStream) look() {
	s.mu.Lock()
	s.set = false
	call := s.call
	if call%2 == 0 || s.watch != nil {
		s.mu.Unlock()
		return
	}
	if call != s.seen {
		s.seen = call
		s.setTimer()
		s.mu.Unlock()
		return
	}
	watch, cancel := make(chan struct{}), s.cancel
	s.watch = watch
	s.mu.Unlock()
	defer close(watch)
	_, err := s.in.Peek(1) // nothing comes before the answer
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.call == call && err != nil && !errors.Is(err, os.ErrDeadlineExceeded) { // otherwise the call or the host ends
		cancel()
	}
}

// endWatch ends the watch of a call.
func (s *servedStream) endWatch() {
	s.mu.Lock()
	s.call++
	watch := s.watch
	s.watch = nil
	s.mu.Unlock()
	if watch == nil {
		return
	}
	s.SetReadDeadline(time.Unix(aMomentPast, 0))
	<-watch
	s.SetReadDeadline(time.Time{})
}

// callerOf returns the caller that a request is sent with.
func callerOf(c *tool.Caller, connection string) *tool.Caller {
	if c == nil {
		return nil
	}
	who := *c // the session is on this node, so that nothing there can end with it
	who.Session, who.Connection = "", connection
	return &who
}
