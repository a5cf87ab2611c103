package conformance

import (
	"os"
	"path/filepath"
	"testing"
)

// The official suites of both eras succeed through a proxy that sends each request to the next of three nodes.
// make verify-cluster compares all suites with those of one host.
func TestSuitesThroughACluster(t *testing.T) {
	h := needFixture(t)
	if _, err := os.Stat(filepath.Join(filepath.Dir(h.tools.Dir), "gatehouse-nats")); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("%v; make setup builds it", err)
		}
		t.Skip("without the engine: make setup builds it")
	}
	dir := t.TempDir()
	c, err := StartCluster(t.Context(), h.tools, h.bin, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the nodes' logs end:\n%s", c.Log())
		}
	}()
	var all turns
	for _, s := range Suites()[:2] {
		column, err := s.column(t.Context(), h.tools, c.URL, filepath.Join(dir, s.Name))
		if err == nil {
			err = s.settle(t.Context(), h.tools, &all, c.URL, filepath.Join(dir, s.Name+" again"), &column, func(*Column) {})
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s through three nodes: %s", s.Name, column.total())
		for _, line := range column.Clean() {
			t.Error(line)
		}
	}
}
