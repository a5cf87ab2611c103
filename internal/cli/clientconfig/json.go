package clientconfig

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"

	"github.com/tailscale/hujson"
)

// maxNesting is how deep the arrays and objects of a file may be nested.
const maxNesting = 500

// jsonFormat edits JSON. With comments set, it reads comments and commas before
// a closing bracket as well, which the clients that document this accept.
type jsonFormat struct{ comments bool }

func (f jsonFormat) parse(text []byte) (any, error) {
	if at := tooDeepAt(text); at >= 0 {
		return nil, syntaxAt(text, at, "more than %d brackets are open at once", maxNesting)
	}
	if tree, err := decodeJSON(text); err == nil { // no comments, as most files: much less work
		return tree, nil
	}
	v, err := f.read(text)
	if err != nil {
		return nil, err
	}
	v = v.Clone()
	v.Standardize()
	tree, err := decodeJSON(v.Pack())
	if err != nil {
		return nil, &SyntaxError{Problem: err.Error()}
	}
	return tree, nil
}

// decodeJSON decodes one value, with numbers as they are written.
func decodeJSON(text []byte) (tree any, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&tree); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("something follows the value")
	}
	return tree, nil
}

// read parses a text. An empty one is an empty object.
func (f jsonFormat) read(text []byte) (hujson.Value, error) {
	if at := tooDeepAt(text); at >= 0 {
		return hujson.Value{}, syntaxAt(text, at, "more than %d brackets are open at once", maxNesting)
	}
	v, err := hujson.Parse(text)
	if err != nil {
		return v, hujsonError(err)
	}
	if !f.comments && !v.IsStandard() {
		err := json.Unmarshal(text, new(any))
		if e, ok := errors.AsType[*json.SyntaxError](err); ok {
			return v, syntaxAt(text, max(int(e.Offset)-1, 0),
				"%v; this client reads no comments and no trailing commas", e)
		}
	}
	return v, nil
}

// hujsonError takes line and column out of the text of an error, where hujson
// has them.
func hujsonError(err error) error {
	text := strings.TrimPrefix(err.Error(), "hujson: ")
	where, problem, ok := strings.Cut(text, ": ")
	line, column, ok2 := strings.Cut(strings.TrimPrefix(where, "line "), ", column ")
	l, err1 := strconv.Atoi(line)
	c, err2 := strconv.Atoi(column)
	if !ok || !ok2 || err1 != nil || err2 != nil {
		return &SyntaxError{Problem: text}
	}
	return &SyntaxError{Line: l, Column: c, Problem: problem}
}

// tooDeepAt is where a text is nested too deep, -1 if nowhere. The parser calls
// itself for each level.
func tooDeepAt(text []byte) int {
	depth, quoted := 0, false
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case quoted && c == '\\':
			i++
		case c == '"', quoted && c == '\n':
			quoted = !quoted && c == '"'
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > maxNesting {
				return i
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return -1
}

// found is where a path leads in a text.
type found struct {
	object *hujson.Object // the deepest object on the path
	outer  hujson.Value   // the value of that object
	at     int            // of the member in the object; -1 if there is none
	left   []step         // the steps that lead further
}

// locate follows a path as far as it exists.
func (f jsonFormat) locate(text []byte, root hujson.Value, path []step) (found, error) {
	v := root
	for i, s := range path {
		o, ok := v.Value.(*hujson.Object)
		if !ok {
			return found{}, syntaxAt(text, v.StartOffset, "expected an object%s", of(path[:i]))
		}
		at := -1
		for n, m := range o.Members {
			name, ok := m.Name.Value.(hujson.Literal)
			if !ok || name.String() != s.key {
				continue
			}
			if at >= 0 {
				return found{}, syntaxAt(text, m.Name.StartOffset, "the member %q occurs twice", s.key)
			}
			at = n
		}
		if at < 0 || i == len(path)-1 {
			return found{o, v, at, path[i:]}, nil
		}
		v = o.Members[at].Value
	}
	return found{}, errors.New("no path was given")
}

func of(path []step) string {
	if len(path) == 0 {
		return ""
	}
	return " for " + pathText(path)
}

func (f jsonFormat) set(text []byte, path []step, value any) ([]byte, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		text = []byte("{}" + lineEnd(text))
	}
	root, err := f.read(text)
	if err != nil {
		return nil, err
	}
	where, err := f.locate(text, root, path)
	if err != nil {
		return nil, err
	}
	l := f.layout(text, root)
	if where.at >= 0 {
		m := where.object.Members[where.at]
		by := render(value, indentAt(text, m.Name.StartOffset), l)
		return splice(text, m.Value.StartOffset, m.Value.EndOffset, by), nil
	}
	for i := len(where.left) - 1; i > 0; i-- {
		value = object{{where.left[i].key, value}}
	}
	return insertMember(text, where, where.left[0].key, value, l), nil
}

// layout finds out how a text is written. A text without line breaks gets none.
func (f jsonFormat) layout(text []byte, root hujson.Value) layout {
	l := layout{newline: lineEnd(text), unit: "  "}
	o, ok := root.Value.(*hujson.Object)
	if !ok || len(o.Members) == 0 {
		return l
	}
	first := o.Members[0].Name.StartOffset
	if !bytes.Contains(text[root.StartOffset:first], []byte("\n")) {
		if !bytes.Contains(text[root.StartOffset:root.EndOffset], []byte("\n")) {
			l.newline = ""
		}
		return l
	}
	if unit := indentAt(text, first); unit != "" {
		l.unit = unit
	}
	return l
}

