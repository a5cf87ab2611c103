package clients

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"gatehouse/internal/tests/conformance"
)

// relayedSteps are calls of the conformance fixture: one that answers at once, one that logs, one
// that reports progress, one that asks the user, one that runs as a task for clients that follow
// tasks, and one that fails.
func relayedSteps() []Step {
	none := func([]string) map[string]any { return map[string]any{} }
	return []Step{
		{"test_simple_text", none},
		{"test_tool_with_logging", none},
		{"test_tool_with_progress", none},
		{"test_input_required_result_elicitation", none},
		{"slow_compute", func([]string) map[string]any { return map[string]any{"seconds": 0.5, "label": "x"} }},
		{"test_error_handling", none},
	}
}

// Real clients give their models the same through gatehouse run as from the server itself, also of calls that log, ask
// and run as tasks. Headless clients answer no questions: what they say of them is the same too.
func TestRelayedServersAreTheSameToClients(t *testing.T) {
	tools, err := Open()
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	bin, err := conformance.BuildGatehouse(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	fixture := conformance.FixtureUpstream()
	direct, stop, err := fixture.Start(t.Context(), tools, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for name, target := range map[string][]string{
		"child": append([]string{"--"}, fixture.Command(dir)...), "http": {direct},
	} {
		relayed, stop, err := conformance.StartRelay(t.Context(), bin, t.TempDir(), target)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		defer stop()
		for _, c := range All[:2] {
			t.Run(name+"/"+c.Name, func(t *testing.T) {
				want := runSteps(t, c, tools, direct)
				got := runSteps(t, c, tools, relayed)
				for i, s := range relayedSteps() {
					if got[i] != want[i] {
						t.Errorf("%s: the model was given\n%s\nthrough the relay, and directly\n%s", s.Tool, got[i],
							want[i])
					}
					t.Logf("%s: %s", s.Tool, strings.TrimSpace(want[i]))
				}
			})
		}
	}
}

// runSteps returns what a client gives its model for each of the steps.
func runSteps(t *testing.T, c Client, tools conformance.Tools, mcp string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	model := NewModel(relayedSteps())
	defer model.Close()
	out, err := c.Run(ctx, tools, t.TempDir(), model, mcp)
	if err != nil {
		t.Fatalf("%v: %s", err, tail(out))
	}
	for _, wrong := range model.Wrong() {
		t.Error(wrong)
	}
	given := model.Given()
	if len(given) != len(relayedSteps()) {
		t.Fatalf("the model was given %d results: %s", len(given), tail(out))
	}
	for i := range given {
		given[i] = unsteady.ReplaceAllString(given[i], "")
	}
	return given
}

// unsteady is what clients add to results: Codex the time, and Claude Code what is left of a budget.
var unsteady = regexp.MustCompile(`Wall time: [0-9.]+ seconds|<total_tokens>[0-9]+ tokens left</total_tokens>`)
