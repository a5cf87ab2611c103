package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/schema"
)

// Tool is one entry of a server's list.
type Tool struct {
	Name        string `json:"name"`
	Title       string `json:"title"`
	Description string `json:"description"`
	Annotations struct {
		ReadOnly    *bool `json:"readOnlyHint"`
		Destructive *bool `json:"destructiveHint"`
		Idempotent  *bool `json:"idempotentHint"`
		OpenWorld   *bool `json:"openWorldHint"`
	} `json:"annotations"`
	Input  Schema          `json:"inputSchema"`
	Output json.RawMessage `json:"outputSchema"`

	Raw json.RawMessage `json:"-"` // the whole entry, unchanged
}

// Schema holds the parts of a JSON Schema that this client uses.
type Schema struct {
	Type        Types           `json:"type"`
	Title       string          `json:"title"`
	Description string          `json:"description"`
	Properties  Properties      `json:"properties"`
	Required    []string        `json:"required"`
	Items       *Schema         `json:"items"`
	Enum        []any           `json:"enum"`
	Default     json.RawMessage `json:"default"`
	Header      string          `json:"x-mcp-header"`

	Hints `json:"-"`
}

// Hints describe valid values; nil and 0 mean no hint. They are used to make an example; a hint that
// cannot be decoded is omitted, with those after it.
type Hints struct {
	Const            any      `json:"const"`
	Examples         []any    `json:"examples"`
	Format           string   `json:"format"`
	Pattern          string   `json:"pattern"`
	MinLength        float64  `json:"minLength"`
	MaxLength        *float64 `json:"maxLength"`
	Minimum          *float64 `json:"minimum"`
	Maximum          *float64 `json:"maximum"`
	ExclusiveMinimum *float64 `json:"exclusiveMinimum"`
	ExclusiveMaximum *float64 `json:"exclusiveMaximum"`
	MultipleOf       *float64 `json:"multipleOf"`
	MinItems         float64  `json:"minItems"`
	AnyOf            []Schema `json:"anyOf"`
	OneOf            []Schema `json:"oneOf"`
}

// UnmarshalJSON decodes a schema; the schemas true and false are decoded as an empty one.
func (s *Schema) UnmarshalJSON(b []byte) error {
	if string(b) == "true" || string(b) == "false" {
		*s = Schema{}
		return nil
	}
	json.Unmarshal(b, &s.Hints) // fields that cannot be decoded stay empty
	type plain Schema
	return json.Unmarshal(b, (*plain)(s))
}

// Types is one type or several.
type Types []string

// UnmarshalJSON decodes a name or a list of names.
func (t *Types) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*t = Types{one}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(t))
}

// Property is one member of an object.
type Property struct {
	Name string
	Schema
}

// Properties are the members of an object in their written order.
type Properties []Property

// UnmarshalJSON decodes an object and keeps its order.
func (p *Properties) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.Join(err, errors.New("properties is not an object"))
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return err
		}
		one := Property{Name: name.(string)}
		if err := d.Decode(&one.Schema); err != nil {
			return fmt.Errorf("property %s: %w", name, err)
		}
		*p = append(*p, one)
	}
	return nil
}

// Lookup returns the property with a name.
func (p Properties) Lookup(name string) (Schema, bool) {
	for _, one := range p {
		if one.Name == name {
			return one.Schema, true
		}
	}
	return Schema{}, false
}

// maxPages limits how many pages of a list are requested.
const maxPages = 1000

