package session

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"

	"gatehouse/internal/access/limit"
)

// Limits of a stream. If the stream outside requests exceeds them, its
// messages are replaced by a resync. If an answer exceeds them, Send fails.
const (
	queueLimit  = 256     // messages that wait for a reader
	queueBytes  = 4 << 20 // and their bytes; one message of any size may wait
	replayLimit = 256     // events kept after they were written
	replayBytes = 1 << 20 // and their bytes
	keptAnswers = 64      // answer streams of one session that are kept
	keptBytes   = 2 << 20 // and the bytes of the finished ones
)

// ErrTaken means that a connection is already reading the stream.
var ErrTaken = errors.New("another connection reads this stream")

// Writer is a connection that reads a stream. Events are written by one
// goroutine at a time; a write that fails ends the attachment. WriteEvent
// must not block for longer than the connection's own write deadline.
type Writer interface {
	// WriteEvent writes one message with its event ID.
	WriteEvent(id string, msg []byte) error
	// Close ends the connection's use of the stream. It may be called while
	// WriteEvent blocks, because another connection replaces this one, and
	// must not wait for it.
	Close()
}

// Stream is an ordered sequence of messages to a client: the answer to one request with
// the messages before it, or the messages outside any request. Messages wait until a
// connection reads them, and the last ones are kept so that a broken connection can
// resume. A goroutine writes them; it exits when there is nothing to write.
type Stream struct {
	id     uint64 // 0 for the stream outside any request
	resync func() [][]byte

	mu       sync.Mutex
	events   []event // the last ones, written or waiting
	first    uint64  // sequence number of events[0]
	next     uint64  // sequence number of the next event
	sent     uint64  // all events below were written to w
	bytes    int     // of events
	waiting  int     // of those not yet written
	w        Writer
	gen      uint64 // of the attachment
	flushing bool
	lost     bool // messages were dropped unread
	closed   bool
	held     limit.Held // bytes, among those that are kept for its principal
}

type event struct{ msg []byte }

func newStream(id uint64) *Stream { return &Stream{id: id, first: 1, next: 1, sent: 1} }

// newStream returns a stream whose bytes are counted. s.mu is held.
func (s *Session) newStream(id uint64) *Stream {
	st := newStream(id)
	if s.table != nil {
		st.held, _ = s.table.kept.Acquire(&s.some().Caller, 0) // for none there is always space
	}
	return st
}

// Send adds a message; it keeps msg. It never blocks. It reports false when
// the stream is closed, or when it is an answer of which so much waits already
// that more would not be read.
func (st *Stream) Send(msg []byte) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed || st.id != 0 && st.full(len(msg)) {
		return false
	}
	st.push(msg)
	st.wake()
	return true
}

// Last adds the final message; the stream closes after it was written.
func (st *Stream) Last(msg []byte) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.closed {
		return
	}
	if msg != nil {
		st.push(msg)
	}
	st.closed = true
	st.wake()
}

// Close ends the stream. A connected reader still gets the waiting messages.
func (st *Stream) Close() { st.Last(nil) }

func (st *Stream) push(msg []byte) {
	if st.id == 0 && st.full(len(msg)) {
		st.overflow()
	}
	st.appendEvent(msg)
	st.count()
}

// count counts what is kept among the bytes that principals share. If this one has its
// share, what was written is forgotten, and then what waits: messages outside requests
// are replaced by a resync, and an answer is lost that no connection reads.
func (st *Stream) count() {
	if st.held.Set(int64(st.bytes)) == nil {
		return
	}
	written := int(min(st.sent-st.first, uint64(len(st.events))))
	st.dropOldest(written)
	if st.held.Set(int64(st.bytes)) == nil {
		return
	}
	switch {
	case st.id == 0:
		st.overflow()
	case st.w == nil:
		st.dropOldest(len(st.events))
		st.sent, st.waiting = st.next, 0
	}
}

// discard forgets everything that is kept, because the stream will not be found again.
func (st *Stream) discard() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.held.Release()
	st.held = limit.Held{}
}

func (st *Stream) appendEvent(msg []byte) {
	st.events = append(st.events, event{msg})
	st.next++
	st.bytes += len(msg)
	st.waiting += len(msg)
	st.trim()
}

