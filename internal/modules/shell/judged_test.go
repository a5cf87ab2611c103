package shell

import (
	"encoding/json"
	"os"
	"strings"
	"sync"
	"testing"

	"gatehouse/internal/exec/supervisor"
	"gatehouse/module/moduletest"
)

// listing is a fixture with lists whose programs the kernel reports, and the facts that it publishes.
func listing(t *testing.T, config string) (d *fixture, facts func() string) {
	t.Helper()
	needShell(t)
	if err := supervisor.Available(t.Context()); err != nil {
		t.Skip(err)
	}
	h := moduletest.NewHost(t)
	deps := h.Deps()
	var mu sync.Mutex
	var said strings.Builder
	deps.Publish = func(subject string, fact any) {
		b, err := json.Marshal(fact)
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		said.WriteString(subject + " " + string(b) + "\n")
	}
	m, err := New(configOf(t, config))(t.Context(), deps)
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{t: t, m: m, dir: moduletest.Folder(t)}, func() string {
		mu.Lock()
		defer mu.Unlock()
		return said.String()
	}
}

// What a line hides from a reader is refused when it is started, and the result says what was refused.
func TestTheKernelsReportDecides(t *testing.T) {
	d, facts := listing(t, `{"deny":["rm"]}`)
	victim := d.path("victim")
	if err := os.WriteFile(victim, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	const line = `awk 'BEGIN{system("rm victim")}'; i=0; while [ $i -lt 3 ]; do /bin/true x; i=$((i+1)); done`
	r := d.run(line)
	if len(r.Refused) != 1 || !strings.Contains(r.Refused[0], ` may not run rm: the pattern "rm" denies it`) ||
		!strings.HasSuffix(r.Facts(), "["+r.Refused[0]+"]") || r.ExitCode != 0 {
		t.Errorf("%+v", r)
	}
	if _, err := os.Stat(victim); err != nil {
		t.Error(err)
	}
	for _, want := range []string{
		`program.started {"principal":`, `"outcome":"ok","program":"/usr/bin/true","argv":["/bin/true","x"],"parent":`,
		`"argv":["/bin/true","x"],"parent":"dash","times":3}`,
		`program.refused {`, `"outcome":"denied","reason":"the pattern \"rm\" denies it","rule":"rm",`,
	} {
		if !strings.Contains(strings.ReplaceAll(facts(), `"parent":"bash"`, `"parent":"dash"`), want) {
			t.Errorf("no %s in\n%s", want, facts())
		}
	}
	res, _, err := d.call(t.Context(), "system", args{"command": line})
	if err != nil || !strings.Contains(res.Structured.(systemOut).Output, `denies it]`) {
		t.Errorf("%+v, %v", res, err)
	}
	res, _, err = d.call(t.Context(), "execute_command", args{"command": line})
	if err != nil || !strings.Contains(res.Structured.(executeOut).Output, `denies it]`) {
		t.Errorf("%+v, %v", res, err)
	}
	if got := d.refusal("run", args{"command": "ls; rm victim"}); got != codeDenied {
		t.Errorf("what can be read is refused early: got %q", got)
	}
}

// A line with lists writes in the folders of its caller, and elsewhere only where the settings say so.
func TestALineWithListsIsConfined(t *testing.T) {
	d, _ := listing(t, `{"deny":["rm"]}`)
	outside, err := os.MkdirTemp("/var", "gatehouse-test-")
	if err != nil {
		t.Skip(err)
	}
	defer os.RemoveAll(outside)
	line := "touch inside; touch " + outside + "/x"
	if r := d.run(line); r.ExitCode == 0 {
		t.Errorf("%+v", r)
	}
	if _, err := os.Stat(d.path("inside")); err != nil {
		t.Error(err)
	}
	for _, where := range []string{outside, "/"} {
		if d, _ := listing(t, `{"deny":["rm"],"Writable":["`+where+`"]}`); d.run(line).ExitCode != 0 {
			t.Errorf("%s is not writable", where)
		}
	}
}

// Where the kernel reports nothing, what may run other programs is refused.
func TestWithoutReportsListsAreHints(t *testing.T) {
	const line = `git -c alias.x='!rm victim' x`
	d, _ := listing(t, `{"deny":["rm"]}`)
	if got := d.refusal("run", args{"command": line}); got != "" {
		t.Errorf("with reports: got %q", got)
	}
	m := d.m.(*runner)
	m.hints = "this test says so"
	for _, line := range []string{line, "python3 -c 'import os'"} {
		if got := d.refusal("run", args{"command": line}); got != codeDenied {
			t.Errorf("without reports: %s: got %q", line, got)
		}
	}
	confined := confining(t, `{"deny":["rm"],"confine":true}`)
	confined.m.(*runner).hints = "this test says so"
	if got := confined.refusal("run", args{"command": line}); got != codeDenied {
		t.Errorf("confined: got %q", got)
	}
}

// The result says that sudo and its like have no privileges in a line, except to root, who loses nothing.
func TestAResultSaysThatProgramsHaveNoPrivileges(t *testing.T) {
	r := supervisor.Report{Programs: []supervisor.Program{
		{Path: "/usr/bin/sudo", Privileged: true}, {Path: "/usr/bin/sudo", Privileged: true}, {Path: "/bin/ls"},
	}}
	if got := notes(r, false); len(got) != 1 || !strings.HasPrefix(got[0], "sudo has no privileges here") {
		t.Errorf("%q", got)
	}
	if got := notes(r, true); len(got) != 0 {
		t.Errorf("as root: %q", got)
	}
}
