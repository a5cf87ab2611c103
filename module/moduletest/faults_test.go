package moduletest

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"gatehouse/module"
	"gatehouse/tool"
)

func nothing(context.Context, *tool.Call) (tool.Result, error) { return tool.Result{}, nil }

func sound(name string) tool.Tool {
	return tool.Tool{Def: tool.Def{Name: name, Description: "Does nothing."}, Run: nothing}
}

func TestFaultsOfDefinitionsAreFound(t *testing.T) {
	with := func(change func(*tool.Tool)) *module.Offer {
		x := sound("a")
		change(&x)
		return &module.Offer{Tools: []tool.Tool{x}}
	}
	for want, o := range map[string]*module.Offer{
		"offered twice":     {Tools: []tool.Tool{sound("a"), sound("a")}},
		"a name is":         with(func(x *tool.Tool) { x.Name = "a:b" }),
		"no handler":        with(func(x *tool.Tool) { x.Run = nil }),
		"no description":    with(func(x *tool.Tool) { x.Description = "" }),
		"input schema must": with(func(x *tool.Tool) { x.Input = json.RawMessage(`[]`) }),
		"want a struct": {Tools: []tool.Tool{tool.New(tool.Def{Name: "a", Description: "Does."},
			func(context.Context, *tool.Call, int) (int, error) { return 0, nil })}},
		"output of type": {Tools: []tool.Tool{tool.New(tool.Def{Name: "a", Description: "Does."},
			func(context.Context, *tool.Call, struct{}) (struct{ C chan int }, error) { panic("not called") })}},
		"inputSchema must be":  with(func(x *tool.Tool) { x.Raw = json.RawMessage(`{"name":"a"}`) }),
		"begins with a scheme": {Resources: []module.Resource{{URI: "a/b", Name: "b", Read: nothing}}},
		"variable in braces":   {Templates: []module.Resource{{URI: "a:///b", Name: "b", Read: nothing}}},
		"name of its own": {Prompts: []module.Prompt{{Name: "p", Description: "d", Get: nothing,
			Args: []module.PromptArg{{Name: "x"}, {Name: "x"}}}}},
		"must be a JSON object": {Extensions: map[string]json.RawMessage{"x": json.RawMessage("1")}},
		"told so":               with(func(x *tool.Tool) { x.Title = "checked" }),
	} {
		errs := faults(o, func(x tool.Tool) error {
			if x.Title == "checked" {
				return errors.New("told so")
			}
			return nil
		})
		if got := errors.Join(errs...); len(errs) != 1 || !strings.Contains(got.Error(), want) {
			t.Errorf("got %v, want one fault: %s", got, want)
		}
	}
	if errs := faults(&module.Offer{Tools: []tool.Tool{sound("a"), sound("b")}}, nil); errs != nil {
		t.Errorf("a sound offer has faults: %v", errs)
	}
}

// careless are modules that break the contract, by what the suite says of it.
var careless = map[string]module.New{
	"changed without Deps.Changed": func(context.Context, module.Deps) (module.Module, error) {
		return &restless{}, nil
	},
	"an offer that was given became another": func(context.Context, module.Deps) (module.Module, error) {
		m := &module.Offer{Tools: []tool.Tool{sound("a")}}
		m.Tools[0].Run = func(context.Context, *tool.Call) (tool.Result, error) {
			m.Tools[0].Title += "x"
			return tool.Result{}, nil
		}
		return fixed{m}, nil
	},
	"say so with Personal": func(context.Context, module.Deps) (module.Module, error) { return secretive{}, nil },
	"panic: nobody there": Fixed(
		&module.Offer{
			Tools: []tool.Tool{{Def: sound("a").Def, Run: func(context.Context, *tool.Call) (tool.Result, error) {
				panic("nobody there")
			}}},
		},
	),
	"ErrAsked without having asked": Fixed(
		&module.Offer{
			Tools: []tool.Tool{{Def: sound("a").Def, Run: func(context.Context, *tool.Call) (tool.Result, error) {
				return tool.Result{}, tool.ErrAsked
			}}},
		},
	),
	"left after Close": func(context.Context, module.Deps) (module.Module, error) {
		go func() { time.Sleep(time.Minute) }()
		return fixed{&module.Offer{}}, nil
	},
	"close: stuck": func(context.Context, module.Deps) (module.Module, error) { return stuck{}, nil },
}

type restless struct{}

func (r *restless) Offer(context.Context, module.Audience) (*module.Offer, error) {
	x := sound("a")
	x.Title = time.Now().String()
	return &module.Offer{Tools: []tool.Tool{x}}, nil
}
func (*restless) Close(context.Context) error { return nil }

type secretive struct{}

func (secretive) Offer(_ context.Context, a module.Audience) (*module.Offer, error) {
	return &module.Offer{Tools: []tool.Tool{sound("for_" + a.Principal)}}, nil
}
func (secretive) Close(context.Context) error { return nil }

type stuck struct{}

func (stuck) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &module.Offer{}, nil
}
func (stuck) Close(context.Context) error { return errors.New("stuck") }

// A broken module fails the suite, and the suite says why. It runs in a
// process of its own, because a test that must fail fails its parents.
func TestBrokenModulesAreFound(t *testing.T) {
	if which := os.Getenv("MODULETEST_CARELESS"); which != "" {
		Run(t, careless[which], Options{})
		return
	}
	for want := range careless {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestBrokenModulesAreFound$")
			cmd.Env = append(os.Environ(), "MODULETEST_CARELESS="+want)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), want) {
				t.Errorf("the suite passes it, or does not say %q: %v\n%s", want, err, out)
			}
		})
	}
}
