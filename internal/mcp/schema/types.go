package schema

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"time"
	"unicode"

	"gatehouse/internal/mcp/rawjson"
)

// For writes the schema of a type for arguments. The schema is short, because
// clients pay for each byte of a listing.
//
// Struct fields become members as in encoding/json, in order, with embedded
// structs flattened. Other members are refused. A member is required unless it
// is a pointer, has omitempty or omitzero, or has a default. null is allowed
// only if the type asks for it: an optional member is left out instead.
// Recursive types are written once, under $defs.
//
// The tags of a field:
//
//	doc      the description
//	default  a value as JSON; for strings the bare text
//	min max  bounds of numbers, of the length of strings, of the count of items
//	enum     allowed values, separated by commas; of the items of a list
//	pattern  a regular expression; of the items of a list
//	format   a format; of the items of a list
//	header   the name of the HTTP header that repeats the argument
//	text     see Product; ignored here
func For(t reflect.Type) (json.RawMessage, error) { return writeSchema(t, false) }

// ForOutput writes the schema of a type for results, as encoding/json encodes
// them after tool.Typed has replaced nil slices and maps by empty ones: a nil
// pointer is null, and what is always encoded is required. Other members are
// allowed, so that a later version can add some. The tags default and header are
// ignored. A member tagged text:"product" must be a string or a pointer to one.
func ForOutput(t reflect.Type) (json.RawMessage, error) { return writeSchema(t, true) }

func writeSchema(t reflect.Type, out bool) (json.RawMessage, error) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	w := writer{
		out:       out,
		root:      t,
		recursive: map[reflect.Type]bool{},
		names:     map[reflect.Type]string{},
		usedNames: map[string]bool{},
	}
	w.findRecursive(t, map[reflect.Type]bool{}, map[reflect.Type]bool{})
	o, err := w.body(t, nil)
	if err != nil {
		return nil, fmt.Errorf("schema of %s: %w", t, err)
	}
	if err := w.defs(&o); err != nil {
		return nil, fmt.Errorf("schema of %s: %w", t, err)
	}
	raw := o.closeObject()
	if err := verify(raw); err != nil {
		return nil, fmt.Errorf("schema of %s: %w", t, err)
	}
	return raw, nil
}

// verify finds mistakes of the author: a default that does not fit its schema,
// an invalid pattern, a header on a list.
func verify(raw []byte) error {
	s, err := CompileStrict(raw)
	if err != nil {
		return err
	}
	if err := s.root.badDefaults(""); err != nil {
		return err
	}
	_, err = s.Headers()
	return err
}

func (n *node) badDefaults(path string) error {
	if n == nil {
		return nil
	}
	for _, p := range n.props {
		at := joinPath(path, p.name)
		if p.badDefault != nil {
			return fmt.Errorf("default of %s: %w", at, p.badDefault)
		}
		if err := p.node.badDefaults(at); err != nil {
			return err
		}
	}
	if err := n.items.badDefaults(path + "[]"); err != nil {
		return err
	}
	return n.extra.badDefaults(path + "[*]")
}

// writer writes one schema.
type writer struct {
	out       bool
	root      reflect.Type
	recursive map[reflect.Type]bool   // types that contain themselves
	names     map[reflect.Type]string // names under $defs
	usedNames map[string]bool
	pending   []reflect.Type // named, but not written yet
}

// object is a JSON object that is being written, without its braces.
type object []byte

func (o *object) addMember(key string, value []byte) {
	if len(*o) > 0 {
		*o = append(*o, ',')
	}
	*o = append(rawjson.AppendString(*o, key), ':')
	*o = append(*o, value...)
}

func (o *object) addText(key, value string) { o.addMember(key, rawjson.AppendString(nil, value)) }

func (o object) closeObject() []byte {
	return append(append(append(make([]byte, 0, len(o)+2), '{'), o...), '}')
}

var (
	timeType   = reflect.TypeFor[time.Time]()
	rawType    = reflect.TypeFor[json.RawMessage]()
	numberType = reflect.TypeFor[json.Number]()
)

// ownEncoding returns the JSON type of a type that encodes itself, "" for any
// type. It returns false for other types.
func (w *writer) ownEncoding(t reflect.Type) (name string, ok bool) {
	switch t {
	case timeType:
		return "string", true
	case numberType:
		return "number", true
	case rawType:
		return "", true
	}
	asJSON, asText := reflect.TypeFor[json.Unmarshaler](), reflect.TypeFor[encoding.TextUnmarshaler]()
	if w.out {
		asJSON, asText = reflect.TypeFor[json.Marshaler](), reflect.TypeFor[encoding.TextMarshaler]()
	}
	if t.Kind() == reflect.Interface {
		return "", true
	}
	switch p := reflect.PointerTo(t); {
	case t.Implements(asJSON) || p.Implements(asJSON):
		return "", true
	case t.Implements(asText) || p.Implements(asText):
		return "string", true
	}
	return "", false
}

