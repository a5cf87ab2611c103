package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/dispatch/bus"
	"gatehouse/tool"
)

// ledger opens a ledger that is closed at the end of the test.
func ledger(t testing.TB, path string, o Options) *Ledger {
	t.Helper()
	l := Open(path, o)
	t.Cleanup(func() { l.Close(context.Background()) })
	return l
}

func fresh(t testing.TB) string { return filepath.Join(t.TempDir(), "audit.db") }

// fill writes lines of several kinds, in batches of one and of many.
func fill(t testing.TB, l *Ledger, n int) {
	t.Helper()
	for i := range n {
		e := Entry{
			Kind:      "call",
			Principal: []string{"alice", "bob"}[i%2],
			Tool:      "file_read",
			Call:      fmt.Sprint("call_", i),
			Args:      json.RawMessage(`{"path":"a"}`),
			Outcome:   OK,
		}
		if i%10 == 9 {
			if err := l.Keep(t.Context(), e); err != nil {
				t.Fatal(err)
			}
			continue
		}
		l.Note(e)
	}
	if err := l.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func collect(t testing.TB, l *Ledger, f Filter) (all []Line) {
	t.Helper()
	for line, err := range l.Query(t.Context(), f) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, line)
	}
	return all
}

func verify(t testing.TB, l *Ledger) Report {
	t.Helper()
	r, err := l.Verify(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestALineTellsWhatWasDone(t *testing.T) {
	l := ledger(t, fresh(t), Options{Node: "north"})
	at := time.Date(2026, 2, 3, 4, 5, 6, 7000, time.UTC)
	err := l.Keep(t.Context(), Entry{
		At: at, Kind: "call", Level: Security, Principal: "alice", Credential: "t_1", Session: "secret-session",
		Context: "default", Client: "c/1",
		Call: "call_x", Method: "tools/call", Module: "file", Tool: "file_delete", Depth: 2,
		Args: json.RawMessage(
			`{"path":"a","token":"s3cret"}`,
		), Outcome: OK, Reason: "because", Rule: "rule 1", Took: 1500 * time.Microsecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	got := collect(t, l, Filter{})
	if len(got) != 1 {
		t.Fatalf("got %d lines, want 1", len(got))
	}
	g := got[0]
	if strings.Contains(string(g.Raw), "s3cret") || strings.Contains(string(g.Raw), "secret-session") {
		t.Errorf("the line contains a secret: %s", g.Raw)
	}
	if g.Session != SessionHash("secret-session") || len(g.Session) != 16 || len(g.Digest) != 64 || g.OSUser == "" {
		t.Errorf("got session %q, digest %q, user %q", g.Session, g.Digest, g.OSUser)
	}
	g.Raw, g.Digest, g.Session, g.OSUser, g.Args = nil, "", "", "", nil
	want := Line{
		Seq: 1, Prev: strings.Repeat("0", 64), At: at, Node: "north", Kind: "call", Level: Security, Principal: "alice",
		Credential: "t_1",
		Context:    "default", Client: "c/1", Call: "call_x", Method: "tools/call", Module: "file", Tool: "file_delete",
		Depth:   2,
		Outcome: OK, Reason: "because", Rule: "rule 1", Millis: 1.5,
	}
	if a, b := fmt.Sprintf("%+v", g), fmt.Sprintf("%+v", want); a != b {
		t.Errorf("got  %s\nwant %s", a, b)
	}
}

func TestFilters(t *testing.T) {
	l := ledger(t, fresh(t), Options{})
	fill(t, l, 500)
	l.Keep(
		t.Context(),
		Entry{Kind: "auth.login", Level: Security, Principal: `x"principal":"alice"`, Reason: `"principal":"alice"`},
	)
	half := collect(t, l, Filter{})[250].At
	for name, c := range map[string]struct {
		f    Filter
		want func(Line) bool
		last int
	}{
		"all":       {Filter{}, func(Line) bool { return true }, 0},
		"principal": {Filter{Principal: "alice"}, func(l Line) bool { return l.Principal == "alice" }, 0},
		"level":     {Filter{Level: Security}, func(l Line) bool { return l.Level == Security }, 0},
		"kind": {Filter{Kind: "call", Tool: "file_read", Outcome: OK},
			func(l Line) bool { return l.Kind == "call" }, 0},
		"call":     {Filter{Call: "call_77"}, func(l Line) bool { return l.Call == "call_77" }, 0},
		"since":    {Filter{Since: half}, func(l Line) bool { return !l.At.Before(half) }, 0},
		"until":    {Filter{Until: half}, func(l Line) bool { return l.At.Before(half) }, 0},
		"after":    {Filter{After: 490}, func(l Line) bool { return l.Seq > 490 }, 0},
		"last":     {Filter{Last: 7, Principal: "bob"}, func(l Line) bool { return l.Principal == "bob" }, 7},
		"last two": {Filter{Last: 7, After: 499}, func(l Line) bool { return l.Seq > 499 }, 7},
		"none":     {Filter{Since: time.Now().Add(time.Hour)}, func(Line) bool { return false }, 0},
	} {
		var want []int64
		for _, line := range collect(t, l, Filter{}) {
			if c.want(line) {
				want = append(want, line.Seq)
			}
		}
		if c.last > 0 && len(want) > c.last {
			want = want[len(want)-c.last:]
		}
		var got []int64
		for _, line := range collect(t, l, c.f) {
			got = append(got, line.Seq)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}

func TestFollowSeesWhatIsWrittenLater(t *testing.T) {
	path := fresh(t)
	l, other := ledger(t, path, Options{}), ledger(t, path, Options{})
	fill(t, l, 20)
	var got []string
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for line, err := range l.Follow(ctx, Filter{Last: 2}) {
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, line.Call); len(got) == 2 {
			l.Note(Entry{Kind: "call", Call: "mine"})
			l.Sync(ctx)
			other.Keep(ctx, Entry{Kind: "call", Call: "another's"})
		}
		if len(got) == 4 {
			break
		}
	}
	if want := []string{"call_18", "call_19", "mine", "another's"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestProcessesShareOneChain(t *testing.T) {
	path := fresh(t)
	var all sync.WaitGroup
	for i := range 4 {
		l := ledger(t, path, Options{Flush: time.Millisecond})
		all.Go(func() {
			for j := range 100 {
				if j%3 == 0 {
					l.Note(Entry{Kind: "call", Call: fmt.Sprint(i, ".", j)})
				} else if err := l.Keep(context.Background(), Entry{Kind: "call",
					Call: fmt.Sprint(i, ".", j)}); err != nil {
					t.Error(err)
				}
			}
			l.Sync(context.Background())
		})
	}
	all.Wait()
	r := verify(t, ledger(t, path, Options{}))
	if !r.OK || r.Lines != 400 || r.Head != 400 {
		t.Errorf("got %+v, want 400 lines in one chain", r)
	}
}

func TestPrivateFiles(t *testing.T) {
	path := fresh(t)
	fill(t, ledger(t, path, Options{}), 1)
	for _, p := range []string{path, path + ".head"} {
		info, err := os.Stat(p)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v; want mode 0600", p, info.Mode(), err)
		}
	}
}

func TestNothingIsMadeForReading(t *testing.T) {
	path := fresh(t)
	l := ledger(t, path, Options{})
	if r := verify(t, l); !r.OK || r.Lines != 0 {
		t.Errorf("got %+v, want an empty ledger that is right", r)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("looking made a file: %v", err)
	}
}

// Noted lines are on disk within the time for which they may wait.
func TestNotedLinesAreWrittenSoon(t *testing.T) {
	l := ledger(t, fresh(t), Options{Flush: 20 * time.Millisecond})
	l.Note(Entry{Kind: "call"})
	for deadline := time.Now().Add(time.Minute); len(collect(t, l, Filter{})) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a noted line was never written")
		}
	}
}

func TestClosingWritesWhatIsPending(t *testing.T) {
	path := fresh(t)
	l := Open(path, Options{Flush: time.Second})
	for range 100 {
		l.Note(Entry{Kind: "call"})
	}
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.Keep(t.Context(), Entry{}); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v after Close, want ErrClosed", err)
	}
	if r := verify(t, ledger(t, path, Options{})); !r.OK || r.Lines != 100 {
		t.Errorf("got %+v, want 100 lines", r)
	}
}

// A full disk is reported at once, to callers that wait and to callers of Ready, and delays no caller.
// When space is free again, everything that was pending is written.
//
//redteam:attack What destroys is written down before it begins: the disk of the ledger is full
func TestFullDisk(t *testing.T) {
	for _, lenient := range []bool{false, true} {
		l := ledger(t, fresh(t), Options{Lenient: lenient, Flush: time.Millisecond})
		fill(t, l, 1)
		db, _, err := l.file.writer()
		if err != nil {
			t.Fatal(err)
		}
		pages := func(n int) {
			if _, err := db.Exec(fmt.Sprintf("PRAGMA max_page_count = %d", n)); err != nil {
				t.Fatal(err)
			}
		}
		pages(1) // limits the file to its present size
		kept := 1
		for l.state() == nil && kept < 1000 {
			err = l.Keep(t.Context(), Entry{Kind: "call", Reason: strings.Repeat("x", 250)})
			kept++
		}
		for range 100 {
			l.Note(Entry{Kind: "call"})
			l.Keep(t.Context(), Entry{Kind: "call"})
			kept += 2
		}
		ready := l.Ready()
		if !lenient && (!errors.Is(err, ErrFailing) || !errors.Is(ready, ErrFailing)) ||
			lenient && (err != nil || ready != nil) ||
			l.state() == nil {
			t.Fatalf("lenient %t: got %v and %v", lenient, err, ready)
		}
		pages(1 << 30)
		for deadline := time.Now().Add(time.Minute); l.state() != nil; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the ledger never recovers")
			}
		}
		if err := errors.Join(l.Sync(t.Context()), l.Ready()); err != nil {
			t.Fatal(err)
		}
		if r := verify(t, l); !r.OK || r.Lines != int64(kept) {
			t.Errorf("got %+v, want %d lines: none that was pending may be lost", r, kept)
		}
	}
}

// state returns the error of the last write, lenient or not.
func (l *Ledger) state() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failing
}

