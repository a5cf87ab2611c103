package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"

	"gatehouse/internal/mcp/rawjson"
)

// typeSet is a set of JSON types. The empty set stands for all types.
type typeSet uint8

const (
	isNull typeSet = 1 << iota
	isBoolean
	isObject
	isArray
	isNumber
	isString
	isInteger
)

var typeNames = [...]struct {
	name string
	set  typeSet
}{
	{"string", isString}, {"integer", isInteger}, {"number", isNumber}, {"boolean", isBoolean},
	{"object", isObject}, {"array", isArray}, {"null", isNull},
}

// kinds returns the types that a value of a kind can have. See rawjson.Kind.
func kinds(kind byte) typeSet {
	switch kind {
	case '{':
		return isObject
	case '[':
		return isArray
	case '"':
		return isString
	case '0':
		return isNumber | isInteger
	case 't', 'f':
		return isBoolean
	case 'n':
		return isNull
	}
	return 0
}

// node is one subschema with the keywords that the walker knows. It leaves the
// others to the full engine, so a node may accept too much, but it never accepts
// too little.
type node struct {
	types typeSet
	never bool // the schema is false

	props    []prop
	index    map[string]int // of props; nil for fewer than minIndexed
	required int            // number of required props
	defaults int            // number of props with a fill
	closed   bool           // no other members are allowed
	extra    *node          // schema of other members

	items              *node
	minItems, maxItems int // max -1: no limit

	enum  [][]byte
	tries int // steps to compare a value with all of enum

	low, high *bound

	minLen, maxLen int // code points; max -1: no limit
	pattern        *regexp.Regexp
	patternSize    int // in instructions
	format         string

	title, doc string
	def        json.RawMessage
	header     []byte // x-mcp-header, as JSON
}

// prop is a member that a node knows by name.
type prop struct {
	name       string
	node       *node
	declared   bool // in properties; false: only in required
	required   bool
	fill       []byte // "name":default
	badDefault error  // the reason why the default is not filled in
}

// bound is one end of a range of numbers.
type bound struct {
	text  string // as in the schema
	value float64
	whole bool // the bound is exact
	exact int64
	open  bool // the bound itself is not allowed
}

// minIndexed is the number of members from which on a map finds them. It bounds
// the time for schemas with thousands of members. The measured schemas are not
// faster with it.
const minIndexed = 9

// findProperty returns the index of a member, -1 if the node does not know it. Members
// mostly come in the order of the schema, so the search starts at next.
func (n *node) findProperty(key []byte, next int) int {
	if n.index != nil {
		if i, ok := n.index[string(key)]; ok {
			return i
		}
		return -1
	}
	for i := next; i < len(n.props); i++ {
		if n.props[i].name == string(key) {
			return i
		}
	}
	for i := range min(next, len(n.props)) {
		if n.props[i].name == string(key) {
			return i
		}
	}
	return -1
}

// parser makes nodes from a schema that is known to be JSON.
type parser struct {
	draft07      bool
	needsFull    bool // a keyword was found that only the full engine knows
	defaultsSize int  // size of all patterns defaults in bytes
	count        int
	patterns     int   // size of all patterns
	err          error // the first error
}

func (p *parser) failf(at, format string, args ...any) {
	if p.err == nil {
		if at == "" {
			at = "schema"
		}
		p.err = fmt.Errorf("%s: %w", at, fmt.Errorf(format, args...))
	}
}

// needsFullEngine reports whether the walker leaves a keyword to the full
// engine.
func needsFullEngine(keyword string) bool {
	switch keyword {
	case "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "$ref", "$dynamicRef",
		"patternProperties", "propertyNames", "unevaluatedProperties", "unevaluatedItems",
		"dependentRequired", "dependentSchemas", "dependencies", "prefixItems", "additionalItems",
		"contains", "minContains", "maxContains", "uniqueItems", "multipleOf", "minProperties", "maxProperties":
		return true
	}
	return false
}

