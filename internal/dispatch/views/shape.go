package views

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/schema"
)

// Shape changes the arguments and results of one tool in a context. A value of an argument is JSON, such as 10 or
// ["a"], or else a text; a text that is JSON itself is written in quotes.
type Shape struct {
	Tool     string            `json:"tool" doc:"Own name of the tool, such as github_create_issue." need:"yes"`
	Fixed    map[string]string `json:"fixed,omitempty" doc:"Arguments that callers neither see nor set, each with its value: JSON such as 10, or a text, in which ${secret:NAME} stands for a secret."`
	Defaults map[string]string `json:"defaults,omitempty" doc:"Arguments that callers can leave out, each with the value that is then used: JSON, or a text."`
	Keep     []string          `json:"keep,omitempty" doc:"JSON pointers to the parts of a result that are sent, such as /items/*/name, where * stands for every element or member; empty means all."`
	Drop     []string          `json:"drop,omitempty" doc:"JSON pointers to the parts of a result that are not sent."`
}

const (
	maxShapes     = 1000 // of one context
	maxShaped     = 100  // arguments, or pointers, of one tool
	maxShapeValue = 32 << 10
)

// CheckShapes reports what is wrong with the shapes of a context, as far as that can be known without the tools:
// the first error, and the place in the list that it concerns, such as [2].fixed.owner.
func CheckShapes(shapes []Shape) (at string, err error) {
	if len(shapes) > maxShapes {
		return "", fmt.Errorf("%d tools: at most %d", len(shapes), maxShapes)
	}
	seen := map[string]bool{}
	for i := range shapes {
		s := &shapes[i]
		switch at = fmt.Sprintf("[%d]", i); {
		case s.Tool == "":
			return at + ".tool", errors.New("is empty: expected the name of a tool")
		case seen[s.Tool]:
			return at + ".tool", fmt.Errorf("%s is there twice; put all of it into one entry", s.Tool)
		}
		seen[s.Tool] = true
		if inside, err := s.check(); err != nil {
			return at + inside, err
		}
	}
	return "", nil
}

func (s *Shape) check() (at string, err error) {
	if len(s.Fixed)+len(s.Defaults) > maxShaped || len(s.Keep)+len(s.Drop) > maxShaped {
		return "", fmt.Errorf("at most %d arguments and %d pointers", maxShaped, maxShaped)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Fixed)) {
		if _, err := readArgument(name, s.Fixed[name]); err != nil {
			return ".fixed." + name, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Defaults)) {
		switch a, err := readArgument(name, s.Defaults[name]); {
		case err != nil:
			return ".defaults." + name, err
		case a.secret:
			return ".defaults." + name, errors.New("callers see a default; a secret can only be fixed")
		case s.Fixed[name] != "":
			return ".defaults." + name, errors.New("is fixed as well")
		}
	}
	for list, pointers := range map[string][]string{"keep": s.Keep, "drop": s.Drop} {
		for i, p := range pointers {
			if _, err := parsePointer(p); err != nil {
				return fmt.Sprintf(".%s[%d]", list, i), err
			}
		}
	}
	return "", nil
}

// argument is an argument that a context fixes or gives a default.
type argument struct {
	name   string
	value  json.RawMessage
	secret bool // the value is a text that refers to secrets
}

func readArgument(name, text string) (argument, error) {
	if name == "" || len(name) > 200 || len(text) > maxShapeValue {
		return argument{}, fmt.Errorf("expected a name of 1 to 200 bytes and a value of at most %d", maxShapeValue)
	}
	names, err := secret.Names(text)
	isJSON := rawjson.Check([]byte(text), schema.MaxDepth) == nil
	switch {
	case err != nil:
		return argument{}, err
	case len(names) > 0 && isJSON:
		return argument{}, errors.New("a secret can only be in a text, not inside JSON")
	case !isJSON:
		return argument{name, rawjson.AppendString(nil, text), len(names) > 0}, nil
	}
	return argument{name, rawjson.Compact(nil, []byte(text)), false}, nil
}

