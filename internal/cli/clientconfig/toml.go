package clientconfig

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
)

// tomlFormat edits TOML. A new server is a table of its own, unless its servers are written in an
// inline table.
type tomlFormat struct{}

// tomlBraces edits inline tables.
var tomlBraces = braces{
	key: func(text []byte, at int) (string, int, bool) {
		keys, separator, err := tomlKey(text, at, '=')
		if err != nil || len(keys) != 1 {
			return "", 0, false
		}
		return keys[0], separator, true
	},
	stringEnd: tomlStringEnd,
	member:    tomlLine,
	value:     tomlValue,
}

// inline returns where the value begins that holds what a path leads to, and the rest of the path; ok
// is false if the path leads into no inline table.
func inline(all []statement, path []step) (at int, rest []step, ok bool) {
	keys := keysOf(path)
	for _, s := range all {
		said := slices.Concat(s.table, s.key)
		if !s.header && len(said) < len(keys) && slices.Equal(said, keys[:len(said)]) {
			return s.value, path[len(said):], true
		}
	}
	return 0, nil, false
}

func (tomlFormat) parse(text []byte) (any, error) {
	if at := tooDeepAt(text); at >= 0 {
		return nil, syntaxAt(text, at, "more than %d brackets are open at once", maxNesting)
	}
	tree := map[string]any{}
	if _, err := toml.Decode(string(text), &tree); err != nil {
		if e, ok := errors.AsType[toml.ParseError](err); ok {
			return nil, &SyntaxError{Line: e.Position.Line, Column: max(e.Position.Col, 1), Problem: e.Message}
		}
		return nil, &SyntaxError{Problem: err.Error()}
	}
	return listed(tree), nil
}

// listed turns the lists of tables that the parser makes into plain lists.
func listed(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, inner := range v {
			v[k] = listed(inner)
		}
	case []map[string]any:
		list := make([]any, len(v))
		for i, inner := range v {
			list[i] = listed(inner)
		}
		return list
	case []any:
		for i, inner := range v {
			v[i] = listed(inner)
		}
	}
	return v
}

// statement is the head of a table or a key with its value.
type statement struct {
	header bool
	table  []string // the keys of the table it belongs to, or that it begins
	key    []string
	start  int // where it begins
	value  int // where the value begins
	end    int // where it ends
}

// statements finds the statements of a valid text.
func statements(text []byte) ([]statement, error) {
	var all []statement
	var table []string
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c == ' ' || c == '\t' || c == '\r' || c == '\n':
			i++
		case c == '#':
			i = afterLine(text, i)
		case c == '[':
			s := statement{header: true, start: i}
			open := i + 1
			list := open < len(text) && text[open] == '['
			if list {
				open++
			}
			keys, at, err := tomlKey(text, open, ']')
			if err != nil {
				return nil, err
			}
			if i = at + 1; list {
				i++
				keys = append(keys, "[]") // no path leads into one
			}
			table, s.table, s.end = keys, keys, i
			all = append(all, s)
		default:
			keys, at, err := tomlKey(text, i, '=')
			if err != nil {
				return nil, err
			}
			s := statement{table: table, key: keys, start: i, value: at + 1}
			for s.value < len(text) && (text[s.value] == ' ' || text[s.value] == '\t') {
				s.value++
			}
			s.end = tomlValueEnd(text, s.value)
			i = s.end
			all = append(all, s)
		}
	}
	return all, nil
}

// tomlKey reads a dotted key that ends with stop, and returns where that is.
func tomlKey(text []byte, from int, stop byte) (keys []string, at int, err error) {
	part := from
	for i := from; i < len(text); i++ {
		switch c := text[i]; c {
		case '"', '\'':
			for i++; i < len(text) && text[i] != c; i++ {
				if c == '"' && text[i] == '\\' {
					i++
				}
			}
		case '.', stop:
			key := strings.TrimSpace(string(text[part:i]))
			if key != "" && (key[0] == '"' || key[0] == '\'') {
				var v struct{ V string }
				if _, err := toml.Decode("V = "+key, &v); err != nil {
					return nil, i, syntaxAt(text, part, "the key %s cannot be read", key)
				}
				key = v.V
			}
			if keys = append(keys, key); c == stop {
				return keys, i, nil
			}
			part = i + 1
		case '\n':
			return nil, i, syntaxAt(text, from, "expected %c", stop)
		}
	}
	return nil, len(text), syntaxAt(text, from, "expected %c", stop)
}

// tomlValueEnd is where a value ends.
func tomlValueEnd(text []byte, i int) int {
	depth, end := 0, i
	for i < len(text) {
		c := text[i]
		switch {
		case c == '"' || c == '\'':
			i = tomlStringEnd(text, i)
			end = i
			continue
		case c == '#':
			i = lineStop(text, i)
			continue
		case c == '\n' && depth == 0:
			return end
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			depth--
		}
		if i++; c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			end = i
		}
	}
	return end
}

// tomlStringEnd is where a string ends that begins at an offset.
func tomlStringEnd(text []byte, i int) int {
	c := text[i]
	if long := bytes.Repeat([]byte{c}, 3); bytes.HasPrefix(text[i:], long) {
		for i += 3; i < len(text); i++ {
			if c == '"' && text[i] == '\\' {
				i++
				continue
			}
			if bytes.HasPrefix(text[i:], long) {
				for i += 3; i < len(text) && text[i] == c; i++ { // quotes before the last three
				}
				return i
			}
		}
		return len(text)
	}
	for i++; i < len(text) && text[i] != c; i++ {
		if c == '"' && text[i] == '\\' {
			i++
		}
	}
	return min(i+1, len(text))
}

