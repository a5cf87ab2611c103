package agentprotocol

import (
	"encoding/binary"
	"fmt"
)

// writer encodes fields one after the other: numbers as varints, strings and lists prefixed by their length.
type writer struct{ b []byte }

func (w *writer) writeNumber(n int64) { w.b = binary.AppendVarint(w.b, n) }

func (w *writer) writeText(s string) {
	w.b = binary.AppendUvarint(w.b, uint64(len(s)))
	w.b = append(w.b, s...)
}

func (w *writer) texts(l []string) {
	w.b = binary.AppendUvarint(w.b, uint64(len(l)))
	for _, s := range l {
		w.writeText(s)
	}
}

func (w *writer) flag(f bool) {
	var n int64
	if f {
		n = 1
	}
	w.writeNumber(n)
}

// reader decodes what writer encoded. After the first error all values are zero.
type reader struct {
	b      []byte
	broken bool
}

func (r *reader) readNumber() int64 {
	n, size := binary.Varint(r.b)
	if size <= 0 {
		r.failShort()
		return 0
	}
	r.b = r.b[size:]
	return n
}

// readCount reads a length. It fails if fewer bytes are left than that.
func (r *reader) readCount() int {
	n, size := binary.Uvarint(r.b)
	if size <= 0 || n > uint64(len(r.b)-size) {
		r.failShort()
		return 0
	}
	r.b = r.b[size:]
	return int(n)
}

func (r *reader) readText() string {
	n := r.readCount()
	s := string(r.b[:n])
	r.b = r.b[n:]
	return s
}

func (r *reader) texts() []string {
	var l []string
	for range r.readCount() {
		if r.broken {
			return nil
		}
		l = append(l, r.readText())
	}
	return l
}

func (r *reader) flag() bool {
	n := r.readNumber()
	if n != 0 && n != 1 {
		r.failShort()
	}
	return n == 1
}

func (r *reader) failShort() { r.b, r.broken = nil, true }

// finishReading returns ErrBroken if a field was malformed or bytes are left.
func (r *reader) finishReading(what string) error {
	if r.broken || len(r.b) > 0 {
		return fmt.Errorf("%w: the body of %s is malformed", ErrBroken, what)
	}
	return nil
}
