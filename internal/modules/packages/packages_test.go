package packages

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"gatehouse/internal/mcp/schema"
	"gatehouse/internal/packages"
	"gatehouse/internal/packages/packagestest"
	"gatehouse/internal/state"
	"gatehouse/module"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

func TestMain(m *testing.M) {
	packagestest.Main(os.Stdout)
	os.Exit(m.Run())
}

// open returns a host of packages that runs as long as the test.
func open(t *testing.T) *packages.Manager {
	t.Helper()
	tree := state.New(state.Options{})
	records, err := state.Attach[map[string]packages.Record](t.Context(), tree, "/private/packages", state.Durable)
	if err != nil {
		t.Fatal(err)
	}
	h, err := packages.Open(packages.Options{Folder: t.TempDir(), Records: records, Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { h.Run(ctx) })
	t.Cleanup(func() {
		stop()
		work.Wait()
		tree.Close()
	})
	return h
}

// made makes the module with packages, for an administrator.
func made(t *testing.T, h *packages.Manager) module.New {
	return New(Config{Packages: h, Rules: func(tool.Caller) bool { return true }})
}

func check(x tool.Tool) error {
	if x.In == nil {
		return nil
	}
	_, err := schema.For(x.In)
	return err
}

func TestContract(t *testing.T) {
	moduletest.Run(t, New(Config{}), moduletest.Options{Check: check})
}

func TestContractWithAPackage(t *testing.T) {
	h := open(t)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := packages.Record{
		ID:      "up",
		Source:  packages.Source{Kind: packages.Command},
		Command: program,
		Env:     packagestest.Environment("steady"),
	}
	if _, err := h.Install(t.Context(), packages.Plan{Record: r}, nil); err != nil {
		t.Fatal(err)
	}
	// its goroutines are there before those of the module are counted
	if _, err := h.Start(t.Context(), "up"); err != nil {
		t.Fatal(err)
	}
	moduletest.Run(
		t, made(t, h),
		moduletest.Options{
			Check: check,
			Busy:  map[string]json.RawMessage{"up_sleep": json.RawMessage(`{"long":true}`)},
		},
	)
}

func TestWhoDoesNotRuleTheHostIsRefused(t *testing.T) {
	h := open(t)
	m, err := New(Config{Packages: h})(t.Context(), module.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	o, err := m.Offer(t.Context(), module.Audience{})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range o.Tools {
		c := moduletest.NewCall(t, `{"id":"up"}`)
		if _, err := x.Run(t.Context(), &c.Call); err == nil || !strings.Contains(err.Error(), "denied") {
			t.Errorf("%s: %v", x.Name, err)
		}
	}
}

// A package with results: text lists no output schema and sends no structured
// content; what only that said becomes text. Everything else stays as it came.
func TestResultsOfAPackageAsTextAlone(t *testing.T) {
	h := open(t)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := packages.Record{
		ID:      "up",
		Source:  packages.Source{Kind: packages.Command},
		Command: program,
		Env:     packagestest.Environment("basic"),
		Results: packages.TextResults,
	}
	if _, err := h.Install(t.Context(), packages.Plan{Record: r}, nil); err != nil {
		t.Fatal(err)
	}
	m, err := made(t, h)(t.Context(), module.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	o, err := m.Offer(t.Context(), module.Audience{})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(o.Tools, func(x tool.Tool) bool { return x.Name == "up_raw" })
	if raw := string(o.Tools[i].Raw); strings.Contains(raw, "outputSchema") {
		t.Errorf("listed as %s", raw)
	}
	c := moduletest.NewCall(t, `{}`)
	res, err := o.Tools[i].Run(t.Context(), &c.Call)
	want := strings.Replace(packagestest.Result, `"structuredContent":{"n":12345678901234567890},`, "", 1)
	if err != nil || string(res.Raw) != want {
		t.Errorf("got %s, %v, want %s", res.Raw, err, want)
	}
	for was, want := range map[string]string{
		`{"content":[],"structuredContent":{"a":"\"b"}}`: `{"content":[{"type":"text","text":"{\"a\":\"\\\"b\"}"}]}`,
		`{"structuredContent":[1]}`:                      `{"content":[{"type":"text","text":"[1]"}]}`,
		`{"content":[]}`:                                 `{"content":[]}`,
	} {
		if got := string(textOnly(json.RawMessage(was))); got != want {
			t.Errorf("%s: got %s, want %s", was, got, want)
		}
	}
}

// TestARollbackIsDoneOnce lets a call of package_rollback run again, as after the death of its node, when the package has
// the programs that it had, has exchanged them, or has others.
func TestARollbackIsDoneOnce(t *testing.T) {
	info := func(present, previous string) *packages.Info {
		i := &packages.Info{}
		i.ID, i.Program = "up", present
		if previous != "" {
			i.Previous = &packages.Previous{Program: previous}
		}
		return i
	}
	for name, c := range map[string]struct {
		again *packages.Info
		done  bool
		code  tool.Code
	}{
		"not done":                  {again: info("program-b", "program-a")},
		"done":                      {again: info("program-a", "program-b"), done: true},
		"updated since":             {again: info("program-c", "program-b"), code: tool.CodeStale},
		"without a previous, since": {again: info("program-b", ""), code: tool.CodeStale},
	} {
		call := &tool.Call{Peer: &moduletest.Peer{}}
		if done, err := rolledBack(call, info("program-b", "program-a"), false); done || err != nil {
			t.Fatalf("%s: the first run: %v, %v", name, done, err)
		}
		done, err := rolledBack(call, c.again, false)
		var code tool.Code
		if r, ok := errors.AsType[*tool.Refusal](err); ok {
			code = r.Code
		}
		if done != c.done || code != c.code {
			t.Errorf("%s: %v, %v", name, done, err)
		}
	}
}
