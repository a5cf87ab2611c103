package views

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/schema"
)

// pointer is a JSON pointer (RFC 6901), in which * stands for every element or member.
type pointer []string

const everyPart = "*"

func parsePointer(text string) (pointer, error) {
	if !strings.HasPrefix(text, "/") || len(text) > 1000 {
		return nil, fmt.Errorf("%q: expected a JSON pointer such as /items/*/name", text)
	}
	p := pointer(strings.Split(text[1:], "/"))
	for i, step := range p {
		if strings.Contains(strings.NewReplacer("~0", "", "~1", "").Replace(step), "~") {
			return nil, fmt.Errorf("%q: expected ~0 for ~ and ~1 for /", text)
		}
		p[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(step)
	}
	if len(p) > schema.MaxDepth {
		return nil, fmt.Errorf("%q: at most %d steps", text, schema.MaxDepth)
	}
	return p, nil
}

// fits reports whether a step of a pointer names a member or element.
func fits(step, name string) bool { return step == everyPart || step == name }

// cutter leaves out parts of values, and of the schemas that describe them.
type cutter struct{ keep, drop []pointer }

func newCutter(keep, drop []string) (c cutter, err error) {
	for i, list := range [][]string{keep, drop} {
		for _, text := range list {
			p, err := parsePointer(text)
			if err != nil {
				return c, err
			}
			if i == 0 {
				c.keep = append(c.keep, p)
			} else {
				c.drop = append(c.drop, p)
			}
		}
	}
	return c, nil
}

func (c *cutter) empty() bool { return len(c.keep)+len(c.drop) == 0 }

// value returns JSON without what is left out. What remains is unchanged.
func (c *cutter) value(v json.RawMessage) json.RawMessage {
	if len(c.keep) > 0 {
		if kept, ok := keepParts(v, c.keep); ok {
			v = kept
		}
	}
	for _, p := range c.drop {
		v = dropPart(v, p)
	}
	return v
}

// blocks returns content blocks with the texts cut that are JSON.
func (c *cutter) blocks(content json.RawMessage) json.RawMessage {
	out := []byte{'['}
	for b := range rawjson.Elements(content) {
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(out, c.block(b)...)
	}
	return append(out, ']')
}

func (c *cutter) block(b json.RawMessage) json.RawMessage {
	kind, _ := rawjson.Get(b, "type")
	raw, ok := rawjson.Get(b, "text")
	if !ok || !rawjson.Equal(kind, "text") {
		return b
	}
	text, ok := rawjson.String(raw)
	if k := rawjson.Kind([]byte(text)); !ok || k != '{' && k != '[' || rawjson.Check([]byte(text), 0) != nil {
		return b
	}
	cut := c.value(json.RawMessage(text))
	return rawjson.Splice(b, rawjson.Edit{Key: "text", Value: rawjson.AppendString(nil, string(cut))})
}

// keepParts returns what some pointers lead to, in its place. It reports false for a value that a pointer would
// have to enter and that has no parts.
func keepParts(v json.RawMessage, at []pointer) (json.RawMessage, bool) {
	if slices.ContainsFunc(at, func(p pointer) bool { return len(p) == 0 }) {
		return v, true
	}
	switch rawjson.Kind(v) {
	case '{':
		out := []byte{'{'}
		for name, member := range rawjson.Object(v) {
			if kept, ok := keepPart(string(name), member, at); ok {
				if len(out) > 1 {
					out = append(out, ',')
				}
				out = append(append(rawjson.AppendString(out, string(name)), ':'), kept...)
			}
		}
		return append(out, '}'), true
	case '[':
		out, i := []byte{'['}, 0
		for e := range rawjson.Elements(v) {
			if kept, ok := keepPart(strconv.Itoa(i), e, at); ok {
				if len(out) > 1 {
					out = append(out, ',')
				}
				out = append(out, kept...)
			}
			i++
		}
		return append(out, ']'), true
	}
	return nil, false
}

// keepPart is keepParts for one member or element.
func keepPart(name string, v json.RawMessage, at []pointer) (json.RawMessage, bool) {
	inside := below(at, name)
	if len(inside) == 0 {
		return nil, false
	}
	return keepParts(v, inside)
}

// below returns the rests of the pointers that lead into a member or element.
func below(at []pointer, name string) (inside []pointer) {
	for _, p := range at {
		if len(p) > 0 && fits(p[0], name) {
			inside = append(inside, p[1:])
		}
	}
	return inside
}

// dropPart returns a value without what a pointer leads to.
func dropPart(v json.RawMessage, p pointer) json.RawMessage {
	switch rawjson.Kind(v) {
	case '{':
		out, changed := []byte{'{'}, false
		for name, member := range rawjson.Object(v) {
			if fits(p[0], string(name)) {
				changed = true
				if len(p) == 1 {
					continue
				}
				member = dropPart(member, p[1:])
			}
			if len(out) > 1 {
				out = append(out, ',')
			}
			out = append(append(rawjson.AppendString(out, string(name)), ':'), member...)
		}
		if !changed {
			return v
		}
		return append(out, '}')
	case '[':
		out, i := []byte{'['}, 0
		for e := range rawjson.Elements(v) {
			hit := fits(p[0], strconv.Itoa(i))
			i++
			if hit && len(p) == 1 {
				continue
			}
			if hit {
				e = dropPart(e, p[1:])
			}
			if len(out) > 1 {
				out = append(out, ',')
			}
			out = append(out, e...)
		}
		return append(out, ']')
	}
	return v
}

// schema returns a schema that every value which fits s fits after it was cut.
func (c *cutter) schema(s json.RawMessage) json.RawMessage {
	if len(c.keep) > 0 {
		s = keepSchema(s, c.keep)
	}
	for _, p := range c.drop {
		s = dropSchema(s, p)
	}
	return s
}

// loose are keywords that a value may not fit any more when parts of it are gone.
var loose = []string{
	"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentRequired",
	"dependentSchemas",
	"dependencies", "minProperties", "patternProperties", "propertyNames", "unevaluatedProperties", "unevaluatedItems",
	"contains", "minContains", "maxContains", "minItems", "prefixItems", "additionalItems", "uniqueItems", "const",
	"enum",
}

// loosen removes from a schema what may not hold for a part of a value, and what would mean more without that.
func loosen(s json.RawMessage) json.RawMessage {
	var edits []rawjson.Edit
	for _, key := range loose {
		edits = append(edits, rawjson.Edit{Key: key})
	}
	for _, key := range []string{"$ref", "allOf", "anyOf", "oneOf", "patternProperties"} {
		if _, ok := rawjson.Get(s, key); ok {
			edits = append(edits, rawjson.Edit{Key: "additionalProperties"})
		}
	}
	items, _ := rawjson.Get(s, "items")
	if _, tuple := rawjson.Get(s, "prefixItems"); tuple || rawjson.Kind(items) == '[' {
		edits = append(edits, rawjson.Edit{Key: "items"})
	}
	return rawjson.Splice(s, edits...)
}

// mapSchema changes the schemas of the parts of a value; f returns nil for those that are gone. required are the
// members that the result may require of those that the schema does.
func mapSchema(
	s json.RawMessage,
	f func(name string, part json.RawMessage) json.RawMessage,
	required func(name string) bool,
) json.RawMessage {
	if rawjson.Kind(s) != '{' {
		return s
	}
	s = loosen(s)
	var edits []rawjson.Edit
	if properties, ok := rawjson.Get(s, "properties"); ok {
		var inner []rawjson.Edit
		for name, part := range rawjson.Object(properties) {
			inner = append(inner, rawjson.Edit{Key: string(name), Value: f(string(name), part)})
		}
		edits = append(edits, rawjson.Edit{Key: "properties", Value: rawjson.Splice(properties, inner...)})
	}
	if list, ok := rawjson.Get(s, "required"); ok {
		gone := map[string]bool{}
		for e := range rawjson.Elements(list) {
			if name, ok := rawjson.String(e); ok && !required(name) {
				gone[name] = true
			}
		}
		edits = append(edits, rawjson.Edit{Key: "required", Value: without(list, gone)})
	}
	if extra, ok := rawjson.Get(s, "additionalProperties"); ok && rawjson.Kind(extra) == '{' {
		edits = append(edits, rawjson.Edit{Key: "additionalProperties"})
	}
	if items, ok := rawjson.Get(s, "items"); ok {
		edits = append(edits, rawjson.Edit{Key: "items", Value: f(anyElement, items)})
	}
	return rawjson.Splice(s, edits...)
}

// anyElement stands for the elements of a list, whose schema is one. No pointer but * leads to all of them.
const anyElement = "\x00"

func keepSchema(s json.RawMessage, at []pointer) json.RawMessage {
	if slices.ContainsFunc(at, func(p pointer) bool { return len(p) == 0 }) {
		return s
	}
	return mapSchema(s, func(name string, part json.RawMessage) json.RawMessage {
		inside := below(at, name)
		one := func(p pointer) bool { return p[0] != everyPart }
		if len(inside) == 0 || name == anyElement && slices.ContainsFunc(at, one) {
			return nil
		}
		return keepSchema(part, inside)
	}, func(name string) bool {
		return slices.ContainsFunc(below(at, name), func(p pointer) bool { return len(p) == 0 })
	})
}

func dropSchema(s json.RawMessage, p pointer) json.RawMessage {
	return mapSchema(s, func(name string, part json.RawMessage) json.RawMessage {
		switch {
		case name == anyElement && p[0] != everyPart && len(p) > 1:
			return nil // it may lead into one of them
		case !fits(p[0], name):
			return part
		case len(p) == 1:
			return nil
		}
		return dropSchema(part, p[1:])
	}, func(name string) bool { return len(p) > 1 || !fits(p[0], name) })
}
