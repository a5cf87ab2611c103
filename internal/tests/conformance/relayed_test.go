package conformance

import (
	"slices"
	"testing"
)

// notRelayed are the scenarios that end otherwise through the relay: a child can close no stream of the client's.
// docs/relay.md has the table of all servers.
var notRelayed = map[string][]string{"2025-11-25": {"server-sse-polling"}}

// The official suites reach the same verdicts through gatehouse run as they do directly, in both
// eras. make verify-relay does the same for the servers of the SDKs.
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
				t.Errorf("%s, %s: direct %q, relayed %q", p.Era, name, p.Direct.verdicts(name),
					p.Relayed.verdicts(name))
			}
		}
	}
}
