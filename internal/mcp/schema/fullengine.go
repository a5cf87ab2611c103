package schema

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"gatehouse/internal/mcp/rawjson"
)

// fullEngine checks every keyword of both dialects, by jsonschema-go.
type fullEngine struct {
	resolved *jsonschema.Resolved
	cost     cost
}

// newFullEngine prepares a schema that the parser has accepted.
func newFullEngine(raw []byte, dialect string) (*fullEngine, error) {
	if bytes.Count(raw, []byte{'{'}) > 2*MaxSubschemas {
		return nil, fmt.Errorf("schema: more than %d subschemas", MaxSubschemas)
	}
	raw, err := dropWrongCase(raw)
	if err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	s.Schema = dialect
	c, err := costOf(&s, dialect == draft07)
	if err != nil {
		return nil, err
	}
	// Without a loader a reference outside the schema is an error. costOf has
	// refused it before.
	resolved, err := s.Resolve(&jsonschema.ResolveOptions{BaseURI: baseURI})
	if err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	return &fullEngine{resolved, c}, nil
}

// validateRaw returns the first problem that the engine finds, nil if there is none.
// The engine reports a problem in terms of the schema, so its text becomes the
// hint.
func (f *fullEngine) validateRaw(raw []byte) *Problem {
	var d decoder
	v, err := d.decodeValue(raw)
	if err != nil {
		return &Problem{Expected: "numbers of ordinary size", Got: err.Error()}
	}
	if f.cost.exceeded(&d, len(raw)) {
		p := costProblem()
		return &p
	}
	if err := f.resolved.Validate(v); err != nil {
		path, why := parseEngineError(err.Error())
		return &Problem{
			Path:     path,
			Expected: "a value its schema allows",
			Got:      describeValue(valueAt(raw, path)),
			Hint:     why,
		}
	}
	return nil
}

// parseEngineError splits an error of the engine, "validating /properties/a:
// validating ...: why". The path ends where the pointer of the schema leaves the
// properties.
func parseEngineError(text string) (path, why string) {
	inProperties := true
	for {
		rest, ok := strings.CutPrefix(text, "validating ")
		where, after, found := strings.Cut(rest, ": ")
		if !ok || !found {
			return path, clip(strings.ReplaceAll(text, "\n", " "), 300)
		}
		if where != "root" && inProperties {
			if p, plain := propertyPath(where); plain {
				path = p
			} else {
				inProperties = false
			}
		}
		text = after
	}
}

// propertyPath turns /properties/a/properties/b into a.b. It returns false for
// other pointers.
func propertyPath(pointer string) (path string, ok bool) {
	parts := strings.Split(strings.TrimPrefix(pointer, "/"), "/")
	if len(parts)%2 != 0 {
		return "", false
	}
	for i := 0; i < len(parts); i += 2 {
		if parts[i] != "properties" {
			return "", false
		}
		path = joinPath(path, strings.NewReplacer("~1", "/", "~0", "~").Replace(parts[i+1]))
	}
	return path, true
}

// valueAt returns the value at a path of plain names, or the last value on the
// way to it.
func valueAt(raw []byte, path string) []byte {
	if path == "" {
		return raw
	}
	for name := range strings.SplitSeq(path, ".") {
		v, ok := rawjson.Get(raw, name)
		if !ok {
			return raw
		}
		raw = v
	}
	return raw
}

// decoder makes the Go values that the engine expects, and counts them.
type decoder struct {
	cur    rawjson.Cursor
	levels [MaxDepth + 1]int // number of values at each depth; the last counts deeper ones too
	deep   int               // the greatest depth
}

func (d *decoder) decodeValue(raw []byte) (any, error) {
	d.cur = rawjson.At(raw)
	return d.value(0)
}

func (d *decoder) value(depth int) (any, error) {
	d.levels[min(depth, MaxDepth)]++
	d.deep = max(d.deep, min(depth, MaxDepth))
	switch d.cur.Kind() {
	case '{':
		return d.object(depth)
	case '[':
		return d.array(depth)
	case '"':
		s, _ := rawjson.String(d.cur.Value())
		return s, nil
	case '0':
		return parseNumber(d.cur.Value())
	case 't', 'f':
		return d.cur.Value()[0] == 't', nil
	}
	d.cur.Value()
	return nil, nil
}

func (d *decoder) object(depth int) (any, error) {
	obj := map[string]any{}
	d.cur.Enter()
	for {
		key, ok := d.cur.Key()
		if !ok {
			return obj, nil
		}
		v, err := d.value(depth + 1)
		if err != nil {
			return nil, err
		}
		obj[string(key)] = v
	}
}

func (d *decoder) array(depth int) (any, error) {
	arr := []any{}
	d.cur.Enter()
	for d.cur.More() {
		v, err := d.value(depth + 1)
		if err != nil {
			return nil, err
		}
		arr = append(arr, v)
	}
	return arr, nil
}

func parseNumber(tok []byte) (any, error) {
	if i, ok := rawjson.Int(tok); ok {
		return i, nil
	}
	f, err := strconv.ParseFloat(string(tok), 64)
	if err != nil {
		return nil, fmt.Errorf("%s", clip(string(tok), 40))
	}
	return f, nil
}