// errForm is part of the error for a file that says what was asked for in a form
// that is not edited.
var errForm = errors.New("it is written in a form that this command does not edit; change it by hand")

func (f tomlFormat) set(text []byte, path []step, value any) ([]byte, error) {
	tree, err := f.parse(text)
	if err != nil {
		return nil, err
	}
	keys := keysOf(path)
	all, err := statements(text)
	if err != nil {
		return nil, err
	}
	if at, rest, ok := inline(all, path); ok {
		if !isOpen(text, at) {
			return nil, fmt.Errorf("%s: %w", pathText(path), errForm)
		}
		return tomlBraces.set(text, at, rest, value)
	}
	if o, ok := value.(object); ok && len(path) == 2 {
		if _, there := lookup(tree, path); there {
			return nil, fmt.Errorf("%s: %w", pathText(path), errForm)
		}
		return appendTable(text, keys, o), nil
	}
	for _, s := range all {
		if !s.header && slices.Equal(slices.Concat(s.table, s.key), keys) {
			return splice(text, s.value, s.end, tomlValue(value)), nil
		}
	}
	if text, err = f.remove(text, path); err != nil {
		return nil, err
	}
	if all, err = statements(text); err != nil {
		return nil, err
	}
	table := keys[:len(keys)-1]
	after, name := -1, ""
	for _, s := range all {
		if slices.Equal(s.table, table) {
			after, name = s.end, tomlName(keys[len(keys)-1])
		}
		if said := slices.Concat(s.table, s.key); after < 0 && !s.header && len(said) > len(table) &&
			slices.Equal(said[:len(table)], table) { // its members have dotted keys
			after, name = s.end, dotted(keys[len(s.table):])
		}
	}
	if after < 0 {
		return nil, fmt.Errorf("%s: %w", pathText(path), errForm)
	}
	at := lineStop(text, after)
	return splice(text, at, at, lineEnd(text)+name+" = "+tomlValue(value)), nil
}

// dotted writes keys with dots between them.
func dotted(keys []string) string {
	quoted := make([]string, len(keys))
	for i, k := range keys {
		quoted[i] = tomlName(k)
	}
	return strings.Join(quoted, ".")
}

func keysOf(path []step) []string {
	keys := make([]string, len(path))
	for i, s := range path {
		keys[i] = s.key
	}
	return keys
}

// appendTable adds a table at the end of a text.
func appendTable(text []byte, keys []string, o object) []byte {
	nl := lineEnd(text)
	out := bytes.Clone(text)
	if len(out) > 0 {
		if !bytes.HasSuffix(out, []byte("\n")) {
			out = append(out, nl...)
		}
		out = append(out, nl...)
	}
	out = append(out, "["+dotted(keys)+"]"+nl...)
	for _, m := range o {
		out = append(out, tomlLine(m.key, m.value)+nl...)
	}
	return out
}

var bareKey = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

func tomlName(key string) string {
	if bareKey.MatchString(key) {
		return key
	}
	return quote(key)
}

func tomlLine(key string, value any) string { return tomlName(key) + " = " + tomlValue(value) }

func tomlValue(value any) string {
	switch v := value.(type) {
	case string:
		return quote(v)
	case bool:
		return strconv.FormatBool(v)
	case []string:
		return quoteList(v)
	case object:
		all := make([]string, len(v))
		for i, m := range v {
			all[i] = tomlLine(m.key, m.value)
		}
		return "{ " + strings.Join(all, ", ") + " }"
	}
	return `""`
}

func (f tomlFormat) remove(text []byte, path []step) ([]byte, error) {
	tree, err := f.parse(text)
	if err != nil {
		return nil, err
	}
	if _, there := lookup(tree, path); !there {
		return text, nil
	}
	all, err := statements(text)
	if err != nil {
		return nil, err
	}
	if at, rest, ok := inline(all, path); ok {
		if !isOpen(text, at) {
			return nil, fmt.Errorf("%s: %w", pathText(path), errForm)
		}
		return tomlBraces.remove(text, at, rest)
	}
	keys := keysOf(path)
	done := false
	for i := len(all) - 1; i >= 0; i-- {
		s := all[i]
		switch {
		case s.header && len(s.table) >= len(keys) && slices.Equal(s.table[:len(keys)], keys):
			last := i
			for last+1 < len(all) && !all[last+1].header {
				last++
			}
			text, done = cutTable(text, s.start, all[last].end), true
		case !s.header && len(s.table) < len(keys) && begins(slices.Concat(s.table, s.key), keys):
			text, done = splice(text, lineStart(text, s.start), afterLine(text, s.end), ""), true
		}
	}
	if !done {
		return nil, fmt.Errorf("%s: %w", pathText(path), errForm)
	}
	return text, nil
}

// begins reports whether a list of keys begins with another.
func begins(keys, with []string) bool {
	return len(keys) >= len(with) && slices.Equal(keys[:len(with)], with)
}

// cutTable removes the lines of a table, and the blank line before them if
// another one or nothing follows.
func cutTable(text []byte, from, to int) []byte {
	from, to = lineStart(text, from), afterLine(text, to)
	if before := lineStart(text, max(from-1, 0)); before < from && len(bytes.TrimSpace(text[before:from])) == 0 {
		if to == len(text) || len(bytes.TrimSpace(text[to:afterLine(text, to)])) == 0 {
			from = before
		}
	}
	return splice(text, from, to, "")
}
