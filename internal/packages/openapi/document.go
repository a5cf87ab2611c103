package openapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Limits of the text of a document.
const (
	maxValues  = 4 << 20 // values of a document, with those that an alias of YAML repeats
	maxNesting = 500     // values within each other
	maxRefs    = 32      // references that lead to each other
)

// document is what is read of an OpenAPI document. Schemas are kept as they are, because input converts them.
type document struct {
	OpenAPI    any                 `json:"openapi"`
	Info       info                `json:"info"`
	Servers    []serverAddress     `json:"servers"`
	Paths      map[string]pathItem `json:"paths"`
	Security   []requirement       `json:"security"`
	Components struct {
		Schemas  map[string]any            `json:"schemas"`
		Security map[string]securityScheme `json:"securitySchemes"`
	} `json:"components"`

	root any // the whole, for references
}

// info has values of any type, since YAML makes a number of a version such as 1.0.
type info struct {
	Title   any `json:"title"`
	Version any `json:"version"`
}

type serverAddress struct {
	URL       string `json:"url"`
	Variables map[string]struct {
		Default string   `json:"default"`
		Enum    []string `json:"enum"`
	} `json:"variables"`
}

type requirement map[string][]string

// reference is part of what may stand elsewhere in the document.
type reference struct {
	Ref string `json:"$ref"`
}

func (r reference) ref() string { return r.Ref }

type pathItem struct {
	reference
	Parameters []parameter `json:"parameters"`

	Connect *operation `json:"connect"`
	Delete  *operation `json:"delete"`
	Get     *operation `json:"get"`
	Head    *operation `json:"head"`
	Options *operation `json:"options"`
	Patch   *operation `json:"patch"`
	Post    *operation `json:"post"`
	Put     *operation `json:"put"`
	Trace   *operation `json:"trace"`
}

// operations returns the operations by their methods.
func (p *pathItem) operations() map[string]*operation {
	all := map[string]*operation{"CONNECT": p.Connect, "DELETE": p.Delete, "GET": p.Get, "HEAD": p.Head,
		"OPTIONS": p.Options, "PATCH": p.Patch, "POST": p.Post, "PUT": p.Put, "TRACE": p.Trace}
	for method, op := range all {
		if op == nil {
			delete(all, method)
		}
	}
	return all
}

type operation struct {
	ID          string         `json:"operationId"`
	Summary     string         `json:"summary"`
	Description string         `json:"description"`
	Tags        []string       `json:"tags"`
	Parameters  []parameter    `json:"parameters"`
	Body        *requestBody   `json:"requestBody"`
	Security    *[]requirement `json:"security"`
}

type parameter struct {
	reference
	Name        string           `json:"name"`
	In          string           `json:"in"`
	Description string           `json:"description"`
	Required    bool             `json:"required"`
	Style       string           `json:"style"`
	Explode     *bool            `json:"explode"`
	Schema      any              `json:"schema"`
	Content     map[string]media `json:"content"`
}

type requestBody struct {
	reference
	Description string           `json:"description"`
	Required    bool             `json:"required"`
	Content     map[string]media `json:"content"`
}

type media struct {
	Schema any `json:"schema"`
}

type securityScheme struct {
	reference
	Type   string `json:"type"`
	Scheme string `json:"scheme"`
	In     string `json:"in"`
	Name   string `json:"name"`
}

// readDocument reads a document in JSON or YAML.
func readDocument(text []byte) (*document, error) {
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	doc := &document{}
	if !json.Valid(text) {
		var err error
		if text, err = yamlToJSON(text); err != nil {
			return nil, err
		}
	}
	if err := decode(text, &doc.root); err != nil {
		return nil, err
	}
	return doc, decode(text, doc)
}

func (doc *document) version() string { return asText(doc.OpenAPI) }

// asText returns the text of a value; that of nil is "".
func asText(v any) string {
	if v == nil {
		return ""
	}
	return fmt.Sprint(v)
}

// decode decodes JSON. Numbers keep all their digits.
func decode(text []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return d.Decode(v)
}

// resolve returns v, or what its reference leads to.
func resolve[T interface{ ref() string }](doc *document, v T) (T, error) {
	for range maxRefs {
		at := v.ref()
		if at == "" {
			return v, nil
		}
		target, err := doc.find(at)
		if err != nil {
			return v, err
		}
		text, err := json.Marshal(target)
		if err != nil {
			return v, err
		}
		var next T
		if err := decode(text, &next); err != nil {
			return v, fmt.Errorf("the reference %.200q: %w", at, err)
		}
		v = next
	}
	return v, fmt.Errorf("the reference %.200q: more than %d lead to each other", v.ref(), maxRefs)
}