// node makes the node of the subschema at a JSON Pointer.
func (p *parser) node(raw []byte, at string) *node {
	if p.count++; p.count > MaxSubschemas {
		p.failf("", "more than %d subschemas", MaxSubschemas)
	}
	n := &node{maxItems: -1, maxLen: -1}
	if p.err != nil {
		return n
	}
	switch rawjson.Kind(raw) {
	case '{':
	case 't':
		return n
	case 'f':
		n.never = true
		return n
	default:
		p.failf(at, "expected an object or a boolean, got %s", clip(string(raw), 40))
		return n
	}
	if _, ok := rawjson.Get(raw, "$ref"); ok && p.draft07 {
		p.needsFull = true // Draft-07 ignores the keywords beside $ref.
		return n
	}
	for key, v := range rawjson.Object(raw) {
		p.keyword(n, raw, string(key), v, at)
	}
	n.index = nil
	for _, m := range n.props {
		if m.required {
			n.required++
		}
	}
	if len(n.props) >= minIndexed {
		n.index = make(map[string]int, len(n.props))
		for i, m := range n.props {
			n.index[m.name] = i
		}
	}
	return n
}

// isDraft4 reports whether a limit is a boolean, as in draft-4. It checks nothing: what it means
// depends on the keyword beside it, and servers whose schemas are in that dialect check their
// arguments themselves.
func isDraft4(key string, v []byte) bool {
	return (key == "exclusiveMinimum" || key == "exclusiveMaximum") && (string(v) == "true" || string(v) == "false")
}

func (p *parser) keyword(n *node, raw []byte, key string, v []byte, at string) {
	switch key {
	case "type":
		n.types = p.types(v, at)
	case "enum":
		p.enum(n, v, at)
	case "const":
		if n.enum != nil { // Both count, which only the full engine checks.
			p.needsFull = true
			return
		}
		n.enum = [][]byte{v}
	case "exclusiveMinimum", "exclusiveMaximum":
		if isDraft4(key, v) {
			return
		}
		if key == "exclusiveMinimum" {
			n.low = tighter(n.low, p.bound(key, v, at), 1)
		} else {
			n.high = tighter(n.high, p.bound(key, v, at), -1)
		}
	case "minimum":
		n.low = tighter(n.low, p.bound(key, v, at), 1)
	case "maximum":
		n.high = tighter(n.high, p.bound(key, v, at), -1)
	case "minLength":
		n.minLen = p.length(key, v, at)
	case "maxLength":
		n.maxLen = p.length(key, v, at)
	case "minItems":
		n.minItems = p.length(key, v, at)
	case "maxItems":
		n.maxItems = p.length(key, v, at)
	case "pattern":
		p.pattern(n, v, at)
	case "properties":
		p.properties(n, v, at)
	case "required":
		p.required(n, v, at)
	case "additionalProperties":
		p.additional(n, raw, v, at)
	case "items":
		p.items(n, raw, v, at)
	case "format":
		n.format, _ = rawjson.String(v)
	case "title":
		n.title, _ = rawjson.String(v)
	case "description":
		n.doc, _ = rawjson.String(v)
	case "default":
		n.def = v
		p.defaultsSize += len(v) + len(at) + 4
	case "x-mcp-header":
		n.header = v
	case "anyOf", "oneOf":
		p.titledChoices(n, v)
	default:
		p.needsFull = p.needsFull || needsFullEngine(key) && !(key == "uniqueItems" && rawjson.Kind(v) == 'f')
	}
}

func (p *parser) types(v []byte, at string) (set typeSet) {
	one := func(v []byte) {
		for _, t := range typeNames {
			if rawjson.Equal(v, t.name) {
				set |= t.set
				return
			}
		}
		p.failf(at+"/type", "%s is not a JSON type", clip(string(v), 40))
	}
	if rawjson.Kind(v) != '[' {
		one(v)
		return set
	}
	for t := range rawjson.Elements(v) {
		one(t)
	}
	if set == 0 {
		p.failf(at+"/type", "names no type")
	}
	return set
}

func (p *parser) enum(n *node, v []byte, at string) {
	if rawjson.Kind(v) != '[' {
		p.failf(at+"/enum", "expected an array")
		return
	}
	if n.enum != nil {
		p.needsFull = true
		return
	}
	n.enum = [][]byte{}
	for e := range rawjson.Elements(v) {
		n.enum = append(n.enum, e)
		n.tries += 1 + len(e)/32
	}
}

