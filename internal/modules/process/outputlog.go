package process

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"gatehouse/internal/exec/terminal"
)

// The streams of a process. A process with a terminal has only the first.
const (
	stdout = iota
	stderr
)

const (
	initialBuffer = 4 << 10 // bytes of a new ring, which grows up to Config.Buffer
	maxPieces     = 8 << 10 // pieces of one ring; older ones are dropped
)

// outputLog is the newest output of a process. A position counts the bytes of
// both streams in the order in which they arrived, so that one cursor serves
// each stream and both together. It is safe for concurrent use.
type outputLog struct {
	mu        sync.Mutex
	total     int64
	rings     [2]ring
	screen    *terminal.Screen // nil if the process has no terminal
	lastWrite time.Time        // when the last byte arrived
	waiting   chan struct{}    // closed at the next byte; nil if no goroutine waits
}

// ring is the newest part of one stream.
type ring struct {
	max    int
	buf    []byte  // a circular buffer
	end    int64   // bytes that this stream has had
	kept   int     // how many of them are kept, the last ones
	pieces []piece // of the kept bytes, oldest first
	lost   int64   // bytes that were dropped
	before int64   // position in the log before which bytes were dropped
}

// piece is a part of a stream that arrived without a part of the other stream in
// between.
type piece struct {
	at, inStream, n int64 // position in the log, position in the stream, length
}

func newLog(most int, screen *terminal.Screen) *outputLog {
	l := &outputLog{screen: screen, lastWrite: time.Now()}
	l.rings[stdout].max, l.rings[stderr].max = most, most
	return l
}

// stream is the writer of one stream. It never blocks and never fails.
type stream struct {
	*outputLog
	n int
}

func (s stream) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.screen != nil {
		s.screen.Write(b)
	}
	s.rings[s.n].appendChunk(b, s.total)
	s.total += int64(len(b))
	s.lastWrite = time.Now()
	s.wake()
	return len(b), nil
}

// skip counts output that is not kept.
func (l *outputLog) skip(stream int, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &l.rings[stream]
	l.total += n
	r.end += n
	r.lost, r.before = r.end, l.total
}

func (l *outputLog) wake() {
	if l.waiting != nil {
		close(l.waiting)
		l.waiting = nil
	}
}

// changed returns a channel that is closed at the next output. l.mu is held.
func (l *outputLog) changed() <-chan struct{} {
	if l.waiting == nil {
		l.waiting = make(chan struct{})
	}
	return l.waiting
}

func (r *ring) appendChunk(b []byte, at int64) {
	if last := len(r.pieces) - 1; last >= 0 && r.pieces[last].at+r.pieces[last].n == at {
		r.pieces[last].n += int64(len(b))
	} else {
		r.pieces = append(r.pieces, piece{at, r.end, int64(len(b))})
	}
	r.end += int64(len(b))
	if over := len(b) - r.max; over > 0 {
		b = b[over:]
	}
	r.grow(len(b))
	for at := int(r.end-int64(len(b))) % len(r.buf); len(b) > 0; at = 0 {
		n := copy(r.buf[at:], b)
		b = b[n:]
		r.kept += n
	}
	r.kept = min(r.kept, len(r.buf))
	r.drop(r.end - int64(r.kept))
	if len(r.pieces) > maxPieces {
		r.drop(r.pieces[len(r.pieces)-maxPieces/2].inStream)
		r.kept = int(r.end - r.pieces[0].inStream)
	}
}

// grow enlarges the buffer for n more bytes, up to its limit.
func (r *ring) grow(n int) {
	size := max(len(r.buf), min(initialBuffer, r.max))
	for size < r.kept+n && size < r.max {
		size = min(2*size, r.max)
	}
	if size == len(r.buf) {
		return
	}
	buf := make([]byte, size)
	from := r.end - int64(n) - int64(r.kept) // the end includes the n new bytes, which are not in the buffer yet
	for i := range r.kept {
		own := from + int64(i)
		buf[own%int64(size)] = r.buf[own%int64(len(r.buf))]
	}
	r.buf = buf
}

