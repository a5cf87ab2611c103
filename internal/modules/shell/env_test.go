package shell

import (
	"context"
	"errors"
	"strings"
	"testing"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

const token = "correct horse battery"

// rooms gives the context lab variables, one of them secret, and den another.
func rooms(who tool.Caller) (contextstore.Environment, error) {
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

// in runs a command in a context.
func in(t *testing.T, scope, config string, arguments args) (runOut, *moduletest.Peer, error) {
	t.Helper()
	needShell(t)
	deps := moduletest.NewHost(t).Deps()
	var cfg Config
	cfg.Env, cfg.Confine = rooms, config == "confine"
	m, err := New(cfg)(t.Context(), deps)
	if err != nil && strings.Contains(err.Error(), "this machine cannot confine commands") {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(context.Background()) })
	c := moduletest.NewCall(t, arguments)
	c.Roots, c.Caller.Context = moduletest.Folder(t), scope
	res, err := c.Tool(t.Context(), moduletest.Tool(t, m, "shell_run"))
	out, _ := res.Structured.(runOut)
	return out, c.Peer, err
}

// length shows that a secret has arrived without saying it.
const length = `echo "$STAGE ${#TOKEN}"`

func TestCommandsHaveTheEnvironmentOfTheirContext(t *testing.T) {
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
		r, _, err := in(t, x.scope, "", args{"command": length, "env": x.env})
		if err != nil || r.Stdout != x.want {
			t.Errorf("%s with %v: got %+v %v, want %q", x.scope, x.env, r, err, x.want)
		}
	}
}

func TestAConfinedCommandHasItToo(t *testing.T) {
	r, _, err := in(t, "lab", "confine", args{"command": length + `; echo "$TOKEN"`, "env": []string{"STAGE=mine"}})
	if err != nil || r.Stdout != "mine 21\n[secret]\n" {
		t.Errorf("got %+v %v", r, err)
	}
}

// Secrets of the context are in no stream of the answer, nor in what can be
// read while the command runs and afterwards, however they were printed.
func TestSecretsOfTheContextAreHiddenInOutput(t *testing.T) {
	r, peer, err := in(
		t,
		"lab",
		"",
		args{
			"command": `echo "a $TOKEN b"; printf correct\ ; sleep 0.1; printf 'horse battery'; echo "$TOKEN" >&2; seq 20000; printf corr`,
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(r.Stdout, "a [secret] b\n[secret]1\n2\n") || !strings.HasSuffix(r.Stdout, "20000\ncorr") ||
		r.Stderr != "[secret]\n" {
		t.Errorf("got %.100q and %q", r.Stdout, r.Stderr)
	}
	if printed := string(peer.Printed); strings.Contains(printed, token) ||
		!strings.Contains(printed, "a [secret] b\n") || !strings.Contains(printed, "\n20000\ncorr") {
		t.Errorf("on the way there was %.100q", printed)
	}
}

func TestNothingRunsWithoutTheSecretsOfItsContext(t *testing.T) {
	_, _, err := in(t, "broken", "", args{"command": "true"})
	if no, ok := errors.AsType[*tool.Refusal](err); !ok || no.Code != "unavailable" ||
		!strings.Contains(no.Message, "LOST") {
		t.Errorf("got %v", err)
	}
}
