// Package rawjson reads and splices JSON text without decoding it into values.
//
// Text from outside goes through Check once. All other functions rely on that: on text that was not
// checked they return wrong results, but they never panic and always end. Returned slices alias the
// text they were read from, so the text must not be changed while they are in use. All functions are
// safe for concurrent use on the same text; a Cursor or Members is not.
package rawjson

import (
	"bytes"
	"unicode/utf8"
)

// Kind returns the type of a value by its first byte: '{', '[', '"', 't', 'f', 'n', '0' for any number,
// and 0 for a byte that starts no value.
func Kind(v []byte) byte {
	if i := skipSpace(v, 0); i < len(v) {
		return kindOf(v[i])
	}
	return 0
}

func kindOf(c byte) byte {
	switch c {
	case '{', '[', '"', 't', 'f', 'n':
		return c
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		return '0'
	}
	return 0
}

// Get returns the member of an object with a decoded key. The value has no white space around it. Get
// reads the whole object up to the member.
func Get(obj []byte, key string) ([]byte, bool) {
	m := Walk(obj)
	for {
		k, v, ok := m.Next()
		if !ok {
			return nil, false
		}
		if string(k) == key {
			return v, true
		}
	}
}

// String decodes a JSON string. It returns false for any other value.
func String(v []byte) (string, bool) {
	body, ok := stringBody(v)
	if !ok {
		return "", false
	}
	if bytes.IndexByte(body, '\\') < 0 {
		return string(body), true
	}
	s, ok := appendDecoded(make([]byte, 0, len(body)), body)
	return string(s), ok
}

// Equal reports whether a value is the JSON string that decodes to s. It does
// not allocate.
func Equal(v []byte, s string) bool {
	body, ok := stringBody(v)
	if !ok || len(body) < len(s) { // decoding never makes a text longer
		return false
	}
	if len(body) == len(s) {
		return string(body) == s && bytes.IndexByte(body, '\\') < 0
	}
	return decodesTo(body, s)
}

// Bytes decodes a JSON string like String; without escapes the result aliases v and nothing is
// allocated.
func Bytes(v []byte) ([]byte, bool) {
	body, ok := stringBody(v)
	if !ok {
		return nil, false
	}
	return decodedBody(body)
}

// Length returns the number of code points of a decoded JSON string, 0 for any other value. It does not
// allocate.
func Length(v []byte) (n int) {
	body, _ := stringBody(v)
	for i := 0; i < len(body); n++ {
		if body[i] == '\\' {
			_, next := unescape(body, i)
			i = max(next, i+1)
			continue
		}
		for i++; i < len(body) && !utf8.RuneStart(body[i]); {
			i++
		}
	}
	return n
}

// stringBody returns the bytes between the quotes of a string.
func stringBody(v []byte) ([]byte, bool) {
	v = trimSpace(v)
	if len(v) < 2 || v[0] != '"' || skipString(v, 0) != len(v) {
		return nil, false
	}
	return v[1 : len(v)-1], true
}

func trimSpace(v []byte) []byte {
	v = v[skipSpace(v, 0):]
	for len(v) > 0 && isSpace(v[len(v)-1]) {
		v = v[:len(v)-1]
	}
	return v
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && isSpace(b[i]) {
		i++
	}
	return i
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }
