package clientconfig

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// yamlFormat edits YAML, in block style and in flow style.
type yamlFormat struct{}

// yamlBraces edits mappings and lists in flow style.
var yamlBraces = braces{key: yamlFlowKey, stringEnd: yamlStringEnd, member: yamlFlowMember, value: yamlFlowValue}

// yamlFlowKey reads a key of a mapping in flow style.
func yamlFlowKey(text []byte, at int) (key string, separator int, ok bool) {
	end, quoted := at, text[at] == '"' || text[at] == '\''
	if quoted {
		end = yamlStringEnd(text, at)
	}
	for i := end; i < len(text); i++ {
		switch c := text[i]; {
		case c == ':' && (quoted || i+1 == len(text) || bytes.IndexByte([]byte(" \t\r\n,{}[]"), text[i+1]) >= 0):
			var v any
			if err := yaml.Unmarshal(text[at:end], &v); err != nil {
				return "", 0, false
			}
			if key, ok = v.(string); !ok {
				key = string(text[at:end])
			}
			return key, i, true
		case c == ',' || c == '{' || c == '}' || c == '[' || c == ']' || c == '\n' || c == '?' && i == at:
			return "", 0, false
		case c != ' ' && c != '\t':
			if quoted {
				return "", 0, false
			}
			end = i + 1
		}
	}
	return "", 0, false
}

// yamlStringEnd is where a string in quotes ends that begins at an offset.
func yamlStringEnd(text []byte, at int) int {
	for i := at + 1; i < len(text); i++ {
		switch {
		case text[at] == '"' && text[i] == '\\':
			i++
		case text[i] != text[at]:
		case text[at] == '\'' && i+1 < len(text) && text[i+1] == '\'':
			i++
		default:
			return i + 1
		}
	}
	return len(text)
}

func yamlFlowMember(key string, value any) string { return yamlName(key) + ": " + yamlFlowValue(value) }

func yamlFlowValue(value any) string {
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
			all[i] = yamlFlowMember(m.key, m.value)
		}
		return "{" + strings.Join(all, ", ") + "}"
	}
	return "null"
}

// flowStart is where a node in flow style begins in a text; -1 if the node is in block style or is not
// found there.
func flowStart(text []byte, n ast.Node) int {
	var start *token.Token
	switch n := n.(type) {
	case *ast.MappingNode:
		if n.IsFlowStyle {
			start = n.Start
		}
	case *ast.SequenceNode:
		if n.IsFlowStyle {
			start = n.Start
		}
	}
	if start == nil {
		return -1
	}
	at := 0
	for range start.Position.Line - 1 {
		at = afterLine(text, at)
	}
	for range start.Position.Column - 1 {
		_, n := utf8.DecodeRune(text[at:])
		at += n
	}
	if !isOpen(text, at) {
		return -1
	}
	return at
}

func (f yamlFormat) parse(text []byte) (any, error) {
	root, err := f.read(text)
	if err != nil || root == nil {
		return map[string]any{}, err
	}
	return yamlTree(root), nil
}