// Tools lists every tool, in the server's order. Over HTTP a modern server's tools whose
// schemas have invalid x-mcp-header are left out, as the protocol requires.
func (c *Client) Tools(ctx context.Context) ([]Tool, error) {
	var all []Tool
	cursor := ""
	for range maxPages {
		params := map[string]any{}
		if cursor != "" {
			params["cursor"] = cursor
		}
		raw, err := c.request(ctx, "tools/list", "", params, nil)
		if err != nil {
			return nil, err
		}
		var page struct {
			Tools []json.RawMessage `json:"tools"`
			Next  string            `json:"nextCursor"`
		}
		if err := json.Unmarshal(raw, &page); err != nil {
			return nil, fmt.Errorf("the list of tools cannot be parsed: %w", err)
		}
		for _, entry := range page.Tools {
			t := Tool{Raw: entry}
			if err := json.Unmarshal(entry, &t); err != nil {
				return nil, fmt.Errorf("an entry of the list of tools cannot be parsed: %w", err)
			}
			if c.conn.IsModern() && c.conn.usesHTTP() && !validHeaders(entry) {
				continue
			}
			all = append(all, t)
		}
		if page.Next == "" {
			return all, nil
		}
		cursor = page.Next
	}
	return nil, fmt.Errorf("the list of tools does not end after %d pages", maxPages)
}

// validHeaders reports whether what the schema of a tool has sent as headers can be sent.
func validHeaders(entry json.RawMessage) bool {
	in, ok := rawjson.Get(entry, "inputSchema")
	if !ok || !bytes.Contains(in, []byte("x-mcp-header")) {
		return true
	}
	compiled, err := schema.Compile(in)
	if err == nil {
		_, err = compiled.Headers()
	}
	return err == nil
}

// Result is the result of a tool.
type Result struct {
	Content    []Content       `json:"content"`
	Structured json.RawMessage `json:"structuredContent"`
	IsError    bool            `json:"isError"`
	Kind       string          `json:"resultType"`
	Meta       struct {
		Job    string          `json:"gatehouse/job"`    // in which the call continues; "" if it has ended
		Fields json.RawMessage `json:"gatehouse/fields"` // of a tool whose first block is a text that is its product
	} `json:"_meta"`

	Raw json.RawMessage `json:"-"` // the whole result, unchanged
}

// Content is one block of a result.
type Content struct {
	Type     string `json:"type"`
	Text     string `json:"text"`
	MIME     string `json:"mimeType"`
	Data     []byte `json:"data"`
	URI      string `json:"uri"`
	Resource *struct {
		URI  string `json:"uri"`
		Text string `json:"text"`
		MIME string `json:"mimeType"`
		Blob []byte `json:"blob"`
	} `json:"resource"`
}

// Call calls a tool with its arguments, a JSON object. A failure of the tool is a Result with IsError;
// *RPCError is an error of the server.
func (c *Client) Call(ctx context.Context, t Tool, args json.RawMessage) (*Result, error) {
	params := map[string]any{"name": t.Name, "arguments": args}
	raw, err := c.rounds(ctx, t.Name, params, paramHeaders(t.Input, args))
	if err != nil {
		return nil, err
	}
	r := &Result{Raw: raw}
	if err := json.Unmarshal(raw, r); err != nil {
		return nil, fmt.Errorf("the result of %s cannot be parsed: %w", t.Name, err)
	}
	if r.Kind != "" && r.Kind != "complete" {
		return nil, fmt.Errorf("%s requires input that this client cannot provide (%s)", t.Name, r.Kind)
	}
	return r, nil
}

// ParamHeaders returns the headers that repeat arguments of a call over HTTP, because the tool's input schema
// requires it; nil if it requires none.
func ParamHeaders(input, args json.RawMessage) map[string]string {
	if !bytes.Contains(input, []byte(`"x-mcp-header"`)) {
		return nil
	}
	var s Schema
	if json.Unmarshal(input, &s) != nil {
		return nil
	}
	return paramHeaders(s, args)
}

// paramHeaders returns headers that repeat the arguments whose schema requires it.
func paramHeaders(s Schema, args json.RawMessage) map[string]string {
	var given map[string]json.RawMessage
	json.Unmarshal(args, &given) // anything but an object is refused by the server
	headers := map[string]string{}
	for _, p := range s.Properties {
		v, ok := given[p.Name]
		if !ok || string(v) == "null" {
			continue
		}
		if p.Header != "" {
			text := string(v)
			json.Unmarshal(v, &text) // a string loses its quotes, other values stay unchanged
			headers["Mcp-Param-"+p.Header] = headerValue(text)
		}
		maps.Copy(headers, paramHeaders(p.Schema, v))
	}
	return headers
}