// titledChoices reads a list of constants with titles, which forms use, as an
// enum. It leaves other lists to the full engine, and also lists with repeated
// constants, because these make a oneOf fail.
func (p *parser) titledChoices(n *node, v []byte) {
	var values [][]byte
	seen := map[string]bool{}
	for alt := range rawjson.Elements(v) {
		var value []byte
		for key, v := range rawjson.Object(alt) {
			switch string(key) {
			case "const":
				value = v
			case "title", "description":
			default:
				p.needsFull = true
				return
			}
		}
		s, ok := rawjson.String(value)
		if !ok || seen[s] {
			p.needsFull = true
			return
		}
		seen[s] = true
		values = append(values, value)
	}
	if n.enum != nil || values == nil {
		p.needsFull = true
		return
	}
	n.enum = values
}

func (p *parser) bound(key string, v []byte, at string) *bound {
	f, err := strconv.ParseFloat(string(v), 64)
	if rawjson.Kind(v) != '0' || err != nil {
		p.failf(at+"/"+key, "expected a number, got %s", clip(string(v), 40))
		return nil
	}
	b := &bound{text: string(v), value: f, open: key[0] == 'e'}
	b.exact, b.whole = rawjson.Int(v)
	return b
}

// tighter returns the bound that excludes more. sign is 1 for lower bounds, -1
// for upper ones.
func tighter(a, b *bound, sign float64) *bound {
	if a == nil || b == nil {
		if a == nil {
			return b
		}
		return a
	}
	if d := (b.value - a.value) * sign; d > 0 || d == 0 && b.open {
		return b
	}
	return a
}

func (p *parser) length(key string, v []byte, at string) int {
	n, ok := rawjson.Int(v)
	if !ok || n < 0 {
		p.failf(at+"/"+key, "expected a whole number from 0 on, got %s", clip(string(v), 40))
		return 0
	}
	return int(min(n, math.MaxInt32))
}

func (p *parser) pattern(n *node, v []byte, at string) {
	expr, ok := rawjson.String(v)
	re, size, err := compilePattern(expr, &p.patterns)
	if !ok {
		err = errors.New("expected a string")
	}
	if err != nil {
		p.failf(at+"/pattern", "%w", err)
		return
	}
	n.pattern, n.patternSize = re, size
}

func (p *parser) properties(n *node, v []byte, at string) {
	if rawjson.Kind(v) != '{' {
		p.failf(at+"/properties", "expected an object")
		return
	}
	for key, sub := range rawjson.Object(v) {
		i := p.member(n, string(key))
		n.props[i].declared = true
		n.props[i].node = p.node(sub, at+"/properties/"+string(key))
	}
}

// member returns the index of a member, and adds the member if necessary. The
// index map that it keeps is replaced when the node is complete.
func (p *parser) member(n *node, name string) int {
	if n.index == nil {
		n.index = map[string]int{}
	}
	i, ok := n.index[name]
	if !ok {
		i = len(n.props)
		n.index[name] = i
		n.props = append(n.props, prop{name: name})
	}
	return i
}

func (p *parser) required(n *node, v []byte, at string) {
	if rawjson.Kind(v) != '[' {
		p.failf(at+"/required", "expected an array of names")
		return
	}
	for name := range rawjson.Elements(v) {
		s, ok := rawjson.String(name)
		if !ok {
			p.failf(at+"/required", "expected an array of names, got %s", clip(string(name), 40))
			return
		}
		n.props[p.member(n, s)].required = true
	}
}

func (p *parser) additional(n *node, raw, v []byte, at string) {
	if _, ok := rawjson.Get(raw, "patternProperties"); ok {
		return // It does not apply to members that a pattern matches; the full engine checks that.
	}
	if rawjson.Kind(v) == 'f' {
		n.closed = true
		return
	}
	n.extra = p.node(v, at+"/additionalProperties")
}

func (p *parser) items(n *node, raw, v []byte, at string) {
	if _, ok := rawjson.Get(raw, "prefixItems"); ok || rawjson.Kind(v) == '[' {
		p.needsFull = true
		return
	}
	n.items = p.node(v, at+"/items")
}