func (yamlFormat) read(text []byte) (ast.Node, error) {
	if at := tooDeepAt(text); at >= 0 {
		return nil, syntaxAt(text, at, "more than %d brackets are open at once", maxNesting)
	}
	for i, c := range text {
		if c == '\r' && (i+1 == len(text) || text[i+1] != '\n') {
			return nil, syntaxAt(text, i, "a carriage return without a line feed")
		}
	}
	// The parser counts lines that end with CR LF wrong behind a block of text.
	file, err := parser.ParseBytes(bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n")), 0)
	if err != nil {
		if y, ok := errors.AsType[yaml.Error](err); ok && y.GetToken() != nil {
			p := y.GetToken().Position
			return nil, &SyntaxError{Line: p.Line, Column: p.Column, Problem: y.GetMessage()}
		}
		return nil, &SyntaxError{Problem: err.Error()}
	}
	var root ast.Node
	for _, d := range file.Docs {
		if d.Body == nil {
			continue
		}
		if root != nil {
			return nil, &SyntaxError{
				Line: d.Body.GetToken().Position.Line, Column: 1,
				Problem: "a second document begins here; expected one",
			}
		}
		root = d.Body
	}
	if _, comment := root.(*ast.CommentGroupNode); comment {
		root = nil
	}
	return root, nil
}

// yamlTree turns nodes into values. Aliases stay names, so that a small text
// cannot become a large tree.
func yamlTree(n ast.Node) any {
	switch n := n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		m := map[string]any{}
		for _, v := range yamlMembers(n) {
			m[yamlKey(v)] = yamlTree(v.Value)
		}
		return m
	case *ast.SequenceNode:
		list := make([]any, len(n.Values))
		for i, v := range n.Values {
			list[i] = yamlTree(v)
		}
		return list
	case *ast.StringNode:
		return n.Value
	case *ast.LiteralNode:
		return n.Value.Value
	case *ast.BoolNode:
		return n.Value
	case *ast.NullNode, nil:
		return nil
	case *ast.AnchorNode:
		return map[string]any{"&" + n.Name.String(): yamlTree(n.Value)}
	case *ast.TagNode:
		return map[string]any{"!" + n.Start.Value: yamlTree(n.Value)}
	}
	return n.String()
}

func yamlMembers(n ast.Node) []*ast.MappingValueNode {
	switch n := n.(type) {
	case *ast.MappingNode:
		return n.Values
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}
	}
	return nil
}

func yamlKey(m *ast.MappingValueNode) string {
	if s, ok := m.Key.(*ast.StringNode); ok {
		return s.Value
	}
	return m.Key.String()
}

// yamlText is a text in lines, each with its line end.
type yamlText struct {
	lines   [][]byte
	newline string
}

func splitYAML(text []byte) yamlText {
	t := yamlText{bytes.SplitAfter(text, []byte("\n")), lineEnd(text)}
	if n := len(t.lines); len(t.lines[n-1]) == 0 {
		t.lines = t.lines[:n-1]
	}
	return t
}

// indent is how far a line is indented; -1 for one that is blank or a comment.
func (t yamlText) indent(line int) int {
	rest := bytes.TrimLeft(t.lines[line], " ")
	if len(bytes.TrimSpace(rest)) == 0 || rest[0] == '#' {
		return -1
	}
	return len(t.lines[line]) - len(rest)
}

// blockEnd is the line after the last one of a block that begins at line first
// and whose further lines are indented by at least least. With items set, lines
// with an item at that indentation less one level belong to it too.
func (t yamlText) blockEnd(first, least int, itemsAt int) int {
	end := first + 1
	for i := end; i < len(t.lines); i++ {
		n := t.indent(i)
		if n < 0 {
			continue
		}
		if n < least && !(n == itemsAt && isItem(t.lines[i][n:])) {
			break
		}
		end = i + 1
	}
	return end
}

func isItem(rest []byte) bool {
	return rest[0] == '-' && (len(rest) == 1 || rest[1] == ' ' || rest[1] == '\n' || rest[1] == '\r')
}

// replaceLines returns the text with lines from to to replaced. A last line
// without a line end gets one if lines follow.
func (t yamlText) replaceLines(from, to int, by []string) []byte {
	var out []byte
	for i, l := range t.lines[:from] {
		out = append(out, l...)
		if i == from-1 && len(by) > 0 && !bytes.HasSuffix(l, []byte("\n")) {
			out = append(out, t.newline...)
		}
	}
	for _, l := range by {
		out = append(out, l+t.newline...)
	}
	for _, l := range t.lines[to:] {
		out = append(out, l...)
	}
	return out
}

// yamlPlace is where a value stands, or would stand.
type yamlPlace struct {
	first, end int  // its lines
	column     int  // of its key or of the dash, from 0
	found      bool // it is there
	item       bool // it is an item of a list
	empty      bool // the value above it is empty: its line is first-1
	left       []step

	braced bool // it is below brackets, and left leads on from there
	open   int  // where they open, in bytes
}

