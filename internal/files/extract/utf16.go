package extract

import (
	"bytes"
	"encoding/binary"
	"unicode/utf16"
	"unicode/utf8"
)

// Wide is an encoding of text in units of two or four bytes. The zero value is not
// an encoding.
type Wide struct {
	Name string // UTF-16 or UTF-32
	Unit int    // bytes
	Mark string // the byte order mark

	order interface {
		binary.ByteOrder
		binary.AppendByteOrder
	}
}

// UTF-32 comes first, because its mark begins with that of UTF-16.
var wides = []Wide{
	{"UTF-32", 4, "\xFF\xFE\x00\x00", binary.LittleEndian},
	{"UTF-32", 4, "\x00\x00\xFE\xFF", binary.BigEndian},
	{"UTF-16", 2, "\xFF\xFE", binary.LittleEndian},
	{"UTF-16", 2, "\xFE\xFF", binary.BigEndian},
}

// WideOf returns the encoding of a file by the byte order mark at its beginning.
func WideOf(head []byte) (w Wide, ok bool) {
	for _, w := range wides {
		if bytes.HasPrefix(head, []byte(w.Mark)) {
			return w, true
		}
	}
	return Wide{}, false
}

// IsWide reports whether a file begins with the byte order mark of UTF-16 or
// UTF-32.
func IsWide(head []byte) bool {
	_, ok := WideOf(head)
	return ok
}

// Decode converts a text without its mark to UTF-8. lost counts the units, and a
// partial unit at the end, that are not valid; each becomes U+FFFD.
func (w Wide) Decode(b []byte) (text []byte, lost int) {
	text = make([]byte, 0, len(b)/w.Unit)
	for ; len(b) >= w.Unit; b = b[w.Unit:] {
		r := w.unit(b)
		switch {
		case w.Unit == 2 && utf16.IsSurrogate(r):
			second := rune(0)
			if len(b) >= 2*w.Unit {
				second = w.unit(b[w.Unit:])
			}
			if r = utf16.DecodeRune(r, second); r == utf8.RuneError {
				lost++
			} else {
				b = b[w.Unit:]
			}
		case !utf8.ValidRune(r):
			r = utf8.RuneError
			lost++
		}
		text = utf8.AppendRune(text, r)
	}
	if len(b) > 0 {
		text = utf8.AppendRune(text, utf8.RuneError)
		lost++
	}
	return text, lost
}

func (w Wide) unit(b []byte) rune {
	if w.Unit == 4 {
		return rune(w.order.Uint32(b))
	}
	return rune(w.order.Uint16(b))
}

// Encode converts UTF-8 to the encoding, without a mark.
func (w Wide) Encode(text []byte) []byte {
	b := make([]byte, 0, len(text)*w.Unit)
	for _, r := range string(text) {
		if w.Unit == 4 {
			b = w.order.AppendUint32(b, uint32(r))
			continue
		}
		if first, second := utf16.EncodeRune(r); first != utf8.RuneError {
			b = w.order.AppendUint16(b, uint16(first))
			r = second
		}
		b = w.order.AppendUint16(b, uint16(r))
	}
	return b
}

// Narrow converts text that begins with the mark of a wide encoding to UTF-8,
// without the mark. It returns any other text unchanged.
func Narrow(b []byte) []byte {
	w, ok := WideOf(b)
	if !ok {
		return b
	}
	text, _ := w.Decode(b[len(w.Mark):])
	return text
}
