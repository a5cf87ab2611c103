package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/mcp/schema"
)

// These are the limits of a file.
const (
	maxFile    = 1 << 20 // bytes
	maxNesting = 64      // brackets that are open at once
)

// Place is the position at which a setting was set.
type Place struct {
	File         string
	Line, Column int    // from 1
	By           string // a variable or a flag, if it was not set in a file
}

func (p Place) String() string {
	switch {
	case p.By != "":
		return p.By
	case p.File != "":
		return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
	}
	return "default"
}

// PositionError is an error at a position in a file.
type PositionError struct {
	Place
	Path string // of the setting; "" if the text is not YAML
	Err  error
}

func (p *PositionError) Error() string {
	if p.Path == "" {
		return fmt.Sprintf("%v: %v", p.Place, p.Err)
	}
	return fmt.Sprintf("%v: %s: %v", p.Place, p.Path, p.Err)
}

func (p *PositionError) Unwrap() error { return p.Err }

// decoder reads the nodes of one file into the settings.
type decoder struct {
	file  string
	home  string // what ~ stands for
	said  map[string]Place
	wrong []error
}

// decodeFile reads a file's text over what c holds and returns the position of each setting. The error joins all
// mistakes, each a *PositionError.
func decodeFile(file, home string, text []byte, c *Config) (map[string]Place, error) {
	d := &decoder{file: file, home: home, said: map[string]Place{}}
	root, err := d.parseYAML(text)
	if err != nil {
		return nil, err
	}
	if root != nil {
		d.section(setting{typ: reflect.TypeFor[Config]()}, "", root, reflect.ValueOf(c).Elem())
	}
	slices.SortStableFunc(d.wrong, inOrder)
	return d.said, errors.Join(d.wrong...)
}

// inOrder compares errors by their positions.
func inOrder(a, b error) int {
	x, _ := errors.AsType[*PositionError](a)
	y, _ := errors.AsType[*PositionError](b)
	if x == nil || y == nil {
		return 0
	}
	return cmp.Or(cmp.Compare(x.Line, y.Line), cmp.Compare(x.Column, y.Column))
}

// parseYAML parses the text into nodes; it returns nil if the text is empty.
func (d *decoder) parseYAML(text []byte) (ast.Node, error) {
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	switch line, deep := tooDeep(text); {
	case len(text) > maxFile:
		return nil, d.mistake(nil, "", "has more than %d bytes", maxFile)
	case deep:
		m := d.mistake(nil, "", "more than %d brackets are open at once", maxNesting)
		m.Line = line
		return nil, m
	}
	f, err := parser.ParseBytes(text, 0)
	if err != nil {
		m := d.mistake(nil, "", "%v", err)
		if y, ok := errors.AsType[yaml.Error](err); ok {
			m = d.mistake(y.GetToken(), "", "%s", y.GetMessage())
		}
		return nil, m
	}
	var root ast.Node
	for i, doc := range f.Docs {
		if i > 0 && doc.Body != nil {
			return nil, d.mistake(doc.Body.GetToken(), "", "a second document begins here; expected one")
		}
		root = doc.Body
		if i > 0 {
			root = f.Docs[0].Body
		}
	}
	return root, nil
}

// tooDeep looks for nesting that the parser would follow without a limit.
func tooDeep(text []byte) (line int, deep bool) {
	line, open := 1, 0
	for _, b := range text {
		switch b {
		case '\n':
			line++
		case '[', '{':
			open++
		case ']', '}':
			open = max(0, open-1)
		}
		if open > maxNesting {
			return line, true
		}
	}
	return line, false
}

func (d *decoder) place(t *token.Token) Place {
	p := Place{File: d.file, Line: 1, Column: 1}
	if t != nil && t.Position != nil {
		p.Line, p.Column = t.Position.Line, t.Position.Column
	}
	return p
}

func (d *decoder) mistake(t *token.Token, path, format string, args ...any) *PositionError {
	return &PositionError{d.place(t), path, fmt.Errorf(format, args...)}
}

func (d *decoder) bad(n ast.Node, path, format string, args ...any) {
	d.wrong = append(d.wrong, d.mistake(n.GetToken(), path, format, args...))
}

// pairs returns the entries of a mapping. If n is not a mapping, it records an error and ok is false.
func (d *decoder) pairs(s setting, path string, n ast.Node) (all []*ast.MappingValueNode, ok bool) {
	switch m := n.(type) {
	case *ast.MappingNode:
		return m.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{m}, true
	}
	d.unexpected(s, path, n)
	return nil, false
}