// findRecursive records the recursive types.
func (w *writer) findRecursive(t reflect.Type, open, done map[reflect.Type]bool) {
	if open[t] {
		w.recursive[t] = true
		return
	}
	if _, ok := w.ownEncoding(t); ok || done[t] {
		return
	}
	open[t] = true
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		w.findRecursive(t.Elem(), open, done)
	case reflect.Struct:
		for _, f := range fieldsOf(t) {
			w.findRecursive(f.typ, open, done)
		}
	}
	open[t], done[t] = false, true
}

// schema writes the schema of a type at its place, as a reference if it is
// recursive. In outputs, pointers in a list or a member may be null.
func (w *writer) schema(t reflect.Type, f *field) (object, error) {
	null := false
	for t.Kind() == reflect.Pointer {
		t, null = t.Elem(), true
	}
	null = null && w.out && (f == nil || !f.optional)
	if w.recursive[t] {
		return w.reference(t, null), nil
	}
	o, err := w.body(t, f)
	if err == nil && null {
		o = nullable(o)
	}
	return o, err
}

func (w *writer) reference(t reflect.Type, null bool) (o object) {
	to := "#"
	if t != w.root {
		to += "/$defs/" + w.definitionName(t)
	}
	o.addText("$ref", to)
	if !null {
		return o
	}
	var either object
	either.addMember("anyOf", append(append([]byte{'['}, o.closeObject()...), `,{"type":"null"}]`...))
	return either
}

// nullable adds null to the type and to the enum of a schema.
func nullable(o object) (n object) {
	for key, v := range rawjson.Object(o.closeObject()) {
		switch string(key) {
		case "type":
			n.addMember("type", append(append([]byte{'['}, v...), `,"null"]`...))
		case "enum":
			n.addMember("enum", append(v[:len(v)-1:len(v)-1], ",null]"...))
		default:
			n.addMember(string(key), v)
		}
	}
	return n
}

// body writes the schema of a type itself, with the constraints in the tags of
// the field.
func (w *writer) body(t reflect.Type, f *field) (o object, err error) {
	if f != nil && f.quoted {
		o.addText("type", "string")
		return o, nil
	}
	if name, ok := w.ownEncoding(t); ok {
		if name != "" {
			o.addText("type", name)
		}
		if t == timeType && (f == nil || f.tag("format") == "") {
			o.addText("format", "date-time")
		}
		return o, f.constrain(&o, name)
	}
	switch t.Kind() {
	case reflect.Struct:
		return w.structBody(t)
	case reflect.Slice, reflect.Array:
		return w.listBody(t, f)
	case reflect.Map:
		if o, err = w.mapBody(t); err == nil {
			err = f.words(&o, "object")
		}
		return o, err
	}
	name := typeName(t.Kind())
	if name == "" {
		return nil, fmt.Errorf("%s has no JSON form", t)
	}
	o.addText("type", name)
	if err := f.constrain(&o, name); err != nil {
		return nil, err
	}
	w.integerRange(&o, t, f)
	return o, nil
}

func typeName(k reflect.Kind) string {
	switch k {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Float32, reflect.Float64:
		return "number"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return "integer"
	}
	return ""
}

// integerRange adds the range of unsigned and small integers, so that decoding
// cannot fail on a value that fits the schema. It omits that of int64, which
// nearly every schema would repeat.
func (w *writer) integerRange(o *object, t reflect.Type, f *field) {
	if w.out || f.tag("enum") != "" {
		return
	}
	bits := t.Bits
	switch k := t.Kind(); k {
	case reflect.Int8, reflect.Int16, reflect.Int32:
		half := int64(1) << (bits() - 1)
		if f.tag("min") == "" {
			o.addMember("minimum", strconv.AppendInt(nil, -half, 10))
		}
		if f.tag("max") == "" {
			o.addMember("maximum", strconv.AppendInt(nil, half-1, 10))
		}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		if f.tag("min") == "" {
			o.addMember("minimum", []byte("0"))
		}
		if f.tag("max") == "" && bits() < 64 {
			o.addMember("maximum", strconv.AppendUint(nil, 1<<bits()-1, 10))
		}
	}
}

