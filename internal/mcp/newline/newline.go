// Package newline splits a byte stream into frames of at most N bytes, one message to a line.
//
// Lines end in \n or \r\n; blank ones are skipped. A line that is too long is discarded as it arrives,
// without being held in memory, and reading continues with the next line. The package does not
// interpret frames, except that it finds the ID of a request that was too long.
package newline

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"gatehouse/internal/mcp/rawjson"
)

// Limit is the default maximum size of a frame in bytes.
const Limit = 24 << 20

// window is the read size, and the memory of an idle reader.
const window = 4 << 10

// ErrTooLong is returned for a line that was discarded. Reading continues with the next
// line.
var ErrTooLong = errors.New("a line is longer than the limit")

// Reader reads frames. It is not safe for concurrent use.
type Reader struct {
	r     *bufio.Reader
	limit int
	id    []byte // of the request in the last line that was discarded; nil if none was found

	memory   Memory // counts long frames; nil counts none
	reserved bool   // some memory was counted for the last frame
}

// Memory counts the memory of the frames that are longer than the window. A Receiver
// that is one is asked by Feed.
type Memory interface {
	// Reserve counts n more bytes for the frame that is being read, which may wait a
	// while, or returns why they cannot be had. The frame is then discarded.
	Reserve(n int64) error
	// Unreserve gives back what was counted for a frame that was not received.
	Unreserve()
	// Refused reports a frame that was discarded because of an error of Reserve. id is
	// the raw id of the request in it, or nil if none was found.
	Refused(why error, id []byte)
}

// refusal is the error for a line that was discarded because it was not counted.
type refusal struct{ why error }

func (e *refusal) Error() string { return e.why.Error() }

// NewReader reads frames of at most limit bytes, line ends not counted; 0
// means Limit.
func NewReader(r io.Reader, limit int) *Reader {
	if limit <= 0 {
		limit = Limit
	}
	return &Reader{r: bufio.NewReaderSize(r, window), limit: limit}
}

