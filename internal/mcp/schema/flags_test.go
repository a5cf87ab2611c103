package schema

import (
	"reflect"
	"strings"
	"testing"
)

func TestFromFlags(t *testing.T) {
	s := mustCompile(t, `{"type":"object","properties":{
		"path":{"type":"string"},"limit":{"type":"integer"},"ratio":{"type":"number"},"force":{"type":"boolean"},
		"tags":{"type":"array","items":{"type":"string"}},"nums":{"type":"array","items":{"type":"integer"}},
		"opts":{"type":"object","properties":{"depth":{"type":"integer"},"name":{"type":"string"}},"additionalProperties":false},
		"env":{"type":"object","additionalProperties":{"type":"string"}},
		"any":{},"maybe":{"type":["integer","string","null"]},"a.b":{"type":"string"},"mode":{"enum":["x","1"]}
		},"additionalProperties":false}`)
	for _, c := range []struct{ words, want string }{
		{"", `{}`},
		{"path=a=b", `{"path":"a=b"}`},
		{"path=", `{"path":""}`},
		{"path=5 limit=5 ratio=0.50", `{"path":"5","limit":5,"ratio":0.50}`},
		{"force", `{"force":true}`},
		{"force=false", `{"force":false}`},
		{"tags=a tags=b", `{"tags":["a","b"]}`},
		{`tags=["a","b"]`, `{"tags":["a","b"]}`},
		{"tags=[x", `{"tags":["[x"]}`},
		{"nums=1 nums=2", `{"nums":[1,2]}`},
		{"opts.depth=2 opts.name=7 path=a", `{"opts":{"depth":2,"name":"7"},"path":"a"}`},
		{`opts={"depth":2}`, `{"opts":{"depth":2}}`},
		{"env.PATH=/bin env.A.B=c", `{"env":{"PATH":"/bin","A.B":"c"}}`},
		{"any=5", `{"any":5}`},
		{"any=five", `{"any":"five"}`},
		{"maybe=5", `{"maybe":5}`},
		{"maybe=null", `{"maybe":null}`},
		{"maybe=five", `{"maybe":"five"}`},
		{"a.b=c", `{"a.b":"c"}`},
		{"mode=1", `{"mode":"1"}`},
	} {
		got, err := s.FromFlags(strings.Fields(c.words))
		if err != nil || string(got) != c.want {
			t.Errorf("%s: got %s, %v, want %s", c.words, got, err, c.want)
		}
	}
	for _, c := range []struct{ words, want string }{
		{
			"pth=a",
			`pth: unknown argument, did you mean "path"? There are path, limit, ratio, force, tags, nums, opts, env, any, maybe, a.b, mode`,
		},
		{
			"qqqqq=a",
			`qqqqq: unknown argument, there are path, limit, ratio, force, tags, nums, opts, env, any, maybe, a.b, mode`,
		},
		{"limit=abc", `limit: expected an integer, got "abc"`},
		{"force=yes", `force: expected true or false, got "yes"`},
		{"nums=1 nums=x", `nums: expected an integer, got "x"`},
		{"path", `path: expected path=value`},
		{"=5", `"": expected key=value, there are path`},
		{"path=a path=b", `path: given twice`},
		{"opts.depth=1 opts.depth=2", `opts.depth: given twice`},
		{"opts={} opts.depth=2", `opts.depth: given twice`},
		{"opts.dept=1", `opts.dept: unknown argument, did you mean "depth"? There are depth, name`},
		{"path.x=1", `path.x: path has no members, it is a string`},
		{"tags=[1] tags=b", `tags: given twice`},
	} {
		if _, err := s.FromFlags(strings.Fields(c.words)); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.words, err, c.want)
		}
	}
}

func TestFromFlagsOfAnythingGoes(t *testing.T) {
	got, err := mustCompile(t, `{}`).FromFlags([]string{"a.b=1", "a.c=x", "d"})
	if err == nil {
		t.Errorf("got %s", got)
	}
	got, err = mustCompile(t, `{}`).FromFlags([]string{"a.b=1", "a.c=x"})
	if err != nil || string(got) != `{"a":{"b":1,"c":"x"}}` {
		t.Errorf("got %s, %v", got, err)
	}
}

