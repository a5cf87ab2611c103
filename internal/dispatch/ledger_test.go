package dispatch_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/internal/access/audit"
	"gatehouse/internal/access/limit"
	"gatehouse/internal/access/permit"
	"gatehouse/internal/dispatch"
	"gatehouse/internal/mcp/session"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
	"gatehouse/tool"
)

// diary is a ledger that lists its entries, and can be full.
type diary struct {
	mu    sync.Mutex
	lines []string
	full  error
	last  audit.Entry
}

func (d *diary) write(how string, e audit.Entry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf("%s %s %s %s", how, e.Tool, e.Outcome, e.Level))
	d.last = e
}

func (d *diary) Note(e audit.Entry) { d.write("note", e) }

func (d *diary) Keep(_ context.Context, e audit.Entry) error {
	d.write("keep", e)
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.full
}

func (d *diary) Ready() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.full
}

// page removes and returns the entries.
func (d *diary) page() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	lines := d.lines
	d.lines = nil
	return lines
}

func TestWhatTheLedgerIsTold(t *testing.T) {
	d := &diary{}
	var w workshop
	during := func(want ...string) func(context.Context, *tool.Call) (tool.Result, error) {
		return func(context.Context, *tool.Call) (tool.Result, error) {
			if got := d.page(); !slices.Equal(got, want) {
				t.Errorf("while it runs: got %q, want %q", got, want)
			}
			return printableText("done")
		}
	}
	w.tools = []tool.Tool{
		made("w_read", tool.Reads, during()),
		made("w_write", tool.Writes, during()),
		made("w_destroy", tool.Destroys, during("keep w_destroy started security")),
		made("w_unknown", 0, during("keep w_unknown started security")),
		made("w_no", tool.Reads, func(context.Context, *tool.Call) (tool.Result, error) {
			return tool.Result{}, tool.Refuse("not_found", "no")
		}),
		made("w_ask", tool.Reads, func(_ context.Context, c *tool.Call) (tool.Result, error) {
			_, err := c.Peer.Ask(tool.ListRoots("r"))
			return tool.Result{}, err
		}),
		made("w_inner", tool.Reads, func(ctx context.Context, c *tool.Call) (tool.Result, error) {
			return w.deps.Call(ctx, c, "w_leaf", nil)
		}),
		made("w_leaf", tool.Writes, during()),
		made("w_slow", tool.Writes, func(ctx context.Context, _ *tool.Call) (tool.Result, error) {
			<-ctx.Done()
			return tool.Result{}, ctx.Err()
		}),
		made("w_stubborn", tool.Writes, func(context.Context, *tool.Call) (tool.Result, error) {
			time.Sleep(time.Minute)
			return printableText("late")
		}),
		made("w_forbidden", tool.Reads, during()),
	}
	policy, err := permit.New(
		permit.Options{
			Default: permit.Allow,
			Rules: []permit.Rule{
				{Name: "no", Names: []string{"w_forbidden"}, When: "true", Then: permit.Refuse, Reason: "never"},
			},
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	visit(
		t,
		hosttest.Options{Ledger: d, Policy: policy, Timeout: 10 * time.Second},
		&w,
		func(t *testing.T, h *hosttest.Host) {
			for _, c := range []struct {
				name, args string
				want       []string
			}{
				{"w_read", "{}", []string{"note w_read ok info"}},
				{"w_write", "{}", []string{"keep w_write ok security"}},
				{"w_destroy", "{}", []string{"keep w_destroy ok security"}},
				{"w_unknown", "{}", []string{"keep w_unknown ok security"}},
				{"w_no", "{}", []string{"note w_no refused info"}},
				{"w_ask", "{}", []string{"note w_ask asked info"}},
				{"w_inner", "{}", []string{"keep w_leaf ok security", "note w_inner ok info"}},
				{"w_slow", "{}", []string{"keep w_slow timeout security"}},
				{"w_read", `{"x":1}`, []string{"note w_read refused info"}},
				{"w_forbidden", "{}", []string{"note w_forbidden denied security"}},
			} {
				r := request(t, h, c.name, c.args)
				r.Facts.Can = tool.CanListRoots
				h.Calls.Do(t.Context(), r)
				if got := d.page(); !slices.Equal(got, c.want) {
					t.Errorf("%s: got %q, want %q", c.name, got, c.want)
				}
				if d.last.Call == "" || d.last.Principal != "ann" || d.last.Context != "default" {
					t.Errorf("%s: the entry does not name the caller: %+v", c.name, d.last)
				}
				if c.name == "w_forbidden" && (d.last.Rule != "no" || !strings.Contains(d.last.Reason, "never")) {
					t.Errorf("the denial does not give a reason: %+v", d.last)
				}
			}
			r := request(t, h, "w_stubborn", "{}")
			r.Late = func(dispatch.Result, error) {
				if got := d.page(); !slices.Equal(got, []string{"keep w_stubborn timeout security"}) {
					t.Errorf("answered late: got %q", got)
				}
			}
			h.Calls.Do(t.Context(), r)
			if got := d.page(); !slices.Equal(got, []string{"note w_stubborn overdue security"}) {
				t.Errorf("ended late: got %q", got)
			}
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			h.Calls.Do(ctx, request(t, h, "w_slow", "{}"))
			if got := d.page(); !slices.Equal(got, []string{"keep w_slow cancelled security"}) {
				t.Errorf("cancelled: got %q", got)
			}
		},
	)
}

//redteam:attack What destroys is written down before it begins: calls are made while the ledger cannot be written
func TestNothingIsChangedThatCannotBeWrittenDown(t *testing.T) {
	d := &diary{full: errors.New("disk full")}
	ran := map[string]int{}
	count := func(name string) func(context.Context, *tool.Call) (tool.Result, error) {
		return func(context.Context, *tool.Call) (tool.Result, error) {
			if ran[name]++; name == "breaks" {
				d.mu.Lock()
				d.full = errors.New("disk full")
				d.mu.Unlock()
			}
			return printableText("done")
		}
	}
	w := workshop{tools: []tool.Tool{
		made("w_read", tool.Reads, count("read")), made("w_write", tool.Writes, count("write")),
		made("w_destroy", tool.Destroys, count("destroy")), made("w_breaks", tool.Writes, count("breaks")),
	}}
	visit(t, hosttest.Options{Ledger: d}, &w, func(t *testing.T, h *hosttest.Host) {
		for name, want := range map[string]string{"w_read": "done", "w_write": "unavailable: this host cannot",
			"w_destroy": "unavailable: this host cannot"} {
			res, err := h.Calls.Do(t.Context(), request(t, h, name, "{}"))
			if got := first(t, res, err); !strings.HasPrefix(got, want) || res.IsError != (want != "done") {
				t.Errorf("%s: got %q, want %q", name, got, want)
			}
		}
		if ran["write"]+ran["destroy"] > 0 {
			t.Errorf("ran: %v", ran)
		}
		if got := d.page(); !slices.Contains(got, "note w_write refused security") ||
			!slices.Contains(got, "note w_destroy refused security") {
			t.Errorf("what was refused is not noted: %q", got)
		}
		d.mu.Lock()
		d.full = nil
		d.mu.Unlock()
		res, err := h.Calls.Do(t.Context(), request(t, h, "w_breaks", "{}"))
		if got := first(t, res, err); !strings.HasPrefix(got, "unavailable: w_breaks may have run") {
			t.Errorf("got %q: the answer leaves although its line is not kept", got)
		}
	})
}

// A session that floods a small host does not delay another session.
func TestAFloodOfCalls(t *testing.T) {
	w := workshop{tools: []tool.Tool{made("w_work", tool.Reads, func(context.Context, *tool.Call) (tool.Result, error) {
		time.Sleep(10 * time.Millisecond)
		return printableText("done")
	})}}
	q := limit.NewQueue(limit.Options{Calls: 4, Waiting: 10_000})
	visit(t, hosttest.Options{Queue: q}, &w, func(t *testing.T, h *hosttest.Host) {
		from := func(session string) error {
			r := request(t, h, "w_work", "{}")
			r.Facts.Session = session
			res, err := h.Calls.Do(t.Context(), r)
			if err == nil && res.IsError {
				err = errors.New(res.Content[0].Text)
			}
			return err
		}
		for range 1000 {
			go from("flood")
		}
		synctest.Wait()
		for i := range 20 {
			began := time.Now()
			if err := from("quiet"); err != nil || time.Since(began) > 20*time.Millisecond {
				t.Errorf("call %d of the quiet session took %v (%v), alone it takes 10ms", i, time.Since(began), err)
			}
		}
		time.Sleep(time.Minute)
	})
}

func TestABusyHostSaysWhenToComeAgain(t *testing.T) {
	w := workshop{tools: []tool.Tool{made("w_work", tool.Reads, func(context.Context, *tool.Call) (tool.Result, error) {
		time.Sleep(time.Minute)
		return printableText("done")
	})}}
	d := &diary{}
	q := limit.NewQueue(limit.Options{Calls: 1, Waiting: 2, Line: 2})
	visit(t, hosttest.Options{Queue: q, Ledger: d, Timeout: time.Hour}, &w, func(t *testing.T, h *hosttest.Host) {
		for range 40 {
			go h.Calls.Do(t.Context(), request(t, h, "w_work", "{}"))
		}
		synctest.Wait()
		res, err := h.Calls.Do(t.Context(), request(t, h, "w_work", "{}"))
		if got := first(t, res, err); got != "busy: too many of your calls are waiting\nTry again in 1 s." ||
			!res.IsError {
			t.Errorf("got %q", got)
		}
		if got := d.page(); !slices.Contains(got, "note w_work busy info") {
			t.Errorf("the ledger received %q", got)
		}
		time.Sleep(time.Hour)
	})
}

// BenchmarkLedger measures what a call costs besides the ledger, by its effects.
func BenchmarkLedger(b *testing.B) {
	for _, c := range []struct {
		name    string
		effects tool.Effects
		ledger  bool
		many    bool
	}{
		{"none", tool.Reads, false, false}, {"reads", tool.Reads, true, false}, {"writes", tool.Writes, true, false},
		{"destroys", tool.Destroys, true, false},
		{"writes-beside-64-others", tool.Writes, true, true}, {"destroys-beside-64-others", tool.Destroys, true, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			w := workshop{
				tools: []tool.Tool{
					made(
						"w_do",
						c.effects,
						func(context.Context, *tool.Call) (tool.Result, error) { return printableText("done") },
					),
				},
			}
			o := hosttest.Options{Modules: map[string]module.New{"w": w.make}}
			if c.ledger {
				l := audit.Open(filepath.Join(b.TempDir(), "audit.db"), audit.Options{})
				b.Cleanup(func() { l.Close(context.Background()) })
				o.Ledger = l
			}
			h := hosttest.New(b, o)
			repeat(b, h, c.many)
		})
	}
}

func repeat(b *testing.B, h *hosttest.Host, many bool) {
	f := session.Facts{Caller: ann, Cut: h.Views.Cut(ann)}
	v, err := h.Views.View(b.Context(), &f.Caller, f.Cut)
	if err != nil {
		b.Fatal(err)
	}
	one := func() {
		r := &dispatch.Request{Facts: &f, Entry: v.Tool("w_do"), Method: "tools/call", Args: json.RawMessage("{}")}
		if res, err := h.Calls.Do(b.Context(), r); err != nil || res.IsError {
			b.Error(err, res.Content)
		}
	}
	b.ReportAllocs()
	if !many {
		for b.Loop() {
			one()
		}
		return
	}
	b.SetParallelism(64 / runtime.GOMAXPROCS(0))
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			one()
		}
	})
}
