package process

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

const token = "correct horse battery"

// withEnvironment is the module where the context lab has variables, one of
// them secret, and den another. folder keeps detached processes; "" is none.
func withEnvironment(t *testing.T, folder string) *fixture {
	t.Helper()
	host := moduletest.NewHost(t)
	deps := host.Deps()
	var c Config
	c.Folder = folder
	c.Env = func(who tool.Caller) (contextstore.Environment, error) {
		switch who.Context {
		case "lab":
			return contextstore.Environment{
				Plain:  map[string]string{"STAGE": "lab"},
				Secret: map[string]secret.Text{"TOKEN": secret.New(token)},
			}, nil
		case "den":
			return contextstore.Environment{Plain: map[string]string{"STAGE": "den"}}, nil
		case "broken":
			return contextstore.Environment{}, errors.New("there is no secret of the name LOST")
		}
		return contextstore.Environment{}, nil
	}
	m, err := New(c)(t.Context(), deps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(context.Background()) })
	return &fixture{t: t, m: m, host: host, dir: moduletest.Folder(t), context: "lab", as: "ann/lab"}
}

func script(s string, more args) args {
	in := args{"command": "sh", "args": []string{"-c", s}}
	maps.Copy(in, more)
	return in
}

// length shows that a secret has arrived without saying it.
const length = `echo "$STAGE ${#TOKEN}"`

func TestProgramsHaveTheEnvironmentOfTheirContext(t *testing.T) {
	d := withEnvironment(t, "")
	for _, x := range []struct {
		scope string
		env   []string
		want  string
	}{
		{"lab", nil, "lab 21\n"},
		{"den", nil, "den 0\n"},
		{"elsewhere", nil, " 0\n"},
		{"lab", []string{"STAGE=mine"}, "mine 21\n"},
	} {
		d.context, d.as = x.scope, "ann/"+x.scope
		if r := d.do("run", script(length, args{"env": x.env})); r.Output != x.want {
			t.Errorf("%s with %v: a run says %q, want %q", x.scope, x.env, r.Output, x.want)
		}
		id := d.do("start", script(length, args{"env": x.env})).ID
		if r := d.ended(id); r.Output != x.want {
			t.Errorf("%s with %v: a process says %q, want %q", x.scope, x.env, r.Output, x.want)
		}
	}
}

// Secrets of the context are hidden in what a program prints, also when they
// come in two parts, and on the screen of a terminal.
func TestSecretsOfTheContextAreHiddenInWhatIsPrinted(t *testing.T) {
	d := withEnvironment(t, "")
	// The first part is long enough to be held until the next comes, however late that is.
	const says = `echo "a $TOKEN b"; printf 'correct horse '; sleep 0.1; printf battery; echo; printf corr`
	const want = "a [secret] b\n[secret]\ncorr"
	if r := d.do("run", script(says, nil)); r.Output != want {
		t.Errorf("a run says %q", r.Output)
	}
	if r := d.ended(d.do("start", script("{ "+says+"; } >&2", nil)).ID); r.Output != want {
		t.Errorf("a process says %q", r.Output)
	}
	id := d.do("start", script(says, args{"terminal": true})).ID
	d.ended(id)
	if r := d.do("screen", args{"id": id}); !strings.HasPrefix(r.Screen, "a [secret] b\n[secret]\ncorr") {
		t.Errorf("the screen is %q", r.Screen)
	}
}

// What a detached process prints is hidden as well, by the next host too.
func TestSecretsAreHiddenInWhatADetachedProcessPrints(t *testing.T) {
	folder := t.TempDir()
	d := withEnvironment(t, folder)
	const want = "a [secret] b\n"
	id := d.detach(`echo "a $TOKEN b"; while :; do sleep 0.1; done`)
	if r := d.reads(id, "b\n"); r.Output != want {
		t.Errorf("it says %q", r.Output)
	}
	if err := d.m.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	d = withEnvironment(t, folder)
	if r := d.reads(id, "b\n"); r.Output != want || r.Status != "running" {
		t.Errorf("to the next host it says %+v", r)
	}
	d.do("kill", args{"id": id})
	if err := d.m.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	d = withEnvironment(t, folder)
	if r := d.ended(id); r.Output != want {
		t.Errorf("after its end it says %q", r.Output)
	}
}

func TestNothingStartsWithoutTheSecretsOfItsContext(t *testing.T) {
	d := withEnvironment(t, "")
	d.context = "broken"
	for _, name := range []string{"run", "start"} {
		if _, code := d.try(name, args{"command": "true"}); code != "unavailable" {
			t.Errorf("%s: %q", name, code)
		}
	}
}
