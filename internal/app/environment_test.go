package app

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/access/audit"
	"gatehouse/internal/access/secret"
	"gatehouse/internal/config"
	"gatehouse/internal/dispatch/contextstore"
)

// A program that runs in a context of the settings or of the store gets the environment variables of that context
// and of no other, with the secrets filled in. The secrets appear neither in answers nor in the ledger.
func TestProgramsFindTheEnvironmentOfTheirContext(t *testing.T) {
	needShell(t)
	const token = "correct horse battery"
	cfg := settings(t)
	if err := secret.In(cfg.Folders.Config, "").Set("DEPLOY", secret.New(token)); err != nil {
		t.Fatal(err)
	}
	modules := []string{"shell", "process"}
	cfg.Contexts = []config.Context{
		{Name: "lab", Modules: modules, Env: map[string]string{"STAGE": "lab", "TOKEN": "${secret:DEPLOY}"}},
		{Name: "den", Modules: modules, Env: map[string]string{"STAGE": "den"}},
		{Name: "lost", Modules: modules, Env: map[string]string{"TOKEN": "${secret:NOBODY}"}},
	}
	a, client := liveOn(t, cfg, Options{})
	if _, err := a.contextStore.Create(contextstore.Record{Name: "notes",
		Definition: contextstore.Definition{Modules: modules,
			Env: map[string]string{"STAGE": "notes", "TOKEN": "of ${secret:DEPLOY}"}}}, "ann"); err != nil {
		t.Fatal(err)
	}
	ann := client("ann")
	eventually(t, "the context is there", func() bool { return slices.Contains(ann.names("notes"), "shell_run") })

	const says = `echo "<$STAGE ${#TOKEN} $TOKEN>"`
	for in, want := range map[string]string{"lab": "<lab 21 [secret]>", "den": "<den 0 >",
		"notes": "<notes 24 [secret]>"} {
		line, _ := json.Marshal(says) // a string
		for _, call := range [][2]string{
			{"shell_run", fmt.Sprintf(`{"command":%s}`, line)},
			{"process_run", fmt.Sprintf(`{"command":"sh","args":["-c",%s]}`, line)},
		} {
			if got := ann.call(in, call[0], call[1]); !strings.Contains(unquoted(got), want) ||
				strings.Contains(got, token) {
				t.Errorf("%s in %s: got %s, want %s", call[0], in, got, want)
			}
		}
	}
	for _, name := range []string{"shell_run", "process_run"} {
		if got := ann.call("lost", name, `{"command":"true"}`); !strings.Contains(got, "unavailable") ||
			!strings.Contains(got, "NOBODY") {
			t.Errorf("%s with a secret that is missing: %s", name, got)
		}
	}
	// A process is visible only in the context that started it.
	var begun struct {
		Result struct{ StructuredContent struct{ ID string } }
	}
	if err := json.Unmarshal([]byte(ann.call("lab", "process_start",
		`{"command":"sleep","args":["1000"],"env":["API_TOKEN=`+token+`"]}`)), &begun); err != nil {
		t.Fatal(err)
	}
	id := fmt.Sprintf(`{"id":%q}`, begun.Result.StructuredContent.ID)
	if got := ann.call("den", "process_output", id); !strings.Contains(got, "not_found") {
		t.Errorf("another context reads %s", got)
	}
	ann.call("lab", "process_kill", id)

	if err := a.ledger.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for line, err := range a.ledger.Query(t.Context(), audit.Filter{}) {
		if err != nil || strings.Contains(string(line.Raw), token) {
			t.Errorf("the ledger says %s, %v", line.Raw, err)
		}
		if strings.Contains(string(line.Raw), "shell_run") {
			seen++
		}
	}
	if seen == 0 {
		t.Error("the ledger knows of no command")
	}
}

// unquoted undoes JSON's escaping of angle brackets.
func unquoted(s string) string {
	return strings.NewReplacer(`\u003c`, "<", `\u003e`, ">").Replace(s)
}
