package schema

import (
	"encoding/json"

	"gatehouse/internal/mcp/rawjson"
)

// Arg describes one argument, for help texts, generated pages and forms.
type Arg struct {
	Name     string
	Type     string // string, integer, number, boolean, object, "array of string" ..., "any"
	Doc      string
	Title    string
	Required bool
	Default  json.RawMessage // nil if there is none
	Enum     []string        // allowed values; strings without their quotes
	Format   string
	Expected string // in words, with all limits: "an integer from 1 to 2000"
	Members  []Arg  // of an object, or of the objects in a list
}

// Args returns the arguments in the order of the schema.
func (s *Schema) Args() []Arg { return s.root.args(0) }

func (n *node) args(depth int) (args []Arg) {
	const deepest = 8
	if depth > deepest {
		return nil
	}
	for _, p := range n.props {
		if p.declared {
			args = append(args, p.arg(depth))
		}
	}
	return args
}

func (p *prop) arg(depth int) Arg {
	n := p.node
	a := Arg{
		Name: p.name, Type: n.typeText(), Doc: n.doc, Title: n.title, Required: p.required,
		Default: n.def, Format: n.format, Expected: n.expected(),
	}
	inner := n
	if n.items != nil {
		inner = n.items
	}
	a.Members = inner.args(depth + 1)
	for _, e := range inner.enum {
		s, ok := rawjson.String(e)
		if !ok {
			s = string(e)
		}
		a.Enum = append(a.Enum, s)
	}
	return a
}

func (n *node) typeText() string {
	text := ""
	for _, t := range typeNames {
		if n.types&t.set == 0 || t.set == isNull {
			continue
		}
		if text != "" {
			text += " or "
		}
		text += t.name
		if t.set == isArray && n.items != nil && n.items.typeText() != "any" {
			text += " of " + n.items.typeText()
		}
	}
	if text == "" && n.types == 0 && n.enum != nil {
		return "string"
	}
	if text == "" {
		return "any"
	}
	return text
}