func (w *writer) listBody(t reflect.Type, f *field) (o object, err error) {
	if t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8 {
		if _, own := w.ownEncoding(t.Elem()); !own {
			o.addText("type", "string")
			o.addText("contentEncoding", "base64")
			return o, f.constrain(&o, "string")
		}
	}
	o.addText("type", "array")
	items, err := w.schema(t.Elem(), nil)
	if err != nil {
		return nil, fmt.Errorf("items: %w", err)
	}
	if f != nil {
		if err := f.constrainItems(&items, t.Elem()); err != nil {
			return nil, err
		}
	}
	if len(items) > 0 {
		o.addMember("items", items.closeObject())
	}
	if t.Kind() == reflect.Array {
		n := strconv.AppendInt(nil, int64(t.Len()), 10)
		o.addMember("minItems", n)
		o.addMember("maxItems", n)
		return o, nil
	}
	return o, f.bounds(&o, "minItems", "maxItems")
}

func (w *writer) mapBody(t reflect.Type) (o object, err error) {
	if key := t.Key(); key.Kind() != reflect.String && typeName(key.Kind()) != "integer" {
		if name, ok := w.ownEncoding(key); !ok || name != "string" {
			return nil, fmt.Errorf("%s: keys must be strings or integers", t)
		}
	}
	o.addText("type", "object")
	values, err := w.schema(t.Elem(), nil)
	if err != nil {
		return nil, fmt.Errorf("values: %w", err)
	}
	if len(values) > 0 {
		o.addMember("additionalProperties", values.closeObject())
	}
	return o, nil
}

func (w *writer) structBody(t reflect.Type) (o object, err error) {
	o.addText("type", "object")
	var props object
	var required []byte
	for _, f := range fieldsOf(t) {
		if f.tag("text") == "product" && !isText(f.typ) {
			return nil, fmt.Errorf("%s: the product of a tool must be a string", f.name)
		}
		member, err := w.member(f)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		props.addMember(f.name, member.closeObject())
		if !f.optional && (w.out || f.typ.Kind() != reflect.Pointer && !f.has("default")) {
			required = append(rawjson.AppendString(required, f.name), ',')
		}
	}
	if len(props) > 0 || !w.out && t == w.root {
		o.addMember("properties", props.closeObject()) // even if empty, because some model APIs refuse a schema without
	}
	if len(required) > 0 {
		required[len(required)-1] = ']'
		o.addMember("required", append([]byte{'['}, required...))
	}
	if !w.out {
		o.addMember("additionalProperties", []byte("false"))
	}
	return o, nil
}

// member writes the schema of a field: that of its type, with description,
// default and header.
func (w *writer) member(f *field) (object, error) {
	o, err := w.schema(f.typ, f)
	if err != nil {
		return nil, err
	}
	if doc := f.tag("doc"); doc != "" {
		o.addText("description", doc)
	}
	if w.out {
		return o, nil
	}
	if f.has("default") {
		v, err := f.defaultValue()
		if err != nil {
			return nil, err
		}
		o.addMember("default", v)
	}
	if h := f.tag("header"); h != "" {
		o.addText("x-mcp-header", h)
	}
	return o, nil
}

// defs writes the types that were referred to. Writing one may add others.
func (w *writer) defs(o *object) error {
	var defs object
	for len(w.pending) > 0 {
		t := w.pending[0]
		w.pending = w.pending[1:]
		body, err := w.body(t, nil)
		if err != nil {
			return err
		}
		defs.addMember(w.names[t], body.closeObject())
	}
	if len(defs) > 0 {
		o.addMember("$defs", defs.closeObject())
	}
	return nil
}

// definitionName returns the name of a type under $defs, which has letters and digits
// only.
func (w *writer) definitionName(t reflect.Type) string {
	if name, ok := w.names[t]; ok {
		return name
	}
	var plain []rune
	for _, r := range t.Name() {
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			plain = append(plain, r)
		}
	}
	name := string(plain)
	for i := 2; w.usedNames[name]; i++ {
		name = string(plain) + strconv.Itoa(i)
	}
	w.usedNames[name], w.names[t] = true, name
	w.pending = append(w.pending, t)
	return name
}

// Product returns the only member of a result type that is tagged
// text:"product": the text that the tool is called for. It returns false if the
// type has none or several.
func Product(t reflect.Type) (member string, ok bool) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return "", false
	}
	for _, f := range fieldsOf(t) {
		if f.tag("text") == "product" && isText(f.typ) {
			if ok {
				return "", false
			}
			member, ok = f.name, true
		}
	}
	return member, ok
}

func isText(t reflect.Type) bool {
	return t.Kind() == reflect.String || t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.String
}

// InText returns the members of a result type that are in its text: the product,
// and those tagged text:"facts".
func InText(t reflect.Type) []string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	var names []string
	for _, f := range fieldsOf(t) {
		if f.tag("text") != "" {
			names = append(names, f.name)
		}
	}
	return names
}