// Next returns the next frame, which the caller may keep. A last line without an end counts as a frame.
// The error is ErrTooLong, io.EOF, or the error of reading.
func (r *Reader) Next() ([]byte, error) {
	for {
		frame, err := r.line()
		if _, refused := errors.AsType[*refusal](err); refused || errors.Is(err, ErrTooLong) {
			return nil, err
		}
		if len(bytes.Trim(frame, " \t\r")) > 0 && (err == nil || err == io.EOF) {
			return frame, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// line reads up to the end of a line or of the stream. Memory grows with what
// has arrived, not with what the limit would allow.
func (r *Reader) line() ([]byte, error) {
	var frame []byte
	r.unreserve()
	for {
		part, err := r.r.ReadSlice('\n')
		full := err == bufio.ErrBufferFull
		if !full {
			part = bytes.TrimSuffix(part, []byte("\n"))
		}
		if len(frame)+len(part) > r.limit+1 { // 1 for a \r at the end
			return nil, r.discard(frame, part, err)
		}
		if full || len(frame) > 0 {
			var why error
			if frame, why = r.grow(frame, len(part)); why != nil {
				r.discard(frame, part, err)
				return nil, &refusal{why}
			}
		}
		frame = append(frame, part...)
		if full {
			continue
		}
		frame = bytes.TrimSuffix(frame, []byte("\r"))
		if len(frame) > r.limit {
			return nil, r.discard(frame, nil, err)
		}
		return frame, err
	}
}

// grow makes room for n more bytes of a long frame, which is counted first.
func (r *Reader) grow(frame []byte, n int) ([]byte, error) {
	need := len(frame) + n
	if need <= cap(frame) {
		return frame, nil
	}
	size := min(max(need, 2*cap(frame)), max(need, r.limit+1))
	if r.memory != nil {
		if err := r.memory.Reserve(int64(size - cap(frame))); err != nil {
			return frame, err
		}
		r.reserved = true
	}
	return append(make([]byte, 0, size), frame...), nil
}

// unreserve gives back what was counted for a frame that was not received.
func (r *Reader) unreserve() {
	if r.reserved {
		r.reserved = false
		r.memory.Unreserve()
	}
}

// discard reads away the rest of a line that is too long; err is how reading
// its last part ended. It keeps the id of the request in it.
func (r *Reader) discard(frame, part []byte, err error) error {
	var s rawjson.Salvage
	s.Write(frame)
	s.Write(part)
	r.unreserve()
	for err == bufio.ErrBufferFull {
		part, err = r.r.ReadSlice('\n')
		s.Write(part)
	}
	r.id = s.Request()
	return ErrTooLong // the end of the stream is reported by the next call
}

// Receiver receives the frames of a reader.
type Receiver interface {
	// ReceiveAsync accepts a frame and returns soon. It returns the remaining work,
	// which is run once on any goroutine; nil if there is none.
	ReceiveAsync(frame []byte) (work func())
	// Oversized reports a line that was discarded. id is the raw id of the
	// request in it, or nil if none was found.
	Oversized(limit int, id []byte)
}

// takeoverDelay is the minimum time that a reader works on a frame before another
// goroutine continues reading; the maximum is twice that.
const takeoverDelay = time.Millisecond

// Feed passes every frame to t until the stream ends, and then returns nil, or until
// reading fails. All frames were accepted then, though some may still be worked on. The
// reading goroutine itself works on a frame that arrived alone, because waking another
// goroutine costs more than a usual answer. If the work takes long, a new goroutine
// continues reading, so that no frame waits behind a slow one.
func (r *Reader) Feed(t Receiver) error {
	r.memory, _ = t.(Memory)
	f := &feed{r: r, t: t, ended: make(chan error, 1)}
	go f.readMore()
	err := <-f.ended
	r.unreserve()
	return err
}

// feed is one stream while Feed runs. One goroutine at a time reads.
type feed struct {
	r     *Reader
	t     Receiver
	ended chan error

	turn     atomic.Uint64 // odd while the reader works; the goroutine that makes it even continues reading
	timerSet atomic.Bool   // look will run
	last     uint64        // the turn that look saw; look's own
}

func (f *feed) readMore() {
	for {
		frame, err := f.r.Next()
		switch {
		case err == nil:
			if !f.handle(frame) {
				return
			}
		case errors.Is(err, ErrTooLong):
			f.t.Oversized(f.r.limit, f.r.id)
		case isRefusal(err):
			f.r.memory.Refused(err, f.r.id)
		case err == io.EOF:
			f.ended <- nil
			return
		default:
			f.ended <- err
			return
		}
	}
}

func isRefusal(err error) bool {
	_, ok := errors.AsType[*refusal](err)
	return ok
}

// handle reports whether the calling goroutine is still the reader.
func (f *feed) handle(frame []byte) bool {
	work := f.t.ReceiveAsync(frame)
	if work == nil {
		return true
	}
	if f.r.r.Buffered() > 0 { // another frame waits
		go work()
		return true
	}
	turn := f.turn.Add(1)
	f.startTimer()
	work()
	return f.turn.CompareAndSwap(turn, turn+1)
}

// startTimer starts takeOverIfSlow after a delay. A timer for each frame would cost as
// much as the goroutine that it saves, so one timer serves consecutive frames.
func (f *feed) startTimer() {
	if !f.timerSet.Swap(true) {
		time.AfterFunc(takeoverDelay, f.takeOverIfSlow)
	}
}

// takeOverIfSlow continues reading if the reader still works on the frame that it had
// at the last check.
func (f *feed) takeOverIfSlow() {
	turn := f.turn.Load()
	working, late := turn%2 == 1, turn == f.last
	f.last = turn
	f.timerSet.Store(false)
	switch {
	case working && late && f.turn.CompareAndSwap(turn, turn+1):
		f.readMore()
	case f.turn.Load()%2 == 1:
		f.startTimer()
	}
}

// Writer writes frames. It is not safe for concurrent use.
type Writer struct {
	w   io.Writer
	buf []byte
}

// NewWriter returns a writer that writes each frame to w with one call of Write.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Write writes one message as a line. Line breaks inside it, which in JSON can only be between tokens,
// become spaces.
func (w *Writer) Write(msg []byte) error {
	w.buf = append(append(w.buf[:0], msg...), '\n')
	flatten(w.buf[:len(msg)])
	_, err := w.w.Write(w.buf)
	if cap(w.buf) > 16*window {
		w.buf = nil // release the memory of a large message
	}
	return err
}

func flatten(b []byte) {
	if bytes.IndexByte(b, '\n') < 0 && bytes.IndexByte(b, '\r') < 0 {
		return
	}
	for i, c := range b {
		if c == '\n' || c == '\r' {
			b[i] = ' '
		}
	}
}
