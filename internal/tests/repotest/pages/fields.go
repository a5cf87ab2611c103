package pages

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// field is one line about an argument or a result.
type field struct {
	name     string // a member of a list's elements is written list[].member
	kind     string
	text     string
	standard string // the default, in backquotes; "" when there is none
	required bool
}

// node is the part of a JSON Schema that a page shows.
type node struct {
	Type        any               `json:"type"`
	Ref         string            `json:"$ref"`
	Description string            `json:"description"`
	Default     json.RawMessage   `json:"default"`
	Enum        []json.RawMessage `json:"enum"`
	Minimum     json.Number       `json:"minimum"`
	Maximum     json.Number       `json:"maximum"`
	MinLength   json.Number       `json:"minLength"`
	MaxLength   json.Number       `json:"maxLength"`
	MinItems    json.Number       `json:"minItems"`
	MaxItems    json.Number       `json:"maxItems"`
	Pattern     string            `json:"pattern"`
	Required    []string          `json:"required"`
	Properties  members           `json:"properties"`
	Items       json.RawMessage   `json:"items"`
}

// definitions are the named parts of a schema, to which other parts refer.
type definitions map[string]json.RawMessage

const toDefinition = "#/$defs/"

// members keeps the order of the properties in a schema.
type members []struct {
	name   string
	schema json.RawMessage
}

func (m *members) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return fmt.Errorf("properties are no object: %v", err)
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return err
		}
		var schema json.RawMessage
		if err := d.Decode(&schema); err != nil {
			return err
		}
		*m = append(*m, struct {
			name   string
			schema json.RawMessage
		}{name.(string), schema})
	}
	return nil
}

const deepest = 4 // levels of a schema that a page shows

// fields returns the lines for an object's schema.
func fields(schema json.RawMessage) ([]field, error) {
	if len(schema) == 0 {
		return nil, nil
	}
	var top struct {
		Defs definitions `json:"$defs"`
	}
	if err := json.Unmarshal(schema, &top); err != nil {
		return nil, err
	}
	n, err := top.Defs.read(schema)
	if err != nil {
		return nil, err
	}
	return top.Defs.lines(n, "", deepest)
}

// read decodes a schema and follows its reference, if it is one.
func (d definitions) read(schema json.RawMessage) (n node, err error) {
	if s := string(schema); s == "true" || s == "false" {
		return n, nil
	}
	if err := json.Unmarshal(schema, &n); err != nil || n.Ref == "" {
		return n, err
	}
	target, ok := d[strings.TrimPrefix(n.Ref, toDefinition)]
	if !ok {
		return n, fmt.Errorf("%s refers to nothing", n.Ref)
	}
	described := n.Description
	n = node{}
	if err := json.Unmarshal(target, &n); err != nil {
		return n, fmt.Errorf("%s: %w", n.Ref, err)
	}
	n.Description = cmp.Or(described, n.Description)
	return n, nil
}

func (d definitions) lines(n node, prefix string, left int) ([]field, error) {
	var all []field
	for _, m := range n.Properties {
		p, err := d.read(m.schema)
		if err != nil {
			return nil, fmt.Errorf("%s%s: %w", prefix, m.name, err)
		}
		f := field{
			name: prefix + m.name, kind: d.kind(p), text: p.text(),
			required: prefix == "" && slices.Contains(n.Required, m.name),
		}
		if len(p.Default) > 0 {
			f.standard = "`" + string(p.Default) + "`"
		}
		all = append(all, f)
		below, err := d.below(p, f.name, left-1)
		if err != nil {
			return nil, err
		}
		all = append(all, below...)
	}
	return all, nil
}

// below returns the lines for the members of an object or of the elements of a list.
func (d definitions) below(n node, name string, left int) ([]field, error) {
	if left == 0 {
		return nil, nil
	}
	if len(n.Properties) > 0 {
		return d.lines(n, name+".", left)
	}
	item, ok := d.item(n)
	if !ok {
		return nil, nil
	}
	return d.below(item, name+"[]", left)
}

// item returns the schema of a list's elements.
func (d definitions) item(n node) (item node, ok bool) {
	if len(n.Items) == 0 {
		return item, false
	}
	item, err := d.read(n.Items)
	return item, err == nil
}

// types returns the names of a schema's types, without null.
func (n node) types() []string {
	switch t := n.Type.(type) {
	case string:
		return []string{t}
	case []any:
		var all []string
		for _, one := range t {
			if s, ok := one.(string); ok && s != "null" {
				all = append(all, s)
			}
		}
		return all
	}
	return nil
}

func (d definitions) kind(n node) string {
	types := n.types()
	if len(types) == 0 {
		return "any"
	}
	if types[0] == "array" {
		if item, ok := d.item(n); ok {
			return "list of " + d.kind(item)
		}
		return "list"
	}
	return strings.Join(types, " or ")
}

// text returns the description with the limits of the value.
func (n node) text() string {
	said := []string{}
	if n.Description != "" {
		said = append(said, n.Description)
	}
	if len(n.Enum) > 0 {
		one := make([]string, len(n.Enum))
		for i, e := range n.Enum {
			one[i] = "`" + strings.Trim(string(e), `"`) + "`"
		}
		said = append(said, "One of "+strings.Join(one, ", ")+".")
	}
	said = append(
		said,
		span("", n.Minimum, n.Maximum),
		span(" characters", n.MinLength, n.MaxLength),
		span(" elements", n.MinItems, n.MaxItems),
	)
	if n.Pattern != "" {
		said = append(said, "It matches `"+n.Pattern+"`.")
	}
	said = slices.DeleteFunc(said, func(s string) bool { return s == "" })
	for i, s := range said {
		if !strings.HasSuffix(s, ".") && len(said) > 1 {
			said[i] = s + "."
		}
	}
	return strings.Join(said, " ")
}

func span(unit string, least, most json.Number) string {
	switch {
	case least == "1" && most == "" && unit != "":
		return "Not empty."
	case least != "" && most != "":
		return fmt.Sprintf("From %s to %s%s.", least, most, unit)
	case least != "":
		return fmt.Sprintf("At least %s%s.", least, unit)
	case most != "":
		return fmt.Sprintf("At most %s%s.", most, unit)
	}
	return ""
}
