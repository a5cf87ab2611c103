package audit_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"gatehouse/internal/access/audit"
	"gatehouse/internal/dispatch"
	"gatehouse/internal/mcp/session"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
	"gatehouse/tool"
)

const victimFile = "GATEHOUSE_TEST_AUDIT_VICTIM" // the ledger of the host that the test kills

// killAfter returns how many lines the host writes before it is killed.
func killAfter() int {
	if testing.Short() {
		return 10_000
	}
	return 100_000
}

// A host is killed with SIGKILL while 64 callers keep it busy. The chain in its file is complete, and
// holds every write that was answered, every destructive call that had begun, and every destructive
// call that was answered.
//
//redteam:attack What destroys is written down before it begins: the writer of the ledger is killed
func TestKilledInTheMiddle(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs a further pipe to a child process")
	}
	path := filepath.Join(t.TempDir(), "audit.db")
	reported := runVictim(t, path)
	l := audit.Open(path, audit.Options{})
	defer l.Close(context.Background())
	r, err := l.Verify(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !r.OK || r.Lines < int64(killAfter()) {
		t.Fatalf("%d lines; %v", r.Lines, r.Problems)
	}
	there := map[string]bool{} // "outcome call"
	for line, err := range l.Query(t.Context(), audit.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		there[line.Outcome+" "+line.Call] = true
	}
	missing := 0
	for what := range reported {
		if !there[what] {
			if missing++; missing <= 5 {
				t.Errorf("missing: %s", what)
			}
		}
	}
	if missing > 5 {
		t.Errorf("%d missing of %d", missing, len(reported))
	}
	t.Logf("%d lines, %d of them promised, all there; the head knows of %d", r.Lines, len(reported), r.Head)
}

// runVictim runs a host until it has written enough, kills it, and returns what it had reported until
// then: lines that must be in its ledger.
func runVictim(t *testing.T, path string) map[string]bool {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^$", "-test.bench=^BenchmarkVictim$", "-test.benchtime=1x")
	cmd.Env = append(os.Environ(), victimFile+"="+path, "TMPDIR="+t.TempDir())
	cmd.ExtraFiles = []*os.File{out}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out.Close()
	reported, enough := map[string]bool{}, killAfter()*9/10 // reads are not reported
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		if reported[lines.Text()] = true; len(reported) == enough {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	cmd.Wait()
	if len(reported) < enough {
		t.Fatalf("the host ended by itself after %d lines", len(reported))
	}
	return reported
}

// workshop offers a tool of each kind. A destructive tool reports that it has begun: by then its intent
// must be on disk.
type workshop struct{ tell func(what, call string) }

func (w workshop) Offer(context.Context, module.Audience) (*module.Offer, error) {
	make := func(name string, e tool.Effects) tool.Tool {
		return tool.New(
			tool.Def{Name: name, Description: "For a test.", Effects: e},
			func(_ context.Context, c *tool.Call, _ struct {
				N int `json:"n"`
			}) (tool.Result, error) {
				if e == tool.Destroys {
					w.tell(audit.Started, c.ID)
				}
				return tool.Result{Content: []tool.Content{tool.Text("done")}}, nil
			},
		)
	}
	return &module.Offer{
		Tools: []tool.Tool{make("w_read", tool.Reads), make("w_write", tool.Writes), make("w_destroy", tool.Destroys)},
	}, nil
}

func (workshop) Close(context.Context) error { return nil }

// BenchmarkVictim is the host that is killed; it does nothing unless
// TestKilledInTheMiddle runs it. It is a benchmark to be one with few words.
func BenchmarkVictim(b *testing.B) {
	path := os.Getenv(victimFile)
	if path == "" {
		b.Skip("run by TestKilledInTheMiddle")
	}
	var mu sync.Mutex
	out := os.NewFile(3, "told")
	tell := func(what, call string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintln(out, what, call)
	}
	h := hosttest.New(b, hosttest.Options{
		Ledger: audit.Open(path, audit.Options{}),
		Modules: map[string]module.New{
			"w": func(context.Context, module.Deps) (module.Module, error) { return workshop{tell}, nil },
		},
	})
	who := tool.Caller{Principal: "ann", Context: "default", Owner: "ann/default"}
	v, err := h.Views.View(b.Context(), &who, h.Views.Cut(who))
	if err != nil {
		b.Fatal(err)
	}
	facts := session.Facts{Caller: who}
	var n atomic.Int64
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			for {
				i := n.Add(1)
				name := []string{"w_write", "w_destroy", "w_write", "w_read"}[i%4]
				r := &dispatch.Request{
					ID:     fmt.Sprint("call_", i),
					Facts:  &facts,
					Entry:  v.Tool(name),
					Method: "tools/call",
					Args:   json.RawMessage(fmt.Sprintf(`{"n":%d}`, i)),
				}
				if res, err := h.Calls.Do(context.Background(), r); err != nil || res.IsError {
					fmt.Fprintln(os.Stderr, err, res.Content)
					return
				}
				if name != "w_read" {
					tell(audit.OK, r.ID)
				}
			}
		})
	}
	all.Wait()
}