// full reports whether n more bytes would exceed the limits of unread messages.
func (st *Stream) full(n int) bool {
	count := st.next - st.sent
	return count >= queueLimit || count > 0 && st.waiting+n > queueBytes
}

// overflow drops all unread messages. The client gets a resync instead of part of what
// it missed.
func (st *Stream) overflow() {
	st.events, st.bytes, st.waiting = nil, 0, 0
	st.first, st.sent = st.next, st.next
	st.lost = true
	st.held.Release()
}

// trim drops the oldest events that were written.
func (st *Stream) trim() {
	n, bytes := 0, st.bytes
	for n < len(st.events) && st.first+uint64(n) < st.sent &&
		(len(st.events)-n > replayLimit || bytes > replayBytes) {
		bytes -= len(st.events[n].msg)
		n++
	}
	if n > 0 {
		st.dropOldest(n)
		_ = st.held.Set(int64(st.bytes)) // which is less, or was not counted whole
	}
}

// dropOldest drops the oldest n events.
func (st *Stream) dropOldest(n int) {
	for _, e := range st.events[:n] {
		st.bytes -= len(e.msg)
	}
	kept := copy(st.events, st.events[n:])
	clear(st.events[kept:])
	st.events = st.events[:kept]
	st.first += uint64(n)
}

// Attach lets a connection read the stream: with resume, everything that is
// kept after the event with sequence number after, otherwise what was not yet
// written; then what comes. With take it replaces a connection that is already
// reading; otherwise that one stays and the error is ErrTaken.
func (st *Stream) Attach(w Writer, after uint64, resume, take bool) error {
	st.mu.Lock()
	old := st.w
	if old != nil && !take {
		st.mu.Unlock()
		return ErrTaken
	}
	st.w = w
	st.gen++
	if resume {
		st.rewind(after)
	}
	st.wake()
	st.mu.Unlock()
	if old != nil {
		old.Close()
	}
	return nil
}

func (st *Stream) rewind(after uint64) {
	from := after + 1
	if from < st.first {
		from, st.lost = st.first, st.lost || st.id == 0
	}
	st.sent = min(from, st.next)
	st.waiting = 0
	for _, e := range st.events[st.sent-st.first:] {
		st.waiting += len(e.msg)
	}
}

// Reader returns the connection that reads the stream, or nil.
func (st *Stream) Reader() Writer {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.w
}

// Read reports whether a connection reads the stream now.
func (st *Stream) Read() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.w != nil
}

// Idle reports whether all messages outside any request were written to the session's reader, or there
// is no reader.
func (s *Session) Idle() bool {
	s.mu.Lock()
	st := s.queue
	s.mu.Unlock()
	if st == nil {
		return true
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.w == nil || st.sent == st.next && !st.lost
}

// Detach disconnects w, if it is the stream's reader.
func (st *Stream) Detach(w Writer) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.w == w {
		st.w = nil
		st.gen++
	}
}

// disconnect closes the connection that reads the stream.
func (st *Stream) disconnect() {
	st.mu.Lock()
	w := st.w
	st.w = nil
	st.gen++
	st.mu.Unlock()
	if w != nil {
		w.Close()
	}
}

// wake starts the writing goroutine if there is something to write and none runs. st.mu
// is held.
func (st *Stream) wake() {
	if st.flushing || st.w == nil || (st.sent == st.next && !st.closed && !st.lost) {
		return
	}
	st.flushing = true
	go st.flush()
}

// flush writes the waiting messages, then returns.
func (st *Stream) flush() {
	st.mu.Lock()
	defer st.mu.Unlock()
	for st.w != nil {
		w, gen := st.w, st.gen
		if st.lost && st.resync != nil {
			st.resyncReader()
			continue
		}
		if st.sent == st.next {
			if !st.closed {
				break
			}
			st.w = nil
			st.closeWriter(w)
			continue
		}
		seq := st.sent
		msg := st.events[seq-st.first].msg
		st.mu.Unlock()
		err := w.WriteEvent(EventID(st.id, seq), msg)
		st.mu.Lock()
		if st.gen != gen { // another connection has replaced w; it has its own position
			continue
		}
		if err != nil {
			st.w = nil
			st.gen++
			st.closeWriter(w)
			continue
		}
		if st.sent == seq { // no message was dropped meanwhile
			st.sent++
			st.waiting -= len(msg)
			st.trim()
		}
	}
	st.flushing = false
}

