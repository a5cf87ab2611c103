package clientconfig

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"unicode/utf8"
)

// Limits of a file, in bytes. The parsers of TOML and YAML take time that grows
// with the square of their input.
const (
	maxJSON = 32 << 20
	maxSlow = 256 << 10
)

// guarded turns a panic of a parser into an error.
func guarded(err *error) {
	if p := recover(); p != nil {
		*err = &SyntaxError{Problem: fmt.Sprint("it cannot be read: ", p)}
	}
}

// format reads and edits one kind of file. set makes what is missing on the
// path; remove of what is not there changes nothing.
type format interface {
	parse(text []byte) (any, error)
	set(text []byte, path []step, value any) ([]byte, error)
	remove(text []byte, path []step) ([]byte, error)
}

// Limit is how large a file of this client may be, in bytes.
func (c *Client) Limit() int64 {
	if _, ok := c.format.(jsonFormat); ok {
		return maxJSON
	}
	return maxSlow
}

var bom = []byte("\ufeff")

func withoutBOM(text []byte) []byte { return bytes.TrimPrefix(text, bom) }

// entryPath is the path to a server.
func (c *Client) entryPath(name string) []step {
	path := steps(c.path...)
	return append(path, step{name, c.list})
}

// Pasted returns what a user pastes into the dialog of a client that takes servers as
// JSON: an object with one server.
func (c *Client) Pasted(s Server) ([]byte, error) {
	return c.Put([]byte("{}\n"), s)
}

// Put returns a text with a server in it. An entry of its name is changed where it
// differs; members of it that do not say how the server is reached stay.
func (c *Client) Put(text []byte, s Server) ([]byte, error) {
	want, err := c.makeEntry(s)
	if err != nil {
		return nil, err
	}
	return c.edit(text, s.Name, want, func(text []byte, path []step, there map[string]any) ([]byte, error) {
		if there == nil {
			return c.format.set(text, path, want)
		}
		managed := c.managed()
		for _, key := range slices.Sorted(maps.Keys(managed)) {
			if _, has := there[key]; has && managed[key] && want.get(key) == nil {
				if text, err = c.format.remove(text, append(path[:len(path):len(path)], step{key: key})); err != nil {
					return nil, err
				}
			}
		}
		for _, m := range want {
			if same(there[m.key], m.value) || m.key == c.stdio.name || !managed[m.key] && there[m.key] != nil {
				continue
			}
			if text, err = c.format.set(text,
				append(path[:len(path):len(path)], step{key: m.key}), m.value); err != nil {
				return nil, err
			}
		}
		return text, nil
	})
}

// Remove returns a text without a server. With container set, the mapping or
// list that held it is removed too, if nothing else is in it.
func (c *Client) Remove(text []byte, name string, container bool) ([]byte, error) {
	return c.edit(text, name, nil, func(text []byte, path []step, there map[string]any) ([]byte, error) {
		if there == nil {
			return text, nil
		}
		text, err := c.format.remove(text, path)
		if err != nil || !container {
			return text, err
		}
		tree, err := c.format.parse(text)
		if err != nil {
			return nil, err
		}
		above := path[:len(path)-1]
		if v, there := lookup(tree, above); there && isEmpty(v) {
			return c.format.remove(text, above)
		}
		return text, nil
	})
}

// Has reports whether a text has a server of a name.
func (c *Client) Has(text []byte, name string) (has bool, err error) {
	defer guarded(&err)
	tree, err := c.format.parse(withoutBOM(text))
	if err != nil {
		return false, err
	}
	_, there := lookup(tree, c.entryPath(name))
	return there, nil
}

// edit changes one entry of a text and checks that it is as wanted, nil for none,
// and that nothing else became another. change gets the entry that is there, nil
// if there is none.
func (c *Client) edit(
	text []byte,
	name string,
	want object,
	change func(text []byte, path []step, there map[string]any) ([]byte, error),
) (out []byte, err error) {
	defer guarded(&err)
	if int64(len(text)) > c.Limit() {
		return nil, fmt.Errorf("it has %d bytes; at most %d are read", len(text), c.Limit())
	}
	if at := invalidUTF8(text); at >= 0 {
		return nil, syntaxAt(text, at, "expected UTF-8")
	}
	body := withoutBOM(text)
	mark := text[:len(text)-len(body)]
	before := any(map[string]any{})
	if len(bytes.TrimSpace(body)) > 0 {
		if before, err = c.format.parse(body); err != nil {
			return nil, err
		}
	}
	if _, ok := before.(map[string]any); !ok {
		return nil, &SyntaxError{Line: 1, Column: 1, Problem: "expected an object"}
	}
	path := c.entryPath(name)
	v, found := lookup(before, path)
	there, ok := v.(map[string]any)
	if found && !ok {
		return nil, fmt.Errorf("%s is no object; change it by hand", pathText(path))
	}
	changed, err := change(body, path, there)
	if err != nil {
		return nil, err
	}
	if bytes.Equal(changed, body) {
		return text, nil
	}
	after, err := c.format.parse(changed)
	if err != nil {
		return nil, fmt.Errorf("after the change it could not be read any more: %w", errors.Join(errForm, err))
	}
	now, found := lookup(after, path)
	if found != (want != nil) || want != nil && !c.holds(now, want) {
		return nil, fmt.Errorf("%s would not have become what it should: %w", pathText(path), errForm)
	}
	if !reflect.DeepEqual(without(before, path), without(after, path)) {
		return nil, fmt.Errorf("the change would have changed more than %s: %w", pathText(path), errForm)
	}
	return append(bytes.Clone(mark), changed...), nil
}

// holds reports whether an entry says how to reach the server that was wanted.
func (c *Client) holds(entry any, want object) bool {
	m, ok := entry.(map[string]any)
	if !ok {
		return false
	}
	for key := range c.managed() {
		if v, has := m[key]; c.managed()[key] && (has != (want.get(key) != nil) || has && !same(v, want.get(key))) {
			return false
		}
	}
	return true
}

// invalidUTF8 is where a text is not UTF-8, -1 if nowhere.
func invalidUTF8(text []byte) int {
	for at := 0; at < len(text); {
		r, n := utf8.DecodeRune(text[at:])
		if r == utf8.RuneError && n <= 1 {
			return at
		}
		at += n
	}
	return -1
}