// locate follows a path as far as it exists.
func (f yamlFormat) locate(text []byte, t yamlText, root ast.Node, path []step) (yamlPlace, error) {
	node, from, end, column := root, 0, len(t.lines), 0
	for i, s := range path {
		if open := flowStart(text, node); open >= 0 {
			return yamlPlace{braced: true, open: open, left: path[i:]}, nil
		}
		if s.item {
			p, next, err := locateItem(t, node, path[i:], from, end, column)
			if err != nil || !p.found || i == len(path)-1 {
				return p, err
			}
			node, from, end, column = next, p.first, p.end, p.column+2
			continue
		}
		members := yamlMembers(node)
		if m, ok := node.(*ast.MappingNode); len(members) == 0 || ok && m.IsFlowStyle {
			return yamlPlace{}, fmt.Errorf("%s: %w", pathText(path[:i]), errForm)
		}
		column = members[0].Key.GetToken().Position.Column - 1
		var m *ast.MappingValueNode
		for _, one := range members {
			if yamlKey(one) == s.key {
				m = one
			}
		}
		if m == nil {
			return yamlPlace{first: end, end: end, column: column, left: path[i:]}, nil
		}
		first := m.Key.GetToken().Position.Line - 1
		p := yamlPlace{first: first, end: t.blockEnd(first, column+1, column), column: column, found: true}
		if i > 0 && path[i-1].item { // members of an item: dashes begin the next one
			p.end = t.blockEnd(first, column+1, -1)
		}
		if i == len(path)-1 {
			return p, nil
		}
		if open := flowStart(text, m.Value); isEmpty(yamlTree(m.Value)) && (open < 0 || isOpen(text, open) &&
			bytes.IndexByte([]byte("}]"), text[open+1]) >= 0) {
			return yamlPlace{first: first + 1, end: first + 1, column: column + 2, empty: true, left: path[i+1:]}, nil
		}
		node, from, end = m.Value, p.first, p.end
	}
	return yamlPlace{}, errors.New("no path was given")
}

// locateItem finds an item of a list by its name.
func locateItem(t yamlText, node ast.Node, path []step, from, end, column int) (yamlPlace, ast.Node, error) {
	list, ok := node.(*ast.SequenceNode)
	if !ok || list.IsFlowStyle || len(list.Values) == 0 {
		return yamlPlace{}, nil, fmt.Errorf("%s: %w", pathText(path), errForm)
	}
	dash := list.Start.Position.Column - 1
	for i, v := range list.Values {
		for _, m := range yamlMembers(v) {
			if yamlKey(m) == "name" && yamlTree(m.Value) == path[0].key {
				first := v.GetToken().Position.Line - 1
				for _, one := range yamlMembers(list.Values[i]) {
					first = min(first, one.Key.GetToken().Position.Line-1)
				}
				for first > from && !isItem(bytes.TrimLeft(append(t.lines[first], ' '), " ")) {
					first--
				}
				return yamlPlace{
					first: first, end: t.blockEnd(first, dash+1, -1), column: dash, found: true, item: true,
				}, v, nil
			}
		}
	}
	return yamlPlace{first: end, end: end, column: dash, item: true, left: path}, nil, nil
}

func (f yamlFormat) set(text []byte, path []step, value any) ([]byte, error) {
	root, err := f.read(text)
	if err != nil {
		return nil, err
	}
	t := splitYAML(text)
	if root == nil {
		return t.replaceLines(len(t.lines), len(t.lines), yamlChain(path, value, 0)), nil
	}
	p, err := f.locate(text, t, root, path)
	if err != nil {
		return nil, err
	}
	if p.braced {
		return yamlBraces.set(text, p.open, p.left, value)
	}
	if p.found {
		last := path[len(path)-1]
		by := yamlChain([]step{last}, value, p.column)
		by[0] = string(t.lines[p.first][:p.column]) + by[0][p.column:]
		return t.replaceLines(p.first, p.end, by), nil
	}
	if p.empty {
		line := t.lines[p.first-1]
		if t.lines[p.first-1], err = withoutValue(line, path[len(path)-len(p.left)-1].key); err != nil {
			return nil, err
		}
	}
	return t.replaceLines(p.first, p.first, yamlChain(p.left, value, p.column)), nil
}

