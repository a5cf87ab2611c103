package packages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/packages/packagestest"
	"gatehouse/internal/state"
	"gatehouse/tool"
)

// turn stops a server and makes it behave otherwise from its next start on.
func (h *home) turn(id, how string) {
	h.t.Helper()
	if _, err := h.Stop(h.t.Context(), id); err != nil {
		h.t.Fatal(err)
	}
	p, err := h.findPackage(id)
	if err != nil {
		h.t.Fatal(err)
	}
	p.mu.Lock()
	p.rec.Env, p.rec.Stopped = packagestest.Environment(how), false
	p.mu.Unlock()
}

func (h *home) health(id string) Health {
	i, err := h.Info(id)
	if err != nil {
		h.t.Fatal(err)
	}
	return i.Public.Health
}

// A circuit opens after failures in a row, lets one request try after a pause that doubles, and closes by an answer.
func TestCircuit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := health{policy: circuitPolicy{3, time.Second, 3 * time.Second}}
		var shares atomic.Int64
		one := func(kind string) error {
			t.Helper()
			try, err := h.admit("up", &shares, 100)
			if err == nil {
				h.finish(try, kind, time.Millisecond, &shares)
			}
			return err
		}
		is := func(want string) {
			t.Helper()
			if got := h.snapshot().Circuit; got != want {
				t.Fatalf("the circuit is %s, want %s", got, want)
			}
		}
		for _, kind := range []string{errTimeout, errLost, errRPC, errTimeout, errTimeout, errCancelled,
			errUnavailable} {
			if err := one(kind); err != nil {
				t.Fatal(err)
			}
			is(CircuitClosed)
		}
		one(errLost) // the third in a row: what callers cancel does not count
		for _, pause := range []time.Duration{1, 2, 3, 3} {
			is(CircuitOpen)
			err := one("")
			if code(err) != "unavailable" || !strings.Contains(err.Error(), "nothing was run") {
				t.Fatalf("refused with %v", err)
			}
			if r, _ := errors.AsType[*tool.Refusal](err); !strings.Contains(
				r.Next,
				fmt.Sprintf("again in %d s", pause),
			) {
				t.Errorf("says %q, want %d s", r.Next, pause)
			}
			time.Sleep(pause * time.Second)
			try, err := h.admit("up", &shares, 100)
			if err != nil || !try {
				t.Fatalf("after the pause: %v", err)
			}
			is(CircuitHalfOpen)
			if err := one(""); err == nil {
				t.Error("two calls try at once")
			}
			h.finish(try, errTimeout, time.Second, &shares)
		}
		time.Sleep(time.Minute)
		try, _ := h.admit("up", &shares, 100)
		h.finish(try, errCancelled, time.Second, &shares)
		is(CircuitOpen) // the next may try
		if err := one(""); err != nil {
			t.Fatal(err)
		}
		is(CircuitClosed)
		if s := h.snapshot(); s.Running != 0 || shares.Load() != 0 || s.Calls != 22 || s.Errors[errRefused] != 8 ||
			s.Errors[errTimeout] != 7 {
			t.Errorf("counted %+v", s)
		}
	})
}

func TestLatencyIsCounted(t *testing.T) {
	var l Latency
	if l.quantile(.5) != 0 {
		t.Error("a quantile of nothing")
	}
	for range 98 {
		l.observe(700 * time.Microsecond)
	}
	l.observe(20 * time.Millisecond)
	l.observe(time.Hour)
	if l.quantile(.5) != 1 || l.quantile(.99) != 25 || l.quantile(1) != 300_000 || l.Count() != 100 {
		t.Errorf("%v, %v, %v of %+v", l.quantile(.5), l.quantile(.99), l.quantile(1), l)
	}
}

// Whatever one server does or does not do, the host opens and lists at once, and calls of another package do not wait.
//
//redteam:attack A package's server is a stranger: a server that hangs at its start, in lists or in calls, reads nothing, or is slow
func TestABrokenServerDelaysNoOther(t *testing.T) {
	for how, tool := range map[string]string{
		"silent": "echo", "unlisted": "echo", "deaf": "sleep", "unread": "echo", "slow": "echo",
	} {
		t.Run(how, func(t *testing.T) {
			dir, log := t.TempDir(), new(state.MemoryLog)
			h := reopen(t, Options{}, dir, log)
			h.install(server(t, "ok", "steady"))
			h.install(server(t, "up", "good"))
			h.turn("up", how)
			p, _ := h.findPackage("up")
			p.mu.Lock()
			r := p.rec
			p.mu.Unlock()
			r.Start = Always
			if err := p.saveRecord(r); err != nil {
				t.Fatal(err)
			}
			h.end()

			h = reopen(t, Options{}, dir, log) // it starts the broken server
			if names := h.names(); !slices.Contains(names, "up_echo") || !slices.Contains(names, "ok_echo") {
				t.Fatalf("lists %v", names)
			}
			ctx, stop := context.WithCancel(t.Context())
			var calls sync.WaitGroup
			for range 20 {
				calls.Go(func() {
					h.Call(ctx, "up", tool, json.RawMessage(`{"text":"`+strings.Repeat("x", 100<<10)+`"}`), nil, nil)
				})
			}
			h.eventually("the calls run", func() bool { return h.health("up").Calls >= 20 })
			for range 50 {
				if got, err := h.call("ok", "echo", `{"text":"quick"}`); err != nil || !strings.Contains(got, "quick") {
					t.Fatalf("another package: %s, %v", got, err)
				}
			}
			if n := h.health("up").Running; how != "slow" && n == 0 {
				t.Error("the calls of the broken server have ended before those of the other")
			}
			if len(h.names()) < 3 {
				t.Errorf("lists %v", h.names())
			}
			stop()
			calls.Wait()
		})
	}
}

