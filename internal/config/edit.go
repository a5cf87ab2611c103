package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// Edit returns the text of a settings file in which the setting at path, such as log.level, has a value, which is
// JSON. nil removes the setting. Comments and the order of the other settings stay.
func Edit(text []byte, path string, value json.RawMessage) ([]byte, error) {
	if _, err := (&decoder{}).parseYAML(text); err != nil {
		return nil, err
	}
	f, err := parser.ParseBytes(text, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	keys := strings.Split(path, ".")
	root := rootOf(f)
	if value == nil {
		removeKey(root, keys)
		return finished(f), nil
	}
	if root == nil { // comments at most
		block, err := blockOf(keys, value)
		return append(withNewline(text), block...), err
	}
	at, found := deepest(root, keys)
	if _, empty := found.(*ast.NullNode); empty && at > 0 { // a section without settings
		if removeKey(root, keys[:at]) {
			return Edit(nil, path, value)
		}
		return Edit(finished(f), path, value)
	}
	var target strings.Builder
	target.WriteString("$")
	for _, key := range keys[:at] {
		target.WriteString("." + key)
	}
	p, err := yaml.PathString(target.String())
	if err != nil {
		return nil, err
	}
	block, err := blockOf(keys[at:], value)
	if err != nil {
		return nil, err
	}
	if at == len(keys) {
		err = p.ReplaceWithReader(f, bytes.NewReader(block))
	} else {
		err = p.MergeFromReader(f, bytes.NewReader(block))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return finished(f), nil
}

// finished returns the text of a file.
func finished(f *ast.File) []byte { return withNewline([]byte(strings.TrimRight(f.String(), "\n"))) }

func withNewline(text []byte) []byte {
	if len(text) > 0 && !bytes.HasSuffix(text, []byte("\n")) {
		text = append(text, '\n')
	}
	return text
}

// rootOf returns the mapping of a file, or nil if it has none.
func rootOf(f *ast.File) ast.Node {
	for _, doc := range f.Docs {
		switch doc.Body.(type) {
		case *ast.MappingNode, *ast.MappingValueNode:
			return doc.Body
		}
	}
	return nil
}

func entriesOf(n ast.Node) []*ast.MappingValueNode {
	switch m := n.(type) {
	case *ast.MappingNode:
		return m.Values
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{m}
	}
	return nil
}

// deepest returns how many of the keys exist, and the node of the last one.
func deepest(n ast.Node, keys []string) (int, ast.Node) {
	for i, key := range keys {
		var next ast.Node
		for _, e := range entriesOf(n) {
			if k, ok := e.Key.(*ast.StringNode); ok && k.Value == key {
				next = e.Value
			}
		}
		if next == nil {
			return i, n
		}
		n = next
	}
	return len(keys), n
}

// removeKey removes a setting, and the sections that it leaves empty. It reports whether n is empty then.
func removeKey(n ast.Node, keys []string) (empty bool) {
	m, ok := n.(*ast.MappingNode)
	if !ok {
		return false
	}
	for i, e := range m.Values {
		k, ok := e.Key.(*ast.StringNode)
		if !ok || k.Value != keys[0] {
			continue
		}
		if len(keys) > 1 && !removeKey(e.Value, keys[1:]) {
			return false
		}
		m.Values = append(m.Values[:i], m.Values[i+1:]...)
		return len(m.Values) == 0
	}
	return false
}

// blockOf returns the YAML of a value below keys.
func blockOf(keys []string, value json.RawMessage) ([]byte, error) {
	var plain any
	d := json.NewDecoder(bytes.NewReader(value))
	d.UseNumber()
	if err := d.Decode(&plain); err != nil {
		return nil, fmt.Errorf("the value is not JSON: %w", err)
	}
	block, err := yaml.JSONToYAML(value)
	if err != nil {
		return nil, err
	}
	for i := len(keys) - 1; i >= 0; i-- {
		var b bytes.Buffer
		b.WriteString(keys[i] + ":")
		switch plain.(type) {
		case map[string]any, []any:
			b.WriteString("\n")
			for line := range bytes.Lines(block) {
				b.WriteString("  ")
				b.Write(line)
			}
		default:
			b.WriteString(" ")
			b.Write(block)
		}
		block, plain = b.Bytes(), map[string]any{}
	}
	return withNewline(block), nil
}
