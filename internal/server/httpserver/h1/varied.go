package h1

import "bytes"

// line is one field of the last head.
type line struct {
	end   int // its end in the head, including its line break
	colon int // length of its name
	key   string
}

// varied recognizes a head that differs from the last one only in values of fields that do not affect
// the framing. It reuses the parsed header of the last head with these values changed, which is safe
// because that request's handler has returned. If it fails, the last head is forgotten.
func (r *reader) varied(b []byte) (head, bool) {
	if len(r.raw) == 0 {
		return head{}, false
	}
	v := variation{reader: r, b: b, h: r.last}
	if v.fields() && bytes.HasPrefix(b[v.at:], blankLine[:2]) && v.at+2 <= largestHead {
		v.h.size = v.at + 2
		r.last, r.raw = v.h, append(r.raw[:0], b[:v.h.size]...)
		return v.h, true
	}
	r.raw = r.raw[:0]
	return head{}, false
}

// variation is a head that is being compared with the last one.
type variation struct {
	*reader
	b  []byte
	at int // how far b was compared
	h  head
}

func (v *variation) fields() bool {
	if v.at = v.first; !bytes.HasPrefix(v.b, v.raw[:v.first]) {
		return false
	}
	was := v.first
	for i := range v.lines {
		l := &v.lines[i]
		old := v.raw[was:l.end]
		was = l.end
		if bytes.HasPrefix(v.b[v.at:], old) {
			if l.key == "Content-Length" {
				v.from, v.to = v.from+v.at+len(old)-was, v.to+v.at+len(old)-was
			}
			v.at += len(old)
		} else if !v.changed(l, old[:l.colon+1]) {
			return false
		}
		l.end = v.at
	}
	return true
}

// changed processes a line whose value differs.
func (v *variation) changed(l *line, name []byte) bool {
	rest := v.b[v.at:]
	size := bytes.Index(rest[:min(len(rest), largestHead)], blankLine[:2])
	if size < 0 || !bytes.HasPrefix(rest[:size], name) {
		return false
	}
	value := bytes.Trim(rest[len(name):size], " \t")
	switch l.key {
	case "Host", "Connection":
		return false
	case "Content-Length":
		n, digits := parseDigits(value)
		if digits == 0 || digits != len(value) {
			return false
		}
		v.h.length = n
		v.from = v.at + bytes.LastIndex(rest[:size], value)
		v.to = v.from + digits
	default:
		values := v.h.header[l.key]
		if len(values) != 1 || !printable(value) {
			return false
		}
		values[0] = string(value)
	}
	v.at += size + 2
	return true
}
