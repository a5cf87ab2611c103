package clientconfig

import (
	"bytes"
	"fmt"
)

// braces edits values that are written in brackets: the inline tables and arrays of TOML and the flow
// mappings and flow sequences of YAML. Both separate members by commas and begin comments with #.
type braces struct {
	// key reads the key at an offset. It returns the key and where its separator is; ok is false if
	// the member has no value or its key is in a form that is not edited.
	key func(text []byte, at int) (key string, separator int, ok bool)

	stringEnd func(text []byte, at int) int // where the string ends that begins at an offset
	member    func(key string, value any) string
	value     func(value any) string
}

// bracedMember is a member of a mapping or an item of a list.
type bracedMember struct {
	key        string
	start, end int
	value      int // where its value begins; -1 if it has none
}

// bracedValue is a mapping or a list in brackets.
type bracedValue struct {
	open, close int // where the brackets are
	members     []bracedMember
	commas      []int // behind the members; the last may have none, and then -1
}

// isOpen reports whether a mapping or a list in brackets begins at an offset.
func isOpen(text []byte, at int) bool { return at < len(text) && (text[at] == '{' || text[at] == '[') }

// read reads the brackets that open at an offset, without what is in inner ones.
func (b braces) read(text []byte, open int) (v bracedValue, err error) {
	v.open = open
	closing := byte('}')
	if text[open] == '[' {
		closing = ']'
	}
	for i := b.skipSpace(text, open+1); i < len(text); i = b.skipSpace(text, i) {
		switch text[i] {
		case closing:
			v.close = i
			return v, nil
		case ',':
			if len(v.members) == 0 || v.commas[len(v.commas)-1] >= 0 {
				return v, syntaxAt(text, i, "a value is missing before the comma")
			}
			v.commas[len(v.commas)-1] = i
			i++
			continue
		}
		m := bracedMember{start: i, value: i}
		if closing == '}' {
			key, at, ok := b.key(text, i)
			if !ok {
				return v, fmt.Errorf("%w: line %d", errForm, 1+bytes.Count(text[:i], []byte("\n")))
			}
			m.key, m.value = key, b.skipSpace(text, at+1)
		}
		if m.end, err = b.valueEnd(text, m.value); err != nil {
			return v, err
		}
		v.members, v.commas = append(v.members, m), append(v.commas, -1)
		i = m.end
	}
	return v, syntaxAt(text, open, "the bracket is not closed")
}

// skipSpace returns the offset of what follows white space and comments.
func (b braces) skipSpace(text []byte, i int) int {
	for ; i < len(text); i++ {
		switch text[i] {
		case ' ', '\t', '\r', '\n':
		case '#':
			i = lineStop(text, i) - 1
		default:
			return i
		}
	}
	return i
}

// valueEnd is where a value ends that begins at an offset.
func (b braces) valueEnd(text []byte, at int) (end int, err error) {
	switch {
	case at >= len(text):
		return at, syntaxAt(text, at, "a value is missing")
	case isOpen(text, at):
		inner, err := b.read(text, at)
		return inner.close + 1, err
	case text[at] == '"' || text[at] == '\'':
		return b.stringEnd(text, at), nil
	}
	end = at
	for i := at; i < len(text); i++ {
		switch c := text[i]; {
		case c == ',' || c == '}' || c == ']':
			if end == at {
				return end, syntaxAt(text, at, "a value is missing")
			}
			return end, nil
		case c == '{' || c == '[':
			return end, fmt.Errorf("%w: line %d", errForm, 1+bytes.Count(text[:i], []byte("\n")))
		case c == '#' && (text[i-1] == ' ' || text[i-1] == '\t' || text[i-1] == '\n'):
			return end, nil
		case c != ' ' && c != '\t' && c != '\r' && c != '\n':
			end = i + 1
		}
	}
	return end, syntaxAt(text, at, "the bracket is not closed")
}

// findMember returns the number of the member that a step leads to; -1 if there is none.
func (b braces) findMember(text []byte, v bracedValue, s step) (int, error) {
	if s.item != (text[v.open] == '[') {
		return -1, fmt.Errorf("%s: %w", s.key, errForm)
	}
	for i, m := range v.members {
		if !s.item {
			if m.key == s.key {
				return i, nil
			}
			continue
		}
		if text[m.value] != '{' {
			continue
		}
		item, err := b.read(text, m.value)
		if err != nil {
			return -1, err
		}
		for _, inner := range item.members {
			if inner.key == "name" && b.isString(text[inner.value:inner.end], s.key) {
				return i, nil
			}
		}
	}
	return -1, nil
}

