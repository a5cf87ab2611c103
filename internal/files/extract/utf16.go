package extract

import (
	"bytes"
	"encoding/binary"
	"unicode/utf16"
	"unicode/utf8"
)

// Wide is an encoding of text whose units have two or four bytes. The zero value
// is none.
type Wide struct {
	Name string // UTF-16 or UTF-32
	Unit int    // bytes
	Mark string // the byte order mark

	order interface {
		binary.ByteOrder
		binary.AppendByteOrder
	}
}

// wides are in this order because the mark of UTF-32 begins like that of UTF-16.
var wides = []Wide{
	{"UTF-32", 4, "\xFF\xFE\x00\x00", binary.LittleEndian},
	{"UTF-32", 4, "\x00\x00\xFE\xFF", binary.BigEndian},
	{"UTF-16", 2, "\xFF\xFE", binary.LittleEndian},
	{"UTF-16", 2, "\xFE\xFF", binary.BigEndian},
}

// WideOf tells the encoding of a file that begins like this from its byte order
// mark.
func WideOf(head []byte) (w Wide, ok bool) {
	for _, w := range wides {
		if bytes.HasPrefix(head, []byte(w.Mark)) {
			return w, true
		}
	}
	return Wide{}, false
}

// IsWide reports whether a file that begins like this is text in UTF-16 or
// UTF-32.
func IsWide(head []byte) bool {
	_, ok := WideOf(head)
	return ok
}

// Decode makes UTF-8 of a text without its mark. lost is how many units, or parts
// of one at the end, stand for no character; each becomes U+FFFD.
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

// Encode is the other way round, without the mark.
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

// Narrow makes UTF-8 of text in a wide encoding that begins with its mark, which
// is left out; any other text stays as it is.
func Narrow(b []byte) []byte {
	w, ok := WideOf(b)
	if !ok {
		return b
	}
	text, _ := w.Decode(b[len(w.Mark):])
	return text
}
