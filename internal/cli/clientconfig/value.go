package clientconfig

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
)

// object is what is written to a file, in this order. Its values are strings,
// booleans, lists of strings, and objects.
type object []member

type member struct {
	key   string
	value any
}

// get returns the value of a member; nil if there is none.
func (o object) get(key string) any {
	for _, m := range o {
		if m.key == key {
			return m.value
		}
	}
	return nil
}

// plain returns a value of an object as a parser of JSON would.
func plain(v any) any {
	switch v := v.(type) {
	case object:
		m := make(map[string]any, len(v))
		for _, one := range v {
			m[one.key] = plain(one.value)
		}
		return m
	case []string:
		list := make([]any, len(v))
		for i, s := range v {
			list[i] = s
		}
		return list
	}
	return v
}

// same reports whether a parsed value is the one that was written.
func same(parsed, written any) bool { return reflect.DeepEqual(parsed, plain(written)) }

// step is a part of the path to a value: the key of a mapping, or of a list of
// mappings the one whose member "name" is the key.
type step struct {
	key  string
	item bool
}

// steps returns the path to a member.
func steps(keys ...string) []step {
	path := make([]step, len(keys))
	for i, k := range keys {
		path[i].key = k
	}
	return path
}

func pathText(path []step) string {
	keys := make([]string, len(path))
	for i, s := range path {
		keys[i] = s.key
	}
	return strings.Join(keys, ".")
}

// lookup finds a value in a parsed file.
func lookup(tree any, path []step) (v any, found bool) {
	for _, s := range path {
		if !s.item {
			m, ok := tree.(map[string]any)
			if !ok {
				return nil, false
			}
			if tree, ok = m[s.key]; !ok {
				return nil, false
			}
			continue
		}
		list, _ := tree.([]any)
		at := indexOf(list, s.key)
		if at < 0 {
			return nil, false
		}
		tree = list[at]
	}
	return tree, true
}

// indexOf finds the item of a name in a list of mappings; -1 if there is none.
func indexOf(list []any, name string) int {
	for i, v := range list {
		if m, ok := v.(map[string]any); ok && m["name"] == name {
			return i
		}
	}
	return -1
}

// without returns a parsed file without a value, and without what is empty above
// it. The tree is changed.
func without(tree any, path []step) any {
	s := path[0]
	if s.item {
		list, _ := tree.([]any)
		at := indexOf(list, s.key)
		if at < 0 {
			return tree
		}
		return append(append([]any{}, list[:at]...), list[at+1:]...)
	}
	m, ok := tree.(map[string]any)
	if !ok {
		return tree
	}
	if len(path) > 1 {
		below, there := m[s.key]
		if !there {
			return tree
		}
		below = without(below, path[1:])
		m[s.key] = below
		if !isEmpty(below) {
			return tree
		}
	}
	delete(m, s.key)
	return tree
}

func isEmpty(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return false
}

// quote writes a string as JSON does, which YAML and TOML read as well.
func quote(s string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		panic(err) // a string can be encoded
	}
	text := strings.TrimSuffix(b.String(), "\n")
	return strings.ReplaceAll(text, "\x7f", `\u007f`)
}

// quoteList writes strings on one line.
func quoteList(list []string) string {
	quoted := make([]string, len(list))
	for i, s := range list {
		quoted[i] = quote(s)
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// SyntaxError is why a text cannot be read, and where.
type SyntaxError struct {
	Line, Column int // from 1; 0 if unknown
	Problem      string
}

func (e *SyntaxError) Error() string {
	if e.Line == 0 {
		return e.Problem
	}
	return fmt.Sprintf("line %d, column %d: %s", e.Line, e.Column, e.Problem)
}

// syntaxAt makes a SyntaxError for an offset in a text.
func syntaxAt(text []byte, offset int, format string, args ...any) error {
	offset = min(offset, len(text))
	return &SyntaxError{
		Line:    1 + bytes.Count(text[:offset], []byte("\n")),
		Column:  offset - bytes.LastIndexByte(text[:offset], '\n'),
		Problem: fmt.Sprintf(format, args...),
	}
}

// layout is how a text is written.
type layout struct {
	newline string
	unit    string // one level of indentation
}

// lineEnd is the line end that a text uses first.
func lineEnd(text []byte) string {
	if at := bytes.IndexByte(text, '\n'); at > 0 && text[at-1] == '\r' {
		return "\r\n"
	}
	return "\n"
}

// splice returns a text with the bytes from to to replaced.
func splice(text []byte, from, to int, by string) []byte {
	out := make([]byte, 0, len(text)+len(by)-(to-from))
	out = append(out, text[:from]...)
	out = append(out, by...)
	return append(out, text[to:]...)
}

// lineStart is where the line of an offset begins.
func lineStart(text []byte, at int) int { return bytes.LastIndexByte(text[:at], '\n') + 1 }

// lineStop is where the line of an offset ends, before its line end.
func lineStop(text []byte, at int) int {
	n := bytes.IndexByte(text[at:], '\n')
	if n < 0 {
		return len(text)
	}
	at += n
	if at > 0 && text[at-1] == '\r' {
		at--
	}
	return at
}

// afterLine is where the line after the one of an offset begins.
func afterLine(text []byte, at int) int {
	n := bytes.IndexByte(text[at:], '\n')
	if n < 0 {
		return len(text)
	}
	return at + n + 1
}

// indentAt is the white space that the line of an offset begins with.
func indentAt(text []byte, at int) string {
	start := lineStart(text, at)
	end := start
	for end < len(text) && (text[end] == ' ' || text[end] == '\t') {
		end++
	}
	return string(text[start:end])
}
