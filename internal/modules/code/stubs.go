package code

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/dispatch/toolsearch"
	"gatehouse/internal/mcp/rawjson"
)

// stubs are the signatures of the tools of a view. They are for reading: the host checks what a program sends.
type stubs struct{ python, typescript string }

const (
	mostStubs       = 64  // views whose stubs are kept
	mostDescription = 300 // bytes of a tool's description in a stub
	mostDepth       = 6   // of a type
)

// stubCache keeps the stubs of views. The zero value is ready.
type stubCache struct {
	mu  sync.Mutex
	all map[any]stubs
}

func (c *stubCache) of(t toolsearch.Catalog) stubs {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s, ok := c.all[t.Version]; ok {
		return s
	}
	if c.all == nil || len(c.all) >= mostStubs {
		c.all = map[any]stubs{}
	}
	s := stubs{pythonStubs(t.Tools), typescriptStubs(t.Tools)}
	c.all[t.Version] = s
	return s
}

// identifier matches names that can be parameters in both languages.
var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// pythonKeywords cannot be the names of parameters.
var pythonKeywords = strings.Fields(
	"False None True and as assert async await break class continue def del elif else " +
		"except finally for from global if import in is lambda nonlocal not or pass raise return try while with yield",
)

func pythonStubs(tools []toolsearch.Tool) string {
	var b strings.Builder
	b.WriteString(
		"# The tools of this program, as functions of the module tools.\nfrom typing import Any, Literal, TypedDict\n",
	)
	for _, t := range tools {
		if !identifier.MatchString(t.Name) {
			continue
		}
		plain := true
		var params []string
		for _, required := range []bool{true, false} {
			for _, p := range t.Parameters {
				if p.Required != required {
					continue
				}
				plain = plain && identifier.MatchString(p.Name) && !slices.Contains(pythonKeywords, p.Name)
				param := p.Name + ": " + pythonType(propertyOf(t.Input, p.Name), 0)
				if !required {
					param += " = ..."
				}
				params = append(params, param)
			}
		}
		list := strings.Join(append([]string{"*"}, params...), ", ")
		if len(params) == 0 {
			list = ""
		}
		if !plain {
			list = "arguments: dict[str, Any]"
		}
		returns := "str"
		if t.Output != nil {
			returns = "dict[str, Any]"
			if typ := pythonType(t.Output, 0); typ != "dict" {
				returns = typ
			}
		}
		fmt.Fprintf(&b, "\ndef %s(%s) -> %s:\n", t.Name, list, returns)
		fmt.Fprintf(&b, "    %q\n", displaytext.Cut(displaytext.Line(t.Description), mostDescription, "..."))
		if members := memberLines(t.Output, "    #   ", pythonType); members != "" {
			b.WriteString("    # The result has:\n" + members)
		}
		b.WriteString("    ...\n")
	}
	return b.String()
}

func typescriptStubs(tools []toolsearch.Tool) string {
	var b strings.Builder
	b.WriteString("// The tools of this program, as functions of the object tools.\ninterface Tools {\n")
	for _, t := range tools {
		args, optional := typescriptType(t.Input, 0), "?"
		if slices.ContainsFunc(t.Parameters, func(p toolsearch.Parameter) bool { return p.Required }) {
			optional = ""
		}
		returns := "string"
		if t.Output != nil {
			returns = typescriptType(t.Output, 0)
		}
		text := strings.ReplaceAll(displaytext.Cut(displaytext.Line(t.Description), mostDescription, "..."), "*/",
			"* /")
		name, _ := json.Marshal(t.Name)
		fmt.Fprintf(&b, "  /** %s */\n  %s(args%s: %s): Promise<%s>\n", text, name, optional, args, returns)
	}
	return b.String() + "}\ndeclare const tools: Tools\n"
}

func propertyOf(schema json.RawMessage, name string) json.RawMessage {
	properties, _ := rawjson.Get(schema, "properties")
	p, _ := rawjson.Get(properties, name)
	return p
}

// memberLines describes the members of a result, a line for each.
func memberLines(schema json.RawMessage, begin string, typeOf func(json.RawMessage, int) string) string {
	properties, _ := rawjson.Get(schema, "properties")
	var b strings.Builder
	for name, s := range rawjson.Object(properties) {
		fmt.Fprintf(&b, "%s%s: %s\n", begin, displaytext.Line(string(name)), typeOf(s, 0))
	}
	return b.String()
}

// typeName returns the type of a schema as JSON Schema names it, and its alternatives if it is an enumeration.
func typeName(schema json.RawMessage) (name string, enum []json.RawMessage) {
	if list, ok := rawjson.Get(schema, "enum"); ok && len(list) <= 200 && json.Unmarshal(list, &enum) == nil {
		return "", enum
	}
	raw, _ := rawjson.Get(schema, "type")
	name, _ = rawjson.String(raw)
	return name, nil
}

func pythonType(schema json.RawMessage, depth int) string {
	name, enum := typeName(schema)
	if len(enum) > 0 {
		words := make([]string, len(enum))
		for i, v := range enum {
			words[i] = map[string]string{"true": "True", "false": "False", "null": "None"}[string(v)]
			if words[i] == "" {
				words[i] = displaytext.Line(string(v))
			}
		}
		return "Literal[" + strings.Join(words, ", ") + "]"
	}
	switch name {
	case "string":
		return "str"
	case "integer":
		return "int"
	case "number":
		return "float"
	case "boolean":
		return "bool"
	case "null":
		return "None"
	case "array":
		if items, ok := rawjson.Get(schema, "items"); ok && depth < mostDepth {
			return "list[" + pythonType(items, depth+1) + "]"
		}
		return "list"
	case "object":
		return "dict"
	}
	return "Any"
}

func typescriptType(schema json.RawMessage, depth int) string {
	name, enum := typeName(schema)
	if len(enum) > 0 {
		words := make([]string, len(enum))
		for i, v := range enum {
			words[i] = displaytext.Line(string(v))
		}
		return strings.Join(words, " | ")
	}
	switch name {
	case "string", "number", "boolean", "null":
		return name
	case "integer":
		return "number"
	case "array":
		if items, ok := rawjson.Get(schema, "items"); ok && depth < mostDepth {
			of := typescriptType(items, depth+1)
			if strings.Contains(of, "|") {
				of = "(" + of + ")"
			}
			return of + "[]"
		}
		return "unknown[]"
	case "object":
		return typescriptObject(schema, depth)
	}
	return "unknown"
}

func typescriptObject(schema json.RawMessage, depth int) string {
	properties, ok := rawjson.Get(schema, "properties")
	if !ok || depth >= mostDepth {
		return "Record<string, unknown>"
	}
	var required []string
	if list, ok := rawjson.Get(schema, "required"); ok {
		json.Unmarshal(list, &required) // what is no list of names requires nothing
	}
	var members []string
	for name, s := range rawjson.Object(properties) {
		optional := "?"
		if slices.Contains(required, string(name)) {
			optional = ""
		}
		key, _ := json.Marshal(string(name))
		if identifier.MatchString(string(name)) {
			key = []byte(name)
		}
		members = append(members, string(key)+optional+": "+typescriptType(s, depth+1))
	}
	return "{ " + strings.Join(members, "; ") + " }"
}
