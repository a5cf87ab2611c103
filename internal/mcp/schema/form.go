package schema

import (
	"errors"
	"fmt"

	"gatehouse/internal/mcp/rawjson"
)

// CheckForm checks the content that a user entered into a form. schema is the requestedSchema of
// elicitation/create: a flat object of strings, numbers, integers, booleans, choices and lists of
// choices. Formats are enforced. The error is a *Mismatch if the content does not fit, and another
// error if the form is not valid.
func CheckForm(schema, content []byte) error {
	s, err := CompileStrict(schema)
	if err != nil {
		return fmt.Errorf("form: %w", err)
	}
	if err := s.root.isForm(); err != nil {
		return fmt.Errorf("form: %w", err)
	}
	if len(content) == 0 {
		content = []byte("{}")
	}
	if err := rawjson.Check(content, 0); err != nil {
		return &Mismatch{[]Problem{{Expected: "the form's values as JSON", Got: err.Error()}}}
	}
	return s.Check(content)
}

// isForm returns an error if the node is not the schema of a form.
func (n *node) isForm() error {
	if n.types != isObject {
		return errors.New(`the schema's type must be "object"`)
	}
	for _, p := range n.props {
		f := p.node
		switch {
		case !p.declared:
			return fmt.Errorf("%s: required but not among the properties", p.name)
		case f.types == isArray && f.items != nil && f.items.enum != nil:
		case f.types&(isArray|isObject|isNull) != 0, f.types == 0 && f.enum == nil:
			return fmt.Errorf(
				"%s: a form holds strings, numbers, integers, booleans, choices and lists of choices",
				p.name,
			)
		}
	}
	return nil
}