// withoutValue returns a line without the empty value that stands behind its
// key.
func withoutValue(line []byte, key string) ([]byte, error) {
	for _, name := range []string{key, quote(key), "'" + key + "'"} {
		before, rest, ok := bytes.Cut(line, []byte(name+":"))
		if !ok || len(bytes.TrimSpace(before)) > 0 {
			continue
		}
		value := bytes.TrimLeft(rest, " ")
		for _, empty := range []string{"{}", "[]", "null", "~"} {
			if after, ok := bytes.CutPrefix(value, []byte(empty)); ok {
				return append(append(bytes.Clone(before), name+":"...), after...), nil
			}
		}
		return line, nil
	}
	return nil, fmt.Errorf("%s: %w", key, errForm)
}

// yamlChain writes a value below the keys of a path.
func yamlChain(path []step, value any, column int) []string {
	pad := strings.Repeat(" ", column)
	s := path[0]
	if len(path) > 1 {
		return append([]string{pad + yamlName(s.key) + ":"}, yamlChain(path[1:], value, column+2)...)
	}
	if s.item {
		o, _ := value.(object)
		o = append(object{{"name", s.key}}, o...)
		lines := yamlLines(o, column+2)
		lines[0] = pad + "- " + lines[0][column+2:]
		return lines
	}
	return yamlLines(object{{s.key, value}}, column)
}

// yamlLines writes the members of an object.
func yamlLines(o object, column int) (lines []string) {
	pad := strings.Repeat(" ", column)
	for _, m := range o {
		name := pad + yamlName(m.key) + ":"
		switch v := m.value.(type) {
		case string:
			lines = append(lines, name+" "+quote(v))
		case bool:
			lines = append(lines, name+" "+strconv.FormatBool(v))
		case []string:
			if len(v) == 0 {
				lines = append(lines, name+" []")
				continue
			}
			lines = append(lines, name)
			for _, s := range v {
				lines = append(lines, pad+"  - "+quote(s))
			}
		case object:
			if len(v) == 0 {
				lines = append(lines, name+" {}")
				continue
			}
			lines = append(append(lines, name), yamlLines(v, column+2)...)
		}
	}
	return lines
}

func yamlName(key string) string {
	switch strings.ToLower(key) {
	case "true", "false", "null", "yes", "no", "on", "off", "y", "n": // no strings without quotes
		return quote(key)
	}
	if bareKey.MatchString(key) && key[0] != '-' && (key[0] < '0' || key[0] > '9') {
		return key
	}
	return quote(key)
}

func (f yamlFormat) remove(text []byte, path []step) ([]byte, error) {
	root, err := f.read(text)
	if err != nil || root == nil {
		return text, err
	}
	t := splitYAML(text)
	p, err := f.locate(text, t, root, path)
	if err == nil && p.braced {
		return yamlBraces.remove(text, p.open, p.left)
	}
	if err != nil || !p.found {
		return text, err
	}
	return f.keepEmpty(t.replaceLines(p.first, p.end, nil), path)
}

// keepEmpty writes an empty mapping or list where the last member of one was
// removed, since a key without a value is null.
func (f yamlFormat) keepEmpty(text []byte, path []step) ([]byte, error) {
	above := path[:len(path)-1]
	tree, err := f.parse(text)
	if err != nil || len(above) == 0 {
		return text, err
	}
	if v, there := lookup(tree, above); !there || v != nil {
		return text, nil
	}
	root, err := f.read(text)
	if err != nil {
		return nil, err
	}
	t := splitYAML(text)
	p, err := f.locate(text, t, root, above)
	if err != nil {
		return nil, err
	}
	empty := " {}"
	if path[len(path)-1].item {
		empty = " []"
	}
	line := t.lines[p.first]
	at := p.column + bytes.IndexByte(line[p.column:], ':') + 1
	t.lines[p.first] = splice(line, at, at, empty)
	return t.replaceLines(0, 0, nil), nil
}
