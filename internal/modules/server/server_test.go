package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/module"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

// fakeHost is a host as the tools see it.
type fakeHost struct {
	mu      sync.Mutex
	about   About
	stopped []bool
}

func newFakeHost() *fakeHost {
	return &fakeHost{
		about: About{
			ID:         "host_1",
			Name:       "lab",
			Version:    "1.2",
			Started:    time.Now().Add(-time.Minute),
			Transports: []string{"http"},
		},
	}
}

func (h *fakeHost) About() About {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.about
}

func (h *fakeHost) Rules(who tool.Caller) bool { return slices.Contains(who.Roles, "admin") }

func (h *fakeHost) SetName(_ context.Context, name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.about.Name = name
	return nil
}

func (h *fakeHost) SetLanguage(_ context.Context, language string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.about.Language = language
	return nil
}

func (h *fakeHost) Bindings() []Binding {
	return []Binding{
		{Kind: "stdio"},
		{Kind: "HTTP", Address: "http://localhost:3000/mcp", Bind: "127.0.0.1:3000"},
		{
			Kind:    "HTTPS",
			Address: "https://box.example.com/mcp",
			Bind:    "[::]:443",
			Names:   []string{"box.example.com"},
			ACME:    "an authority",
		},
		{Kind: "Unix", Address: "unix:///run/x", Bind: "/run/x"},
	}
}

func (h *fakeHost) SetEchoIP(_ context.Context, urls []string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.about.EchoIP = urls
	return nil
}

func (h *fakeHost) Stop(again bool) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopped = append(h.stopped, again)
	return "as told", nil
}

// caller calls the tools of one module.
type caller struct {
	t      *testing.T
	module module.Module
	roles  []string
	can    tool.Abilities
	answer json.RawMessage // of the person
	asked  int
}

func start(t *testing.T, cfg Config) *caller {
	deps := moduletest.NewHost(t).Deps()
	m, err := New(cfg)(t.Context(), deps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(context.Background()) })
	return &caller{t: t, module: m, roles: []string{"admin"}, can: tool.CanElicit}
}

// call gives the structured result, or the code of a refusal and its text.
func (c *caller) call(name, args string, into any) string {
	c.t.Helper()
	call := moduletest.NewCall(c.t, args)
	call.Caller.Roles, call.Caller.Can = c.roles, c.can
	call.Peer.Answers["confirm"] = c.answer
	refused := call.Ask(c.t, c.module, name, into)
	c.asked = len(call.Peer.Asked)
	return refused
}

func TestTheModuleKeepsTheContract(t *testing.T) {
	moduletest.Run(t, New(Config{}), moduletest.Options{})
}

func TestTimeAndMachine(t *testing.T) {
	c := start(t, Config{Host: newFakeHost()})
	c.roles = nil // every caller may read
	var now timeOut
	if bad := c.call("server_time", `{}`, &now); bad != "" || now.Uptime < 60 {
		t.Errorf("%s %+v", bad, now)
	}
	if at, err := time.Parse(time.RFC3339Nano, now.Now); err != nil || time.Since(at).Abs() > time.Hour ||
		at.Location() != time.UTC {
		t.Errorf("now is %q, %v", now.Now, err)
	}
	var info infoOut
	if bad := c.call("server_info", `{}`, &info); bad != "" || info.ID != "host_1" || info.Name != "lab" ||
		info.OS.Platform != runtime.GOOS || info.Hardware.Processors < 1 ||
		len(info.Hardware.Devices) == 0 || info.Hardware.Devices[0].Class != "processor" {
		t.Errorf("%s %+v", bad, info)
	}
	if runtime.GOOS == "linux" && (info.Hardware.RAM == 0 || info.OS.Kernel == "" || now.MachineUptime == 0) {
		t.Errorf("%+v, up %d s", info, now.MachineUptime)
	}
}

