package packages

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/packages/packagestest"
)

func declared(t *testing.T, name, how string) Declared {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Declared{Name: name, Command: program, Env: packagestest.Environment(how)}
}

func actions(steps []Step) (all []string) {
	for _, s := range steps {
		what := s.Action + " " + s.ID
		if s.Error != "" {
			what += " failed"
		}
		all = append(all, what)
	}
	return all
}

// Apply installs, changes and removes what the settings say, step by step, and leaves
// other packages alone.
func TestDeclaredPackagesAreApplied(t *testing.T) {
	h := openHome(t, Options{})
	h.install(server(t, "mine", "good"))
	a, b, bad := declared(t, "alpha", "good"), declared(t, "beta", "good"), declared(t, "gamma", "good")
	bad.Command = filepath.Join(t.TempDir(), "missing")
	apply := func(want []string, all ...Declared) {
		t.Helper()
		planned, err := h.Steps(all, "")
		if err != nil {
			t.Fatal(err)
		}
		steps, _ := h.Apply(t.Context(), all, Part{}, nil)
		if got := actions(steps); !slices.Equal(got, want) || len(planned) != len(steps) {
			t.Errorf("did %q, want %q, planned %q", got, want, actions(planned))
		}
	}
	apply([]string{"install alpha", "install beta", "install gamma failed"}, a, b, bad)
	apply(nil, a, b)
	if _, err := h.call("alpha", "echo", `{"text":"a"}`); err != nil {
		t.Error(err)
	}

	// A change of the record alone does not stop the server; another environment does.
	was, err := h.Info("alpha")
	if err != nil || was.PID == 0 {
		t.Fatalf("%+v, %v", was, err)
	}
	a.Off, a.Title = []string{"alpha_raw"}, "First"
	apply([]string{"set alpha"}, a, b)
	if now, _ := h.Info("alpha"); now.PID != was.PID || now.Public.Title != "First" ||
		slices.Contains(now.Names, "alpha_raw") {
		t.Errorf("now %+v", now)
	}
	a.Env = packagestest.Environment("good")
	a.Env["SOME"] = "value-of-it"
	if steps, err := h.Steps([]Declared{a, b}, ""); err != nil || len(steps) != 1 || steps[0].Action != ToUpdate ||
		!slices.Contains(steps[0].Lines, "+ env SOME: set") ||
		strings.Contains(strings.Join(steps[0].Lines, ""), "value-of-it") {
		t.Errorf("planned %+v, %v", steps, err)
	}
	apply([]string{"update alpha"}, a, b)

	// A package that was installed by hand becomes one of the settings when they name it.
	mine := declared(t, "mine", "good")
	apply([]string{"set mine"}, a, b, mine)
	data := filepath.Join(h.opts.Folder, "alpha", "data", "kept")
	if err := os.WriteFile(data, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	apply([]string{"remove alpha", "remove mine"}, b)
	if _, err := os.Stat(data); err != nil {
		t.Errorf("its data are gone: %v", err)
	}
	if _, err := h.Steps([]Declared{a, a}, ""); err == nil {
		t.Error("a package may be declared twice")
	}
}

// A host applies what its settings declare when it runs, and when they change.
func TestAHostAppliesItsSettings(t *testing.T) {
	failed := make(chan error, 1)
	h := openHome(t, Options{Lazy: true, Unapplied: func(why error) { failed <- why }})
	h.Declare([]Declared{declared(t, "alpha", "good")})
	go h.Run(t.Context())
	h.eventually("it is installed", func() bool { return slices.Contains(h.names(), "alpha_echo") })
	bad := declared(t, "beta", "good")
	bad.Command = filepath.Join(t.TempDir(), "missing")
	h.Declare([]Declared{bad})
	if err := <-failed; !strings.Contains(err.Error(), "beta") {
		t.Errorf("told %v", err)
	}
	h.eventually("the other is removed", func() bool { return len(h.names()) == 0 })
}

// Two hosts with settings of their own use one folder one after the other: the second
// changes and removes nothing that the first declared, while the first's file exists.
func TestHostsDoNotUndoEachOthersSettings(t *testing.T) {
	file := func(name string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	first, second := file("first.yaml"), file("second.yaml")
	a, b := declared(t, "alpha", "good"), declared(t, "beta", "good")
	h := openHome(t, Options{SettingsFile: first})
	run := func(as string, all ...Declared) []string {
		t.Helper()
		h.opts.SettingsFile = as
		steps, err := h.applySteps(t.Context(), all, Part{}, h.declaredElsewhere, nil)
		if err != nil {
			t.Fatal(err)
		}
		return actions(steps)
	}
	if got := run(first, a, b); !slices.Equal(got, []string{"install alpha", "install beta"}) {
		t.Fatalf("the first did %q", got)
	}
	if got := run(second, declared(t, "gamma", "good")); !slices.Equal(got, []string{"install gamma"}) {
		t.Errorf("the second did %q", got)
	}
	other := a
	other.Title = "Changed"
	if got := run(second, other, declared(t, "gamma", "good")); len(got) > 0 {
		t.Errorf("the second, with another alpha, did %q", got)
	}
	if got := run("", nil...); len(got) > 0 {
		t.Errorf("a host without a file did %q", got)
	}
	if got := run(first, a); !slices.Equal(got, []string{"remove beta"}) {
		t.Errorf("the first removes its own: %q", got)
	}
	if err := os.Remove(first); err != nil {
		t.Fatal(err)
	}
	if got := run(second, declared(t, "gamma", "good")); !slices.Equal(got, []string{"remove alpha"}) {
		t.Errorf("the second, without the first's file, did %q", got)
	}
}