// find returns the value to which a reference leads: a JSON pointer (RFC 6901) in this document.
func (doc *document) find(ref string) (any, error) {
	pointer, ok := strings.CutPrefix(ref, "#/")
	if !ok {
		return nil, fmt.Errorf("the reference %.200q leads to another document", ref)
	}
	v := doc.root
	for part := range strings.SplitSeq(pointer, "/") {
		part, err := unescape(part)
		if err != nil {
			return nil, fmt.Errorf("the reference %.200q: %w", ref, err)
		}
		switch in := v.(type) {
		case map[string]any:
			v, ok = in[part]
		case []any:
			v, ok = element(in, part)
		default:
			ok = false
		}
		if !ok {
			return nil, fmt.Errorf("the reference %.200q leads to nothing", ref)
		}
	}
	return v, nil
}

func unescape(part string) (string, error) {
	part, err := url.PathUnescape(part) // it is the fragment of an address
	return strings.NewReplacer("~1", "/", "~0", "~").Replace(part), err
}

func element(all []any, index string) (any, bool) {
	i, err := strconv.Atoi(index)
	if err != nil || i < 0 || i >= len(all) {
		return nil, false
	}
	return all[i], true
}

// yamlToJSON converts a document in YAML.
func yamlToJSON(text []byte) ([]byte, error) {
	d := yaml.NewDecoder(bytes.NewReader(text))
	var root yaml.Node
	if err := d.Decode(&root); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("it is empty")
		}
		return nil, err
	}
	c := converter{left: maxValues}
	v, err := c.value(&root, 0)
	if err != nil {
		return nil, err
	}
	return json.Marshal(v)
}

// converter makes values of JSON of nodes of YAML. Timestamps and other types that JSON lacks become text.
type converter struct {
	left int // values that may still be made
}

func (c *converter) value(n *yaml.Node, depth int) (any, error) {
	if c.left--; c.left < 0 {
		return nil, fmt.Errorf("line %d: it has more than %d values", n.Line, maxValues)
	}
	if depth > maxNesting {
		return nil, fmt.Errorf("line %d: values are nested deeper than %d", n.Line, maxNesting)
	}
	switch n.Kind {
	case yaml.DocumentNode:
		return c.value(n.Content[0], depth)
	case yaml.AliasNode:
		return c.value(n.Alias, depth+1)
	case yaml.SequenceNode:
		out := make([]any, 0, len(n.Content))
		for _, one := range n.Content {
			v, err := c.value(one, depth+1)
			if err != nil {
				return nil, err
			}
			out = append(out, v)
		}
		return out, nil
	case yaml.MappingNode:
		return c.mapping(n, depth)
	}
	return scalar(n)
}

func (c *converter) mapping(n *yaml.Node, depth int) (any, error) {
	out, merged := map[string]any{}, []any{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		v, err := c.value(value, depth+1)
		switch {
		case err != nil:
			return nil, err
		case key.Tag == "!!merge":
			if all, ok := v.([]any); ok {
				merged = append(merged, all...)
			} else {
				merged = append(merged, v)
			}
		case key.Kind != yaml.ScalarNode:
			return nil, fmt.Errorf("line %d: a key is no text", key.Line)
		default:
			out[key.Value] = v
		}
	}
	for _, one := range merged { // what the mapping itself has overrides it
		from, ok := one.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("line %d: << is no mapping", n.Line)
		}
		for key, v := range from {
			if _, ok := out[key]; !ok {
				out[key] = v
			}
		}
	}
	return out, nil
}

func scalar(n *yaml.Node) (any, error) {
	switch n.ShortTag() {
	case "!!null":
		return nil, nil
	case "!!bool":
		var b bool
		err := n.Decode(&b)
		return b, err
	case "!!int", "!!float":
		if json.Valid([]byte(n.Value)) {
			return json.Number(n.Value), nil
		}
		var f any
		if err := n.Decode(&f); err != nil {
			return nil, err
		}
		if _, err := json.Marshal(f); err != nil {
			return n.Value, nil // infinity, or no number
		}
		return f, nil
	}
	return n.Value, nil
}