// drop drops the bytes before a position in the stream.
func (r *ring) drop(own int64) {
	i := 0
	for i < len(r.pieces) && r.pieces[i].inStream+r.pieces[i].n <= own {
		r.before = r.pieces[i].at + r.pieces[i].n
		i++
	}
	if i == len(r.pieces) {
		r.pieces = r.pieces[:0]
	} else if i > 0 {
		r.pieces = slices.Delete(r.pieces, 0, i)
	}
	if len(r.pieces) > 0 {
		if p := &r.pieces[0]; p.inStream < own {
			cut := own - p.inStream
			p.at, p.inStream, p.n = p.at+cut, own, p.n-cut
			r.before = p.at
		}
	}
	r.lost = max(r.lost, own)
}

// copyTo appends a piece's bytes.
func (r *ring) copyTo(b []byte, p piece) []byte {
	for p.n > 0 {
		at := p.inStream % int64(len(r.buf))
		n := min(p.n, int64(len(r.buf))-at)
		b = append(b, r.buf[at:at+n]...)
		p.inStream, p.n = p.inStream+n, p.n-n
	}
	return b
}

// part is a part of the log.
type part struct {
	text       []byte
	start, end int64 // positions in the log; the next read begins at end
	lost       int64 // upper bound of the dropped bytes between the requested position and start
	whole      int   // bytes at the end of text that are of one piece
}

// streamPiece is a piece with its stream.
type streamPiece struct {
	piece
	from *ring
}

// readSince returns at most most bytes of the streams from position since on: the
// first of them or, with last, the last. l.mu is held.
func (l *outputLog) readSince(since int64, streams []int, most int, last bool) part {
	all, lost := l.pieces(since, streams)
	p := part{start: since, end: l.total, lost: lost}
	if last {
		all, p.start = latest(all, int64(most), since)
	} else {
		all, p.end = earliest(all, int64(most), l.total)
	}
	for _, x := range all {
		p.text = x.from.copyTo(p.text, x.piece)
		p.whole = int(x.n)
	}
	return p
}

// chunk is a part of one stream and the position after it.
type chunk struct {
	stream int
	text   []byte
	end    int64
}

// chunks returns both streams from position since on in the order in which they
// arrived: at most most bytes in at most parts chunks. l.mu is held.
func (l *outputLog) chunks(since int64, most, parts int) (all []chunk, end, lost int64) {
	found, lost := l.pieces(since, []int{stdout, stderr})
	found, end = earliest(found, int64(most), l.total)
	if len(found) > parts {
		found, end = found[:parts], found[parts].at
	}
	for _, x := range found {
		t := chunk{text: x.from.copyTo(nil, x.piece), end: x.at + x.n}
		if x.from == &l.rings[stderr] {
			t.stream = stderr
		}
		all = append(all, t)
	}
	return all, end, lost
}

// pieces returns the pieces of some streams from position since on, in order, and
// how many of their bytes were dropped. l.mu is held.
func (l *outputLog) pieces(since int64, streams []int) (all []streamPiece, lost int64) {
	for _, s := range streams {
		r := &l.rings[s]
		if r.before > since {
			lost += min(r.lost, r.before-since)
		}
		i, _ := slices.BinarySearchFunc(
			r.pieces, since, func(x piece, at int64) int { return cmp.Compare(x.at+x.n-1, at) },
		)
		for _, x := range r.pieces[i:] {
			if cut := since - x.at; cut > 0 {
				x = piece{x.at + cut, x.inStream + cut, x.n - cut}
			}
			all = append(all, streamPiece{x, r})
		}
	}
	slices.SortFunc(all, func(a, b streamPiece) int { return cmp.Compare(a.at, b.at) })
	return all, lost
}

// earliest returns the pieces with the first most bytes, and the position after
// them.
func earliest(all []streamPiece, most, end int64) ([]streamPiece, int64) {
	for i := range all {
		if all[i].n > most {
			all[i].n = most
			return all[:i+1], all[i].at + most
		}
		most -= all[i].n
	}
	return all, end
}

// latest returns the pieces with the last most bytes, and the position at which
// they begin.
func latest(all []streamPiece, most, since int64) ([]streamPiece, int64) {
	for i := len(all) - 1; i >= 0; i-- {
		if x := &all[i]; x.n > most {
			cut := x.n - most
			x.piece = piece{x.at + cut, x.inStream + cut, most}
			return all[i:], x.at
		}
		most -= all[i].n
	}
	return all, since
}
