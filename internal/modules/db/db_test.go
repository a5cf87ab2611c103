package db

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"gatehouse/internal/state"
	"gatehouse/module"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

func TestTheModuleKeepsTheContract(t *testing.T) {
	moduletest.Run(t, New(Config{}), moduletest.Options{})
}

// fixture is the module on a tree with a public and a private mount.
type fixture struct {
	t    *testing.T
	m    module.Module
	tree *state.Tree
}

func newFixture(t *testing.T, cfg Config) fixture {
	t.Helper()
	cfg.Tree = state.New(state.Options{})
	if cfg.Rules == nil {
		cfg.Rules = func(tool.Caller) bool { return true }
	}
	for at, value := range map[string]map[string]any{"/public/info": {"name": "lab", "of": []int{1, 2}},
		"/private/host": {"id": "h1"}, UI: nil} {
		m, err := state.Attach[map[string]any](t.Context(), cfg.Tree, at, state.Live)
		if err == nil && value != nil {
			_, err = m.Set(t.Context(), value)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	deps := moduletest.NewHost(t).Deps()
	m, err := New(cfg)(t.Context(), deps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(context.Background()) })
	return fixture{t, m, cfg.Tree}
}

// call gives a result as text, or that of a refusal.
func (d fixture) call(name string, args any) string {
	d.t.Helper()
	res, err := moduletest.NewCall(d.t, args).Tool(d.t.Context(), moduletest.Tool(d.t, d.m, name))
	if r, ok := errors.AsType[*tool.Refusal](err); ok {
		return string(r.Code) + ": " + r.Message
	}
	if err != nil {
		return "error: " + err.Error()
	}
	switch out := res.Structured.(type) {
	case dumpOut:
		if out.ID == "" {
			d.t.Errorf("%s %v has no revision", name, args)
		}
		return string(out.Value)
	case putOut:
		if v := d.tree.Read(state.Pointer{"public", "ui"}); out.ID == "" && v.Found {
			d.t.Errorf("%s %v has no revision", name, args)
		}
		return out.Pointer
	}
	return fmt.Sprint(res.Structured)
}

func TestADumpIsCutForItsCaller(t *testing.T) {
	d := newFixture(t, Config{See: func(_ tool.Caller, at state.Pointer) state.View {
		if at[len(at)-1] == "of" {
			return state.View{}
		}
		return state.View{Value: map[string]any{"cut": true}, Found: true, Revision: "r"}
	}})
	for args, want := range map[string]string{
		`{}`:                               `{"cut":true}`,
		`{"pointer":"/public/info"}`:       `{"cut":true}`,
		`{"pointer":"/public/info/of"}`:    `not_found: the state tree has no value at "/public/info/of"`,
		`{"pointer":""}`:                   "denied: only administrators whose credential",
		`{"pointer":"/private/host"}`:      "denied: only administrators whose credential",
		`{"pointer":"/publicX"}`:           "denied: only administrators whose credential",
		`{"pointer":"/"}`:                  "denied: only administrators whose credential",
		`{"pointer":"public"}`:             "invalid_arguments: ",
		`{"pointer":"/public/~2"}`:         "invalid_arguments: ",
		`{"pointer":"/public\u0000/x"}`:    "denied: only administrators whose credential",
		`{"pointer":"/public/../private"}`: `{"cut":true}`, // a member called "..", which See decides on
	} {
		if got := d.call("db_dump", args); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", args, got, want)
		}
	}
}

func TestAnAdministratorSeesAll(t *testing.T) {
	d := newFixture(t, Config{SeesAll: func(tool.Caller) bool { return true }})
	for args, want := range map[string]string{
		`{}`:                              `{"info":{"name":"lab","of":[1,2]}}`,
		`{"pointer":""}`:                  `{"private":{"host":{"id":"h1"}},"public":{"info":{"name":"lab","of":[1,2]}}}`,
		`{"pointer":"/private/host"}`:     `{"id":"h1"}`,
		`{"pointer":"/public/info/of/1"}`: `2`,
		`{"pointer":"/private/none"}`:     "not_found",
	} {
		if got := d.call("db_dump", args); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", args, got, want)
		}
	}
}