// resyncReader adds the resync messages in place of the dropped ones. st.mu is held,
// but released while they are made.
func (st *Stream) resyncReader() {
	st.lost = false
	st.mu.Unlock()
	notes := st.resync()
	st.mu.Lock()
	for _, m := range notes {
		st.appendEvent(m)
	}
	_ = st.held.Set(int64(st.bytes)) // a few small messages, which are written now
}

// closeWriter closes a connection that no longer reads the stream. st.mu is held, but released while it
// closes: another connection may attach, so flush reads st.w again.
func (st *Stream) closeWriter(w Writer) {
	st.mu.Unlock()
	w.Close()
	st.mu.Lock()
}

// Prime returns the event ID before the next event to be written: a client that resumes from it gets
// every event that it was not sent.
func (st *Stream) Prime() string {
	st.mu.Lock()
	defer st.mu.Unlock()
	return EventID(st.id, st.sent-1)
}

// EventID encodes the stream and the position of an event.
func EventID(stream, seq uint64) string {
	return strconv.FormatUint(stream, 36) + "-" + strconv.FormatUint(seq, 36)
}

// ParseEventID decodes an event ID.
func ParseEventID(id string) (stream, seq uint64, ok bool) {
	a, b, found := strings.Cut(id, "-")
	if !found {
		return 0, 0, false
	}
	stream, err1 := strconv.ParseUint(a, 36, 64)
	seq, err2 := strconv.ParseUint(b, 36, 64)
	return stream, seq, err1 == nil && err2 == nil
}

// Queue returns the stream of the messages outside any request.
func (s *Session) Queue() *Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.notificationStream()
}

func (s *Session) notificationStream() *Stream {
	if s.queue == nil {
		s.queue = s.newStream(0)
		if f := s.resync; f != nil {
			s.queue.resync = func() [][]byte { return f(s) }
		}
		s.queue.closed = s.ended
	}
	return s.queue
}

// Notify sends a message outside any request. It never blocks; see Stream for the behaviour without a
// reader.
func (s *Session) Notify(msg []byte) { s.Queue().Send(msg) }

// OnLoss sets the messages for a client that has missed some, which make it read everything again. Call
// it before the first message.
func (s *Session) OnLoss(resync func(*Session) [][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resync = resync
}

// Open returns a stream for the answer to one request. A session keeps at most 64 of
// them, and at most 2 MiB of finished ones; beyond that the oldest finished ones are
// dropped.
func (s *Session) Open() *Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.extraState()
	if l.streams == nil {
		l.streams = make(map[uint64]*Stream)
	}
	l.nextID++
	st := s.newStream(l.nextID)
	st.closed = s.ended
	l.streams[st.id] = st
	forgetFinished(l.streams)
	return st
}

// forgetFinished drops finished streams, oldest first, until the limits are met.
func forgetFinished(streams map[uint64]*Stream) {
	var finished []uint64
	bytes := 0
	for id, st := range streams {
		if n, over := st.finished(); over {
			finished = append(finished, id)
			bytes += n
		}
	}
	slices.Sort(finished)
	for _, id := range finished {
		if len(streams) <= keptAnswers && bytes <= keptBytes {
			return
		}
		n, _ := streams[id].finished()
		bytes -= n
		streams[id].discard()
		delete(streams, id)
	}
}

// finished reports whether the stream is closed and has no reader, and how many bytes
// it keeps.
func (st *Stream) finished() (bytes int, ok bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.bytes, st.closed && st.w == nil
}

// FindStream returns the stream of an event ID and the position in it.
func (s *Session) FindStream(eventID string) (st *Stream, after uint64, ok bool) {
	id, seq, ok := ParseEventID(eventID)
	if !ok {
		return nil, 0, false
	}
	if id == 0 {
		return s.Queue(), seq, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.extra == nil || s.extra.streams[id] == nil {
		return nil, 0, false
	}
	return s.extra.streams[id], seq, true
}
