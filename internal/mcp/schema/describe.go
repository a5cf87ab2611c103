package schema

import (
	"fmt"
	"strings"

	"gatehouse/internal/mcp/rawjson"
)

// expected describes the values that a node allows: "an integer from 1 to 2000".
func (n *node) expected() string {
	switch {
	case n == nil:
		return "a value"
	case n.never:
		return "nothing here"
	case n.enum != nil:
		return choices(n.enum)
	case n.types == 0:
		return "a value" + n.limits(isString|isArray|isNumber)
	}
	var parts []string
	for _, t := range typeNames {
		if n.types&t.set != 0 {
			parts = append(parts, article(t.name)+n.limits(t.set))
		}
	}
	return strings.Join(parts, " or ")
}

func article(name string) string {
	switch name {
	case "null":
		return name
	case "boolean":
		return "true or false"
	case "integer", "object", "array":
		return "an " + name
	}
	return "a " + name
}

// limits describes the limits that a node sets on values of some types.
func (n *node) limits(of typeSet) (s string) {
	if of&(isInteger|isNumber) != 0 {
		s += n.numberRange()
	}
	if of&isString != 0 {
		s += countRange(n.minLen, n.maxLen, "character")
		if n.format != "" {
			s += " (" + n.format + ")"
		}
		if n.pattern != nil {
			s += " that matches " + clip(n.pattern.String(), 100)
		}
	}
	if of&isArray != 0 {
		s += countRange(n.minItems, n.maxItems, "item")
	}
	return s
}

func (n *node) numberRange() string {
	low, high := n.low, n.high
	switch {
	case low != nil && high != nil && !low.open && !high.open:
		return " from " + low.text + " to " + high.text
	case low != nil && high != nil:
		return low.words("at least", "greater than") + " and" + high.words("at most", "less than")
	case low != nil:
		return low.words("of at least", "greater than")
	case high != nil:
		return high.words("of at most", "less than")
	}
	return ""
}

func (b *bound) words(closed, open string) string {
	if b.open {
		return " " + open + " " + b.text
	}
	return " " + closed + " " + b.text
}

func countRange(low, high int, thing string) string {
	switch {
	case high >= 0 && low == high:
		return " of exactly " + plural(low, thing)
	case low > 0 && high >= 0:
		return fmt.Sprintf(" of %d to %s", low, plural(high, thing))
	case low > 0:
		return " of at least " + plural(low, thing)
	case high >= 0:
		return " of at most " + plural(high, thing)
	}
	return ""
}

// choices lists the allowed values, at most 12 of them.
func choices(values [][]byte) string {
	const most = 12
	if len(values) == 0 {
		return "nothing here"
	}
	shown := make([]string, 0, most)
	for _, v := range values[:min(most, len(values))] {
		shown = append(shown, clip(string(v), 60))
	}
	s := strings.Join(shown, ", ")
	if len(values) > most {
		s += fmt.Sprintf(" or %d others", len(values)-most)
	}
	if len(values) > 1 {
		s = "one of " + s
	}
	return s
}

// describeValue describes the value that was sent.
func describeValue(v []byte) string {
	switch rawjson.Kind(v) {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case 0:
		return "text that is not JSON"
	case '"':
		if s, ok := rawjson.String(v); ok {
			return string(rawjson.AppendString(nil, clip(s, 60)))
		}
	}
	return clip(string(v), 60)
}

// hintFor returns how to correct a common mistake, "" if it knows none.
func hintFor(n *node, v []byte) string {
	s, isText := rawjson.String(v)
	switch {
	case n.never:
		return "omit it"
	case n.enum != nil && isText:
		return didYouMean(s, n.enumWords())
	case rawjson.Kind(v) == 'n' && n.types != 0:
		return "omit it if it has no value"
	case isText && n.types&(isArray|isObject) != 0 && n.types&isString == 0 && looksNested(s):
		return "send the JSON value, not a string that contains it"
	}
	return ""
}

// looksNested reports whether a string holds a JSON array or object.
func looksNested(s string) bool {
	kind := rawjson.Kind([]byte(clip(s, 100)))
	return kind == '[' || kind == '{'
}

func (n *node) enumWords() (words []string) {
	for _, e := range n.enum {
		if s, ok := rawjson.String(e); ok {
			words = append(words, s)
		}
	}
	return words
}

// names returns the names of the declared members, in order.
func (n *node) names() (names []string) {
	for _, p := range n.props {
		if p.declared {
			names = append(names, p.name)
		}
	}
	return names
}