// A server that does not answer is not called for a while, and then by one call; a refusal says when.
func TestAServerThatDoesNotAnswerIsNotCalled(t *testing.T) {
	h := openHome(t, Options{circuit: circuitPolicy{failures: 2, first: time.Minute, max: time.Minute}})
	h.install(server(t, "up", "deaf"))
	late := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := h.Call(ctx, "up", "sleep", nil, nil, nil)
		return err
	}
	for range 2 {
		if err := late(); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
	}
	_, err := h.call("up", "echo", `{"text":"x"}`)
	refused, _ := errors.AsType[*tool.Refusal](err)
	if code(err) != "unavailable" || !strings.Contains(err.Error(), "2 calls in a row") ||
		!strings.Contains(refused.Next, "60 s") {
		t.Fatalf("got %v", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if shown := h.shown["up"].Health; shown.Circuit != CircuitOpen || shown.Retry == nil ||
		shown.Errors[errTimeout] != 2 {
		t.Errorf("shown as %+v", shown)
	}
}

// A server restarted by an administrator is called at once.
func TestARestartClosesTheCircuit(t *testing.T) {
	h := openHome(t, Options{circuit: circuitPolicy{failures: 1, first: time.Minute, max: time.Minute}})
	h.install(server(t, "up", "good"))
	if _, err := h.call("up", "die", `{}`); code(err) != "unavailable" {
		t.Fatalf("got %v", err)
	}
	if _, err := h.call("up", "echo", `{"text":"x"}`); err == nil || !strings.Contains(err.Error(), "in a row") {
		t.Fatalf("got %v", err)
	}
	if _, err := h.Restart(t.Context(), "up"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.call("up", "echo", `{"text":"x"}`); err != nil {
		t.Fatal(err)
	}
	if s := h.health("up"); s.Errors[errLost] != 1 || s.Errors[errRefused] != 1 || s.Calls != 3 || s.Restarts == 0 ||
		s.P50 == 0 {
		t.Errorf("counted %+v", s)
	}
}

// Calls that hang take the share of their package, and leave room for those of others.
//
//redteam:attack A package's server is a stranger: a server that answers none of as many calls as there is room for
func TestHungCallsTakeAShare(t *testing.T) {
	h := openHome(t, Options{Calls: 8})
	h.install(server(t, "ok", "steady"))
	h.install(server(t, "up", "deaf"))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 20)
	for range 20 {
		go func() {
			_, err := h.Call(ctx, "up", "sleep", nil, nil, nil)
			ended <- err
		}()
	}
	for range 16 {
		if err := <-ended; code(err) != "busy" {
			t.Fatalf("got %v", err)
		}
	}
	for range 20 {
		if _, err := h.call("ok", "echo", `{"text":"x"}`); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	for range 4 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	}
}

const hintedTools = `[{"name":"reader","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true,"openWorldHint":false,"title":"R"}},` +
	`{"name":"setter","inputSchema":{"type":"object"},"annotations":{"destructiveHint":false,"idempotentHint":true}},` +
	`{"name":"plain","inputSchema":{"type":"object"}},` +
	`{"name":"odd","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":"true","destructiveHint":1}}]`

// What a server says that its tools do counts only if an administrator believes it.
//
//redteam:attack A package's server is a stranger: hints of a server that an administrator does not believe
func TestHintsAreBelievedOnlyIfTrusted(t *testing.T) {
	h := openHome(t, Options{})
	h.install(server(t, "up", "good"))
	p, _ := h.findPackage("up")
	var entries []json.RawMessage
	for e := range rawjson.Elements([]byte(hintedTools)) {
		entries = append(entries, e)
	}
	for _, trust := range []bool{false, true} {
		p.mu.Lock()
		p.rec.TrustHints = trust
		p.mu.Unlock()
		p.setTools(listing{Tools: entries}, nil, true, false)
		h.invalidateTools()
		want := map[string]tool.Effects{}
		if trust {
			want = map[string]tool.Effects{
				"reader": tool.Reads, "setter": tool.Writes | tool.Idempotent | tool.OpenWorld,
				"odd": tool.Writes | tool.Destroys | tool.OpenWorld,
			}
		}
		for i, o := range h.Tools() {
			_, listed := rawjson.Get(o.Raw, "annotations")
			if o.Effects != want[o.Own] || listed != (trust && o.Own != "plain") {
				t.Errorf("trusted %v: %s has %v, listed as %s", trust, o.Own, o.Effects, o.Raw)
			}
			if trust && string(o.Raw) != strings.Replace(string(entries[i]), `"name":"`, `"name":"`, 1) {
				t.Errorf("%s is changed to %s", entries[i], o.Raw)
			}
			if got := p.mayRepeat(o.Own); got != (trust && (o.Own == "reader" || o.Own == "setter")) {
				t.Errorf("trusted %v: %s may be repeated: %v", trust, o.Own, got)
			}
		}
	}
}

// A call that may have run is sent again only if the tool changes nothing more and that is believed.
func TestACallIsRepeatedOnlyIfHintsAreBelieved(t *testing.T) {
	for _, trust := range []bool{false, true} {
		h := openHome(t, Options{})
		r := server(t, "up", "oncedead")
		r.Env["MARK"], r.TrustHints = t.TempDir()+"/mark", trust
		h.install(r)
		got, err := h.call("up", "look", `{}`)
		if trust && (err != nil || !strings.Contains(got, "looked")) {
			t.Errorf("believed: %s, %v", got, err)
		}
		if !trust && code(err) != "unavailable" {
			t.Errorf("not believed: %s, %v", got, err)
		}
		if got, err := h.call("up", "change", `{}`); err == nil {
			t.Errorf("a call that may have run twice: %s", got)
		}
	}
}
