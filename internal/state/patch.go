package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"unsafe"
)

// MaxPatch is the largest size of an encoded patch, in bytes.
const MaxPatch = 16 << 20

// ErrPatch is matched by the errors of invalid patches, and of patches that do not fit their value.
var ErrPatch = errors.New("not a patch for this")

// Kind is the kind of an operation.
type Kind string

// These are the operations of RFC 6902 that are used here. Moves and copies are encoded as these, and tests are
// not needed because a patch belongs to a revision.
const (
	Add     Kind = "add"
	Replace Kind = "replace"
	Remove  Kind = "remove"
)

// Op is one operation of a patch.
type Op struct {
	Kind  Kind
	Path  Pointer
	Value any // of Add and Replace; must not be changed
}

// Patch turns one value into another, operation by operation. As JSON it is an
// RFC 6902 JSON Patch.
type Patch []Op

type wireOp struct {
	Op    Kind             `json:"op"`
	Path  *string          `json:"path"`
	Value *json.RawMessage `json:"value,omitempty"`
}

// MarshalJSON encodes the patch; an empty one is [].
func (p Patch) MarshalJSON() ([]byte, error) {
	ops := make([]wireOp, len(p))
	for i, o := range p {
		ops[i] = wireOp{Op: o.Kind, Path: new(o.Path.String())}
		if o.Kind == Remove {
			continue
		}
		v, err := encodeValue(o.Value)
		if err != nil {
			return nil, err
		}
		ops[i].Value = new(json.RawMessage(v))
	}
	return encodeValue(ops)
}

// DecodePatch decodes a patch. Other operations than the three, values that are missing or too deep, and invalid
// pointers are errors; members that RFC 6902 does not define are ignored, as it requires. The error is an
// ErrPatch.
func DecodePatch(b []byte) (Patch, error) {
	if len(b) > MaxPatch {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", ErrPatch, len(b), MaxPatch)
	}
	var ops []struct {
		Op    Kind            `json:"op"`
		Path  *string         `json:"path"`
		Value json.RawMessage `json:"value"`
	}
	if err := json.Unmarshal(b, &ops); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPatch, err)
	}
	p := make(Patch, len(ops))
	for i, o := range ops {
		if o.Path == nil {
			return nil, fmt.Errorf("%w: operation %d has no path", ErrPatch, i)
		}
		path, err := ParsePointer(*o.Path)
		if err != nil {
			return nil, fmt.Errorf("%w: operation %d: %w", ErrPatch, i, err)
		}
		p[i] = Op{Kind: o.Op, Path: path}
		if o.Op != Remove {
			if o.Value == nil {
				return nil, fmt.Errorf("%w: operation %d has no value", ErrPatch, i)
			}
			if p[i].Value, err = parseValue(o.Value); err != nil {
				return nil, fmt.Errorf("%w: operation %d: %w", ErrPatch, i, err)
			}
		}
		if err := p[i].validate(); err != nil {
			return nil, fmt.Errorf("%w: operation %d: %w", ErrPatch, i, err)
		}
	}
	return p, nil
}

// validate checks one operation against the limits.
func (o *Op) validate() error {
	switch {
	case o.Kind != Add && o.Kind != Replace && o.Kind != Remove:
		return fmt.Errorf("there is no %.20q here; expected add, replace or remove", string(o.Kind))
	case o.Kind == Remove && len(o.Path) == 0:
		return errors.New("the whole value cannot be removed; replace it with null")
	case len(o.Path) > MaxDepth:
		return fmt.Errorf("%w: more than %d tokens", ErrPointer, MaxDepth)
	}
	for _, t := range o.Path {
		if len(t) > MaxKey {
			return fmt.Errorf("%w: a name of %d bytes, at most %d", ErrValue, len(t), MaxKey)
		}
	}
	if o.Kind == Remove {
		return nil
	}
	return checkValue(o.Value, MaxDepth-len(o.Path))
}

// Apply returns the result of a patch on a value, which is not changed. The two share the parts that the patch
// does not change. The error is an ErrPatch.
func Apply(v any, p Patch) (any, error) {
	var e editor
	for i := range p {
		if err := p[i].validate(); err != nil {
			return nil, fmt.Errorf("%w: operation %d: %w", ErrPatch, i, err)
		}
		var err error
		if v, err = e.do(v, p[i].Path, &p[i]); err != nil {
			return nil, fmt.Errorf("%w: operation %d, %s %s: %w", ErrPatch, i, p[i].Kind, p[i].Path, err)
		}
	}
	return v, nil
}

// editor applies the operations of one patch. It copies each container once.
type editor struct{ own map[unsafe.Pointer]struct{} }

var (
	errAbsent = errors.New("there is nothing")
	errInside = errors.New("it leads into something that has no members")
)

func (e *editor) do(v any, path Pointer, o *Op) (any, error) {
	if len(path) == 0 {
		return o.Value, nil
	}
	switch c := v.(type) {
	case map[string]any:
		return e.inObject(c, path, o)
	case []any:
		return e.inArray(c, path, o)
	}
	return nil, errInside
}

func (e *editor) inObject(c map[string]any, path Pointer, o *Op) (any, error) {
	key := path[0]
	child, there := c[key]
	if !there && (len(path) > 1 || o.Kind != Add) {
		return nil, errAbsent
	}
	if len(path) == 1 && o.Kind == Remove {
		c = e.object(c)
		delete(c, key)
		return c, nil
	}
	child, err := e.do(child, path[1:], o)
	if err != nil {
		return nil, err
	}
	c = e.object(c)
	c[key] = child
	return c, nil
}

func (e *editor) inArray(c []any, path Pointer, o *Op) (any, error) {
	last, places := len(path) == 1, len(c)
	if last && o.Kind == Add {
		places++ // also after the last
	}
	i, ok := index(path[0], places)
	if last && o.Kind == Add && path[0] == "-" {
		i, ok = len(c), true
	}
	if !ok {
		return nil, errAbsent
	}
	switch {
	case last && o.Kind == Add:
		return e.markOwned(slices.Insert(e.array(c), i, o.Value)), nil
	case last && o.Kind == Remove:
		return e.markOwned(slices.Delete(e.array(c), i, i+1)), nil
	}
	child, err := e.do(c[i], path[1:], o)
	if err != nil {
		return nil, err
	}
	c = e.array(c)
	c[i] = child
	return c, nil
}

func (e *editor) mark(p unsafe.Pointer) {
	if e.own == nil {
		e.own = make(map[unsafe.Pointer]struct{})
	}
	e.own[p] = struct{}{}
}

// object returns a container that may be changed: the given one, or a copy.
func (e *editor) object(c map[string]any) map[string]any {
	if _, mine := e.own[reflect.ValueOf(c).UnsafePointer()]; mine {
		return c
	}
	if c = maps.Clone(c); c == nil {
		c = map[string]any{}
	}
	e.mark(reflect.ValueOf(c).UnsafePointer())
	return c
}

func (e *editor) array(c []any) []any {
	if _, mine := e.own[unsafe.Pointer(unsafe.SliceData(c))]; mine && cap(c) > 0 {
		return c
	}
	c = append(make([]any, 0, len(c)+1), c...)
	return e.markOwned(c)
}

// markOwned marks an array as one that may be changed, because inserting may have moved it.
func (e *editor) markOwned(c []any) []any {
	e.mark(unsafe.Pointer(unsafe.SliceData(c)))
	return c
}
