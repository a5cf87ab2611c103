package schema

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// real is a schema of a real server, with values made for it.
type real struct {
	name   string
	schema *Schema
	full   *fullEngine // the full engine, even if the walker decides alone
	right  [][]byte    // valid values
	wrong  [][]byte    // invalid values
}

// realSchemas reads the schemas of this program's tools, of servers from npm and of the protocol
// itself, by their origin.
func realSchemas(tb testing.TB) map[string][]real {
	tb.Helper()
	all := map[string][]real{}
	add := func(from, name string, raw json.RawMessage) {
		s, err := Compile(raw)
		if err != nil {
			tb.Fatalf("%s %s: %v", from, name, err)
		}
		draft, err := dialect(raw)
		if err != nil {
			tb.Fatal(err)
		}
		f, err := newFullEngine(raw, draft)
		if err != nil {
			tb.Fatalf("%s %s: %v", from, name, err)
		}
		x := real{name: name, schema: s, full: f}
		x.makeValues(tb)
		all[from] = append(all[from], x)
	}
	ownSchemas(tb, func(name string, raw json.RawMessage) { add("our tools", name, raw) })

	listed, err := os.Open("testdata/servers.jsonl")
	if err != nil {
		tb.Fatal(err)
	}
	defer listed.Close()
	lines := bufio.NewScanner(listed)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var l struct {
			Server, Tool, Side string
			Schema             json.RawMessage
		}
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			tb.Fatal(err)
		}
		add("npm servers", l.Server+" "+l.Tool+" "+l.Side, l.Schema)
	}

	protocol, err := os.ReadFile("testdata/mcp-2025-11-25.json")
	if err != nil {
		tb.Fatal(err)
	}
	var defs struct {
		Defs map[string]json.RawMessage `json:"$defs"`
	}
	if err := json.Unmarshal(protocol, &defs); err != nil {
		tb.Fatal(err)
	}
	for i, name := range slices.Sorted(maps.Keys(defs.Defs)) {
		if i%5 != 0 { // each schema contains all definitions, which takes time
			continue
		}
		add("MCP 2025-11-25", name, bytes.Replace(protocol, []byte("{"), []byte(`{"$ref":"#/$defs/`+name+`",`), 1))
	}
	return all
}

// ownSchemas reads the schemas that the tests of the tools store.
func ownSchemas(tb testing.TB, add func(name string, raw json.RawMessage)) {
	tb.Helper()
	root, err := filepath.Abs(".")
	for err == nil {
		if _, gone := os.Stat(filepath.Join(root, "go.mod")); gone == nil || root == filepath.Dir(root) {
			break
		}
		root = filepath.Dir(root)
	}
	n := 0
	err = fs.WalkDir(os.DirFS(root), "internal", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".json") || !strings.HasSuffix(filepath.Dir(path), "testdata/tools") {
			return err
		}
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			return err
		}
		var t struct {
			Name          string
			Input, Output json.RawMessage
		}
		if err := json.Unmarshal(text, &t); err != nil {
			return err
		}
		n++
		add(t.Name+" input", t.Input)
		if len(t.Output) > 0 {
			add(t.Name+" output", t.Output)
		}
		return nil
	})
	if err != nil || n < 100 {
		tb.Fatalf("%d tools below %s: %v", n, root, err)
	}
}

// makeValues makes values with the required members and with all members, and makes invalid variants of
// each.
func (x *real) makeValues(tb testing.TB) {
	tb.Helper()
	var root any
	if err := json.Unmarshal(x.schema.Raw(), &root); err != nil {
		tb.Fatal(err)
	}
	for _, every := range []bool{false, true} {
		v := sample{root, every}.of(root, 0)
		raw, err := json.Marshal(v)
		if err != nil {
			tb.Fatal(err)
		}
		if x.schema.Check(raw) != nil {
			continue
		}
		x.right = append(x.right, raw)
		spoil(v, func() {
			if raw, err := json.Marshal(v); err == nil && x.schema.Check(raw) != nil {
				x.wrong = append(x.wrong, raw)
			}
		})
	}
}

