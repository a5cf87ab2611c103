package language

import (
	"bytes"
	"strings"
)

// tokens splits the beginning of a file about as Linguist does, whose counts
// they are looked up in: words, tags, marks; no strings, comments or numbers.
// What a comment begins with is a token of its own.
func tokens(b []byte, found func(string)) {
	for len(b) > 0 {
		n, token := nextToken(b)
		if token != "" {
			found(token)
		}
		b = b[n:]
	}
}

const tokenMost = 24 // bytes of a word that are looked at; longer ones identify no language

func nextToken(b []byte) (n int, token string) {
	c := b[0]
	switch {
	case c == '"' || c == '\'':
		return quoted(b), ""
	case bytes.HasPrefix(b, []byte("/*")):
		return through(b, "*/"), "/*"
	case bytes.HasPrefix(b, []byte("<!--")):
		return through(b, "-->"), "<!--"
	case comments(b):
		return through(b, "\n"), ""
	case c >= '0' && c <= '9':
		return span(b, isNumber), ""
	case c == '<' && len(b) > 1 && (isLetter(b[1]) || b[1] == '/' || b[1] == '!' || b[1] == '?'):
		return tag(b)
	case isWord(c):
		if n = span(b, isWord); n > tokenMost {
			return n, ""
		}
		return n, string(b[:n])
	case strings.IndexByte(";{}()[]<+-%&|:=,!\\`$~^?>", c) >= 0:
		return 1, string(b[:1])
	}
	return 1, ""
}

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
func isNumber(c byte) bool { return isLetter(c) || c >= '0' && c <= '9' || c == '.' }
func isWord(c byte) bool   { return isNumber(c) || strings.IndexByte("_@#/*", c) >= 0 }

func span(b []byte, of func(byte) bool) int {
	for i, c := range b {
		if !of(c) {
			return i
		}
	}
	return len(b)
}

// through is the length up to and with the end, or of everything.
func through(b []byte, end string) int {
	if i := bytes.Index(b, []byte(end)); i >= 0 {
		return i + len(end)
	}
	return len(b)
}

// quoted is the length of a string that ends on its line; a quote alone is an
// apostrophe.
func quoted(b []byte) int {
	for i := 1; i < len(b) && b[i] != '\n'; i++ {
		switch b[i] {
		case '\\':
			i++
		case b[0]:
			return i + 1
		}
	}
	return 1
}

// comments reports whether a comment of one line begins here.
func comments(b []byte) bool {
	for _, mark := range [...]string{"// ", "# ", "-- ", "% "} {
		if bytes.HasPrefix(b, []byte(mark)) {
			return true
		}
	}
	return false
}

// tag is the name of a tag of HTML or XML; its attributes are read as words.
func tag(b []byte) (int, string) {
	n := 1 + span(b[1:], func(c byte) bool { return isNumber(c) || strings.IndexByte("/!?:-_", c) >= 0 })
	if n > tokenMost {
		return n, ""
	}
	return n, string(b[:n]) + ">"
}
