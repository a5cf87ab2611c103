package schema

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"gatehouse/internal/mcp/rawjson"
)

// field is a struct field that encoding/json encodes as a member.
type field struct {
	name     string
	typ      reflect.Type
	tags     reflect.StructTag
	optional bool // omitempty, omitzero, or inside an embedded pointer
	quoted   bool // the string option
	tagged   bool // the name comes from the tag
	depth    int
}

// fieldsOf returns the members of a struct type in order, with those of embedded
// structs in their place. Of several fields with one name the shallowest counts,
// then the one whose tag gives the name. If that leaves several, none counts.
// These are the rules of encoding/json.
func fieldsOf(t reflect.Type) []*field {
	all := collect(nil, t, 0, false, map[reflect.Type]bool{})
	var seen []*field
	for _, f := range all {
		if !slices.ContainsFunc(all, func(g *field) bool { return g != f && g.hides(f) }) {
			seen = append(seen, f)
		}
	}
	return seen
}

// hides reports whether f is hidden by g.
func (g *field) hides(f *field) bool {
	switch {
	case g.name != f.name:
		return false
	case g.depth != f.depth:
		return g.depth < f.depth
	}
	return g.tagged || !f.tagged
}

func collect(to []*field, t reflect.Type, depth int, optional bool, open map[reflect.Type]bool) []*field {
	if open[t] {
		return to
	}
	open[t] = true
	defer delete(open, t)
	for sf := range t.Fields() {
		name, options, _ := strings.Cut(sf.Tag.Get("json"), ",")
		if name == "-" && options == "" && !strings.HasSuffix(sf.Tag.Get("json"), ",") {
			continue
		}
		typ, pointer := sf.Type, false
		if sf.Anonymous && typ.Kind() == reflect.Pointer {
			typ, pointer = typ.Elem(), true
		}
		if sf.Anonymous && name == "" && typ.Kind() == reflect.Struct && typ != timeType {
			if sf.IsExported() || !pointer {
				to = collect(to, typ, depth+1, optional || pointer, open)
			}
			continue
		}
		if !sf.IsExported() {
			continue
		}
		f := &field{name: name, typ: sf.Type, tags: sf.Tag, tagged: name != "", depth: depth}
		if name == "" {
			f.name = sf.Name
		}
		has := func(o string) bool { return slices.Contains(strings.Split(options, ","), o) }
		f.optional = optional || has("omitempty") || has("omitzero")
		f.quoted = has("string") && quotable(sf.Type)
		to = append(to, f)
	}
	return to
}

// quotable reports whether the option string of encoding/json applies to a type.
func quotable(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return typeName(t.Kind()) != ""
}

func (f *field) tag(key string) string {
	if f == nil {
		return ""
	}
	return f.tags.Get(key)
}

func (f *field) has(key string) bool {
	_, ok := f.tags.Lookup(key)
	return ok
}

// constrain adds the constraints in the tags for a value of a JSON type, "" for
// any type.
func (f *field) constrain(o *object, name string) error {
	if f == nil {
		return nil
	}
	if err := f.words(o, name); err != nil {
		return err
	}
	low, high := "minimum", "maximum"
	switch name {
	case "string":
		low, high = "minLength", "maxLength"
	case "number", "integer":
	default:
		if f.tag("min")+f.tag("max") != "" {
			return fmt.Errorf("min and max do not apply to this type")
		}
	}
	return f.bounds(o, low, high)
}

// words adds enum, pattern, format and an example, which is JSON except for texts.
func (f *field) words(o *object, name string) error {
	if enum := f.tag("enum"); enum != "" {
		list := []byte{'['}
		for v := range strings.SplitSeq(enum, ",") {
			if name == "string" {
				list = rawjson.AppendString(list, v)
			} else if rawjson.Check([]byte(v), 0) == nil {
				list = append(list, v...)
			} else {
				return fmt.Errorf("enum: %q is no %s", v, name)
			}
			list = append(list, ',')
		}
		list[len(list)-1] = ']'
		o.addMember("enum", list)
	}
	for _, key := range []string{"pattern", "format"} {
		v := f.tag(key)
		if v == "" {
			continue
		}
		if name != "string" {
			return fmt.Errorf("%s does not apply to this type", key)
		}
		o.addText(key, v)
	}
	if v := f.tag("example"); v != "" {
		list := []byte{'['}
		if name == "string" {
			list = rawjson.AppendString(list, v)
		} else if list = append(list, v...); rawjson.Check([]byte(v), 0) != nil {
			return fmt.Errorf("example: %q is not JSON", v)
		}
		o.addMember("examples", append(list, ']'))
	}
	return nil
}

// constrainItems adds the constraints in the tags for the items of a list.
func (f *field) constrainItems(o *object, t reflect.Type) error {
	if f.tag("enum")+f.tag("pattern")+f.tag("format") == "" {
		return nil
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return f.words(o, typeName(t.Kind()))
}

// bounds adds the tags min and max under their keywords for the type.
func (f *field) bounds(o *object, low, high string) error {
	for _, b := range []struct{ tag, keyword string }{{"min", low}, {"max", high}} {
		v := f.tag(b.tag)
		if v == "" {
			continue
		}
		if rawjson.Check([]byte(v), 0) != nil || rawjson.Kind([]byte(v)) != '0' {
			return fmt.Errorf("%s: %q is not a number", b.tag, v)
		}
		o.addMember(b.keyword, []byte(v))
	}
	return nil
}

// defaultValue returns the default as JSON. For strings it quotes the text of
// the tag, unless that is a JSON string already.
func (f *field) defaultValue() ([]byte, error) {
	v := f.tag("default")
	isJSON := rawjson.Check([]byte(v), 0) == nil
	t := f.typ
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	name, own := (&writer{}).ownEncoding(t)
	if t.Kind() == reflect.String || f.quoted || own && name == "string" {
		if !isJSON || rawjson.Kind([]byte(v)) != '"' {
			return rawjson.AppendString(nil, v), nil
		}
	} else if !isJSON {
		return nil, fmt.Errorf("default: %q is not JSON", v)
	}
	return rawjson.Compact(nil, []byte(v)), nil
}
