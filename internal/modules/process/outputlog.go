package process

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"gatehouse/internal/exec/terminal"
)

// The streams of a process. A terminal has only the first.
const (
	stdout = iota
	stderr
)

const (
	initialBuffer = 4 << 10 // of a ring, which grows to what the configuration says
	maxPieces  = 8 << 10 // of one ring: how often the streams took turns
)

// log is the newest of what a process printed. Positions count the bytes of both
// streams as they arrived, so one cursor serves each of them and both.
type outputLog struct {
	mu      sync.Mutex
	total   int64
	rings   [2]ring
	screen  *terminal.Screen // nil without a terminal
	lastWrite   time.Time        // when the last byte came
	waiting chan struct{}    // closed at the next byte; nil when nobody waits
}

// ring is the newest of one stream.
type ring struct {
	max   int
	buf    []byte  // used as a circle of len(buf)
	end    int64   // bytes of this stream so far
	kept   int     // of those, the last
	pieces []piece // of what is kept, oldest first
	lost   int64   // bytes that are not kept any more
	before int64   // position in the log below which bytes were lost
}

// piece is a part of a stream that arrived without the other between.
type piece struct {
	at, inStream, n int64 // position in the log, in the stream, and bytes
}

func newLog(most int, screen *terminal.Screen) *outputLog {
	l := &outputLog{screen: screen, lastWrite: time.Now()}
	l.rings[stdout].max, l.rings[stderr].max = most, most
	return l
}

// stream is the writer of one stream; it never blocks.
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
	s.rings[s.n].add(b, s.total)
	s.total += int64(len(b))
	s.lastWrite = time.Now()
	s.wake()
	return len(b), nil
}

// skip counts what was printed and is not kept any more.
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

// next is closed when more has come. l.mu is held.
func (l *outputLog) changed() <-chan struct{} {
	if l.waiting == nil {
		l.waiting = make(chan struct{})
	}
	return l.waiting
}

func (r *ring) add(b []byte, at int64) {
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

// grow makes the circle large enough for n more bytes, if it may.
func (r *ring) grow(n int) {
	size := max(len(r.buf), min(initialBuffer, r.max))
	for size < r.kept+n && size < r.max {
		size = min(2*size, r.max)
	}
	if size == len(r.buf) {
		return
	}
	buf := make([]byte, size)
	from := r.end - int64(n) - int64(r.kept) // the end has moved already, the bytes have not
	for i := range r.kept {
		own := from + int64(i)
		buf[own%int64(size)] = r.buf[own%int64(len(r.buf))]
	}
	r.buf = buf
}

// drop forgets what lies before a position in the stream.
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

// part is some of the log.
type part struct {
	text       []byte
	start, end int64 // positions; reading on begins at end
	lost       int64 // bytes between what was asked for and start that are gone, at most
	whole      int   // bytes at the end of text that arrived in a row
}

// taken is a piece and whose it is.
type streamPiece struct {
	piece
	from *ring
}

// read gives what the streams hold from a position on, at most so many bytes: the
// first, or with last the last of them. l.mu is held.
func (l *outputLog) read(since int64, streams []int, most int, last bool) part {
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

// turn is a part of one stream, and the position after it.
type chunk struct {
	stream int
	text   []byte
	end    int64
}

// turns gives what both streams hold from a position on, at most so many bytes
// in so many parts, in the order in which they took turns. l.mu is held.
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

// pieces are those of some streams from a position on, in order, and how many
// bytes of them are gone. l.mu is held.
func (l *outputLog) pieces(since int64, streams []int) (all []streamPiece, lost int64) {
	for _, s := range streams {
		r := &l.rings[s]
		if r.before > since {
			lost += min(r.lost, r.before-since)
		}
		i, _ := slices.BinarySearchFunc(r.pieces, since, func(x piece, at int64) int { return cmp.Compare(x.at+x.n-1, at) })
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

// earliest keeps the first so many bytes, and tells where reading on begins.
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

// latest keeps the last so many bytes, and tells where they begin.
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
