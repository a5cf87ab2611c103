package schema

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The keywords the walker does not know are enforced all the same, and the
// message still names the place.
func TestFullEngine(t *testing.T) {
	for _, c := range []struct{ schema, good, bad, want string }{
		{`{"properties":{"a":{"allOf":[{"type":"string"},{"minLength":2}]}}}`, `{"a":"xy"}`, `{"a":"x"}`, `a: expected a value its schema allows, got "x", minLength: `},
		{`{"properties":{"a":{"properties":{"b":{"anyOf":[{"type":"string"},{"type":"null"}]}}}}}`, `{"a":{"b":null}}`, `{"a":{"b":1}}`, `a.b: expected a value its schema allows, got 1, anyOf: `},
		{`{"oneOf":[{"required":["a"]},{"required":["b"]}]}`, `{"a":1}`, `{"a":1,"b":2}`, `arguments: expected a value its schema allows, got an object, oneOf: `},
		{`{"not":{"type":"string"}}`, `1`, `"x"`, `not: `},
		{`{"if":{"properties":{"k":{"const":1}}},"then":{"required":["x"]},"else":{"required":["y"]}}`, `{"k":1,"x":1}`, `{"k":1,"y":1}`, `required: `},
		{`{"$defs":{"s":{"type":"string"}},"properties":{"a":{"$ref":"#/$defs/s"}}}`, `{"a":"x"}`, `{"a":1}`, `a: expected a value its schema allows, got 1, type: `},
		{`{"$defs":{"s":{"$anchor":"here","type":"string"}},"properties":{"a":{"$ref":"#here"}}}`, `{"a":"x"}`, `{"a":1}`, `type: `},
		{`{"patternProperties":{"^x":{"type":"integer"}},"additionalProperties":false}`, `{"x1":1}`, `{"y":1}`, `unexpected additional properties ["y"]`},
		{`{"prefixItems":[{"type":"string"}],"items":false}`, `["a"]`, `["a",1]`, `got an array`},
		{`{"uniqueItems":true}`, `[1,2]`, `[1,1.0]`, `uniqueItems`},
		{`{"multipleOf":0.5}`, `1.5`, `1.3`, `multipleOf`},
		{`{"dependentRequired":{"a":["b"]}}`, `{"b":1}`, `{"a":1}`, `dependentRequired`},
		{`{"minProperties":1}`, `{"a":1}`, `{}`, `minProperties`},
		{`{"enum":[1,2],"const":2}`, `2`, `1`, `const`},
		{`{"$schema":"http://json-schema.org/draft-07/schema#","definitions":{"s":{"type":"string"}},"items":[{"$ref":"#/definitions/s","minLength":5}],"additionalItems":false}`, `["a"]`, `["a",1]`, `got an array`},
		{`{"type":"object","properties":{"n":{"type":"integer"}},"allOf":[{}],"additionalProperties":false}`, `{"n":1}`, `{"m":1}`, `m: unknown argument, there is only n`},
		{`{"$id":"https://example.com/a","$defs":{"b":{"$id":"b","type":"string"}},"items":{"$ref":"b"}}`, `["x"]`, `[1]`, `got an array`},
		{`{"maximum":9007199254740994,"allOf":[{"minimum":9007199254740992}]}`, `9007199254740993`, `9007199254740991`, `minimum`},
	} {
		s := mustCompile(t, c.schema)
		if s.full == nil {
			t.Errorf("%s: left to the walker", c.schema)
		}
		if err := s.Check([]byte(c.good)); err != nil {
			t.Errorf("%s with %s: %v", c.schema, c.good, err)
		}
		err := s.Check([]byte(c.bad))
		if _, ok := errors.AsType[*Mismatch](err); !ok || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s with %s: got %v, want %q", c.schema, c.bad, err, c.want)
		}
	}
}

func TestNumbersBeyondFloatsAreRefusedByTheFullEngine(t *testing.T) {
	err := mustCompile(t, `{"not":{"type":"string"}}`).Check([]byte(`[1e999]`))
	if err == nil || err.Error() != "arguments: expected numbers of ordinary size, got 1e999" {
		t.Errorf("got %v", err)
	}
}

// The walker alone answers what tools commonly use.
func TestCommonKeywordsNeedNoFullEngine(t *testing.T) {
	for _, schema := range []string{editSchema, `{}`, `true`, `{"oneOf":[{"const":"a","title":"A"},{"const":"b"}]}`, `{"x-anything":{"allOf":[]},"examples":[1],"$comment":"c","deprecated":true}`,
		`{"$defs":{"unused":{"not":{}}}}`, `{"$schema":"http://json-schema.org/draft-07/schema#","type":"object"}`} {
		if mustCompile(t, schema).full != nil {
			t.Errorf("%s: needs the full engine", clip(schema, 100))
		}
	}
}

// The official suite of both dialects, as it comes with jsonschema-go. Schemas
// we refuse on purpose (references to elsewhere) are counted, not run.
func TestOfficialSuite(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/google/jsonschema-go").Output()
	if err != nil {
		t.Skip("the module's source is not here: ", err)
	}
	dir := filepath.Join(strings.TrimSpace(string(out)), "jsonschema", "testdata")
	for draft, uri := range map[string]string{"draft2020-12": draft2020, "draft7": draft07} {
		files, err := filepath.Glob(filepath.Join(dir, draft, "*.json"))
		if err != nil || len(files) < 30 {
			t.Fatalf("%s: %d files, %v", draft, len(files), err)
		}
		run, refused := 0, 0
		for _, file := range files {
			r, s := suiteFile(t, file, uri)
			run, refused = run+r, refused+s
		}
		t.Logf("%s: %d checks run, %d schemas refused", draft, run, refused)
		if run < 700 || refused > 40 {
			t.Errorf("%s: %d checks run, %d schemas refused", draft, run, refused)
		}
	}
}

func suiteFile(t *testing.T, file, dialect string) (run, refused int) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var groups []struct {
		Description string
		Schema      json.RawMessage
		Tests       []struct {
			Description string
			Data        json.RawMessage
			Valid       bool
		}
	}
	if err := json.Unmarshal(text, &groups); err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		if strings.HasPrefix(string(g.Schema), "{") && !strings.Contains(string(g.Schema), `"$schema"`) {
			g.Schema = json.RawMessage(`{"$schema":"` + dialect + `",` + string(g.Schema[1:]))
			g.Schema = json.RawMessage(strings.Replace(string(g.Schema), ",}", "}", 1))
		}
		s, err := Compile(g.Schema)
		if err != nil {
			t.Logf("refused: %s: %s: %v", filepath.Base(file), g.Description, err)
			refused++
			continue
		}
		for _, c := range g.Tests {
			run++
			if err := s.Check(c.Data); (err == nil) != c.Valid {
				t.Errorf("%s: %s: %s: got %v, want valid %v\n%s\n%s", filepath.Base(file), g.Description, c.Description, err, c.Valid, g.Schema, c.Data)
			}
		}
	}
	return run, refused
}
