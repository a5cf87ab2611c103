package schema

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"gatehouse/internal/mcp/rawjson"
)

// Keywords that the walker does not check are enforced nevertheless, and the message still names the
// position.
func TestFullEngine(t *testing.T) {
	for _, c := range []struct{ schema, good, bad, want string }{
		{
			`{"properties":{"a":{"allOf":[{"type":"string"},{"minLength":2}]}}}`,
			`{"a":"xy"}`,
			`{"a":"x"}`,
			`a: expected a value its schema allows, got "x", minLength: `,
		},
		{
			`{"properties":{"a":{"properties":{"b":{"anyOf":[{"type":"string"},{"type":"null"}]}}}}}`,
			`{"a":{"b":null}}`,
			`{"a":{"b":1}}`,
			`a.b: expected a value its schema allows, got 1, anyOf: `,
		},
		{
			`{"oneOf":[{"required":["a"]},{"required":["b"]}]}`,
			`{"a":1}`,
			`{"a":1,"b":2}`,
			`arguments: expected a value its schema allows, got an object, oneOf: `,
		},
		{`{"not":{"type":"string"}}`, `1`, `"x"`, `not: `},
		{
			`{"if":{"properties":{"k":{"const":1}}},"then":{"required":["x"]},"else":{"required":["y"]}}`,
			`{"k":1,"x":1}`,
			`{"k":1,"y":1}`,
			`required: `,
		},
		{
			`{"$defs":{"s":{"type":"string"}},"properties":{"a":{"$ref":"#/$defs/s"}}}`,
			`{"a":"x"}`,
			`{"a":1}`,
			`a: expected a value its schema allows, got 1, type: `,
		},
		{
			`{"$defs":{"s":{"$anchor":"here","type":"string"}},"properties":{"a":{"$ref":"#here"}}}`,
			`{"a":"x"}`,
			`{"a":1}`,
			`type: `,
		},
		{
			`{"patternProperties":{"^x":{"type":"integer"}},"additionalProperties":false}`,
			`{"x1":1}`,
			`{"y":1}`,
			`unexpected additional properties ["y"]`,
		},
		{`{"prefixItems":[{"type":"string"}],"items":false}`, `["a"]`, `["a",1]`, `got an array`},
		{`{"uniqueItems":true}`, `[1,2]`, `[1,1.0]`, `uniqueItems`},
		{`{"multipleOf":0.5}`, `1.5`, `1.3`, `multipleOf`},
		{`{"dependentRequired":{"a":["b"]}}`, `{"b":1}`, `{"a":1}`, `dependentRequired`},
		{`{"minProperties":1}`, `{"a":1}`, `{}`, `minProperties`},
		{`{"enum":[1,2],"const":2}`, `2`, `1`, `const`},
		{
			`{"$schema":"http://json-schema.org/draft-07/schema#","definitions":{"s":{"type":"string"}},"items":[{"$ref":"#/definitions/s","minLength":5}],"additionalItems":false}`,
			`["a"]`,
			`["a",1]`,
			`got an array`,
		},
		{
			`{"type":"object","properties":{"n":{"type":"integer"}},"allOf":[{}],"additionalProperties":false}`,
			`{"n":1}`,
			`{"m":1}`,
			`m: unknown argument, there is only n`,
		},
		{
			`{"$id":"https://example.com/a","$defs":{"b":{"$id":"b","type":"string"}},"items":{"$ref":"b"}}`,
			`["x"]`,
			`[1]`,
			`got an array`,
		},
		{
			`{"maximum":9007199254740994,"allOf":[{"minimum":9007199254740992}]}`,
			`9007199254740993`,
			`9007199254740991`,
			`minimum`,
		},
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

// The walker alone decides schemas with the keywords that tools commonly use.
func TestCommonKeywordsNeedNoFullEngine(t *testing.T) {
	for _, schema := range []string{editSchema, `{}`, `true`, `{"oneOf":[{"const":"a","title":"A"},{"const":"b"}]}`,
		`{"x-anything":{"allOf":[]},"examples":[1],"$comment":"c","deprecated":true}`,
		`{"$defs":{"unused":{"not":{}}}}`, `{"$schema":"http://json-schema.org/draft-07/schema#","type":"object"}`} {
		if mustCompile(t, schema).full != nil {
			t.Errorf("%s: needs the full engine", clip(schema, 100))
		}
	}
}

// The official suite of both dialects, as included in jsonschema-go. Schemas that this package refuses
// on purpose (external references) are counted, not run.
func TestOfficialSuite(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}",
		"github.com/google/jsonschema-go").
		Output()
	if err != nil {
		t.Skip("the module's source is not here: ", err)
	}
	dir := filepath.Join(strings.TrimSpace(string(out)), "jsonschema", "testdata")
	for draft, uri := range map[string]string{"draft2020-12": draft2020, "draft7": draft07} {
		files, err := filepath.Glob(filepath.Join(dir, draft, "*.json"))
		if err != nil || len(files) < 30 {
			t.Fatalf("%s: %d files, %v", draft, len(files), err)
		}
		var sum suiteResult
		for _, file := range files {
			suiteFile(t, file, uri, &sum)
		}
		t.Logf(
			"%s: %d checks run, %d schemas refused; right by the walker alone %d, by the full engine alone %d",
			draft,
			sum.run,
			sum.refused,
			sum.walker,
			sum.full,
		)
		if sum.run < 700 || sum.refused > 40 {
			t.Errorf("%s: %d checks run, %d schemas refused", draft, sum.run, sum.refused)
		}
	}
}

