package contextadmin

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/module"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

// newFixture returns the module with a store in memory.
func newFixture(t *testing.T) (*contextstore.Store, func(name, args string) (string, error)) {
	t.Helper()
	fixed := []contextstore.Record{
		{
			Name:       "default",
			Fixed:      true,
			Definition: contextstore.Definition{Description: "What everyone gets.", Modules: []string{"file"}},
		},
	}
	store, err := contextstore.Open("", contextstore.Options{Fixed: func(n string) bool { return n == "default" }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	m, err := New(Options{Store: store, Fixed: func() []contextstore.Record { return fixed }})(
		t.Context(), module.Deps{},
	)
	if err != nil {
		t.Fatal(err)
	}
	offer, err := m.Offer(t.Context(), module.Audience{})
	if err != nil {
		t.Fatal(err)
	}
	return store, func(name, args string) (string, error) {
		i := slices.IndexFunc(offer.Tools, func(one tool.Tool) bool { return one.Name == "context_"+name })
		res, err := moduletest.NewCall(t, args).Tool(t.Context(), offer.Tools[i])
		raw, _ := json.Marshal(res.Structured)
		return string(raw), err
	}
}

func TestWhatAnAdministratorIsTold(t *testing.T) {
	store, do := newFixture(t)
	for _, step := range []struct{ name, args, want string }{
		{"list", `{}`, `{"contexts":[{"name":"default","description":"What everyone gets.","fixed":true}]}`},
		{"create", `{"name":"dev","description":"For developers.","modules":[],"roles":["dev"]}`, `"revision":1`},
		{"create", `{"name":"dev"}`, `exists: the context dev exists already`},
		{"create", `{"name":"Dev"}`, `invalid_arguments: name: "Dev": expected`},
		{"create", `{"name":"default"}`, `denied: the context default is defined by the host`},
		{"list", `{}`, `{"name":"dev","description":"For developers.","roles":["dev"],"revision":1`},
		{"get", `{"name":"dev"}`, `"modules":[]`},
		{
			"get", `{"name":"default"}`,
			`{"name":"default","description":"What everyone gets.","modules":["file"],"fixed":true,"revision":0}`,
		},
		{"get", `{"name":"none"}`, `not_found: there is no context none`},
		{"update", `{"name":"dev","tools":["file_*"],"revision":1}`, `"tools":["file_*"]`},
		{"update", `{"name":"dev","tools":["x"],"revision":1}`, `stale: the context dev was changed by another caller`},
		{"update", `{"name":"dev","clear":["modules","tools"]}`, `"roles":["dev"]`},
		{"update", `{"name":"dev","clear":["name"]}`, `invalid_arguments: clear: there is no member "name"`},
		{"update", `{"name":"dev","tools":[],"clear":["tools"]}`, `clear: tools is given as well`},
		{"update", `{"name":"dev","style":"slash"}`, `invalid_arguments: style: "slash": expected`},
		{"update", `{"name":"none"}`, `not_found`},
		{"delete", `{"name":"default"}`, `denied`},
		{"delete", `{"name":"dev"}`, `{"deleted":"dev"}`},
		{"delete", `{"name":"dev"}`, `not_found`},
	} {
		got, err := do(step.name, step.args)
		if err != nil {
			got = err.Error()
			if _, ok := errors.AsType[*tool.Refusal](err); !ok {
				t.Errorf("%s %s: %v is nothing a model can act on", step.name, step.args, err)
			}
		}
		if !strings.Contains(got, step.want) {
			t.Errorf("%s %s: got %s, want %s in it", step.name, step.args, got, step.want)
		}
		if step.name == "update" && strings.Contains(step.args, `"modules"`) &&
			store.Current().Find("dev").Modules != nil {
			t.Error("modules were not cleared")
		}
	}
	if by := store.Current().Find("dev"); by != nil {
		t.Errorf("%+v is left", by)
	}
}