func TestLossIsALine(t *testing.T) {
	l := ledger(t, fresh(t), Options{Pending: 2000, Flush: time.Millisecond})
	fill(t, l, 1)
	l.mu.Lock()
	l.failing = errors.New("full") // no caller waits for space then
	l.mu.Unlock()
	big := Entry{Kind: "call", Reason: strings.Repeat("x", 250)}
	for range 3 {
		l.mu.Lock()
		l.failing = errors.New("full")
		for range 20 {
			l.addLine(*l.buildLine(&big), false)
		}
		l.mu.Unlock()
	}
	l.Sync(t.Context())
	l.Sync(t.Context())
	lost := collect(t, l, Filter{Kind: "audit.lost"})
	if len(lost) == 0 || !strings.Contains(lost[0].Reason, "were dropped") {
		t.Errorf("got %v, want a line about the loss", lost)
	}
	if r := verify(t, l); !r.OK {
		t.Errorf("got %+v", r)
	}
}

func TestLevels(t *testing.T) {
	for name, c := range map[string]struct {
		effects tool.Effects
		want    Level
	}{
		"file_read": {tool.Reads, Info}, "file_write": {tool.Writes, Security},
		"file_delete": {tool.Destroys, Security},
		"unheard_of":  {0, Security}, "process_start": {tool.Reads, Security}, "metrics_record": {tool.Writes, Info},
		"webview_click": {tool.Writes, Info},
	} {
		if got := LevelOf(name, c.effects); got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
}

func TestFactsBecomeLines(t *testing.T) {
	l := ledger(t, fresh(t), Options{})
	b := bus.New()
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	run := l.RecordEvents(ctx, b)
	watching.Go(func() { run() })
	b.Publish(
		bus.Event{
			Subject: "auth.login",
			Data:    json.RawMessage(`{"user":"alice","outcome":"ok","address":"127.0.0.1","password":"hunter2"}`),
		},
	)
	b.Publish(bus.Event{Subject: "module.shell.auth.login", Data: json.RawMessage(`{"user":"root"}`)})
	b.Publish(
		bus.Event{
			Subject: "session.created",
			Owner:   "team/alice/default",
			Data:    json.RawMessage(`{"session":"abc","client":"c/1","revision":"2025-11-25"}`),
		},
	)
	b.Publish(
		bus.Event{
			Subject: "module.sandbox.sandbox.network",
			Data: json.RawMessage(
				`{"id":"s","principal":"bob","context":"code","allowed":false,"target":"x:80","reason":"no rule allows it"}`,
			),
		},
	)
	b.Publish(bus.Event{Subject: "call.finished", Owner: "alice/default"})
	cancel()
	watching.Wait()
	l.Sync(t.Context())
	failed := EntryOf(
		bus.Event{
			Subject: "auth.login_failed",
			Data:    json.RawMessage(`{"Kind":"login_failed","Principal":"eve","Credential":"t_1","From":"10.0.0.1"}`),
		},
	)
	if failed.Principal != "eve" || failed.Credential != "t_1" || failed.Outcome != Denied ||
		string(failed.Args) != `{"Kind":"login_failed","From":"10.0.0.1"}` {
		t.Errorf("failed login: got %+v, %s", failed, failed.Args)
	}
	for _, line := range collect(t, l, Filter{}) {
		switch line.Kind {
		case "auth.login":
			if line.Principal != "alice" || line.Outcome != "ok" || line.Level != Security ||
				string(line.Args) != `{"address":"127.0.0.1","password":"***"}` {
				t.Errorf("login: got %s", line.Raw)
			}
		case "session.created":
			if line.Principal != "team/alice" || line.Session != SessionHash("abc") || line.Level != Info ||
				string(line.Args) != `{"revision":"2025-11-25"}` {
				t.Errorf("session: got %s", line.Raw)
			}
		case "module.sandbox.sandbox.network":
			if line.Principal != "bob" || line.Context != "code" || line.Reason != "no rule allows it" ||
				string(line.Args) != `{"id":"s","allowed":false,"target":"x:80"}` {
				t.Errorf("a way out: got %s", line.Raw)
			}
		default:
			t.Errorf("unexpected: %s", line.Raw)
		}
	}
}

// Alternating sessions each keep their own hash, cached or not.
func TestNamesOfSessions(t *testing.T) {
	var names sessionNames
	for turn := range 2 * mostOthers {
		for i := range 2 * len(names.seen) {
			id := fmt.Sprint("session ", i)
			if got := string(names.append([]byte("x"), id)); got != "x"+SessionHash(id) {
				t.Fatalf("turn %d: %s is %s", turn, id, got)
			}
		}
	}
}

func TestTimesAreWrittenTheShortWay(t *testing.T) {
	var c clockText
	at := time.Date(2026, 11, 21, 15, 4, 5, 0, time.UTC)
	for _, after := range []time.Duration{0, 7 * time.Microsecond, 999_999 * time.Microsecond, time.Second,
		36 * time.Hour, time.Second} {
		want := at.Add(after).Format("2006-01-02T15:04:05.000000Z")
		if got := string(c.append(nil, at.Add(after).In(time.FixedZone("", 3600)))); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	for _, d := range []time.Duration{1, time.Microsecond, 10 * time.Microsecond, 1234 * time.Microsecond,
		1500 * time.Microsecond, time.Second, 61_000_050 * time.Microsecond} {
		want := strconv.FormatFloat(float64(d.Microseconds())/1000, 'f', -1, 64)
		if got := string(appendMillis(nil, d)); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func FuzzFromFact(f *testing.F) {
	f.Add("auth.login", "alice/default", []byte(`{"user":"alice","password":"x","user":"bob"}`))
	f.Add("session.created", "", []byte(`[1]`))
	f.Fuzz(func(t *testing.T, subject, owner string, data []byte) {
		e := EntryOf(bus.Event{Subject: subject, Owner: owner, Data: data})
		line, _ := appendLine(nil, link{}, e.append(nil, whoWrites("node"), &seen{}))
		if _, err := ParseLine(line); err != nil {
			t.Errorf("%s cannot be read: %v", line, err)
		}
	})
}

func TestOldLinesAreRemovedAndTheRestIsStillWhole(t *testing.T) {
	archive := t.TempDir()
	path := fresh(t)
	l := ledger(t, path, Options{Keep: time.Hour, Archive: archive, Flush: time.Millisecond})
	for i := range 300 {
		e := Entry{Kind: "call", Call: fmt.Sprint(i), At: time.Now().Add(-2 * time.Hour)}
		if i >= 200 {
			e.At = time.Now()
		}
		if err := l.Keep(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second time nothing is left to do
		if err := l.file.pruneNow(t.Context(), l, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	r := verify(t, l)
	if !r.OK || r.First != 201 || r.Removed != 200 || r.Last != 301 {
		t.Fatalf("got %+v, want lines 201 to 301", r)
	}
	old, err := os.Open(filepath.Join(archive, "audit-1-200.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if r, err := VerifyLines(t.Context(), old); err != nil || !r.OK || r.Lines != 200 {
		t.Errorf("archive: got %+v, %v", r, err)
	}
	// A later removal depends on its own line alone.
	if err := l.file.pruneNow(t.Context(), l, time.Now().Add(2*time.Hour)); err != nil {
		t.Fatal(err)
	}
	if r := verify(t, l); !r.OK || r.First < 300 || r.Lines == 0 {
		t.Errorf("got %+v", r)
	}
	// Lines removed by hand do not count as a removal by the ledger.
	db, _, _ := l.file.writer()
	if _, err := db.Exec("DELETE FROM block WHERE first = (SELECT min(first) FROM block)"); err != nil {
		t.Fatal(err)
	}
	if r := verify(t, l); r.OK || r.Problems[0].Kind != "beginning" {
		t.Errorf("got %+v, want the beginning to be missing", r)
	}
}

func TestSizeIsBounded(t *testing.T) {
	l := ledger(t, fresh(t), Options{MaxSize: 256 << 10, Flush: time.Millisecond})
	for i := range 40 {
		for range 30 {
			var reason strings.Builder
			for range 15 { // data that does not compress well
				fmt.Fprintf(&reason, "%016x", rand.Uint64())
			}
			l.Note(Entry{Kind: "call", Reason: reason.String(), Tool: fmt.Sprint(rand.Int())})
		}
		l.Sync(t.Context())
		if i%10 == 9 {
			if err := l.file.pruneNow(t.Context(), l, time.Now()); err != nil {
				t.Fatal(err)
			}
		}
	}
	r := verify(t, l)
	if !r.OK || r.Removed == 0 || r.Lines < 100 || r.Lines > 800 {
		t.Errorf("got %+v, want the newest lines within the bound", r)
	}
}
