package schema

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"gatehouse/internal/mcp/rawjson"
)

func mustCompile(tb testing.TB, raw string) *Schema {
	tb.Helper()
	s, err := Compile([]byte(raw))
	if err != nil {
		tb.Fatalf("%s: %v", raw, err)
	}
	return s
}

const editSchema = `{"type":"object","properties":{
	"path":{"type":"string","minLength":1},
	"offset":{"type":"integer","minimum":1},
	"limit":{"type":"integer","minimum":1,"maximum":2000},
	"file_path":{"type":"string"},
	"mode":{"enum":["text","hex","auto"]},
	"edits":{"type":"array","minItems":1,"maxItems":3,"items":{"type":"object","properties":{"old":{"type":"string"},"new":{"type":"string"}},"required":["old","new"],"additionalProperties":false}},
	"ratio":{"type":"number","exclusiveMinimum":0,"maximum":1},
	"tag":{"type":"string","pattern":"^[a-z]+$","maxLength":5},
	"env":{"type":"object","additionalProperties":{"type":"string"}},
	"when":{"type":["string","null"],"format":"date-time"},
	"exact":{"const":{"a":[1,2]}},
	"pair":{"type":"array","minItems":2,"maxItems":2}
	},"required":["path"],"additionalProperties":false}`

// The messages that a model reads if its arguments are wrong.
func TestProblems(t *testing.T) {
	s := mustCompile(t, editSchema)
	for _, c := range []struct{ args, want string }{
		{`{}`, `path: required, expected a string of at least 1 character`},
		{`{"path":""}`, `path: expected a string of at least 1 character, got ""`},
		{`{"path":7}`, `path: expected a string of at least 1 character, got 7`},
		{
			`{"path":null}`,
			`path: expected a string of at least 1 character, got null, omit it if it has no value`,
		},
		{`[]`, `arguments: expected an object, got an array`},
		{`"{\"path\":1}"`, `arguments: expected an object, got "{\"path\":1}", send the JSON value, not a string that contains it`},
		{`{"path":"a","offest":1}`, `offest: unknown argument, did you mean "offset"?`},
		{`{"path":"a","OffSet":1}`, `OffSet: unknown argument, did you mean "offset"?`},
		{`{"path":"a","filePath":"b"}`, `filePath: unknown argument, did you mean "file_path"?`},
		{
			`{"path":"a","zzz":1}`,
			`zzz: unknown argument, there are path, offset, limit, file_path, mode, edits, ratio, tag, env, when, exact, pair`,
		},
		{
			`{"path":"a","a b":1}`,
			`["a b"]: unknown argument, there are path, offset, limit, file_path, mode, edits, ratio, tag, env, when, exact, pair`,
		},
		{`{"path":"a","limit":"abc"}`, `limit: expected an integer from 1 to 2000, got "abc"`},
		{`{"path":"a","limit":0}`, `limit: expected an integer from 1 to 2000, got 0`},
		{`{"path":"a","limit":2001}`, `limit: expected an integer from 1 to 2000, got 2001`},
		{`{"path":"a","limit":1.5}`, `limit: expected an integer from 1 to 2000, got 1.5`},
		{`{"path":"a","limit":1e400}`, `limit: expected an integer from 1 to 2000, got 1e400`},
		{`{"path":"a","offset":-1}`, `offset: expected an integer of at least 1, got -1`},
		{`{"path":"a","mode":"txt"}`, `mode: expected one of "text", "hex", "auto", got "txt", did you mean "text"?`},
		{`{"path":"a","mode":1}`, `mode: expected one of "text", "hex", "auto", got 1`},
		{`{"path":"a","edits":[]}`, `edits: expected an array of 1 to 3 items, got 0 items`},
		{
			`{"path":"a","edits":[{},{},{},{}]}`,
			"edits[0].old: required, expected a string\nedits[0].new: required, expected a string\n" +
				"edits[1].old: required, expected a string\nedits[1].new: required, expected a string\n" +
				"edits[2].old: required, expected a string",
		},
		{`{"path":"a","pair":[1]}`, `pair: expected an array of exactly 2 items, got 1 item`},
		{
			`{"path":"a","edits":[{"old":"x","new":"y"},{"old":"x","new":[]}]}`,
			`edits[1].new: expected a string, got an array`,
		},
		{
			`{"path":"a","edits":[{"old":"x","nwe":"y","new":"z"}]}`,
			`edits[0].nwe: unknown argument, did you mean "new"?`,
		},
		{
			`{"path":"a","edits":"[{\"old\":\"x\"}]"}`,
			`edits: expected an array of 1 to 3 items, got "[{\"old\":\"x\"}]", send the JSON value, not a string that contains it`,
		},
		{`{"path":"a","ratio":0}`, `ratio: expected a number greater than 0 and at most 1, got 0`},
		{`{"path":"a","ratio":true}`, `ratio: expected a number greater than 0 and at most 1, got true`},
		{
			`{"path":"a","tag":"abcdef"}`,
			`tag: expected a string of at most 5 characters that matches ^[a-z]+$, got 6 characters`,
		},
		{`{"path":"a","tag":"A"}`, `tag: expected a string of at most 5 characters that matches ^[a-z]+$, got "A"`},
		{`{"path":"a","env":{"PATH":1}}`, `env.PATH: expected a string, got 1`},
		{`{"path":"a","when":1}`, `when: expected a string (date-time) or null, got 1`},
		{`{"path":"a","exact":{"a":[1,3]}}`, `exact: expected {"a":[1,2]}, got an object`},
		{
			`{"offset":"x","limit":"y"}`,
			"offset: expected an integer of at least 1, got \"x\"\nlimit: expected an integer from 1 to 2000, " +
				"got \"y\"\npath: required, expected a string of at least 1 character",
		},
	} {
		err := s.Check([]byte(c.args))
		if m, ok := errors.AsType[*Mismatch](err); !ok || m.Error() != c.want {
			t.Errorf("%s: got\n%v, want\n%s", c.args, err, c.want)
		}
	}
	for _, good := range []string{
		`{"path":"a"}`, `{"path":"é","tag":"abc","ratio":1,"when":null,"mode":"hex","limit":1e3}`,
		` { "edits" : [ {"new":"","old":"x"} ] , "path" : "a", "exact":{"a":[1.0,2]}, "env":{"A":"b"} } `,
		`{"\u0070ath":"a","mode":"\u0068ex"}`,
	} {
		if err := s.Check([]byte(good)); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
}

// A missing required member's siblings in a value of unlimited size do not make
// more than five problems.
func TestAtMostFiveProblems(t *testing.T) {
	s := mustCompile(t, `{"items":{"type":"string"}}`)
	err := s.Check([]byte("[" + strings.Repeat("1,", 1000) + "1]"))
	if m, ok := errors.AsType[*Mismatch](err); !ok || len(m.Problems) != maxProblems {
		t.Errorf("got %v", err)
	}
}

func TestCanonical(t *testing.T) {
	s := mustCompile(t, `{"type":"object","properties":{
		"a":{"type":"integer","default":1},
		"b":{"type":"object","properties":{"c":{"type":"string","default":"x"},"d":{}},"default":{}},
		"list":{"type":"array","items":{"type":"object","properties":{"e":{"default": [ 1 ]}}}},
		"need":{"type":"string","default":"never filled"},
		"odd":{"type":"string","default":null},
		"n":{}
		},"required":["need"]}`)
	for _, c := range []struct{ args, want string }{
		{`{"need":"y"}`, `{"need":"y","a":1,"b":{"c":"x"}}`},
		{`{"a":2,"b":{"c":"z"},"need":"y"}`, `{"a":2,"b":{"c":"z"},"need":"y"}`},
		{
			` { "need" : "y" , "n" : 12345678901234567890.0 } `,
			` { "need" : "y" , "n" : 12345678901234567890.0 ,"a":1,"b":{"c":"x"}} `,
		},
		{`{"need":"y","b":{"d":1},"a":5}`, `{"need":"y","b":{"d":1,"c":"x"},"a":5}`},
		{
			`{"need":"y","b":{},"a":5,"list":[{},{"e":2},{ }]}`,
			`{"need":"y","b":{"c":"x"},"a":5,"list":[{"e":[1]},{"e":2},{ "e":[1]}]}`,
		},
	} {
		got, err := s.Canonical([]byte(c.args))
		if err != nil || string(got) != c.want {
			t.Errorf("%s: got %s, %v, want %s", c.args, got, err, c.want)
		}
	}
	if _, err := s.Canonical(nil); err == nil || err.Error() != "need: required, expected a string" {
		t.Errorf("no arguments: got %v", err)
	}
	whole := []byte(`{"a":2,"b":{"c":"z"},"need":"y"}`)
	if got, _ := s.Canonical(whole); &got[0] != &whole[0] {
		t.Error("complete arguments were copied")
	}
}

func TestCanonicalOfNothing(t *testing.T) {
	for _, args := range [][]byte{nil, {}} {
		if got, err := mustCompile(t, ``).Canonical(args); err != nil || string(got) != "{}" {
			t.Errorf("got %s, %v, want {}", got, err)
		}
	}
	if _, err := mustCompile(t, ``).Canonical([]byte(`{"a":1}`)); err == nil ||
		err.Error() != "a: unknown argument, there are none" {
		t.Errorf("got %v", err)
	}
}

// Defaults beyond the 64th member are filled in like the others.
func TestCanonicalOfManyMembers(t *testing.T) {
	var props, args strings.Builder
	for i := range 100 {
		fmt.Fprintf(&props, `,"m%d":{"default":%d}`, i, i)
		if i%2 == 0 {
			fmt.Fprintf(&args, `,"m%d":"here"`, i)
		}
	}
	s := mustCompile(t, `{"properties":{`+props.String()[1:]+`}}`)
	got, err := s.Canonical([]byte("{" + args.String()[1:] + "}"))
	if err != nil || rawjson.Check(got, 0) != nil {
		t.Fatalf("got %s, %v", got, err)
	}
	for i := range 100 {
		want := `"here"`
		if i%2 == 1 {
			want = fmt.Sprint(i)
		}
		if v, _ := rawjson.Get(got, fmt.Sprintf("m%d", i)); string(v) != want {
			t.Errorf("m%d: got %s, want %s", i, v, want)
		}
	}
}

func TestCheckAndCanonicalHardlyAllocate(t *testing.T) {
	s := mustCompile(t, editSchema)
	args := []byte(
		`{"path":"docs/design.md","offset":10,"limit":500,"mode":"text","edits":[{"old":"a\nb","new":"c"}],"tag":"abc"}`,
	)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := s.Canonical(args); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

func TestCompileRefuses(t *testing.T) {
	deep := strings.Repeat(`{"items":`, 200) + `{}` + strings.Repeat(`}`, 200)
	for _, c := range []struct{ schema, want string }{
		{`{`, "schema is not JSON: unexpected end of text at byte 1"},
		{`[]`, "schema: expected an object or a boolean, got []"},
		{
			`{"$schema":"http://json-schema.org/draft-04/schema#"}`,
			"is not supported: use 2020-12 (https://json-schema.org/draft/2020-12/schema) or draft-07",
		},
		{`{"$schema":7}`, "$schema 7 is not supported"},
		{`{"type":"text"}`, `/type: "text" is not a JSON type`},
		{`{"type":[]}`, "names no type"},
		{`{"properties":{"a":{"minimum":"1"}}}`, `/properties/a/minimum: expected a number, got "1"`},
		{`{"minLength":-1}`, "/minLength: expected a whole number from 0 on, got -1"},
		{`{"required":"a"}`, "/required: expected an array of names"},
		{`{"enum":{}}`, "/enum: expected an array"},
		{`{"pattern":"(?=x)"}`, "/pattern: error parsing regexp"},
		{`{"properties":{"a":null}}`, "/properties/a: expected an object or a boolean, got null"},
		{
			`{"$ref":"https://example.com/other.json"}`,
			`reference "https://example.com/other.json" is not defined inside the schema, and external schemas are not fetched`,
		},
		{`{"$ref":"#/$defs/x"}`, "is not defined inside the schema"},
		{`{"$ref":"#"}`, "leads back to itself without going into the value"},
		{
			`{"$defs":{"a":{"allOf":[{"$ref":"#/$defs/b"}]},"b":{"anyOf":[{},{"$ref":"#/$defs/a"}]}},"properties":{"p":{"$ref":"#/$defs/a"}}}`,
			"leads back to itself",
		},
		{deep, "nested too deep"},
		{`{"description":"` + strings.Repeat("x", MaxSize) + `"}`, "at most 262144 are allowed"},
		{`{"prefixItems":[` + strings.Repeat(`true,`, MaxSubschemas) + `{}]}`, "more than 4000 subschemas"},
		{`{"allOf":[` + strings.Repeat(`{},`, 3*MaxSubschemas) + `{}]}`, "more than 4000 subschemas"},
		{`{"pattern":"(abcdefghijklmnop){999}"}`, "/pattern: a pattern of more than 10000 steps"},
		{`{"not":{"pattern":"(abcdefghijklmnop){999}"}}`, "/not/pattern: a pattern of more than 10000 steps"},
		{
			`{"patternProperties":{"x{900}":{},"y{900}":{}` +
				strings.Repeat(`},"not":{"patternProperties":{"x{900}":{},"y{900}":{}`, 9) + strings.Repeat(`}`, 9) +
				`}}`,
			"patterns of more than 10000 steps together",
		},
		{
			`{"items":{"pattern":"x{900}"` + strings.Repeat(`,"items":{"pattern":"x{900}"`, 11) +
				strings.Repeat(`}`, 12) + `}`,
			"patterns of more than 10000 steps together",
		},
	} {
		_, err := Compile([]byte(c.schema))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", clip(c.schema, 100), err, c.want)
		}
	}
	var wide strings.Builder
	for i := range MaxSubschemas + 1 {
		fmt.Fprintf(&wide, `,"p%d":{}`, i)
	}
	if _, err := Compile([]byte(`{"properties":{` + wide.String()[1:] + `}}`)); err == nil ||
		!strings.Contains(err.Error(), "more than 4000 subschemas") {
		t.Errorf("got %v", err)
	}
}

// A schema whose cost grows exponentially is refused, or the values that would make it slow are.
func TestHostileSchemasDoNotHang(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"$ref":"#/$defs/d0","$defs":{`)
	for i := range 40 {
		fmt.Fprintf(&b, `"d%d":{"anyOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, i+1, i+1)
	}
	b.WriteString(`"d40":{}}}`)
	if _, err := Compile([]byte(b.String())); err == nil || !strings.Contains(err.Error(), "combines more than") {
		t.Errorf("doubling in place: got %v", err)
	}

	s := mustCompile(t, `{"allOf":[{"items":{"$ref":"#"}},{"items":{"$ref":"#"}}]}`)
	if err := s.Check([]byte(`[[[]]]`)); err != nil {
		t.Errorf("doubling a few levels down: got %v", err)
	}
	err := s.Check([]byte(strings.Repeat("[", 100) + strings.Repeat("]", 100)))
	if err == nil || !strings.Contains(err.Error(), "too many parts for this schema") {
		t.Errorf("doubling with each level: got %v", err)
	}

	s = mustCompile(t, `{"pattern":"^(x{0,900}y{0,900})*$"}`)
	if err := s.Check([]byte(`"` + strings.Repeat("x", 10<<20) + `"`)); err == nil ||
		!strings.Contains(err.Error(), "too many parts") {
		t.Errorf("slow pattern: got %v", err)
	}
	s = mustCompile(t, `{"anyOf":[{"pattern":"^(x{0,900}y{0,900})*$"}]}`)
	if err := s.Check([]byte(`"` + strings.Repeat("x", 10<<20) + `"`)); err == nil ||
		!strings.Contains(err.Error(), "too many parts") {
		t.Errorf("slow pattern: got %v", err)
	}

	var values []string
	for i := range 20000 {
		values = append(values, fmt.Sprintf("%d.5", i))
	}
	s = mustCompile(t, `{"items":{"enum":[`+strings.Join(values, ",")+`]}}`)
	err = s.Check([]byte("[" + strings.Repeat("19999.5,", 50000) + "1]"))
	if err == nil || !strings.Contains(err.Error(), "too many parts for this schema") {
		t.Errorf("long enum: got %v", clip(fmt.Sprint(err), 300))
	}
}

// Bounds at the edge of int64 are exact; beyond it they are float64.
func TestBoundsAreExact(t *testing.T) {
	s := mustCompile(t, `{"maximum":9007199254740993,"exclusiveMinimum":-9223372036854775808}`)
	for text, want := range map[string]bool{
		"9007199254740993": true, "9007199254740994": false, "9007199254740992.5": true,
		"-9223372036854775807": true, "-9223372036854775808": false, "1e300": false, "-1e300": false, "1e9999": false,
		"0.1": true,
	} {
		if err := s.Check([]byte(text)); (err == nil) != want {
			t.Errorf("%s: got %v, want %v", text, err, want)
		}
	}
}

func TestFormatsAreEnforcedOnlyWhenStrict(t *testing.T) {
	for _, c := range []struct{ format, good, bad string }{
		{"date-time", "2026-01-02T03:04:05.5+01:00", "2026-01-02 03:04"}, {"date", "2026-02-28", "2026-02-30"},
		{"time", "10:00:00Z", "25:00:00Z"}, {"email", "a@b.example", "A <a@b.example>"}, {"uri", "https://x/y", "x/y"},
		{
			"uuid",
			"123e4567-e89b-12d3-a456-426614174000",
			"123e4567"}, {"ipv4",
			"1.2.3.4",
			"::1"}, {"ipv6",
			"::1",
			"1.2.3.4",
		},
	} {
		raw := []byte(`{"type":"string","format":"` + c.format + `"}`)
		strict, err := CompileStrict(raw)
		if err != nil {
			t.Fatal(err)
		}
		good, bad := rawjson.AppendString(nil, c.good), rawjson.AppendString(nil, c.bad)
		if err := strict.Check(good); err != nil {
			t.Error(err)
		}
		if err := strict.Check(bad); err == nil ||
			!strings.Contains(err.Error(), "expected a string ("+c.format+"), got ") {
			t.Errorf("%s: got %v", c.format, err)
		}
		if err := mustCompile(t, string(raw)).Check(bad); err != nil {
			t.Errorf("not strict: %v", err)
		}
	}
}

func FuzzCheck(f *testing.F) {
	for _, schema := range []string{editSchema, `{"anyOf":[{"type":"string"},{"items":{"$ref":"#"}}]}`,
		`{"properties":{"a":{"default":1,"enum":[1,{"b":[]}]}},"required":["a"]}`,
		`{"$schema":"http://json-schema.org/draft-07/schema#","items":[{}],"additionalItems":false}`,
		`{"oneOf":[{"const":"a"},{"const":"b"}],"x-mcp-header":"A"}`,
		`{"patternProperties":{"^a":{}},"additionalProperties":false,"$defs":{"x":{"$anchor":"y"}},"not":{"$ref":"#y"}}`} {
		f.Add([]byte(schema), []byte(`{"path":"a","edits":[{"old":1}],"a":{"b":[1e5]}}`))
	}
	f.Fuzz(func(t *testing.T, schema, value []byte) {
		s, err := Compile(schema)
		if err != nil {
			return
		}
		_, _ = s.Headers()
		s.Args()
		_, _ = s.FromFlags([]string{"a=1", "a.b=2", string(value)})
		checked := rawjson.Check(value, 0) == nil
		err = s.Check(value)
		if m, ok := errors.AsType[*Mismatch](err); err != nil &&
			(!ok || len(m.Problems) == 0 || len(m.Problems) > maxProblems || m.Error() == "") {
			t.Fatalf("odd error %#v", err)
		}
		full, cerr := s.Canonical(value)
		if !checked || len(value) == 0 {
			return
		}
		if (err == nil) != (cerr == nil) {
			t.Fatalf("%s with %s: check says %v, canonical %v", schema, value, err, cerr)
		}
		if cerr != nil {
			return
		}
		if rawjson.Check(full, 0) != nil {
			t.Fatalf("%s with %s became %s", schema, value, full)
		}
		if again, err := s.Canonical(full); s.full == nil && (err != nil || string(again) != string(full)) {
			t.Fatalf("%s: %s became %s and then %s, %v", schema, value, full, again, err)
		}
		for key, v := range rawjson.Object(value) {
			got, ok := rawjson.Get(full, string(key))
			if !ok || rawjson.Kind(v) == '0' && string(got) != string(v) {
				t.Fatalf("%s: %s became %s", schema, value, full)
			}
		}
	})
}

func FuzzCompile(f *testing.F) {
	f.Add([]byte(editSchema))
	f.Add([]byte(`{"$defs":{"a":{"$dynamicAnchor":"n"}},"$dynamicRef":"#n"}`))
	f.Add([]byte(`{"$id":"http://x/","$ref":"y#z","$defs":{"q":{"$id":"y","$anchor":"z"}}}`))
	f.Add(
		[]byte(
			`{"$schema":"http://json-schema.org/draft-07/schema#","dependencies":{"a":["b"],"c":{}},"definitions":{}}`,
		),
	)
	f.Fuzz(func(t *testing.T, schema []byte) {
		s, err := Compile(schema)
		if err != nil {
			return
		}
		for _, v := range []string{`null`, `{}`, `[]`, `""`, `0`, `{"a":[{"b":[0.5,"x"]}]}`, `[[[]],{"a":{}}]`} {
			_ = s.Check([]byte(v))
		}
		if !json.Valid(s.Raw()) && len(schema) > 0 {
			t.Fatalf("%s compiled", schema)
		}
	})
}
