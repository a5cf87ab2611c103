package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"unsafe"

	"gatehouse/internal/access/secret"
)

// Values in the tree are those into which encoding/json decodes JSON, with numbers as json.Number: nil, bool,
// string, json.Number, []any and map[string]any. They are never changed: a change creates new containers on the
// path to the changed value, and shares all others.

// ErrSecret is the error of an attempt to put a secret into the tree.
var ErrSecret = errors.New(
	"a secret cannot be in the state tree; keep it with internal/access/secret and put its name here",
)

// ErrValue is matched by the errors of values that cannot be in the tree.
var ErrValue = errors.New("not a value for the state tree")

// parseValue parses one JSON value.
func parseValue(b []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err = d.Decode(&v); err != nil {
		return nil, err
	}
	if _, err = d.Token(); err != io.EOF {
		return nil, errors.New("more than one JSON value")
	}
	return v, nil
}

// encodeValue encodes a value, with the members of objects sorted by name.
func encodeValue(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		if errors.Is(err, secret.ErrSealed) {
			return nil, ErrSecret
		}
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// valueOf converts a Go value into a value of the tree.
func valueOf(goValue any) (any, error) {
	b, err := encodeValue(goValue)
	if err != nil {
		return nil, err
	}
	v, err := parseValue(b)
	if err != nil {
		return nil, err
	}
	return v, checkValue(v, MaxDepth)
}

// checkValue checks a value against the limits of the tree; depth is the nesting that is still allowed.
func checkValue(v any, depth int) error {
	switch c := v.(type) {
	case nil, bool, string, json.Number:
	case map[string]any:
		if depth == 0 {
			return fmt.Errorf("%w: more than %d values inside each other", ErrValue, MaxDepth)
		}
		for k, child := range c {
			if len(k) > MaxKey {
				return fmt.Errorf("%w: a name of %d bytes, at most %d", ErrValue, len(k), MaxKey)
			}
			if err := checkValue(child, depth-1); err != nil {
				return err
			}
		}
	case []any:
		if depth == 0 {
			return fmt.Errorf("%w: more than %d values inside each other", ErrValue, MaxDepth)
		}
		for _, child := range c {
			if err := checkValue(child, depth-1); err != nil {
				return err
			}
		}
	default:
		return fmt.Errorf("%w: a %T", ErrValue, v)
	}
	return nil
}

// same reports whether two values are identical. Equal containers that were created separately are not.
func same(a, b any) bool {
	switch x := a.(type) {
	case map[string]any:
		y, ok := b.(map[string]any)
		return ok && reflect.ValueOf(x).UnsafePointer() == reflect.ValueOf(y).UnsafePointer()
	case []any:
		y, ok := b.([]any)
		return ok && len(x) == len(y) && unsafe.SliceData(x) == unsafe.SliceData(y)
	}
	switch b.(type) {
	case map[string]any, []any:
		return false
	}
	return a == b
}

// equal reports whether two values are the same JSON. Numbers are compared by
// their text.
func equal(a, b any) bool {
	if same(a, b) {
		return true
	}
	switch x := a.(type) {
	case map[string]any:
		y, ok := b.(map[string]any)
		if !ok || len(x) != len(y) {
			return false
		}
		for k, v := range x {
			if w, ok := y[k]; !ok || !equal(v, w) {
				return false
			}
		}
		return true
	case []any:
		y, ok := b.([]any)
		if !ok || len(x) != len(y) {
			return false
		}
		for i := range x {
			if !equal(x[i], y[i]) {
				return false
			}
		}
		return true
	}
	return false
}

// size returns the approximate size of an encoded value in bytes. It stops counting above most.
func size(v any, most int) int {
	switch c := v.(type) {
	case string:
		return len(c) + 2
	case json.Number:
		return len(c)
	case map[string]any:
		n := 2
		for k, child := range c {
			if n += len(k) + 4; n > most {
				return n
			}
			n += size(child, most-n)
		}
		return n
	case []any:
		n := 2
		for _, child := range c {
			if n++; n > most {
				return n
			}
			n += size(child, most-n)
		}
		return n
	}
	return 5
}

// holdsSecret reports whether a type contains a secret at any depth.
func holdsSecret(t reflect.Type) bool {
	seen := map[reflect.Type]bool{}
	var look func(reflect.Type) bool
	look = func(t reflect.Type) bool {
		if t == reflect.TypeFor[secret.Text]() {
			return true
		}
		if seen[t] {
			return false
		}
		seen[t] = true
		switch t.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Array:
			return look(t.Elem())
		case reflect.Map:
			return look(t.Key()) || look(t.Elem())
		case reflect.Struct:
			for field := range t.Fields() {
				if look(field.Type) {
					return true
				}
			}
		}
		return false
	}
	return look(t)
}
