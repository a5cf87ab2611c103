package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
)

// Schema returns the JSON Schema of the file, for editors and for checks before a file is deployed. It is derived
// from the settings' structs, as decoding is; rules that involve several settings are checked by Validate alone.
func Schema() []byte {
	s := object(reflect.TypeFor[Config](), reflect.ValueOf(Default()), "")
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	s["title"] = "gatehouse.yaml"
	s["description"] = "Settings of a Gatehouse host."
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(s); err != nil {
		panic("config: the schema is not JSON: " + err.Error()) // maps, strings and numbers only
	}
	return b.Bytes()
}

// object returns the schema of a struct; def holds its defaults, if it is valid.
func object(t reflect.Type, def reflect.Value, path string) map[string]any {
	properties := map[string]any{}
	var needed []string
	for _, s := range settingsIn(t, path) {
		d := reflect.Value{}
		if def.IsValid() {
			d = def.Field(s.at)
		}
		properties[s.key] = s.schema(d)
		if s.tag.Get("need") != "" {
			needed = append(needed, s.key)
		}
	}
	o := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	if needed != nil {
		o["required"] = needed
	}
	return o
}

// schema returns the schema of a setting's values.
func (s setting) schema(def reflect.Value) map[string]any {
	var m map[string]any
	switch {
	case s.section():
		m = object(s.typ, def, s.path)
		m["type"] = []string{"object", "null"} // a section may be empty
	case s.isList():
		m = map[string]any{"type": "array", "items": object(s.typ.Elem(), reflect.Value{}, s.path)}
	default:
		m = s.leafSchema()
		if def.IsValid() && !def.IsZero() {
			m["default"] = s.defaultOf(def)
		}
	}
	if doc := s.tag.Get("doc"); doc != "" {
		m["description"] = doc
	}
	return m
}

func (s setting) defaultOf(def reflect.Value) any {
	switch text := s.formatValue(def); {
	case s.tag.Get("unit") == "bytes", s.typ == durationType, s.typ == levelType:
		return text
	default:
		return def.Interface()
	}
}

const (
	durationPattern = `^(0|[0-9]+d|-?([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))*)$`
	sizePattern     = `^[0-9]+ *(KiB|MiB|GiB|TiB)?$`
)

func (s setting) leafSchema() map[string]any {
	switch t := s.typ; {
	case t == durationType:
		return map[string]any{"type": "string", "pattern": durationPattern}
	case s.tag.Get("unit") == "bytes":
		return map[string]any{"anyOf": []any{
			map[string]any{"type": "integer"}, map[string]any{"type": "string", "pattern": sizePattern},
		}}
	case s.tag.Get("kind") == "port":
		return map[string]any{"type": "integer", "minimum": 0, "maximum": 65535}
	case t == levelType, s.enum() != nil && t.Kind() == reflect.String:
		return map[string]any{"enum": s.enum()}
	case t.Kind() == reflect.Slice:
		items := map[string]any{"type": "string"}
		if s.enum() != nil {
			items = map[string]any{"enum": s.enum()}
		}
		return map[string]any{"type": "array", "items": items}
	case t.Kind() == reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": setting{typ: t.Elem()}.leafSchema()}
	}
	return map[string]any{"type": plainType(s.typ)}
}

func plainType(t reflect.Type) string {
	if t == secretType {
		return "string"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "boolean"
	case reflect.String:
		return "string"
	case reflect.Float64, reflect.Pointer:
		return "number"
	}
	return "integer"
}

// Reference returns the documentation of every setting, as Markdown.
func Reference() []byte {
	var b bytes.Buffer
	b.WriteString(`# Settings

This page is written from the code; see internal/config. The file is
` + "`gatehouse.yaml`" + ` in the config folder (on Linux ` + "`~/.config/gatehouse`" + `), or what
` + "`--config`" + ` or ` + "`GATEHOUSE_CONFIG`" + ` names. Variables of the environment go before it,
flags before both. A mistake is told with its line and column:
` + "`gatehouse config check`" + `. What is in force, and where it was said:
` + "`gatehouse config show`" + `. The schema for editors is
[gatehouse.schema.json](gatehouse.schema.json), or ` + "`gatehouse config schema`" + `.

On SIGHUP a host reads the file again. Settings marked *live* change at once
and no session ends; for others the log says that they need a restart. A
file with a mistake changes nothing.

`)
	reference(&b, reflect.TypeFor[Config](), reflect.ValueOf(Default()), "")
	return b.Bytes()
}

func reference(b *bytes.Buffer, t reflect.Type, def reflect.Value, path string) {
	for _, s := range settingsIn(t, path) {
		d := reflect.Value{}
		if def.IsValid() {
			d = def.Field(s.at)
		}
		switch {
		case s.section(), s.isList():
			depth := 2 + strings.Count(s.path, ".")
			fmt.Fprintf(
				b,
				"%s `%s`\n\n%s%s\n\n",
				strings.Repeat("#", depth),
				s.path,
				s.tag.Get("doc"),
				s.notes(reflect.Value{}),
			)
			inner := s.typ
			if s.isList() {
				inner, d = s.typ.Elem(), reflect.Value{}
			}
			reference(b, inner, d, s.path)
		default:
			fmt.Fprintf(b, "- `%s`: %s%s\n", s.key, s.tag.Get("doc"), s.notes(d))
		}
	}
	b.WriteString("\n")
}

// notes returns the remarks that follow the text of a setting.
func (s setting) notes(def reflect.Value) string {
	var n []string
	if e := s.enum(); e != nil {
		n = append(n, oneOf(e))
	}
	if def.IsValid() && !def.IsZero() {
		n = append(n, "default "+s.formatValue(def))
	}
	if s.tag.Get("need") != "" {
		n = append(n, "needed")
	}
	if s.tag.Get("live") != "" {
		n = append(n, "live")
	}
	if v := s.variable(); v != "" && !s.section() && !strings.HasPrefix(s.path, "contexts.") &&
		!strings.HasPrefix(s.path, "rules.") {
		n = append(n, "`"+v+"`")
	}
	if n == nil {
		return ""
	}
	return " *(" + strings.Join(n, "; ") + ")*"
}
