package app

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/access/audit"
	"gatehouse/internal/config"
)

// limited waits until this many calls run and this many wait.
func limited(t *testing.T, a *App, running, waiting int) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		s := a.limits.Stats()
		if s.Running == running && s.Waiting == waiting {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d calls run and %d wait, want %d and %d", s.Running, s.Waiting, running, waiting)
		}
	}
}

// Limits of a context apply to it alone and can change while calls wait, and the change is recorded.
func TestAContextHoldsItsCallersToItsLimits(t *testing.T) {
	a, client := live(t)
	admin, ann := client("root", "admin"), client("ann")
	gate := filepath.Join(t.TempDir(), "gate")
	expect(
		t,
		admin.call("admin", "context_create", `{"name":"small","modules":["file"],"limits":{"calls":1},"own_tools":[
		{"name":"pass","description":"Ends when the gate is open.","effects":["reads"],"command":{"path":"sh","args":["-c","until [ -e `+gate+` ]; do sleep 0.05; done"]}}]}`),
		`\"limits\":{\"calls\":1}`,
	)
	answers := make(chan string, 10)
	for i := range 5 {
		c := client(fmt.Sprint("user", i))
		go func() { answers <- c.call("small", "pass", `{}`) }()
	}
	limited(t, a, 1, 4)
	expect(t, ann.call("default", "file_exists", `{"path":"."}`), `"exists":true`)
	expect(t, admin.call("admin", "context_update", `{"name":"small","limits":{"calls":3}}`), `\"calls\":3`)
	limited(t, a, 3, 2)
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		expect(t, <-answers, `"text":""`)
	}

	admin.call("admin", "context_update", `{"name":"small","limits":{"rate":0.001,"burst":2}}`)
	for range 2 {
		expect(t, ann.call("small", "file_exists", `{"path":"."}`), `"exists":true`)
	}
	expect(t, ann.call("small", "file_exists", `{"path":"."}`), "busy: too many calls in this context", "Try again in")
	expect(t, ann.call("default", "file_exists", `{"path":"."}`), `"exists":true`)
	expect(t, client("bob").call("small", "file_exists", `{"path":"."}`), `"exists":true`)
	if s := a.limits.Stats(); s.TooSoon != 1 {
		t.Errorf("the metrics count %d that came too soon, want 1", s.TooSoon)
	}
	expect(
		t,
		admin.call("admin", "context_update", `{"name":"small","limits":{"calls":-1}}`),
		"invalid_arguments",
		"limits",
	)
	expect(t, admin.call("admin", "context_update", `{"name":"small","clear":["limits"]}`), `\"revision\":4`)
	expect(t, ann.call("small", "file_exists", `{"path":"."}`), `"exists":true`)

	if err := a.ledger.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	changes := map[string]int{}
	for line, err := range a.ledger.Query(t.Context(), audit.Filter{Tool: "context_update"}) {
		if err != nil {
			t.Fatal(err)
		}
		changes[line.Outcome]++
		if !strings.Contains(string(line.Args), "small") || line.Principal != "root" {
			t.Errorf("a change is written down as %+v", line)
		}
	}
	if changes[audit.OK] != 3 || changes[audit.Refused] != 1 {
		t.Errorf("the ledger holds %v, want 3 changes and one that was refused", changes)
	}
}

// New settings change the limits of contexts without a restart.
func TestLimitsOfContextsFollowTheSettings(t *testing.T) {
	cfg := settings(t)
	with := func(l config.ContextLimits) config.Config {
		next := cfg
		next.Contexts = []config.Context{
			{Name: "small", Modules: []string{"file"}, Limits: l},
			{Name: "large", Modules: []string{"file"}},
		}
		return next
	}
	a, client := liveOn(t, with(config.ContextLimits{Rate: 0.001, Burst: 1}), Options{})
	ann := client("ann")
	call := func(in string) string { return ann.call(in, "file_exists", `{"path":"."}`) }
	expect(t, call("small"), `"exists":true`)
	expect(t, call("small"), "busy: too many calls in this context")
	expect(t, call("large"), `"exists":true`)
	live, restart, err := a.Reload(with(config.ContextLimits{Rate: 1e6}))
	if err != nil || strings.Join(live, " ") != "contexts" || restart != nil {
		t.Fatalf("reload: %v, live %v, restart %v", err, live, restart)
	}
	for range 5 {
		expect(t, call("small"), `"exists":true`)
	}
	if _, _, err := a.Reload(with(config.ContextLimits{Rate: 0.001, Burst: 1})); err != nil {
		t.Fatal(err)
	}
	expect(t, call("small"), `"exists":true`)
	expect(t, call("small"), "busy: too many calls in this context")
}
