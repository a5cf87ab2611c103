package agentprotocol

import (
	"encoding/binary"
	"fmt"
)

// writer encodes fields one after the other: numbers as varints, strings and lists prefixed by their length.
type writer struct{ b []byte }

func (w *writer) number(n int64) { w.b = binary.AppendVarint(w.b, n) }

func (w *writer) text(s string) {
	w.b = binary.AppendUvarint(w.b, uint64(len(s)))
	w.b = append(w.b, s...)
}

func (w *writer) texts(l []string) {
	w.b = binary.AppendUvarint(w.b, uint64(len(l)))
	for _, s := range l {
		w.text(s)
	}
}

func (w *writer) flag(f bool) {
	var n int64
	if f {
		n = 1
	}
	w.number(n)
}

// reader decodes what writer encoded. After the first error all values are zero.
type reader struct {
	b      []byte
	broken bool
}

func (r *reader) number() int64 {
	n, size := binary.Varint(r.b)
	if size <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[size:]
	return n
}

// count reads a length. It fails if fewer bytes are left than that.
func (r *reader) count() int {
	n, size := binary.Uvarint(r.b)
	if size <= 0 || n > uint64(len(r.b)-size) {
		r.fail()
		return 0
	}
	r.b = r.b[size:]
	return int(n)
}

func (r *reader) text() string {
	n := r.count()
	s := string(r.b[:n])
	r.b = r.b[n:]
	return s
}

func (r *reader) texts() []string {
	var l []string
	for range r.count() {
		if r.broken {
			return nil
		}
		l = append(l, r.text())
	}
	return l
}

func (r *reader) flag() bool {
	n := r.number()
	if n != 0 && n != 1 {
		r.fail()
	}
	return n == 1
}

func (r *reader) fail() { r.b, r.broken = nil, true }

// finish returns ErrBroken if a field was malformed or bytes are left.
func (r *reader) finish(what string) error {
	if r.broken || len(r.b) > 0 {
		return fmt.Errorf("%w: the body of %s is malformed", ErrBroken, what)
	}
	return nil
}
