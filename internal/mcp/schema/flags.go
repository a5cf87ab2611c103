package schema

import (
	"encoding/json"
	"fmt"
	"strings"

	"gatehouse/internal/mcp/rawjson"
)

// FromFlags makes arguments from the words of a command line: key=value,
// a.b=value for a member of an object, a repeated key or key=[...] for a list,
// key={...} for an object, and a key alone for true. The schema decides which
// JSON type a value gets. FromFlags does not check the arguments; Check does.
// The error names the word and lists what is possible.
func (s *Schema) FromFlags(words []string) (json.RawMessage, error) {
	top := &tree{node: s.root}
	for _, word := range words {
		key, text, given := strings.Cut(word, "=")
		if err := top.setFlag(key, key, text, given); err != nil {
			return nil, err
		}
	}
	return top.append(nil), nil
}

// tree is an object that is built from words.
type tree struct {
	node *node // nil: any member is allowed
	keys []string
	vals map[string]*flagValue
}

// flagValue is the value of one member so far.
type flagValue struct {
	node   *node
	raw    []byte
	list   [][]byte
	isList bool
	sub    *tree
}

// setFlag stores the value of a word under a key. word is the whole key, for errors.
func (t *tree) setFlag(word, key, text string, given bool) error {
	name, rest, nested := t.split(key)
	n, err := t.member(word, name)
	if err != nil {
		return err
	}
	v := t.vals[name]
	if v == nil {
		v = &flagValue{node: n}
		if t.vals == nil {
			t.vals = map[string]*flagValue{}
		}
		t.vals[name] = v
		t.keys = append(t.keys, name)
	} else if nested && v.sub == nil || !nested && !v.isList {
		return fmt.Errorf("%s: given twice", word)
	}
	if !nested {
		return v.setText(word, text, given)
	}
	if n != nil && n.types != 0 && n.types&isObject == 0 {
		return fmt.Errorf("%s: %s has no members, it is %s", word, name, n.expected())
	}
	if v.sub == nil {
		v.sub = &tree{node: n}
	}
	return v.sub.setFlag(word, rest, text, given)
}

// split separates the first name of a key from the rest. It does not if the
// whole key names a member, or if any member is allowed and none is an object.
func (t *tree) split(key string) (name, rest string, nested bool) {
	if n := t.node; n != nil {
		flat := n.extra != nil && n.extra.types != 0 && n.extra.types&isObject == 0
		if n.findProperty([]byte(key), 0) >= 0 || flat && len(n.props) == 0 {
			return key, "", false
		}
	}
	return strings.Cut(key, ".")
}

// member returns the schema of a member, nil if any value is allowed.
func (t *tree) member(word, name string) (*node, error) {
	n := t.node
	switch {
	case n == nil:
		return nil, nil
	case name == "":
		return nil, fmt.Errorf("%q: expected key=value, %s", word, hintUnknown("", n.names()))
	}
	if i := n.findProperty([]byte(name), 0); i >= 0 {
		return n.props[i].node, nil
	}
	if n.closed {
		return nil, fmt.Errorf("%s: unknown argument, %s", word, unknownWord(name, n.names()))
	}
	return n.extra, nil
}

// unknownWord returns which key was probably meant, and the possible keys.
func unknownWord(name string, known []string) string {
	all := hintUnknown("", known)
	if near := didYouMean(name, known); near != "" {
		return near + " " + strings.ToUpper(all[:1]) + all[1:]
	}
	return all
}

// setText stores the value, or appends it if the schema allows a list.
func (v *flagValue) setText(word, text string, given bool) error {
	if !given {
		if v.node == nil || v.node.types&isBoolean == 0 {
			return fmt.Errorf("%s: expected %s=value", word, word)
		}
		text = "true"
	}
	n := v.node
	if n != nil && n.types&isArray != 0 && !(len(v.list) == 0 && isJSON(text, '[')) {
		item, err := typed(word, n.items, text)
		v.list, v.isList = append(v.list, item), true
		return err
	}
	if v.isList {
		return fmt.Errorf("%s: given twice", word)
	}
	var err error
	v.raw, err = typed(word, n, text)
	return err
}

func isJSON(text string, kind byte) bool {
	return rawjson.Kind([]byte(text)) == kind && rawjson.Check([]byte(text), 0) == nil
}

// typed converts the text of a word to the type that its schema allows: to JSON if that has an allowed
// type, else to a string.
func typed(word string, n *node, text string) ([]byte, error) {
	if n == nil || n.types == 0 {
		if n != nil && n.enum != nil && len(n.enumWords()) == len(n.enum) {
			return rawjson.AppendString(nil, text), nil
		}
		if rawjson.Check([]byte(text), 0) == nil {
			return rawjson.Compact(nil, []byte(text)), nil
		}
		return rawjson.AppendString(nil, text), nil
	}
	kind := rawjson.Kind([]byte(text))
	if kind != '"' && n.types&kinds(kind) != 0 && rawjson.Check([]byte(text), 0) == nil {
		return rawjson.Compact(nil, []byte(text)), nil
	}
	if n.types&isString != 0 {
		return rawjson.AppendString(nil, text), nil
	}
	return nil, fmt.Errorf("%s: expected %s, got %s", word, n.expected(), rawjson.AppendString(nil, clip(text, 60)))
}

// append appends the object as JSON.
func (t *tree) append(dst []byte) []byte {
	dst = append(dst, '{')
	for i, key := range t.keys {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(rawjson.AppendString(dst, key), ':')
		switch v := t.vals[key]; {
		case v.sub != nil:
			dst = v.sub.append(dst)
		case v.isList:
			dst = append(dst, '[')
			for j, item := range v.list {
				if j > 0 {
					dst = append(dst, ',')
				}
				dst = append(dst, item...)
			}
			dst = append(dst, ']')
		default:
			dst = append(dst, v.raw...)
		}
	}
	return append(dst, '}')
}