// shaped is what a Shape makes of one tool.
type shaped struct {
	fixed, defaults []argument
	secrets         map[string]string // texts of fixed arguments that refer to secrets
	in              *schema.Schema    // of all arguments, as the tool itself declares them
	out             *schema.Schema    // of the whole result; nil if the tool declares none
	cut             cutter
}

// applyShape changes the schemas of an entry, and what is done at each call of it. It fails if the tool does not
// have an argument, or a value does not fit.
func (e *Entry) applyShape(by *compiler, s *Shape) error {
	if _, err := s.check(); err != nil {
		return err
	}
	h := &shaped{in: e.In, out: e.Out, secrets: map[string]string{}}
	for _, name := range slices.Sorted(maps.Keys(s.Fixed)) {
		a, _ := readArgument(name, s.Fixed[name])
		if err := checkArgument(e.input, a); err != nil {
			return fmt.Errorf("fixed.%s: %w", name, err)
		}
		if h.fixed = append(h.fixed, a); a.secret {
			h.secrets[name] = s.Fixed[name]
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Defaults)) {
		a, _ := readArgument(name, s.Defaults[name])
		if err := checkArgument(e.input, a); err != nil {
			return fmt.Errorf("defaults.%s: %w", name, err)
		}
		h.defaults = append(h.defaults, a)
	}
	var err error
	if h.cut, err = newCutter(s.Keep, s.Drop); err != nil {
		return err
	}
	input := h.shapedInput(e.input)
	in, err := by.compile(input)
	if err != nil {
		return fmt.Errorf("the schema of the other arguments: %w", err)
	}
	e.input, e.In, e.shape = input, in, h
	if h.cut.empty() || e.Out == nil {
		e.Headers, err = e.In.Headers()
		return err
	}
	output := h.cut.schema(e.Out.Raw())
	if e.Out, err = by.compile(output); err != nil {
		e.Out, output = nil, nil // the client cannot check the result, and gets it all the same
	}
	if e.output != nil {
		e.output = output
	}
	e.Headers, err = e.In.Headers()
	return err
}

// checkArgument reports whether the schema of some arguments has one with a name, and whether a value fits it.
func checkArgument(input json.RawMessage, a argument) error {
	properties, _ := rawjson.Get(input, "properties")
	own, ok := rawjson.Get(properties, a.name)
	if !ok {
		return errors.New("the tool has no such argument")
	}
	if a.secret || strings.Contains(string(own), `"$ref"`) {
		return nil // what refers to another part of the schema is checked at each call
	}
	compiled, err := schema.Compile(own)
	if err != nil {
		return nil
	}
	return compiled.Check(a.value)
}

// shapedInput returns the schema of the arguments that callers can set.
func (h *shaped) shapedInput(input json.RawMessage) json.RawMessage {
	properties, _ := rawjson.Get(input, "properties")
	optional := map[string]bool{}
	var edits []rawjson.Edit
	for _, a := range h.fixed {
		optional[a.name] = true
		edits = append(edits, rawjson.Edit{Key: a.name})
	}
	for _, a := range h.defaults {
		optional[a.name] = true
		own, _ := rawjson.Get(properties, a.name)
		if rawjson.Kind(own) != '{' {
			own = []byte(`{}`)
		}
		own = rawjson.Splice(own, rawjson.Edit{Key: "default", Value: a.value})
		edits = append(edits, rawjson.Edit{Key: a.name, Value: own})
	}
	changes := []rawjson.Edit{{Key: "properties", Value: rawjson.Splice(properties, edits...)}}
	if required, ok := rawjson.Get(input, "required"); ok {
		changes = append(changes, rawjson.Edit{Key: "required", Value: without(required, optional)})
	}
	return rawjson.Splice(input, changes...)
}

// without returns a list of texts without some, or nil if no others are left.
func without(list json.RawMessage, some map[string]bool) json.RawMessage {
	var left []byte
	for e := range rawjson.Elements(list) {
		if name, ok := rawjson.String(e); ok && !some[name] {
			left = append(append(left, ','), e...)
		}
	}
	if left == nil {
		return nil
	}
	left[0] = '['
	return append(left, ']')
}