// key returns the name of an entry.
func (d *decoder) key(path string, e *ast.MappingValueNode) (string, bool) {
	k, ok := e.Key.(*ast.StringNode)
	if !ok {
		d.bad(e.Key, path, "%s is not the name of a setting", clip(e.Key.String()))
		return "", false
	}
	return k.Value, true
}

// unexpected records that a node does not fit its setting.
func (d *decoder) unexpected(s setting, path string, n ast.Node) {
	switch n.(type) {
	case *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode:
		d.bad(n, path, "anchors and aliases are not supported; write the value out")
	case *ast.TagNode:
		d.bad(n, path, "tags are not supported; write the value without it")
	case *ast.NullNode:
		d.bad(n, path, "is empty; leave it out, or give it %s", s.expects())
	case *ast.MappingNode, *ast.MappingValueNode:
		d.bad(n, path, "holds names with values; expected %s", s.expects())
	case *ast.SequenceNode:
		d.bad(n, path, "is a list; expected %s", s.expects())
	default:
		d.bad(n, path, "%s: expected %s", clip(n.GetToken().Value), s.expects())
	}
}

// section reads the settings of a struct.
func (d *decoder) section(s setting, path string, n ast.Node, v reflect.Value) {
	if _, empty := n.(*ast.NullNode); empty && path != "" {
		return // a section whose settings are all commented out
	}
	pairs, ok := d.pairs(s, path, n)
	if !ok {
		return
	}
	known := settingsIn(v.Type(), path)
	for _, e := range pairs {
		key, ok := d.key(path, e)
		if !ok {
			continue
		}
		i := slices.IndexFunc(known, func(s setting) bool { return s.key == key })
		if i < 0 {
			d.unknown(e.Key, join(path, key), key, known)
			continue
		}
		d.said[join(path, key)] = d.place(e.Key.GetToken())
		d.decodeValue(known[i], join(path, key), e.Value, v.Field(known[i].at))
	}
	d.needed(n, path, known, v)
}

func (d *decoder) unknown(n ast.Node, path, key string, known []setting) {
	var names []string
	for _, s := range known {
		names = append(names, s.key)
	}
	hint := "expected " + oneOf(names)
	if near, ok := schema.Nearest(key, names); ok {
		hint = "did you mean " + near + "?"
	}
	d.bad(n, path, "there is no such setting; %s", hint)
}

// needed records an error for each required setting that is missing.
func (d *decoder) needed(n ast.Node, path string, known []setting, v reflect.Value) {
	for _, s := range known {
		if _, said := d.said[join(path, s.key)]; !said && s.tag.Get("need") != "" {
			d.bad(n, path, "%s is missing; expected %s", s.key, s.expects())
		}
	}
}

// decodeValue reads the value of an entry.
func (d *decoder) decodeValue(s setting, path string, n ast.Node, v reflect.Value) {
	switch {
	case s.section():
		if key := openedBySection(v); key != "" {
			d.said[join(path, key)] = d.said[path]
		}
		d.section(s, path, n, v)
	case s.isList():
		d.decodeList(s, path, n, v)
	case v.Kind() == reflect.Slice:
		d.texts(s, path, n, v)
	case v.Kind() == reflect.Map:
		d.table(s, path, n, v)
	default:
		d.scalar(s, path, n, v)
	}
}

// openedBySection sets the setting that the presence of its section turns on, and returns its name. An entry in
// the section can turn it off again.
func openedBySection(v reflect.Value) (key string) {
	switch x := v.Addr().Interface().(type) {
	case *HTTP:
		x.Open, key = true, "open"
	case *TLS:
		x.On, key = true, "on"
	}
	return key
}

func (d *decoder) decodeList(s setting, path string, n ast.Node, v reflect.Value) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		d.unexpected(s, path, n)
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(seq.Values), len(seq.Values)))
	for i, one := range seq.Values {
		at := fmt.Sprintf("%s[%d]", path, i)
		d.said[at] = d.place(firstToken(one))
		d.section(setting{typ: v.Type().Elem()}, at, one, v.Index(i))
	}
}

