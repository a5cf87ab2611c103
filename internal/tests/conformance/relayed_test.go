package conformance

import (
	"slices"
	"testing"
)

// notRelayed are the scenarios that need what the relay does not pass on: the questions of a server in
// the middle of a call, its tasks, and its log messages. docs/relay.md has the table of all servers.
var notRelayed = map[string][]string{
	"2025-11-25": {
		"elicitation-sep1034-defaults", "elicitation-sep1330-enums", "server-sse-polling", "tools-call-elicitation",
		"tools-call-sampling", "tools-call-with-logging",
	},
	modernRevision: {
		"input-required-result-basic-elicitation", "input-required-result-basic-list-roots",
		"input-required-result-basic-sampling", "input-required-result-capability-check",
		"input-required-result-ignore-extra-params", "input-required-result-missing-input-response",
		"input-required-result-multi-round", "input-required-result-multiple-input-requests",
		"input-required-result-non-tool-request", "input-required-result-request-state",
		"input-required-result-result-type", "input-required-result-tampered-state", "server-stateless",
		"tasks-capability-negotiation", "tasks-dispatch-and-envelope", "tasks-lifecycle", "tasks-mrtr-composition",
		"tasks-mrtr-input", "tasks-request-headers", "tasks-request-state-removal", "tasks-wire-fields",
	},
}

// The official suites reach the same verdicts through gatehouse run as they do directly, in both eras. make verify-relay
// does the same for the servers of the SDKs.
func TestSuitesThroughTheRelay(t *testing.T) {
	h := needFixture(t)
	dir := t.TempDir()
	bin, err := BuildGatehouse(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	pairs, err := Relayed(t.Context(), h.tools, bin, FixtureUpstream(), dir, func(era, scenario string) bool {
		return slices.Contains(notRelayed[era], scenario)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + RelayTable(pairs))
	for _, p := range pairs {
		if len(p.Direct.Scenarios) < 30 || len(p.Relayed.Scenarios) != len(p.Direct.Scenarios) {
			t.Errorf("%s: %d scenarios direct, %d relayed", p.Era, len(p.Direct.Scenarios), len(p.Relayed.Scenarios))
		}
		for _, name := range p.Differences() {
			if !slices.Contains(notRelayed[p.Era], name) {
				t.Errorf("%s, %s: direct %q, relayed %q", p.Era, name, p.Direct.verdicts(name), p.Relayed.verdicts(name))
			}
		}
	}
}