// sample makes a value that is valid by a schema, unless the schema is unusually strict.
type sample struct {
	root  any
	every bool // include optional members
}

func (s sample) of(schema any, depth int) any {
	m, ok := schema.(map[string]any)
	if !ok || depth > 8 {
		return map[string]any{}
	}
	if ref, ok := m["$ref"].(string); ok {
		at := s.root
		for part := range strings.SplitSeq(strings.TrimPrefix(strings.TrimPrefix(ref, "#"), "/"), "/") {
			if part != "" {
				at = at.(map[string]any)[part]
			}
		}
		return s.of(at, depth+1)
	}
	for _, key := range []string{"const", "default"} {
		if v, ok := m[key]; ok && (key == "const" || !s.every) {
			return v
		}
	}
	if list, ok := m["enum"].([]any); ok {
		return list[len(list)-1]
	}
	for _, key := range []string{"anyOf", "oneOf", "allOf"} {
		if list, ok := m[key].([]any); ok && m["properties"] == nil {
			return s.of(list[0], depth+1)
		}
	}
	return s.ofType(m, depth)
}

func (s sample) ofType(m map[string]any, depth int) any {
	typ, _ := m["type"].(string)
	if list, ok := m["type"].([]any); ok {
		typ, _ = list[0].(string)
	}
	number := func(key string, or float64) float64 {
		if n, ok := m[key].(float64); ok {
			return n
		}
		return or
	}
	switch typ {
	case "string":
		return strings.Repeat("x", max(3, int(number("minLength", 0))))
	case "integer", "number":
		return number("minimum", min(number("maximum", 7), 7))
	case "boolean":
		return true
	case "null":
		return nil
	case "array":
		list := []any{}
		for range int(max(1, number("minItems", 1))) {
			list = append(list, s.of(m["items"], depth+1))
		}
		return list
	}
	obj := map[string]any{}
	required := fmt.Sprint(m["required"])
	props, _ := m["properties"].(map[string]any)
	for name, sub := range props {
		if s.every && depth < 3 || strings.Contains(" "+strings.Trim(required, "[]")+" ", " "+name+" ") {
			obj[name] = s.of(sub, depth+1)
		}
	}
	return obj
}

// spoil changes a value in one place at a time, calls try, and changes it back.
func spoil(v any, try func()) {
	switch v := v.(type) {
	case map[string]any:
		v["unknown member"] = 1
		try()
		delete(v, "unknown member")
		for _, name := range slices.Sorted(maps.Keys(v)) {
			was := v[name]
			delete(v, name)
			try()
			for _, other := range []any{nil, "no such value", -1.5, []any{map[string]any{}}, map[string]any{"x": 1}} {
				v[name] = other
				try()
			}
			v[name] = was
			spoil(was, try)
		}
	case []any:
		for i, was := range v {
			for _, other := range []any{nil, -1.5, map[string]any{"x": 1}} {
				v[i] = other
				try()
			}
			v[i] = was
			spoil(was, try)
		}
	}
}

// walk returns the verdict of the walker alone.
func (s *Schema) walk(raw []byte) error {
	only := *s
	only.full = nil
	return only.Check(raw)
}

// BenchmarkEngines measures one check by each engine, over all values of the schemas that the walker
// decides alone.
func BenchmarkEngines(b *testing.B) {
	type pair struct {
		x   real
		raw []byte
	}
	for from, schemas := range realSchemas(b) {
		var pairs []pair
		for _, x := range schemas {
			for _, v := range x.right {
				if x.schema.full == nil {
					pairs = append(pairs, pair{x, v})
				}
			}
		}
		if len(pairs) == 0 {
			continue
		}
		run := func(name string, check func(pair) bool) {
			b.Run(from+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if !check(pairs[i%len(pairs)]) {
						b.Fatal("a value that fits is refused")
					}
				}
			})
		}
		run("walker", func(p pair) bool { return p.x.schema.Check(p.raw) == nil })
		run("full", func(p pair) bool { return p.x.full.validateRaw(p.raw) == nil })
	}
}
