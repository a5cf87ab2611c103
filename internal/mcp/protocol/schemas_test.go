package protocol_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"

	"gatehouse/internal/tests/conformance"
	"gatehouse/internal/tests/hosttest"
)

// judge checks the messages of all tests against the published schemas; nil if these are not installed, and while
// inputs are tried: each process that tries some would start node first, and the ordinary tests run what is in testdata.
var judge *conformance.Judge

func TestMain(m *testing.M) { os.Exit(judged(m)) }

func judged(m *testing.M) int {
	flag.Parse()
	if flag.Lookup("test.fuzz").Value.String() != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "schemas")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if tools, err := installed(); err == nil {
		if judge, err = conformance.NewJudge(context.Background(), tools, dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	code := m.Run()
	if judge == nil {
		return code
	}
	for _, o := range judge.Objections() {
		fmt.Fprintln(os.Stderr, "does not fit its schema:", o)
		code = 1
	}
	return code
}

func installed() (conformance.Tools, error) {
	dir, err := conformance.ToolsDir()
	if err != nil {
		return conformance.Tools{}, err
	}
	return conformance.Open(dir)
}

// The peers check every message as it arrives, and the tests fail at their end for one that does not
// match. This test checks that the schemas are installed.
func TestMessagesFitTheirSchemas(t *testing.T) {
	if judge == nil {
		t.Skip("the published schemas are not installed: run " + conformance.InstallLine)
	}
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		for _, rev := range legacyRevisions {
			h.legacy(t, rev, "").ask("tools/list", "")
		}
		h.dial(t).modern("", "tools/list", "")
	})
	for _, rev := range []string{"2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"} {
		if judge.Count(rev) == 0 {
			t.Errorf("nothing was judged in revision %s", rev)
		}
	}
}

var legacyRevisions = []string{"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"}