// insertMember adds a member behind the last one of an object.
func insertMember(text []byte, where found, key string, value any, l layout) []byte {
	o, open := where.object, where.outer.StartOffset
	end := where.outer.EndOffset - 1 // the closing bracket
	if len(o.Members) == 0 {
		return insertFirst(text, open, end, key, value, l)
	}
	last := o.Members[len(o.Members)-1]
	after := last.Value.EndOffset
	comma, stop := trailing(text, after, end)
	trails := comma >= 0
	oneLine := !bytes.Contains(text[open:end], []byte("\n"))
	var added string
	switch {
	case oneLine && l.newline == "":
		added = quote(key) + ":" + render(value, "", l)
	case oneLine:
		added = " " + quote(key) + ": " + render(value, indentAt(text, open), l)
	default:
		indent := indentAt(text, last.Name.StartOffset)
		added = l.newline + indent + quote(key) + ": " + render(value, indent, l)
	}
	if trails {
		added += ","
		return splice(text, stop, stop, added)
	}
	text = splice(text, stop, stop, added)
	return splice(text, after, after, ",")
}

// trailing looks at what follows the last value of an object: where a comma is,
// -1 if there is none, and where the line with its comment ends.
func trailing(text []byte, after, end int) (comma, stop int) {
	comma, stop = -1, after
	for i := after; i < end; i++ {
		switch {
		case text[i] == ',':
			comma, stop = i, i+1
		case text[i] == '\n':
			if comma >= 0 || !commaAhead(text, i, end) {
				return comma, stop
			}
		case text[i] == '/' && text[i+1] == '/':
			i = lineStop(text, i) - 1
			stop = i + 1
		case text[i] == '/':
			i += 2 + bytes.Index(text[i+2:end], []byte("*/")) + 1
			stop = i + 1
		}
	}
	return comma, stop
}

// commaAhead reports whether a comma follows, outside comments.
func commaAhead(text []byte, at, end int) bool {
	for i := at; i < end; i++ {
		switch {
		case text[i] == ',':
			return true
		case text[i] == '/' && text[i+1] == '/':
			i = lineStop(text, i) - 1
		case text[i] == '/':
			i += 2 + bytes.Index(text[i+2:end], []byte("*/")) + 1
		}
	}
	return false
}

// insertFirst adds the first member of an object, behind the comments in it.
func insertFirst(text []byte, open, end int, key string, value any, l layout) []byte {
	if l.newline == "" {
		return splice(text, open+1, end, quote(key)+":"+render(value, "", l))
	}
	outer := indentAt(text, open)
	added := l.newline + outer + l.unit + quote(key) + ": " + render(value, outer+l.unit, l) + l.newline + outer
	inside := bytes.TrimRight(text[open+1:end], " \t\r\n")
	return splice(text, open+1+len(inside), end, added)
}

// render writes a value whose line begins with an indentation.
func render(value any, indent string, l layout) string {
	switch v := value.(type) {
	case string:
		return quote(v)
	case bool:
		return strconv.FormatBool(v)
	case []string:
		if l.newline == "" {
			return strings.ReplaceAll(quoteList(v), `", "`, `","`)
		}
		return quoteList(v)
	case object:
		return renderObject(v, indent, l)
	}
	return "null"
}

func renderObject(o object, indent string, l layout) string {
	if len(o) == 0 {
		return "{}"
	}
	var b strings.Builder
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		if l.newline == "" {
			b.WriteString(quote(m.key) + ":" + render(m.value, "", l))
			continue
		}
		inner := indent + l.unit
		b.WriteString(l.newline + inner + quote(m.key) + ": " + render(m.value, inner, l))
	}
	if l.newline != "" {
		b.WriteString(l.newline + indent)
	}
	b.WriteByte('}')
	return b.String()
}

func (f jsonFormat) remove(text []byte, path []step) ([]byte, error) {
	root, err := f.read(text)
	if err != nil {
		return nil, err
	}
	where, err := f.locate(text, root, path)
	if err != nil || where.at < 0 || len(where.left) > 1 {
		return text, err
	}
	o := where.object
	m := o.Members[where.at]
	open, end := where.outer.StartOffset, where.outer.EndOffset-1
	from, to := m.Name.StartOffset, m.Value.EndOffset
	limit := end
	if where.at+1 < len(o.Members) {
		limit = o.Members[where.at+1].Name.StartOffset
	}
	comma, _ := trailing(text, to, limit)
	if comma >= 0 {
		to = comma + 1
	}
	from, to = wholeLines(text, from, to, open+1, end)
	last := where.at == len(o.Members)-1
	text = splice(text, from, to, "")
	end -= to - from
	if last && where.at > 0 && comma < 0 {
		before := o.Members[where.at-1].Value.EndOffset
		if c, _ := trailing(text, before, end); c >= 0 {
			text, end = splice(text, c, c+1, ""), end-1
		}
	}
	if inside := text[open+1 : end]; len(o.Members) == 1 && len(bytes.TrimSpace(inside)) == 0 {
		text = splice(text, open+1, end, "")
	}
	return text, nil
}

// wholeLines widens a range to the lines that have nothing else, or to the white
// space before it.
func wholeLines(text []byte, from, to, least, most int) (int, int) {
	start := from
	for start > least && (text[start-1] == ' ' || text[start-1] == '\t') {
		start--
	}
	stop := to
	for stop < most && (text[stop] == ' ' || text[stop] == '\t' || text[stop] == '\r') {
		stop++
	}
	begins := start > least && text[start-1] == '\n'
	if ends := stop < most && text[stop] == '\n'; begins && ends {
		return start, stop + 1
	}
	return start, to
}