// firstToken returns the token at which a node begins, because a mapping's own token is its first colon.
func firstToken(n ast.Node) *token.Token {
	switch m := n.(type) {
	case *ast.MappingNode:
		if len(m.Values) > 0 && !m.IsFlowStyle {
			return m.Values[0].Key.GetToken()
		}
	case *ast.MappingValueNode:
		return m.Key.GetToken()
	}
	return n.GetToken()
}

func (d *decoder) texts(s setting, path string, n ast.Node, v reflect.Value) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		d.unexpected(s, path, n)
		return
	}
	list := make([]string, 0, len(seq.Values))
	for i, one := range seq.Values {
		at := fmt.Sprintf("%s[%d]", path, i)
		d.said[at] = d.place(one.GetToken())
		text, ok := d.decodeText(at, one)
		if e := s.enum(); ok && e != nil && !slices.Contains(e, text) {
			d.bad(one, at, "%q: expected %s", clip(text), oneOf(e))
		}
		list = append(list, d.path(s, text))
	}
	v.Set(reflect.ValueOf(list))
}

// table reads a mapping of names to texts, or to lists of texts.
func (d *decoder) table(s setting, path string, n ast.Node, v reflect.Value) {
	pairs, ok := d.pairs(s, path, n)
	if !ok {
		return
	}
	v.Set(reflect.MakeMap(v.Type()))
	one := setting{typ: v.Type().Elem()}
	for _, e := range pairs {
		key, ok := d.key(path, e)
		if !ok {
			continue
		}
		at := join(path, key)
		d.said[at] = d.place(e.Key.GetToken())
		elem := reflect.New(v.Type().Elem()).Elem()
		d.decodeValue(one, at, e.Value, elem)
		v.SetMapIndex(reflect.ValueOf(key), elem)
	}
}

// decodeText reads a text. A value that YAML would read as another type must be quoted; otherwise the user would
// not learn that it had no effect.
func (d *decoder) decodeText(path string, n ast.Node) (string, bool) {
	switch x := n.(type) {
	case *ast.StringNode:
		return x.Value, true
	case *ast.LiteralNode:
		return x.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		d.bad(n, path, "%s is not text in YAML; put it in quotes", clip(n.GetToken().Value))
		return "", false
	}
	d.unexpected(setting{typ: reflect.TypeFor[string]()}, path, n)
	return "", false
}

func (d *decoder) scalar(s setting, path string, n ast.Node, v reflect.Value) {
	text := n.GetToken().Value
	fits := false
	switch x := n.(type) {
	case *ast.StringNode:
		// Quoted text is text; an unquoted word may also be a duration, a size or a level.
		text, fits = x.Value, s.textual() || s.typ == durationType || s.typ == levelType || s.tag.Get("unit") != ""
	case *ast.LiteralNode:
		text, fits = x.Value.Value, s.textual()
	case *ast.IntegerNode:
		fits = s.numeric()
	case *ast.FloatNode:
		fits = s.numeric()
	case *ast.BoolNode:
		fits = v.Kind() == reflect.Bool || s.formerly(text) != text
	}
	if !fits {
		if s.textual() {
			d.decodeText(path, n)
			return
		}
		d.unexpected(s, path, n)
		return
	}
	text = d.path(s, text)
	if err := s.parseText(v, strings.ReplaceAll(text, "_", underscore(s))); err != nil {
		d.bad(n, path, "%w", err)
	}
}

// path makes a path in the file absolute: a relative path begins in the file's folder, and ~ stands for the home
// folder.
func (d *decoder) path(s setting, text string) string {
	if s.tag.Get("kind") != "path" || text == "" || text == s.tag.Get("none") || filepath.IsAbs(text) {
		return text
	}
	if rest, ok := strings.CutPrefix(text, "~"); ok && d.home != "" && (rest == "" || rest[0] == '/') {
		return filepath.Join(d.home, rest)
	}
	return filepath.Join(filepath.Dir(d.file), text)
}

// underscore returns the replacement of an underscore in a value, because YAML allows underscores to group the
// digits of a number.
func underscore(s setting) string {
	if s.numeric() {
		return ""
	}
	return "_"
}

func (s setting) textual() bool { return s.typ.Kind() == reflect.String || s.typ == secretType }

func (s setting) numeric() bool {
	switch s.typ.Kind() {
	case reflect.Int, reflect.Int64:
		return s.typ != durationType && s.typ != levelType
	case reflect.Float64, reflect.Pointer:
		return true
	}
	return false
}

// clip shortens a text that an error quotes from a file.
func clip(s string) string { return displaytext.Cut(s, 60, "...") }
