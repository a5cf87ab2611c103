package app

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"gatehouse/internal/access/identity"
	"gatehouse/internal/config"
)

// What is made in a context with a team is its members', whoever of them made it: also after that one has been removed.
// It is nobody else's, and what a member makes elsewhere stays the member's own.
//
//redteam:attack What is not yours is not there: a caller who is not of a team, and a member outside of its context
func TestATeamOwnsWhatItsMembersMake(t *testing.T) {
	cfg := settings(t)
	cfg.View.Modules = []string{"process", "brain"}
	lab := []string{"process", "long", "brain"}
	cfg.Contexts = []config.Context{
		{Name: "default", Modules: lab},
		{Name: "lab", Modules: lab, Roles: []string{"research"}, Team: "research"},
		{Name: "office", Modules: lab, Roles: []string{"research"}, Team: "research"},
	}
	cancelled := make(chan struct{})
	a, client := liveOn(t, cfg, Options{Extra: []Module{longJob(cancelled)}})
	if err := a.who.AddUser(t.Context(), "ann", []string{"research"}, ""); err != nil {
		t.Fatal(err)
	}
	ann, bob, eve := client("ann", "research"), client("bob", "research"), client("eve")
	start := `{"command":"sleep","args":["1000"]}`
	if runtime.GOOS == "windows" {
		start = `{"command":"ping","args":["-n","1000","127.0.0.1"]}`
	}
	does := func(c *tenant, in, name, args string) string {
		t.Helper()
		c.meta = `"gatehouse/results":"structured",`
		defer func() { c.meta = "" }()
		r := c.toolResult(in, name, args)
		if r.IsError {
			t.Fatalf("%s in %s: %s", name, in, r.Content)
		}
		return string(r.StructuredContent)
	}
	id := func(of string) string {
		t.Helper()
		_, after, ok := strings.Cut(of, `"id":"`)
		if !ok {
			t.Fatalf("no id in %s", of)
		}
		return after[:strings.IndexByte(after, '"')]
	}
	shared, own := id(does(ann, "lab", "process_start", start)), id(does(ann, "default", "process_start", start))
	does(ann, "lab", "long_job", `{}`)
	does(ann, "lab", "brain_remember", `{"text":"The assay runs at 37 degrees.","subject":"assay"}`)

	if got := does(bob, "lab", "process_list", `{}`); !strings.Contains(got, shared) || strings.Contains(got, own) {
		t.Errorf("a member's list in the context of the team: %s", got)
	}
	if got := does(bob, "lab", "brain_recall", `{"question":"assay"}`); !strings.Contains(got, "37 degrees") {
		t.Errorf("a member recalls %s", got)
	}
	for _, in := range []string{"default", "office"} { // another context is another owner, of the same team or not
		if got := does(bob, in, "process_list", `{}`); strings.Contains(got, shared) || strings.Contains(got, own) {
			t.Errorf("a member's list in %s: %s", in, got)
		}
	}
	if got := does(eve, "default", "process_list", `{}`); strings.Contains(got, shared) {
		t.Errorf("who is not of the team is told %s", got)
	}
	kill := fmt.Sprintf(`{"id":%q}`, shared)
	for in, c := range map[string]*tenant{"lab": eve, "default": eve, "office": bob} {
		if got := c.call(in, "process_kill", kill); !strings.Contains(got, `"error"`) && !strings.Contains(got, `"isError":true`) {
			t.Errorf("the process of the team is killed from %s: %s", in, got)
		}
	}

	command, err := identity.Open(filepath.Join(cfg.Folders.Data, "identity.db"), identity.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer command.Close()
	if err := command.RemoveUser(t.Context(), "ann"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the host has ended what was ann's alone", func() bool {
		e, err := command.AwaitEndings(t.Context(), "ann")
		return err != nil || strings.Contains(strings.Join(e.Ended, "\n"), own)
	})
	if got := does(bob, "lab", "process_list", `{"running_only":true}`); !strings.Contains(got, shared) {
		t.Errorf("the team's process ended with the member who started it: %s", got)
	}
	does(bob, "lab", "process_kill", kill)
	if got := does(bob, "lab", "job_list", `{}`); !strings.Contains(got, "long") {
		t.Errorf("a member's jobs: %s", got)
	}
	does(bob, "lab", "job_cancel", fmt.Sprintf(`{"id":%q}`, id(does(bob, "lab", "job_list", `{}`))))
	<-cancelled
}
