package clustertest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"gatehouse/internal/access/audit"
)

// TestLedgersOfAllNodes reads and verifies the ledgers of three nodes from one of them, then lets one node go on
// without the lines that it had: the other nodes know that there were some.
func TestLedgersOfAllNodes(t *testing.T) {
	t.Parallel()
	nodes := startNodes(t)
	for i, n := range nodes {
		for range 3 {
			if got, _, err := post(n.url, "", modernCall); err != nil || !strings.Contains(got, `"complete"`) {
				t.Fatalf("a call on node %d: %.300s, %v", i, got, err)
			}
		}
	}
	callsOf := func() map[string]int {
		calls := map[string]int{}
		for line := range strings.Lines(nodes[2].command(t, "audit", "--cluster", "--json", "--tool", "dir_list")) {
			var l struct {
				Node string `json:"cluster_node"`
				Line audit.Line
			}
			if err := json.Unmarshal([]byte(line), &l); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			if l.Line.Kind == "call" {
				calls[l.Node]++
			}
		}
		return calls
	}
	eventually(t, "the calls of all nodes are found from one", func() bool {
		calls := callsOf()
		for _, n := range calls {
			if n != 3 {
				return false
			}
		}
		return len(calls) == 3
	})
	if got := nodes[2].command(t, "audit", "--cluster", "--tool", "dir_list"); !strings.HasPrefix(got, "NODE") ||
		strings.Count(got, "dir_list") < 9 {
		t.Errorf("the table of all nodes:\n%s", got)
	}
	verify := func() (reports map[string]audit.Report, ok bool) {
		cmd := nodes[2].run(t, "audit", "verify", "--cluster", "--json")
		out, err := cmd.Output()
		if jerr := json.Unmarshal(out, &reports); jerr != nil {
			t.Logf("verify: %v, %s", err, out)
		}
		return reports, err == nil
	}
	if reports, ok := verify(); !ok || len(reports) != 3 {
		t.Errorf("the ledgers at first: %+v", reports)
	}

	// Node 0 loses its ledger while it is away, and goes on with a new one that is shorter, or has other lines.
	first := nodes[0]
	eventually(t, "the heads are at the other nodes", func() bool {
		return strings.Contains(first.output.String(), "the head of the ledger is at other nodes")
	})
	first.cmd.Process.Signal(syscall.SIGTERM)
	first.cmd.Wait()
	if _, ok := verify(); ok {
		t.Error("a ledger that cannot be read counts as verified")
	}
	ledgers, err := filepath.Glob(filepath.Join(first.dir, "data", "*", audit.FileName+"*"))
	if err != nil || len(ledgers) == 0 {
		t.Fatalf("%q, %v", ledgers, err)
	}
	for _, path := range ledgers {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	first.start(t, first.cmd.Args[1:]...)
	eventually(t, "the loss is found from another node", func() bool {
		reports, ok := verify()
		if ok || len(reports) != 3 {
			return false
		}
		bad := 0
		for _, r := range reports {
			for _, p := range r.Problems {
				if strings.Contains(p.Message, "kept elsewhere") {
					bad++
				}
			}
		}
		return bad > 0
	})
}