// canonical returns arguments checked and with the defaults filled in. Those of a relayed tool stay as they are,
// because its server checks them.
func (e *Entry) canonical(args json.RawMessage) (json.RawMessage, error) {
	switch {
	case e.Tool.Raw == nil:
		return e.In.Canonical(args)
	case len(args) == 0:
		return json.RawMessage(`{}`), nil
	}
	return args, nil
}

// Arguments checks the arguments of a call as a caller sent them. sent are they with the defaults filled in, and
// all are those that the tool gets, with the ones that the context fixes; a secret in them is still a reference. A
// caller that sends a fixed argument is refused.
func (e *Entry) Arguments(args json.RawMessage) (sent, all json.RawMessage, err error) {
	h := e.shape
	if h == nil {
		sent, err = e.canonical(args)
		return sent, sent, err
	}
	for _, a := range h.fixed {
		if _, there := rawjson.Get(args, a.name); there {
			return nil, nil, fmt.Errorf("%s: expected no such argument, because this context sets it; leave it out",
				a.name)
		}
	}
	var edits []rawjson.Edit
	for _, a := range h.defaults {
		if _, there := rawjson.Get(args, a.name); !there {
			edits = append(edits, rawjson.Edit{Key: a.name, Value: a.value})
		}
	}
	if len(edits) > 0 {
		args = rawjson.Splice(args, edits...)
	}
	if sent, err = e.In.Canonical(args); err != nil {
		return nil, nil, err
	}
	edits = edits[:0]
	for _, a := range h.fixed {
		edits = append(edits, rawjson.Edit{Key: a.name, Value: a.value})
	}
	return sent, rawjson.Splice(sent, edits...), nil
}

// Shaped reports whether the context changes the arguments or results of the tool. secrets are the texts of fixed
// arguments, by name, in which a reference to a secret is to be replaced for SetSecrets.
func (e *Entry) Shaped() (secrets map[string]string, ok bool) {
	if e.shape == nil {
		return nil, false
	}
	return e.shape.secrets, true
}

// SetSecrets puts the values of secret arguments into what Arguments returned as all, and checks the result against
// the tool's own schema. The error has no value in it.
func (e *Entry) SetSecrets(all json.RawMessage, values map[string]secret.Text) (json.RawMessage, error) {
	if len(values) > 0 {
		edits := make([]rawjson.Edit, 0, len(values))
		for name, v := range values {
			edits = append(edits, rawjson.Edit{Key: name, Value: rawjson.AppendString(nil, v.Reveal())})
		}
		all = rawjson.Splice(all, edits...)
	}
	if err := e.shape.in.Check(all); err != nil {
		return nil, errors.New("the arguments that this context sets do not fit the schema of the tool")
	}
	return all, nil
}

// WholeOut returns the schema of what the tool returns, before the context cuts it; nil if there is none.
func (e *Entry) WholeOut() *schema.Schema {
	if e.shape != nil {
		return e.shape.out
	}
	return e.Out
}

// Cuts reports whether the context leaves out parts of the tool's results.
func (e *Entry) Cuts() bool { return e.shape != nil && !e.shape.cut.empty() }

// CutValue returns a structured result without what the context leaves out.
func (e *Entry) CutValue(v json.RawMessage) json.RawMessage {
	if !e.Cuts() {
		return v
	}
	return e.shape.cut.value(v)
}

// CutResult is CutValue for a result as a server sent it: for its structured content, and for its texts that are
// JSON.
func (e *Entry) CutResult(result json.RawMessage) json.RawMessage {
	if !e.Cuts() {
		return result
	}
	var edits []rawjson.Edit
	if v, ok := rawjson.Get(result, "structuredContent"); ok {
		edits = append(edits, rawjson.Edit{Key: "structuredContent", Value: e.shape.cut.value(v)})
	}
	if content, ok := rawjson.Get(result, "content"); ok && rawjson.Kind(content) == '[' {
		edits = append(edits, rawjson.Edit{Key: "content", Value: e.shape.cut.blocks(content)})
	}
	return rawjson.Splice(result, edits...)
}

// CheckShape reports whether a shape fits a tool of a view that does not have it yet.
func CheckShape(e *Entry, s *Shape) error {
	trial := *e
	return trial.applyShape(&compiler{}, s)
}
