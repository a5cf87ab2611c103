package schema

import (
	"fmt"
	"slices"
	"strings"

	"gatehouse/internal/mcp/rawjson"
)

// Header is an argument that clients repeat in an HTTP header, because its
// schema has x-mcp-header.
type Header struct {
	Name string   // without the prefix Mcp-Param-
	Path []string // member names, from the arguments down
	Type string   // string, integer or boolean
}

// Headers returns the arguments that are repeated in headers, in order. It
// returns an error if an x-mcp-header breaks a rule: its value is an HTTP token
// and unique regardless of case; its schema has the type string, integer or
// boolean; and only properties lead to it.
func (s *Schema) Headers() ([]Header, error) {
	var f headerFinder
	f.walk(s.raw, nil, true)
	return f.found, f.err
}

type headerFinder struct {
	found []Header
	err   error
}

// walk looks for headers in a subschema. path leads to it. direct says whether
// only properties lead to it.
func (f *headerFinder) walk(raw []byte, path []string, direct bool) {
	for key, v := range rawjson.Object(raw) {
		switch k := string(key); k {
		case "x-mcp-header":
			f.header(raw, v, path, direct)
		case "properties":
			for name, sub := range rawjson.Object(v) {
				f.walk(sub, append(slices.Clip(path), string(name)), direct)
			}
		case "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies":
			for _, sub := range rawjson.Object(v) {
				f.walk(sub, path, false)
			}
		case "items", "prefixItems", "additionalItems", "contains", "unevaluatedItems",
			"additionalProperties", "propertyNames", "unevaluatedProperties",
			"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "contentSchema":
			f.walk(v, path, false)
			for sub := range rawjson.Elements(v) {
				f.walk(sub, path, false)
			}
		}
		if f.err != nil {
			return
		}
	}
}

func (f *headerFinder) header(raw, v []byte, path []string, direct bool) {
	at := strings.Join(path, ".")
	name, ok := rawjson.String(v)
	typ, _ := rawjson.Get(raw, "type")
	h := Header{Name: name, Path: path}
	h.Type, _ = rawjson.String(typ)
	switch {
	case !ok || !isToken(name):
		f.err = fmt.Errorf("%s: x-mcp-header %s is not an HTTP token", at, clip(string(v), 60))
	case !direct || len(path) == 0:
		f.err = fmt.Errorf("%s: x-mcp-header %q can stand only where properties alone lead", at, name)
	case h.Type != "string" && h.Type != "integer" && h.Type != "boolean":
		f.err = fmt.Errorf("%s: x-mcp-header %q needs the type string, integer or boolean", at, name)
	case slices.ContainsFunc(f.found, func(g Header) bool { return strings.EqualFold(g.Name, name) }):
		f.err = fmt.Errorf("%s: x-mcp-header %q is used twice", at, name)
	default:
		f.found = append(f.found, h)
	}
}

// isToken reports whether s is a token of RFC 9110.
func isToken(s string) bool {
	for _, c := range []byte(s) {
		letter := c|0x20 >= 'a' && c|0x20 <= 'z'
		if !letter && (c < '0' || c > '9') && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}