// suiteResult counts checks, and those that one engine decides correctly alone.
type suiteResult struct{ run, refused, walker, full int }

func suiteFile(t *testing.T, file, dialect string, sum *suiteResult) {
	t.Helper()
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
			sum.refused++
			continue
		}
		full, fullErr := newFullEngine(g.Schema, dialect)
		for _, c := range g.Tests {
			sum.run++
			if (s.walk(c.Data) == nil) == c.Valid {
				sum.walker++
			}
			if fullErr == nil && (full.validateRaw(c.Data) == nil) == c.Valid {
				sum.full++
			}
			if err := s.Check(c.Data); (err == nil) != c.Valid {
				t.Errorf(
					"%s: %s: %s: got %v, want valid %v\n%s\n%s",
					filepath.Base(file),
					g.Description,
					c.Description,
					err,
					c.Valid,
					g.Schema,
					c.Data,
				)
			}
		}
	}
}

// If both engines support a schema, they agree.
func FuzzEnginesAgree(f *testing.F) {
	for _, v := range []string{`{"path":"a","edits":[{"old":"1","new":""}],"ratio":0.5,"exact":{"a":[1,2]}}`,
		`{"path":"a","limit":7,"tag":"abc","mode":"hex","pair":[1,2]}`} {
		f.Add([]byte(editSchema), []byte(v))
	}
	f.Add([]byte(`{"type":["integer","null"],"enum":[1,2.0,null,{"a":[]}],"minimum":1}`), []byte(`2`))
	f.Add(
		[]byte(`{"items":{"required":["a"],"maxLength":1},"minItems":1,"additionalProperties":false}`),
		[]byte(`["é",{"a":1}]`),
	)
	f.Add([]byte(`{"miNimum":1,"Properties":{"a":false},"items":{"Not":{}}}`), []byte(`0`))
	long := regexp.MustCompile(`[0-9]{15}|[0-9][eE]`)
	f.Fuzz(func(t *testing.T, schema, value []byte) {
		walks, err := Compile(schema)
		if err != nil || walks.full != nil || rawjson.Check(value, 0) != nil || long.Match(value) ||
			long.Match(schema) {
			return // the engines differ on numbers that float64 rounds
		}
		full, err := Compile([]byte(`{"allOf":[` + string(schema) + `]}`))
		if err != nil {
			return // jsonschema-go is stricter with annotations
		}
		a, b := walks.Check(value), full.Check(value)
		if (a == nil) != (b == nil) && rawjson.Kind(schema) == '{' {
			t.Fatalf("%s with %s: the walker says %v, jsonschema-go %v", schema, value, a, b)
		}
	})
}

// A keyword in another case means nothing, in any position; a property may have any name.
func TestKeywordsAreExact(t *testing.T) {
	s := mustCompile(
		t,
		`{"allOf":[{"Minimum":5,"items":{"NOT":{}},"properties":{"Type":{"type":"string","MaxLength":1}}}],"Required":["x"]}`,
	)
	for value, valid := range map[string]bool{`1`: true, `[1]`: true, `{}`: true, `{"Type":"long"}`: true,
		`{"Type":1}`: false} {
		if err := s.Check([]byte(value)); (err == nil) != valid {
			t.Errorf("%s: got %v, want valid %v", value, err, valid)
		}
	}
}

func TestSchemasAreSafeForConcurrentUse(t *testing.T) {
	s := mustCompile(t, `{"properties":{"a":{"anyOf":[{"type":"string"},{"items":{"$ref":"#"}}]},"b":{"default":1}}}`)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				if got, err := s.Canonical([]byte(`{"a":[{"a":"x"}]}`)); err != nil ||
					string(got) != `{"a":[{"a":"x"}],"b":1}` {
					t.Errorf("got %s, %v", got, err)
				}
			}
		})
	}
	wg.Wait()
}
