package conformance

import (
	"context"
	"fmt"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
)

// fixtureHost is shared by the tests of this package: the packages, the fixture as one process, and a judge of
// every message that it sends.
type fixtureHost struct {
	tools  Tools
	bin    string
	server *Server
	judge  *Judge
	url    string // the fixture's, through the tap
	err    error
}

var shared fixtureHost // made by TestMain before any test, and not changed after

func TestMain(m *testing.M) {
	os.Exit(runWithFixture(m))
}

func runWithFixture(m *testing.M) int {
	dir, err := os.MkdirTemp("", "conformance")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	stop := shared.open(context.Background(), dir)
	code := m.Run()
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// open stores an error for the tests that need the fixture; the others run without it.
func (h *fixtureHost) open(ctx context.Context, dir string) (stop func() error) {
	stop = func() error { return nil }
	tools, err := ToolsDir()
	if err == nil {
		h.tools, err = Open(tools)
	}
	if err == nil {
		h.judge, err = NewJudge(ctx, h.tools, dir)
	}
	if err == nil {
		h.bin, err = Build(ctx, dir)
	}
	if err == nil {
		h.server, err = Start(ctx, h.bin, dir)
	}
	if h.err = err; err != nil {
		return stop
	}
	target, err := url.Parse(h.server.URL)
	if err != nil {
		h.err = err
		return h.server.Stop
	}
	tap := httptest.NewServer(NewTap(target, h.judge))
	h.url = tap.URL + target.Path
	return func() error {
		tap.Close()
		return h.server.Stop()
	}
}

// needFixture returns the fixture. Every test that uses the fixture calls it.
func needFixture(t *testing.T) *fixtureHost {
	t.Helper()
	if testing.Short() {
		t.Skip("with -short nothing is run that needs the pinned npm packages")
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the fixture's log ends:\n%s", tail([]byte(shared.server.Log())))
		}
	})
	return &shared
}

// holdsUp fails the test for every message that the judge found invalid since before.
func (h *fixtureHost) holdsUp(t *testing.T, before []string) {
	t.Helper()
	for _, o := range h.judge.Objections() {
		if !slices.Contains(before, o) {
			t.Errorf("not valid against its schema: %s", o)
		}
	}
}

// Every scenario of the official suites runs over every endpoint of one process; no check fails or warns, and every
// message is valid.
func TestOfficialSuites(t *testing.T) {
	h := needFixture(t)
	endpoints := h.server.Endpoints
	endpoints.URL = h.url
	columns, err := Everything(t.Context(), h.tools, h.bin, endpoints, h.judge, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	if err := Print(&table, columns); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", table.String())
	for _, c := range columns {
		for _, line := range c.Clean() {
			t.Error(line)
		}
	}
	h.holdsUp(t, nil)
	for _, revision := range []string{"2025-11-25", modernRevision} {
		if n := h.judge.Count(revision); n < 200 {
			t.Errorf("only %d messages of %s were held against their schema: the judge is not listening", n, revision)
		}
	}
}
