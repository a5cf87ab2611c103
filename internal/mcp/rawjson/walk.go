package rawjson

import (
	"bytes"
	"encoding/binary"
	"errors"
	"iter"
)

// Cursor reads a checked text from front to back, once. The zero value is at
// the end of an empty text.
type Cursor struct {
	b []byte
	i int
}

// At returns a cursor at the beginning of a text.
func At(text []byte) Cursor { return Cursor{b: text} }

// Kind returns the type of the next value, as Kind does, without passing it.
func (c *Cursor) Kind() byte {
	if c.i = skipSpace(c.b, c.i); c.i < len(c.b) {
		return kindOf(c.b[c.i])
	}
	return 0
}

// Value passes the next value and returns its text, nil if there is none.
func (c *Cursor) Value() []byte {
	start := skipSpace(c.b, c.i)
	end := skipValue(c.b, start)
	if end < 0 {
		c.i = len(c.b)
		return nil
	}
	c.i = end
	return c.b[start:end:end]
}

// Enter passes the opening bracket of the array or object that Kind has reported.
func (c *Cursor) Enter() { c.i = min(c.i+1, len(c.b)) }

// Key passes the next member name of the object that was entered, so that the member's value is next.
// At the end of the object it passes the bracket and returns false. The key is decoded; it aliases the
// text if it contains no escapes.
func (c *Cursor) Key() (key []byte, ok bool) {
	i := skipSpace(c.b, c.i)
	if i < len(c.b) && c.b[i] == ',' {
		i = skipSpace(c.b, i+1)
	}
	if i >= len(c.b) || c.b[i] != '"' {
		return c.closeBracket(i, '}')
	}
	end := skipString(c.b, i)
	if end < 0 {
		return c.closeBracket(len(c.b), '}')
	}
	if key, ok = decodedBody(c.b[i+1 : end-1 : end-1]); !ok {
		return c.closeBracket(len(c.b), '}')
	}
	if i = skipSpace(c.b, end); i >= len(c.b) || c.b[i] != ':' {
		return c.closeBracket(len(c.b), '}')
	}
	c.i = i + 1
	return key, true
}

// closeBracket passes the closing bracket at i. If another byte is there, the text was never checked,
// and the cursor moves to the end.
func (c *Cursor) closeBracket(i int, bracket byte) ([]byte, bool) {
	if i < len(c.b) && c.b[i] == bracket {
		c.i = i + 1
	} else {
		c.i = len(c.b)
	}
	return nil, false
}

// More reports whether the array that was entered has another element, which is then next. At the end
// of the array it passes the bracket.
func (c *Cursor) More() bool {
	i := skipSpace(c.b, c.i)
	if i < len(c.b) && c.b[i] == ',' {
		i = skipSpace(c.b, i+1)
	}
	if i >= len(c.b) || kindOf(c.b[i]) == 0 {
		c.closeBracket(i, ']')
		return false
	}
	c.i = i
	return true
}

// Offset returns the number of bytes that were passed.
func (c *Cursor) Offset() int { return c.i }

// Members iterates over the members of an object without allocating. Walk returns one.
type Members struct{ c Cursor }

// Walk returns an iterator before the first member of an object. Anything but an object has no members.
func Walk(obj []byte) Members {
	c := At(obj)
	if c.Kind() != '{' {
		return Members{}
	}
	c.Enter()
	return Members{c}
}

// Next returns the next member: its decoded key, which aliases the text if it contains no escapes, and
// the text of its value without white space around it.
func (m *Members) Next() (key, value []byte, ok bool) {
	if key, ok = m.c.Key(); !ok {
		m.c = Cursor{}
		return nil, nil, false
	}
	if value = m.c.Value(); value == nil {
		return nil, nil, false
	}
	return key, value, true
}

// Object yields the results of Members.Next.
func Object(obj []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		m := Walk(obj)
		for {
			k, v, ok := m.Next()
			if !ok || !yield(k, v) {
				return
			}
		}
	}
}

// Each calls f with the members of an object, in order, until it returns false. It allocates a string
// for each key; Walk does not. It returns an error if obj is not an object.
func Each(obj []byte, f func(key string, value []byte) bool) error {
	if Kind(obj) != '{' {
		return errors.New("expected a JSON object")
	}
	for k, v := range Object(obj) {
		if !f(string(k), v) {
			break
		}
	}
	return nil
}

// Elements yields the elements of an array. Anything else has none.
func Elements(arr []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		c := At(arr)
		if c.Kind() != '[' {
			return
		}
		c.Enter()
		for c.More() {
			if v := c.Value(); v == nil || !yield(v) {
				return
			}
		}
	}
}

// skipValue returns the position after the value that starts at i, or -1.
func skipValue(b []byte, i int) int {
	if i >= len(b) {
		return -1
	}
	switch kindOf(b[i]) {
	case '{', '[':
		return skipNested(b, i)
	case '"':
		return skipString(b, i)
	case 0:
		return -1
	}
	for i < len(b) && !isSpace(b[i]) && b[i] != ',' && b[i] != '}' && b[i] != ']' {
		i++
	}
	return i
}

func skipNested(b []byte, i int) int {
	for depth := 0; i < len(b); i++ {
		switch b[i] {
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		case '"':
			end := skipString(b, i)
			if end < 0 {
				return -1
			}
			i = end - 1
		}
	}
	return -1
}

// skipString returns the position after the closing quote of the string at i, or -1.
func skipString(b []byte, i int) int {
	for i++; ; i += 2 {
		if i = skipToQuote(b, i); i >= len(b) {
			return -1
		}
		if b[i] == '"' {
			return i + 1
		}
	}
}

// skipToQuote returns the position of the next quote or backslash; it tests eight bytes at a time.
func skipToQuote(b []byte, i int) int {
	for ; i+8 <= len(b); i += 8 {
		x := binary.LittleEndian.Uint64(b[i:])
		quote, slash := x^('"'*each01), x^('\\'*each01)
		if ((quote-each01)&^quote|(slash-each01)&^slash)&each80 != 0 {
			break
		}
	}
	for i < len(b) && b[i] != '"' && b[i] != '\\' {
		i++
	}
	return i
}

// decodedBody decodes the bytes between quotes; without escapes it returns body.
func decodedBody(body []byte) ([]byte, bool) {
	if bytes.IndexByte(body, '\\') < 0 {
		return body, true
	}
	return appendDecoded(nil, body)
}
