package openapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// input is the schema of a tool that is being made.
type input struct {
	doc      *document
	members  map[string]any
	required []string
	defs     map[string]any    // what schemas refer to, by key
	keys     map[string]string // by reference
}

func newInput(doc *document) *input {
	return &input{
		doc: doc, members: map[string]any{}, defs: map[string]any{}, keys: map[string]string{},
	}
}

func (in *input) hasMember(name string) bool { return in.members[name] != nil }

func (in *input) addMember(name string, s map[string]any, required bool) {
	in.members[name] = s
	if required {
		in.required = append(in.required, name)
	}
}

// encode returns the schema of all arguments. Others are refused.
func (in *input) encode() (json.RawMessage, error) {
	all := map[string]any{"type": "object", "properties": in.members, "additionalProperties": false}
	if len(in.required) > 0 {
		slices.Sort(in.required)
		all["required"] = in.required
	}
	if len(in.defs) > 0 {
		all["$defs"] = in.defs
	}
	text, err := json.Marshal(all)
	if err == nil && len(text) > maxToolSchema {
		err = fmt.Errorf("its schema has %d bytes; at most %d are offered", len(text), maxToolSchema)
	}
	return text, err
}

// convertRoot converts a schema of the document, nil if there is none.
func (in *input) convertRoot(v any) (map[string]any, error) {
	if v == nil {
		return map[string]any{}, nil
	}
	return in.convert(v, 0)
}

const componentSchemas = "#/components/schemas/"

// dropped are members that say nothing about the values, or that only other tools of OpenAPI read.
var dropped = []string{
	"xml",
	"externalDocs",
	"discriminator",
	"example",
	"examples",
	"deprecated",
	"readOnly",
	"writeOnly",
	"$schema",
	"$id",
	"$comment",
	"$anchor",
	"$dynamicAnchor",
}

// convert converts one schema to JSON Schema 2020-12. What it refers to is added to the definitions.
func (in *input) convert(v any, depth int) (map[string]any, error) {
	if depth > maxSchemaDepth {
		return nil, fmt.Errorf("a schema is deeper than %d", maxSchemaDepth)
	}
	if b, ok := v.(bool); ok {
		if b {
			return map[string]any{}, nil
		}
		return map[string]any{"not": map[string]any{}}, nil
	}
	s, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("a schema is no object")
	}
	if ref, ok := s["$ref"].(string); ok {
		return in.refer(ref, depth)
	}
	out := map[string]any{}
	for key, value := range s {
		if strings.HasPrefix(key, "x-") || slices.Contains(dropped, key) {
			continue
		}
		var err error
		switch key {
		case "properties", "patternProperties", "$defs", "dependentSchemas":
			out[key], err = in.convertMembers(value, depth)
		case "allOf", "anyOf", "oneOf", "prefixItems":
			out[key], err = in.convertList(value, depth)
		case "items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames",
			"unevaluatedProperties", "unevaluatedItems":
			out[key], err = in.convert(value, depth+1)
		case "default", "const", "enum", "type", "description", "title", "format", "required", "minimum", "maximum",
			"minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties",
			"multipleOf", "exclusiveMinimum", "exclusiveMaximum", "nullable", "dependentRequired", "pattern":
			out[key] = value
		}
		if err != nil {
			return nil, err
		}
	}
	in.modernize(out)
	return out, nil
}

// modernize replaces what schemas of OpenAPI 3.0 have otherwise than JSON Schema.
func (in *input) modernize(s map[string]any) {
	for limit, exclusive := range map[string]string{"minimum": "exclusiveMinimum", "maximum": "exclusiveMaximum"} {
		if set, ok := s[exclusive].(bool); ok {
			delete(s, exclusive)
			if set && s[limit] != nil {
				s[exclusive] = s[limit]
				delete(s, limit)
			}
		}
	}
	nullable, _ := s["nullable"].(bool)
	delete(s, "nullable")
	if kind, ok := s["type"].(string); ok && nullable {
		s["type"] = []any{kind, "null"}
		if all, ok := s["enum"].([]any); ok && !slices.Contains(all, any(nil)) {
			s["enum"] = append(slices.Clone(all), nil)
		}
	}
	if s["type"] == "file" {
		s["type"] = "string"
	}
	if text, ok := s["description"].(string); ok && len(text) > maxDescription/2 {
		delete(s, "description")
		addDescription(s, text)
	}
}

func (in *input) convertMembers(v any, depth int) (map[string]any, error) {
	all, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("properties of a schema are no object")
	}
	out := map[string]any{}
	for name, one := range all {
		s, err := in.convert(one, depth+1)
		if err != nil {
			return nil, err
		}
		out[name] = s
	}
	return out, nil
}

func (in *input) convertList(v any, depth int) ([]any, error) {
	all, ok := v.([]any)
	if !ok {
		return nil, errors.New("alternatives of a schema are no list")
	}
	out := []any{}
	for _, one := range all {
		s, err := in.convert(one, depth+1)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// refer returns a reference to the definition of a component, and makes the definition if there is none.
func (in *input) refer(ref string, depth int) (map[string]any, error) {
	name, ok := strings.CutPrefix(ref, componentSchemas)
	if !ok {
		name = strings.TrimPrefix(ref, "#/") // as a member of another schema
	}
	if key := in.keys[ref]; key != "" {
		return map[string]any{"$ref": "#/$defs/" + key}, nil
	}
	target, err := in.doc.find(ref)
	if err != nil {
		return nil, err
	}
	key := plain(name)
	if in.defs[key] != nil {
		key = withHash(key, ref)
	}
	in.keys[ref] = key
	in.defs[key] = true // it may refer to itself
	s, err := in.convert(target, depth+1)
	if err != nil {
		return nil, err
	}
	in.defs[key] = s
	return map[string]any{"$ref": "#/$defs/" + key}, nil
}