func TestArgs(t *testing.T) {
	s := mustCompile(t, `{"type":"object","properties":{
		"path":{"type":"string","description":"the file","title":"Path"},
		"limit":{"type":"integer","minimum":1,"maximum":9,"default":5},
		"modes":{"type":"array","items":{"type":"string","enum":["a","b"]}},
		"opts":{"type":"object","properties":{"x":{"type":["number","null"]}}},
		"free":{}},"required":["path"]}`)
	want := []Arg{
		{Name: "path", Type: "string", Doc: "the file", Title: "Path", Required: true, Expected: "a string"},
		{Name: "limit", Type: "integer", Default: []byte("5"), Expected: "an integer from 1 to 9"},
		{Name: "modes", Type: "array of string", Enum: []string{"a", "b"}, Expected: "an array"},
		{
			Name:     "opts",
			Type:     "object",
			Expected: "an object",
			Members:  []Arg{{Name: "x", Type: "number", Expected: "a number or null"}},
		},
		{Name: "free", Type: "any", Expected: "a value"},
	}
	if got := s.Args(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestHeaders(t *testing.T) {
	s := mustCompile(t, `{"properties":{
		"region":{"type":"string","x-mcp-header":"Region"},
		"opts":{"properties":{"n":{"type":"integer","x-mcp-header":"N-1"}}},
		"data":{"default":{"x-mcp-header":"not a schema"},"enum":[{"x-mcp-header":1}]}}}`)
	got, err := s.Headers()
	want := []Header{{"Region", []string{"region"}, "string"}, {"N-1", []string{"opts", "n"}, "integer"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if got, err := mustCompile(t, `{"type":"object"}`).Headers(); got != nil || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
	for _, c := range []struct{ schema, want string }{
		{`{"properties":{"a":{"type":"string","x-mcp-header":""}}}`, `a: x-mcp-header "" is not an HTTP token`},
		{`{"properties":{"a":{"type":"string","x-mcp-header":"a b"}}}`, "is not an HTTP token"},
		{`{"properties":{"a":{"type":"string","x-mcp-header":"é"}}}`, "is not an HTTP token"},
		{`{"properties":{"a":{"type":"string","x-mcp-header":5}}}`, "is not an HTTP token"},
		{`{"properties":{"a":{"type":"number","x-mcp-header":"A"}}}`, "needs the type string, integer or boolean"},
		{`{"properties":{"a":{"x-mcp-header":"A"}}}`, "needs the type"},
		{`{"properties":{"a":{"type":["string","null"],"x-mcp-header":"A"}}}`, "needs the type"},
		{
			`{"properties":{"a":{"type":"string","x-mcp-header":"A"},"b":{"type":"string","x-mcp-header":"a"}}}`,
			`b: x-mcp-header "a" is used twice`,
		},
		{`{"type":"string","x-mcp-header":"A"}`, "only where properties alone lead"},
		{`{"properties":{"a":{"items":{"type":"string","x-mcp-header":"A"}}}}`, "only where properties alone lead"},
		{
			`{"properties":{"a":{"items":{"properties":{"b":{"type":"string","x-mcp-header":"A"}}}}}}`,
			"only where properties alone lead",
		},
		{`{"anyOf":[{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}]}`, "only where properties alone lead"},
		{
			`{"$defs":{"d":{"type":"string","x-mcp-header":"A"}},"properties":{"a":{"$ref":"#/$defs/d"}}}`,
			"only where properties alone lead",
		},
		{`{"if":{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}}`, "only where properties alone lead"},
	} {
		if got, err := mustCompile(t, c.schema).Headers(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, %v, want %q", c.schema, got, err, c.want)
		}
	}
}

func TestCheckForm(t *testing.T) {
	form := `{"type":"object","properties":{
		"name":{"type":"string","title":"Name","minLength":1},
		"mail":{"type":"string","format":"email"},
		"age":{"type":"integer","minimum":0,"maximum":150},
		"ok":{"type":"boolean","default":false},
		"plain":{"type":"string","enum":["a","b"],"enumNames":["A","B"]},
		"titled":{"type":"string","oneOf":[{"const":"r","title":"Red"},{"const":"g","title":"Green"}]},
		"many":{"type":"array","items":{"type":"string","enum":["x","y"]},"minItems":1,"maxItems":2},
		"manyTitled":{"type":"array","items":{"anyOf":[{"const":"x","title":"X"},{"const":"y","title":"Y"}]}}
		},"required":["name"]}`
	for _, c := range []struct{ content, want string }{
		{`{"name":"n"}`, ""},
		{
			`{"name":"n","mail":"a@b.example","age":3,"ok":true,"plain":"b","titled":"g","many":["x"],"manyTitled":["y","x"]}`,
			"",
		},
		{``, "name: required, expected a string of at least 1 character"},
		{`{"name":"n","mail":"none"}`, `mail: expected a string (email), got "none"`},
		{`{"name":"n","age":200}`, "age: expected an integer from 0 to 150, got 200"},
		{`{"name":"n","plain":"A"}`, `plain: expected one of "a", "b", got "A", did you mean "a"?`},
		{`{"name":"n","titled":"Red"}`, `titled: expected one of "r", "g", got "Red"`},
		{`{"name":"n","many":["z"]}`, `many[0]: expected one of "x", "y", got "z"`},
		{`{"name":"n","manyTitled":["X"]}`, `manyTitled[0]: expected one of "x", "y", got "X", did you mean "x"?`},
		{`{"name":"n","name":"m"}`, "second member of the same name"},
		{`[]`, "arguments: expected an object, got an array"},
	} {
		err := CheckForm([]byte(form), []byte(c.content))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", c.content, err, c.want)
		}
	}
	for _, c := range []struct{ form, want string }{
		{`{"type":"array"}`, `form: the schema's type must be "object"`},
		{`{"type":"object","properties":{"a":{"type":"object"}}}`, "form: a: a form holds"},
		{`{"type":"object","properties":{"a":{"type":"array","items":{"type":"string"}}}}`, "form: a: a form holds"},
		{`{"type":"object","properties":{"a":{}}}`, "form: a: a form holds"},
		{`{"type":"object","required":["a"]}`, "form: a: required but not among"},
		{`{`, "form: schema is not JSON"},
	} {
		if err := CheckForm([]byte(c.form), nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.form, err, c.want)
		}
	}
}

func TestNearest(t *testing.T) {
	known := []string{"offset", "limit", "file_path", "replace_all", "recursive"}
	for name, want := range map[string]string{
		"ofset": "offset", "Offset": "offset", "offfset": "offset", "limits": "limit", "limti": "limit",
		"filePath": "file_path", "FILE-PATH": "file_path", "path": "file_path", "replaceAll": "replace_all",
		"all": "replace_all",
		"x":   "", "": "", "content": "", "recurse": "recursive",
	} {
		if got, _ := Nearest(name, known); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}
