package views

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/internal/mcp/schema"
	"gatehouse/module"
	"gatehouse/tool"
)

// shapedView returns the view of a context with one relayed tool and its shape.
func shapedView(t *testing.T, raw string, s Shape) *View {
	t.Helper()
	s.Tool = "up_make"
	if at, err := CheckShapes([]Shape{s}); err != nil {
		t.Fatal(at, err)
	}
	o := &module.Offer{Tools: []tool.Tool{{Def: tool.Def{Name: "up_make", Raw: json.RawMessage(raw)}}}}
	h := &offerSource{offers: map[string]*module.Offer{"m": o}}
	return view(t, h.contexts(Rules{Specs: []Spec{{Name: "x", Shapes: []Shape{s}}}}), tool.Caller{})
}

const makeIssue = `{"name":"up_make","inputSchema":{"type":"object","properties":{
	"owner":{"type":"string"},"title":{"type":"string"},"limit":{"type":"integer","maximum":100},"token":{"type":"string"}},
	"required":["owner","title","limit"]},
	"outputSchema":{"type":"object","properties":{"id":{"type":"integer"},"items":{"type":"array","items":
	{"type":"object","properties":{"name":{"type":"string"},"secret":{"type":"string"}},"required":["name","secret"]}}},
	"required":["id","items"]}}`