func TestAUserInterfaceKeepsValues(t *testing.T) {
	d := newFixture(t, Config{})
	for _, step := range []struct{ args, want, then string }{
		{`{"pointer":"/theme/colour","value":"blue"}`, "/public/ui/theme/colour", `{"theme":{"colour":"blue"}}`},
		{
			`{"pointer":"/theme/size","value":12345678901234567890}`, "/public/ui/theme/size",
			`{"theme":{"colour":"blue","size":12345678901234567890}}`,
		},
		{
			`{"pointer":"/a~1b","value":[1]}`, "/public/ui/a~1b",
			`{"a/b":[1],"theme":{"colour":"blue","size":12345678901234567890}}`,
		},
		{
			`{"pointer":"/a~1b/-","value":null}`, "/public/ui/a~1b/-",
			`{"a/b":[1,null],"theme":{"colour":"blue","size":12345678901234567890}}`,
		},
		{
			`{"pointer":"/a~1b/0","value":{"x":[]}}`, "/public/ui/a~1b/0",
			`{"a/b":[{"x":[]},null],"theme":{"colour":"blue","size":12345678901234567890}}`,
		},
		{`{"pointer":"/theme","remove":true}`, "/public/ui/theme", `{"a/b":[{"x":[]},null]}`},
		{`{"pointer":"/a~1b/0","remove":true}`, "/public/ui/a~1b/0", `{"a/b":[null]}`},
		{`{"pointer":"/theme","remove":true}`, `not_found: there is no value at "theme"`, `{"a/b":[null]}`},
		{`{"pointer":"/a~1b/5","value":1}`, `not_found: there is no value at "5"`, `{"a/b":[null]}`},
		{`{"pointer":"/a~1b/00","value":1}`, `not_found: there is no value at "00"`, `{"a/b":[null]}`},
		{`{"pointer":"","value":{"n":1}}`, "/public/ui", `{"n":1}`},
		{`{"pointer":"/n/x","value":1}`, "invalid_arguments: the value before \"x\"", `{"n":1}`},
		{`{"pointer":"","value":[1]}`,
			"invalid_arguments: the value of /public/ui itself must be an object", `{"n":1}`},
		{`{"pointer":"/x"}`, "invalid_arguments: give either", `{"n":1}`},
		{`{"pointer":"/x","value":1,"remove":true}`, "invalid_arguments: give either", `{"n":1}`},
		{`{"pointer":"x","value":1}`, "invalid_arguments: ", `{"n":1}`},
		{`{"pointer":"/public/ui/x","value":1}`, "invalid_arguments: pointer is relative to /public/ui", `{"n":1}`},
		{`{"pointer":"` + strings.Repeat("/d", 70) + `","value":1}`, "invalid_arguments: ", `{"n":1}`},
		{`{"pointer":"/big","value":"` + strings.Repeat("x", maxValue) + `"}`, "too_large: ", `{"n":1}`},
		{`{"pointer":"","remove":true}`, "/public/ui", `{}`},
	} {
		if got := d.call("db_put_ui", step.args); !strings.HasPrefix(got, step.want) {
			t.Errorf("%.80s: %s, want %s", step.args, got, step.want)
		}
		if got := d.call("db_dump", `{"pointer":"/public/ui"}`); got != step.then {
			t.Errorf("after %.80s: %s, want %s", step.args, got, step.then)
		}
	}
}

func TestAllThatIsKeptHasALimit(t *testing.T) {
	d := newFixture(t, Config{})
	part := strings.Repeat("x", maxValue-10)
	for i := range 3 {
		if got := d.call("db_put_ui",
			map[string]any{"pointer": fmt.Sprintf("/p%d", i), "value": part}); got != fmt.Sprintf(
			"/public/ui/p%d",
			i,
		) {
			t.Errorf("part %d: %s", i, got)
		}
	}
	d.call("db_put_ui", map[string]any{"pointer": "/p3", "value": part})
	if got := d.call("db_put_ui", map[string]any{"pointer": "/last", "value": part}); !strings.HasPrefix(
		got, "too_large: the values below /public/ui would have",
	) {
		t.Errorf("one too many: %s", got)
	}
}

// A value counts as what it is, not as how its caller or the encoder writes it.
func TestEscapesDoNotCount(t *testing.T) {
	d := newFixture(t, Config{})
	for name, value := range map[string]string{
		"html":   `"` + strings.Repeat("<", maxValue-10) + `"`,
		"escape": `"` + strings.Repeat(`\u0078`, maxValue-10) + `"`,
		"blanks": strings.Repeat(" ", maxValue) + "1",
	} {
		if got := d.call("db_put_ui", `{"pointer":"/`+name+`","value":`+value+`}`); got != "/public/ui/"+name {
			t.Errorf("%s: %.200s", name, got)
		}
	}
	over := `{"pointer":"/over","value":"` + strings.Repeat(`\u00fc`, maxValue/2) + `"}`
	if got := d.call("db_put_ui", over); !strings.HasPrefix(got, "too_large: the value has 262146 bytes") {
		t.Errorf("got %.200s", got)
	}
}

func TestOnlyThoseWhoRuleWrite(t *testing.T) {
	d := newFixture(t, Config{Rules: func(tool.Caller) bool { return false }})
	if got := d.call("db_put_ui", `{"pointer":"/x","value":1}`); !strings.HasPrefix(got, "denied: ") {
		t.Error(got)
	}
}

// What is put somewhere is found there, and nothing else has changed.
func FuzzPlaced(f *testing.F) {
	f.Add(`{"a":[1,{"b":2}]}`, "/a/1/b", `"x"`, false)
	f.Add(`{"a":[1,2]}`, "/a/-", `[]`, false)
	f.Add(`{"a":[1,2]}`, "/a/0", `null`, true)
	f.Fuzz(func(t *testing.T, tree, at, value string, remove bool) {
		var old, v any
		p, err := state.ParsePointer(at)
		if json.Unmarshal([]byte(tree), &old) != nil || json.Unmarshal([]byte(value), &v) != nil || err != nil ||
			len(p) == 0 || len(p) > 50 {
			t.Skip()
		}
		before, _ := json.Marshal(old)
		now, err := setAt(old, p, v, remove)
		if after, _ := json.Marshal(old); string(after) != string(before) {
			t.Fatalf("%s became %s", before, after)
		}
		if err != nil || remove || p[len(p)-1] == "-" {
			return
		}
		for _, name := range p {
			switch c := now.(type) {
			case map[string]any:
				now = c[name]
			case []any:
				if name == "-" {
					name = fmt.Sprint(len(c) - 1)
				}
				var i int
				fmt.Sscan(name, &i)
				now = c[i]
			}
		}
		got, _ := json.Marshal(now)
		want, _ := json.Marshal(v)
		if string(got) != string(want) {
			t.Errorf("%s at %s: %s, want %s", tree, at, got, want)
		}
	})
}
