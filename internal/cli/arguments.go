package cli

import (
	"encoding/json"
	"io"
	"slices"
	"strings"

	"gatehouse/internal/mcp/client"
)

// stdinLimit bounds arguments that are read from standard input, in bytes.
const stdinLimit = 24 << 20

// arguments returns the object a tool is called with, from one JSON text ("-" reads standard input) or from words
// of the form key=value.
func arguments(s client.Schema, words []string, text string, stdin io.Reader) (json.RawMessage, error) {
	switch {
	case text == "":
		return fromWords(s, words)
	case len(words) > 0:
		return nil, usagef("give the arguments as key=value or with --json, not both")
	case text == "-":
		b, err := io.ReadAll(io.LimitReader(stdin, stdinLimit))
		if err != nil {
			return nil, err
		}
		text = string(b)
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &object); err != nil || object == nil {
		return nil, usagef(`--json requires an object such as {"path":"README.md"}`)
	}
	return json.RawMessage(text), nil
}

// fromWords converts key=value words by the tool's schema. The key of a list may be repeated.
func fromWords(s client.Schema, words []string) (json.RawMessage, error) {
	object := map[string]json.RawMessage{}
	lists := map[string][]json.RawMessage{}
	for _, word := range words {
		key, text, ok := strings.Cut(word, "=")
		if !ok || key == "" {
			return nil, usagef("%q is not an argument; expected key=value", word)
		}
		property, _ := s.Properties.Lookup(key)
		if property.Items != nil && !strings.HasPrefix(text, "[") {
			v, err := parseArgument(key, *property.Items, text)
			if err != nil {
				return nil, err
			}
			lists[key] = append(lists[key], v)
			object[key], _ = json.Marshal(lists[key])
			continue
		}
		if _, twice := object[key]; twice {
			return nil, usagef("%s is given twice", key)
		}
		v, err := parseArgument(key, property, text)
		if err != nil {
			return nil, err
		}
		object[key] = v
	}
	return json.Marshal(object)
}

// parseArgument converts one argument to JSON. If the schema allows a string, the text is one; a value of another type
// must be written as in JSON; without a type the text is JSON if it parses, and a string otherwise.
func parseArgument(key string, s client.Schema, text string) (json.RawMessage, error) {
	asString, err := json.Marshal(text)
	if err != nil {
		return nil, err
	}
	if slices.Contains(s.Type, "string") {
		return asString, nil
	}
	valid := json.Valid([]byte(text))
	if len(s.Type) == 0 {
		if valid {
			return json.RawMessage(text), nil
		}
		return asString, nil
	}
	if !valid || !slices.ContainsFunc(s.Type, func(t string) bool { return reads(text, t) }) {
		return nil, usagef("%s=%s: expected %s", key, text, strings.Join(kinds(s), " or "))
	}
	return json.RawMessage(text), nil
}

// reads reports whether valid JSON has the form of a type.
func reads(text, kind string) bool {
	text = strings.TrimSpace(text)
	switch kind {
	case "integer", "number":
		return text[0] == '-' || (text[0] >= '0' && text[0] <= '9')
	case "boolean":
		return text == "true" || text == "false"
	case "null":
		return text == "null"
	case "array":
		return text[0] == '['
	case "object":
		return text[0] == '{'
	}
	return false
}

// kinds describes a schema's types for an error text.
func kinds(s client.Schema) []string {
	words := map[string]string{
		"string": "text", "integer": "a whole number", "number": "a number", "boolean": "true or false",
		"array": "a list in JSON", "object": "an object in JSON", "null": "null",
	}
	var all []string
	for _, t := range s.Type {
		if w, ok := words[t]; ok {
			all = append(all, w)
		}
	}
	return all
}