func TestShapedArguments(t *testing.T) {
	v := shapedView(t, makeIssue, Shape{
		Fixed:    map[string]string{"owner": "acme", "token": "Bearer ${secret:GIT}"},
		Defaults: map[string]string{"limit": "10"},
	})
	page, err := v.Page(Tools, mcpversion.Latest, "", "")
	if err != nil || strings.Contains(string(page), "owner") || strings.Contains(string(page), "token") ||
		!strings.Contains(string(page), `"default":10`) || !strings.Contains(string(page), `"required":["title"]`) {
		t.Fatalf("listed as %s, %v", page, err)
	}
	e := v.Tool("up_make")
	sent, all, err := e.Arguments(json.RawMessage(`{"title":"t"}`))
	if err != nil || string(sent) != `{"title":"t","limit":10}` {
		t.Errorf("sent %s, %v", sent, err)
	}
	if string(all) != `{"title":"t","limit":10,"owner":"acme","token":"Bearer ${secret:GIT}"}` {
		t.Errorf("all %s", all)
	}
	refers, ok := e.Shaped()
	if !ok || fmt.Sprint(refers) != "map[token:Bearer ${secret:GIT}]" {
		t.Errorf("refers to %v", refers)
	}
	got, err := e.SetSecrets(all, map[string]secret.Text{"token": secret.New(`Bearer a"b`)})
	if err != nil || !strings.Contains(string(got), `"token":"Bearer a\"b"`) || strings.Contains(string(got), "GIT") {
		t.Errorf("filled %s, %v", got, err)
	}
	for _, bad := range []string{
		`{"title":"t","owner":"acme"}`, `{"title":"t","own\u0065r":1}`, `{"title":"t","token":null}`,
		`{"title":"t","limit":1000}`,
	} {
		if _, _, err := e.Arguments(json.RawMessage(bad)); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}

// A shape that does not fit its tool leaves the tool out, rather than calling it with other arguments than the
// administrator meant.
func TestShapesThatDoNotFit(t *testing.T) {
	for _, s := range []Shape{
		{Fixed: map[string]string{"nothing": "1"}},
		{Fixed: map[string]string{"limit": "many"}},
		{Fixed: map[string]string{"limit": "1000"}},
		{Defaults: map[string]string{"owner": "5"}},
	} {
		if v := shapedView(t, makeIssue, s); v.Tool("up_make") != nil {
			t.Errorf("%+v is offered", s)
		}
	}
	for want, s := range map[string]Shape{
		"[0].tool":         {},
		"[0].fixed.a":      {Tool: "a", Fixed: map[string]string{"a": `{"k":"${secret:X}"}`}},
		"[0].defaults.a":   {Tool: "a", Defaults: map[string]string{"a": `${secret:X}`}},
		"[0].keep[0]":      {Tool: "a", Keep: []string{"items"}},
		"[0].drop[1]":      {Tool: "a", Drop: []string{"/a", "/~2"}},
		"[0].defaults.b":   {Tool: "a", Fixed: map[string]string{"b": "1"}, Defaults: map[string]string{"b": "2"}},
		"[0].fixed.broken": {Tool: "a", Fixed: map[string]string{"broken": "${secret:}"}},
	} {
		if at, err := CheckShapes([]Shape{s}); err == nil || at != want {
			t.Errorf("%+v: got %s, %v; want %s", s, at, err, want)
		}
	}
	if at, err := CheckShapes([]Shape{{Tool: "a"}, {Tool: "a"}}); err == nil || at != "[1].tool" {
		t.Errorf("twice: %s, %v", at, err)
	}
}

func TestCutResults(t *testing.T) {
	const result = `{"content":[{"type":"text","text":"{\"id\":1,\"items\":[{\"name\":\"a\",\"secret\":\"s\"}]}"},` +
		`{"type":"text","text":"said {"},{"type":"image","data":"x","mimeType":"image/png"}],` +
		`"structuredContent":{"id":1,"items":[{"name":"a","secret":"s"},{"name":"b","secret":12345678901234567890}]},"x":1.50}`
	for _, c := range []struct {
		keep, drop       []string
		text, structured string
	}{
		{drop: []string{"/items/*/secret"}, text: `{"id":1,"items":[{"name":"a"}]}`,
			structured: `{"id":1,"items":[{"name":"a"},{"name":"b"}]}`},
		{drop: []string{"/items/0"}, text: `{"id":1,"items":[]}`,
			structured: `{"id":1,"items":[{"name":"b","secret":12345678901234567890}]}`},
		{keep: []string{"/id"}, text: `{"id":1}`, structured: `{"id":1}`},
		{keep: []string{"/items/1", "/none"}, text: `{"items":[]}`,
			structured: `{"items":[{"name":"b","secret":12345678901234567890}]}`},
		{keep: []string{"/items"}, drop: []string{"/*/*/name"}, text: `{"items":[{"secret":"s"}]}`,
			structured: `{"items":[{"secret":"s"},{"secret":12345678901234567890}]}`},
		{keep: []string{"/id/deeper"}, text: `{}`, structured: `{}`},
		{drop: []string{"/a~1b", "/none/0"}, text: `{"id":1,"items":[{"name":"a","secret":"s"}]}`,
			structured: `{"id":1,"items":[{"name":"a","secret":"s"},{"name":"b","secret":12345678901234567890}]}`},
	} {
		e := shapedView(t, makeIssue, Shape{Keep: c.keep, Drop: c.drop}).Tool("up_make")
		got := string(e.CutResult(json.RawMessage(result)))
		text, _ := json.Marshal(c.text)
		want := `{"content":[{"type":"text","text":` + string(text) + `},{"type":"text","text":"said {"},` +
			`{"type":"image","data":"x","mimeType":"image/png"}],"structuredContent":` + c.structured + `,"x":1.50}`
		if got != want {
			t.Errorf("keep %q drop %q:\n got %s\nwant %s", c.keep, c.drop, got, want)
		}
	}
}

// A value that fits a schema fits the cut schema after it was cut, whatever both are.
func TestCutValuesFitCutSchemas(t *testing.T) {
	names := []string{"a", "b", "c"}
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	var pair func(depth int) (s, v string) // a schema, and a value that fits it
	pair = func(depth int) (s, v string) {
		kind := r.IntN(8)
		if depth == 0 {
			kind = r.IntN(3)
		}
		switch kind {
		case 0:
			return `{"type":"integer"}`, "1"
		case 1:
			return `{"type":["string","null","object"]}`, `null`
		case 2:
			return `true`, `{"a":[1,{"b":2}]}`
		case 3:
			inner, e := pair(depth - 1)
			return `{"type":"array","items":` + inner + `,"minItems":2}`, `[` + e + `,` + e + `]`
		case 4:
			inner, e := pair(depth - 1)
			return `{"anyOf":[` + inner + `],"properties":{"a":true}}`, e
		case 5:
			inner, e := pair(depth - 1)
			return `{"type":"array","prefixItems":[` + inner + `],"items":{"type":"boolean"}}`, `[` + e + `,true]`
		}
		var props, members, required []string
		for _, n := range names {
			inner, e := pair(depth - 1)
			props, members = append(props, fmt.Sprintf("%q:%s", n, inner)), append(members, fmt.Sprintf("%q:%s", n, e))
			if r.IntN(2) == 0 {
				required = append(required, fmt.Sprintf("%q", n))
			}
		}
		return fmt.Sprintf(
				`{"type":"object","properties":{%s},"required":[%s],"additionalProperties":false,"minProperties":2}`,
				strings.Join(props, ","),
				strings.Join(required, ","),
			), `{` + strings.Join(
				members,
				",",
			) + `}`
	}
	steps := append([]string{"*", "0", "1"}, names...)
	pointers := func() (list []string) {
		for range r.IntN(3) {
			var p strings.Builder
			for range 1 + r.IntN(3) {
				p.WriteString("/" + steps[r.IntN(len(steps))])
			}
			list = append(list, p.String())
		}
		return list
	}
	for range 5000 {
		s, v := pair(3)
		compiled, err := schema.Compile(json.RawMessage(s))
		if err != nil || compiled.Check([]byte(v)) != nil {
			t.Fatalf("seed %d: %s does not fit %s", seed, v, s)
		}
		keep, drop := pointers(), pointers()
		c, err := newCutter(keep, drop)
		if err != nil {
			t.Fatal(err)
		}
		cutSchema, cut := c.schema(json.RawMessage(s)), c.value(json.RawMessage(v))
		again, err := schema.Compile(cutSchema)
		if err == nil {
			err = again.Check(cut)
		}
		if err != nil {
			t.Fatalf("seed %d, keep %q, drop %q:\n%s of %s\n%s of %s\n%v", seed, keep, drop, cut, v, cutSchema, s, err)
		}
	}
}