// isString reports whether a value is a string: as it is, or in quotes.
func (b braces) isString(value []byte, want string) bool {
	return string(value) == want || string(value) == quote(want) || string(value) == "'"+want+"'"
}

// set writes a value below the brackets that open at an offset.
func (b braces) set(text []byte, open int, path []step, value any) ([]byte, error) {
	v, err := b.read(text, open)
	if err != nil {
		return nil, err
	}
	at, err := b.findMember(text, v, path[0])
	switch {
	case err != nil:
		return nil, err
	case at < 0:
		return b.insert(text, v, b.chain(path, value)), nil
	case len(path) == 1:
		m := v.members[at]
		return splice(text, m.value, m.end, b.value(itemValue(path[0], value))), nil
	case !isOpen(text, v.members[at].value):
		return nil, fmt.Errorf("%s: %w", pathText(path[:1]), errForm)
	}
	return b.set(text, v.members[at].value, path[1:], value)
}

// itemValue is the value of a step: an item of a list holds its name.
func itemValue(s step, value any) any {
	if o, ok := value.(object); ok && s.item {
		return append(object{{"name", s.key}}, o...)
	}
	return value
}

// chain writes the member that holds a value at the end of a path.
func (b braces) chain(path []step, value any) string {
	for i := len(path) - 1; i > 0; i-- {
		value = object{{path[i].key, value}}
	}
	if path[0].item {
		return b.value(itemValue(path[0], value))
	}
	return b.member(path[0].key, value)
}

// insert adds a member behind the last one: on a line of its own if the members have lines of their own.
func (b braces) insert(text []byte, v bracedValue, member string) []byte {
	n := len(v.members)
	if n == 0 {
		return splice(text, v.open+1, v.open+1, member)
	}
	last, comma := v.members[n-1], v.commas[n-1]
	behind := last.end
	if comma >= 0 {
		behind = comma + 1
	}
	if !bytes.Contains(text[v.open:last.start], []byte("\n")) {
		if comma >= 0 {
			return splice(text, behind, behind, " "+member+",")
		}
		return splice(text, behind, behind, ", "+member)
	}
	added := lineEnd(text) + indentAt(text, last.start) + member
	stop := min(lineStop(text, behind), v.close) // a comment belongs to the member before it
	if comma >= 0 {
		return splice(text, stop, stop, added+",")
	}
	return splice(splice(text, stop, stop, added), behind, behind, ",")
}

// remove removes what a path leads to below the brackets that open at an offset. What is not there
// changes nothing.
func (b braces) remove(text []byte, open int, path []step) ([]byte, error) {
	v, err := b.read(text, open)
	if err != nil {
		return nil, err
	}
	at, err := b.findMember(text, v, path[0])
	switch {
	case err != nil || at < 0:
		return text, err
	case len(path) > 1 && !isOpen(text, v.members[at].value):
		return nil, fmt.Errorf("%s: %w", pathText(path[:1]), errForm)
	case len(path) > 1:
		return b.remove(text, v.members[at].value, path[1:])
	}
	m, comma := v.members[at], v.commas[at]
	if at == len(v.members)-1 && at > 0 && comma < 0 { // the comma before it goes as well
		from, to := wholeLines(text, m.start, m.end, v.open+1, v.close)
		before := v.commas[at-1]
		if from <= before+1 || len(bytes.TrimSpace(text[before+1:from])) == 0 && from == m.start {
			return splice(text, before, m.end, ""), nil
		}
		return splice(splice(text, from, to, ""), before, before+1, ""), nil
	}
	from, to := m.start, m.end
	if comma >= 0 {
		to = comma + 1
	}
	from, to = wholeLines(text, from, to, v.open+1, v.close)
	if from == m.start || text[from-1] != '\n' { // the members share a line
		from = m.start
		for to < v.close && (text[to] == ' ' || text[to] == '\t') && at < len(v.members)-1 {
			to++
		}
	}
	if len(v.members) == 1 && len(bytes.TrimSpace(text[v.open+1:from])) == 0 &&
		len(bytes.TrimSpace(text[to:v.close])) == 0 {
		from, to = v.open+1, v.close
	}
	return splice(text, from, to, ""), nil
}