func TestTheMachineIsMeasured(t *testing.T) {
	c := start(t, Config{})
	var s Sample
	if bad := c.call("server_metrics", `{}`, &s); bad != "" {
		t.Fatal(bad)
	}
	if runtime.GOOS != "linux" {
		t.Skip("this system has no such measurements")
	}
	switch {
	case s.Memory == nil || s.Memory.Total == 0 || s.Memory.Used > s.Memory.Total:
		t.Errorf("memory is %+v", s.Memory)
	case s.Disk == nil || s.Disk.Capacity == 0 || s.Disk.Used > s.Disk.Capacity:
		t.Errorf("the disk is %+v", s.Disk)
	case s.CPU == nil:
		t.Error("the processors are not measured")
	case s.CPU.Idle+s.CPU.User+s.CPU.Kernel+s.CPU.Wait < 99 || s.CPU.Idle+s.CPU.User+s.CPU.Kernel+s.CPU.Wait > 101:
		t.Errorf("the parts of %+v are not the whole", s.CPU)
	case s.General.Temperature != nil && (*s.General.Temperature <= 0 || *s.General.Temperature >= 150):
		t.Errorf("it is %v degrees", *s.General.Temperature)
	}
}

// A measurement ends when its caller has gone.
func TestMeasuringEndsWithItsCaller(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (&Meter{}).Measure(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

//redteam:attack Matters of the whole host are for administrators: an ordinary user reads logs and ends the host
func TestWhatIsEverybodysMatterIsForThoseWhoRule(t *testing.T) {
	h := newFakeHost()
	c := start(t, Config{Host: h, Journal: NewJournal(slog.LevelInfo)})
	c.roles, c.can = []string{"writer"}, 0
	for name, args := range map[string]string{
		"server_logs": `{}`, "server_kernel_logs": `{}`, "server_set_name": `{"name":"mine"}`,
		"server_language": `{"language":"de"}`,
		"server_restart":  `{"confirm":"lab"}`, "server_shutdown": `{"confirm":"lab"}`,
	} {
		if got := c.call(name, args, nil); !strings.HasPrefix(got, "denied: ") ||
			!strings.Contains(got, "administrator") {
			t.Errorf("%s: %q", name, got)
		}
	}
	if h.about.Name != "lab" || h.about.Language != "" || len(h.stopped) > 0 {
		t.Errorf("the host is %+v, stopped %v", h.about, h.stopped)
	}
}

func TestNameAndLanguage(t *testing.T) {
	c := start(t, Config{Host: newFakeHost()})
	var n nameOut
	if bad := c.call("server_set_name", `{"name":"  Tower on the hill "}`, &n); bad != "" ||
		n.Name != "Tower on the hill" {
		t.Errorf("%s %+v", bad, n)
	}
	if got := c.call("server_set_name", `{}`, nil); !strings.HasPrefix(got, "invalid_arguments: expected either "+
		"name or clear") {
		t.Errorf("a call without arguments: %q", got)
	}
	var kept struct{ Name string }
	if c.call("server_info", `{}`, &kept); kept.Name != "Tower on the hill" {
		t.Errorf("a call without arguments left the name %q", kept.Name)
	}
	for args, want := range map[string]string{`{"clear":true}`: "", `{"name":""}`: ""} {
		if bad := c.call("server_set_name", args, &n); bad != "" || n.Name != want {
			t.Errorf("%s: %s %+v, want %s", args, bad, n, want)
		}
	}
	for _, bad := range []string{`{"name":"x","clear":true}`, `{"name":"two\nlines"}`, `{"name":"bell\u0007"}`,
		`{"name":"\u202emirrored"}`} {
		if got := c.call("server_set_name", bad, nil); !strings.HasPrefix(got, "invalid_arguments") {
			t.Errorf("%s: %q", bad, got)
		}
	}
	var l languageOut
	for in, want := range map[string]string{"en_US": "en_US", "de": "de", "pt-BR": "pt_BR", "zh-Hant-TW": "zh_Hant_TW",
		"es-419": "es_419", "fr_FR.UTF-8": "fr_FR"} {
		if bad := c.call("server_language", `{"language":"`+in+`"}`, &l); bad != "" || l.Language != want {
			t.Errorf("%s: %s %+v", in, bad, l)
		}
	}
	for _, bad := range []string{`{"language":"English"}`, `{"language":"../x"}`, `{"language":"en_us"}`,
		`{"language":"de","clear":true}`} {
		if got := c.call("server_language", bad, nil); !strings.HasPrefix(got, "invalid_arguments") {
			t.Errorf("%s: %q", bad, got)
		}
	}
	was := l.Language
	c.roles = nil
	if bad := c.call("server_language", `{}`, &l); bad != "" || l.Language == "" {
		t.Errorf("it was %s and reads %s %+v", was, bad, l)
	}
	c.roles = []string{"admin"}
	if bad := c.call("server_language", `{"clear":true}`, &l); bad != "" || l.Language != "" {
		t.Errorf("%s %+v", bad, l)
	}
}

//redteam:attack Matters of the whole host are for administrators: a host is ended without a yes
func TestAHostEndsOnlyWhenThePersonAgrees(t *testing.T) {
	yes, no := moduletest.Accept(map[string]any{"confirm": true}), moduletest.Accept(map[string]any{"confirm": false})
	for name, again := range map[string]bool{"server_shutdown": false, "server_restart": true} {
		h := newFakeHost()
		c := start(t, Config{Host: h})
		for want, answer := range map[string]json.RawMessage{"said no": no, "declined": moduletest.Decline()} {
			// What the model says does not count where the person can be asked.
			if c.answer = answer; !strings.HasPrefix(c.call(name, `{"confirm":"lab"}`, nil), "declined") ||
				len(h.stopped) > 0 {
				t.Errorf("%s when the person %s: stopped %v", name, want, h.stopped)
			}
		}
		c.answer = yes
		var out stopOut
		if bad := c.call(name, `{}`, &out); bad != "" || c.asked != 1 || !slices.Equal(h.stopped, []bool{again}) ||
			out.How != "as told" {
			t.Errorf("%s: %s %+v, asked %d times, stopped %v", name, bad, out, c.asked, h.stopped)
		}
		c.can = tool.WordCounts
		for _, args := range []string{`{}`, `{"confirm":"yes"}`, `{"confirm":"LAB"}`} {
			if got := c.call(name, args, nil); !strings.HasPrefix(got, "unconfirmed") ||
				!strings.Contains(got, `"lab"`) || len(h.stopped) != 1 {
				t.Errorf("%s %s: %q", name, args, got)
			}
		}
		if bad := c.call(name, `{"confirm":"lab"}`, &out); bad != "" || len(h.stopped) != 2 {
			t.Errorf("%s: %s, stopped %v", name, bad, h.stopped)
		}
	}
}

func TestWithoutAHost(t *testing.T) {
	c := start(t, Config{})
	c.can = tool.WordCounts
	for name, args := range map[string]string{"server_set_name": `{"name":"x"}`, "server_language": `{"language":"de"}`,
		"server_restart": `{"confirm":"gatehouse"}`, "server_logs": `{}`} {
		if got := c.call(name, args, nil); !strings.HasPrefix(got, "unsupported") {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestLogsArePagedThrough(t *testing.T) {
	j := NewJournal(slog.LevelInfo)
	log := slog.New(j.Handler())
	c := start(t, Config{Host: newFakeHost(), Journal: j})
	for i := range 10 {
		log.Info("counted", "n", i)
	}
	log.Debug("not kept")
	log.With("user", "ann").WithGroup("of").Warn("odd", "password", secret.New("hunter2"), "err", errors.New("broken"))
	var newest, older, none pageOut
	if bad := c.call("server_logs", `{"limit":3}`, &newest); bad != "" || len(newest.Entries) != 3 {
		t.Fatalf("%s %+v", bad, newest)
	}
	last := newest.Entries[2]
	if last.Level != "warn" || last.Message != "odd" ||
		string(last.Attributes) != `{"user":"ann","of":{"password":"[secret]","err":"broken"}}` || last.BootID == "" {
		t.Errorf("the newest is %+v with %s", last, last.Attributes)
	}
	if string(newest.Entries[0].Attributes) != `{"n":8}` {
		t.Errorf("the page begins with %s", newest.Entries[0].Attributes)
	}
	c.call("server_logs", `{"limit":3,"before":true,"cursor":"`+newest.Start+`"}`, &older)
	if len(older.Entries) != 3 || string(older.Entries[2].Attributes) != `{"n":7}` {
		t.Errorf("before it is %+v", older)
	}
	var all []string
	at := newest.Entries[0].BootID + ".0"
	for range 20 {
		var p pageOut
		if c.call("server_logs", `{"limit":4,"cursor":"`+at+`"}`, &p); len(p.Entries) == 0 {
			break
		}
		for _, e := range p.Entries {
			all = append(all, string(e.Attributes))
		}
		at = p.End
	}
	if len(all) != 11 || all[0] != `{"n":0}` {
		t.Errorf("all are %v", all)
	}
	if c.call("server_logs", `{"level":"warn"}`, &none); len(none.Entries) != 1 || none.Entries[0].Message != "odd" {
		t.Errorf("warnings are %+v", none)
	}
	if c.call("server_logs", `{"cursor":"`+newest.End+`"}`, &none); none.Entries == nil || len(none.Entries) != 0 ||
		none.End != newest.End {
		t.Errorf("after the last: %+v", none)
	}
}

func TestLogsAreWaitedFor(t *testing.T) {
	j := NewJournal(slog.LevelInfo)
	log := slog.New(j.Handler())
	log.Info("before")
	c := start(t, Config{Host: newFakeHost(), Journal: j})
	done := make(chan pageOut)
	go func() {
		var p pageOut
		c.call("server_logs", `{"follow":35}`, &p)
		done <- p
	}()
	for {
		log.Info("news") // until a reader waits for it
		select {
		case p := <-done:
			if len(p.Entries) == 0 || p.Entries[0].Message != "news" {
				t.Errorf("got %+v", p)
			}
			return
		case <-time.After(time.Millisecond):
		}
	}
}

func TestCursorsThatAreNone(t *testing.T) {
	j := NewJournal(slog.LevelInfo)
	slog.New(j.Handler()).Info("x")
	c := start(t, Config{Host: newFakeHost(), Journal: j})
	for args, want := range map[string]string{
		`{"cursor":"soon"}`:            "invalid_arguments",
		`{"cursor":".1"}`:              "stale",
		`{"cursor":"x.-1"}`:            "invalid_arguments",
		`{"cursor":"elsewhere.1"}`:     "stale",
		`{"before":true}`:              "invalid_arguments",
		`{"boot":"the one of before"}`: "not_found",
	} {
		if got := c.call("server_logs", args, nil); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %s", args, got, want)
		}
	}
}

// What is let go is counted, and a flood of messages takes no more than its
// place.
func TestAJournalHasLimits(t *testing.T) {
	j := NewJournal(slog.LevelInfo)
	log := slog.New(j.Handler())
	for range journalEntries + 10 {
		log.Info("short")
	}
	boot, all, _ := j.snapshot()
	if len(all) != journalEntries || all[0].seq != 11 {
		t.Errorf("%d are kept, from %d on", len(all), all[0].seq)
	}
	p, err := page(t.Context(), j, pageIn{Limit: 1, Cursor: cursor(boot, 3)})
	if err != nil || p.Lost != 7 || len(p.Entries) != 1 {
		t.Errorf("lost %d, %v", p.Lost, err)
	}
	for range journalEntries {
		log.Info(strings.Repeat("long ", 4000), "more", strings.Repeat("x", 20_000))
	}
	_, all, _ = j.snapshot()
	size := 0
	for _, e := range all {
		size += e.entrySize()
	}
	if size > journalBytes || len(all) < 100 {
		t.Errorf("%d messages have %d bytes", len(all), size)
	}
	if e := all[len(all)-1]; len(e.message) > maxMessage+10 || !json.Valid(e.attrs) {
		t.Errorf("one message has %d bytes, its attributes %d", len(e.message), len(e.attrs))
	}
}

func TestRecordsOfTheKernel(t *testing.T) {
	booted := time.Unix(1000, 0)
	e, ok := parseRecord("4,1234,5140900,-,caller=T1;ACPI: a \"thing\"; more\n SUBSYSTEM=acpi\n "+
		"DEVICE=+acpi:PNP0A03:00\n", booted)
	if !ok || e.seq != 1235 || e.level != "warn" || e.message != `ACPI: a "thing"; more` ||
		!e.at.Equal(booted.Add(5140900*time.Microsecond)) ||
		string(e.attrs) != `{"DEVICE":"+acpi:PNP0A03:00","SUBSYSTEM":"acpi"}` {
		t.Errorf("got %v %+v with %s", ok, e, e.attrs)
	}
	// The kernel writes what is not printable ASCII, and the backslash, as escapes.
	e, _ = parseRecord(`6,1,2,-;usb: M\xc3\xbcller \x5cxc3 \xff \xzz`+"\n DEVICE=n\\xc3\\xa4me\n", booted)
	if e.message != "usb: Müller \\xc3 \uFFFD \\xzz" || string(e.attrs) != `{"DEVICE":"näme"}` {
		t.Errorf("got %q with %s", e.message, e.attrs)
	}
	for _, bad := range []string{"", ";", "x", "6,1;text", "6,1,x,-;text", "-1,1,1,-;text", "6,1,-5,-;text",
		"6,18446744073709551615,1,-;text"} {
		if e, ok := parseRecord(bad, booted); ok {
			t.Errorf("%q is %+v", bad, e)
		}
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add("6,1,2,-;hello\n KEY=value\n")
	f.Add("0,0,0;\xff\n =\n")
	f.Fuzz(func(t *testing.T, text string) {
		e, ok := parseRecord(text, time.Unix(0, 0))
		if ok && (e.seq == 0 || e.level == "" || len(e.message) > maxMessage+10 || e.attrs != nil &&
			!json.Valid(e.attrs)) {
			t.Errorf("%q is %+v", text, e)
		}
	})
}

func FuzzCursor(f *testing.F) {
	f.Add("boot.1", true)
	f.Add("..", false)
	f.Fuzz(func(t *testing.T, at string, before bool) {
		in := pageIn{Limit: 2, Cursor: at, Before: before}
		all := []entry{{seq: 4, level: "info"}, {seq: 5, level: "info"}, {seq: 6, level: "info"}}
		if out, err := in.selectPage("boot", all); err == nil && (len(out.Entries) > 2 || out.End == "" ||
			out.Start == "") {
			t.Errorf("%q: %+v", at, out)
		}
	})
}

func TestTheKernelIsHeard(t *testing.T) {
	f, err := os.Open(kernelFile)
	if err != nil {
		t.Skip("the kernel's messages cannot be read here:", err)
	}
	f.Close()
	c := start(t, Config{Host: newFakeHost()})
	var p, after pageOut
	switch got := c.call("server_kernel_logs", `{"limit":5}`, &p); {
	case strings.HasPrefix(got, "denied"):
		t.Skip(got)
	case got != "":
		t.Fatal(got)
	case len(p.Entries) == 0:
		t.Skip("the kernel has said nothing")
	}
	if at, err := time.Parse(time.RFC3339Nano, p.Entries[0].Timestamp); err != nil || at.Year() < 2000 ||
		p.Entries[0].BootID == "" {
		t.Errorf("got %+v, %v", p.Entries[0], err)
	}
	if got := c.call("server_kernel_logs", `{"cursor":"`+p.Start+`","limit":500}`, &after); got != "" ||
		len(after.Entries) < len(p.Entries)-1 {
		t.Errorf("after the first: %s %d messages", got, len(after.Entries))
	}
}

// What a host logged in an earlier start is read by the name of that start, page
// by page, and is there after the host has ended.
func TestEarlierStartsAreRead(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "journal")
	log := func(texts ...string) *Journal {
		j := NewJournal(slog.LevelInfo)
		l := slog.New(j.Handler())
		for i, text := range texts {
			if i == 1 { // what came before is written as well
				if err := j.OpenFile(folder); err != nil {
					t.Fatal(err)
				}
			}
			l.Info(text, "n", i)
		}
		t.Cleanup(func() { j.CloseFile() })
		return j
	}
	first := log("one", "two", "three")
	if err := first.CloseFile(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Millisecond) // the names of files have milliseconds
	c := start(t, Config{Host: newFakeHost(), Journal: log("four", "five")})
	page := func(args string) (out pageOut) {
		t.Helper()
		if bad := c.call("server_logs", args, &out); bad != "" {
			t.Errorf("%s: %s", args, bad)
		}
		return out
	}
	now := page(`{}`)
	if len(now.Entries) != 2 || len(now.Boots) != 2 || !now.Boots[0].Present || now.Boots[1].Present ||
		now.Boots[1].BootID == now.Boots[0].BootID {
		t.Fatalf("the present start: %+v", now)
	}
	boot := now.Boots[1].BootID
	then := page(fmt.Sprintf(`{"boot":%q,"limit":2,"follow":30}`, boot)) // nothing is waited for
	if len(then.Entries) != 2 || then.Entries[1].Message != "three" || then.Entries[1].BootID != boot ||
		string(then.Entries[1].Attributes) != `{"n":2}` {
		t.Errorf("the earlier start: %+v", then)
	}
	before := page(fmt.Sprintf(`{"cursor":%q,"before":true}`, then.Start))
	if len(before.Entries) != 1 || before.Entries[0].Message != "one" {
		t.Errorf("the page before: %+v", before)
	}
	if got := c.call("server_logs", `{"boot":"aaaaaaaaaaaaaaaa"}`, nil); !strings.HasPrefix(got, "not_found: ") {
		t.Errorf("a start that is not there: %s", got)
	}
	for range maxStarts + 3 {
		log("x", "y").CloseFile()
	}
	left, err := starts(folder)
	if err != nil || len(left) > maxStarts {
		t.Errorf("%d starts are kept, %v", len(left), err)
	}
}

// A file of a host that logs much stays within its limit, and ends with the
// newest.
func TestAFileOfALogHasALimit(t *testing.T) {
	folder := t.TempDir()
	j := NewJournal(slog.LevelInfo)
	if err := j.OpenFile(folder); err != nil {
		t.Fatal(err)
	}
	l, text := slog.New(j.Handler()), strings.Repeat("x", maxMessage)
	for i := range 2 * maxFile / maxMessage {
		l.Info(text, "n", i)
	}
	if err := j.CloseFile(); err != nil {
		t.Fatal(err)
	}
	l.Info("after its end")
	all, err := starts(folder)
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	info, err := os.Stat(all[0].path)
	if err != nil || info.Size() > maxFile || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has %d bytes, mode %v, %v", info.Size(), info.Mode(), err)
	}
	kept, err := all[0].readEntries()
	if err != nil || string(kept[len(kept)-1].attrs) != fmt.Sprintf(`{"n":%d}`, 2*maxFile/maxMessage-1) {
		t.Errorf("%d messages, %v", len(kept), err)
	}
}
