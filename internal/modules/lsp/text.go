package lsp

import (
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// text is the content of a file by its lines, which keep no line ending.
type text struct {
	content string
	lines   []string
}

func newText(content string) *text {
	lines := strings.Split(content, "\n")
	for i, l := range lines {
		lines[i] = strings.TrimSuffix(l, "\r")
	}
	return &text{content, lines}
}

// line returns a line, which begins at 0, or "".
func (t *text) line(n int) string {
	if t == nil || n < 0 || n >= len(t.lines) {
		return ""
	}
	return t.lines[n]
}

// bytesIn returns how many bytes of a line the first units of an encoding are.
func bytesIn(line string, units int, encoding string) int {
	if encoding == encodingUTF8 {
		return min(max(units, 0), len(line))
	}
	n := 0
	for i, r := range line {
		if n >= units {
			return i
		}
		n += utf16.RuneLen(r)
	}
	return len(line)
}

// unitsIn returns how many units of an encoding the first bytes of a line are.
func unitsIn(line string, bytes int, encoding string) int {
	bytes = min(max(bytes, 0), len(line))
	if encoding == encodingUTF8 {
		return bytes
	}
	n := 0
	for _, r := range line[:bytes] {
		n += max(utf16.RuneLen(r), 1)
	}
	return n
}

const encodingUTF8 = "utf-8"

// column returns the number, from 1, of the character at a position.
func (t *text) column(p position, encoding string) int {
	line := t.line(p.Line)
	return utf8.RuneCountInString(line[:bytesIn(line, p.Character, encoding)]) + 1
}

// at returns the position of a column, from 1, of a line, from 1.
func (t *text) at(line, column int, encoding string) position {
	l := t.line(line - 1)
	bytes := 0
	for range column - 1 {
		_, n := utf8.DecodeRuneInString(l[bytes:])
		bytes += n
	}
	return position{line - 1, unitsIn(l, bytes, encoding)}
}

// findWord returns the line and column, from 1, of a word. line 0 means the first line that has it.
func (t *text) findWord(word string, line int) (foundLine, column int, ok bool) {
	for i := range t.lines {
		if line != 0 && i != line-1 {
			continue
		}
		l := t.lines[i]
		for from := 0; ; {
			n := strings.Index(l[from:], word)
			if n < 0 {
				break
			}
			n += from
			if isWord(l, n, n+len(word)) {
				return i + 1, utf8.RuneCountInString(l[:n]) + 1, true
			}
			from = n + len(word)
		}
	}
	return 0, 0, false
}

// isWord reports whether a part of a line is not within a longer word.
func isWord(l string, from, to int) bool {
	before, _ := utf8.DecodeLastRuneInString(l[:from])
	after, _ := utf8.DecodeRuneInString(l[to:])
	first, _ := utf8.DecodeRuneInString(l[from:])
	last, _ := utf8.DecodeLastRuneInString(l[:to])
	return !(inWord(before) && inWord(first)) && !(inWord(after) && inWord(last))
}

func inWord(r rune) bool {
	return r == '_' || r == '$' || unicode.IsLetter(r) || unicode.IsDigit(r)
}
