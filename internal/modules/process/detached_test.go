package process

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"gatehouse/module/moduletest"
)

// keeping is the module of a host that keeps detached processes in a folder.
func keeping(t *testing.T, folder, config string) *fixture {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("processes outlive their host on Linux only")
	}
	host := moduletest.NewHost(t)
	deps := host.Deps()
	cfg := configOf(t, config)
	cfg.Folder = folder
	m, err := New(cfg)(t.Context(), deps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(t.Context()) })
	return &fixture{t: t, m: m, host: host, dir: moduletest.Folder(t)}
}

// detach starts a script that outlives its host, and ends it after the test.
func (d *fixture) detach(script string) string {
	d.t.Helper()
	r, code := d.try("start", args{"command": "sh", "args": []string{"-c", script}, "detach": true})
	if code == "unsupported" {
		d.t.Skip("this system cannot follow a process it did not start")
	}
	if code != "" {
		d.t.Fatal(code)
	}
	d.t.Cleanup(func() {
		if p, err := os.FindProcess(r.PID); err == nil {
			p.Kill()
		}
	})
	return r.ID
}

// next is the host after this one.
func (d *fixture) next(folder, config string) *fixture {
	d.t.Helper()
	if err := d.m.Close(d.t.Context()); err != nil {
		d.t.Fatal(err)
	}
	next := keeping(d.t.(*testing.T), folder, config)
	next.dir = d.dir
	return next
}

func left(t *testing.T, folder string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(folder, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestADetachedProcessOutlivesItsHost(t *testing.T) {
	folder := t.TempDir()
	d := keeping(t, folder, "")
	ordinary := d.sh("sleep 1000")
	id := d.detach("echo first; echo oh >&2; until [ -e go ]; do sleep 0.01; done; echo second; sleep 1000")
	d.reads(id, "first\n")
	d.reads(id, "oh\n")
	before := d.do("output", args{"id": id})

	d = d.next(folder, "")
	if _, code := d.try("output", args{"id": ordinary}); code != "not_found" {
		t.Errorf("a process that was not detached: %q", code)
	}
	r := d.do("output", args{"id": id})
	if r.Status != "running" || !strings.Contains(r.Output, "first\n") || !strings.Contains(r.Output, "oh\n") {
		t.Errorf("%+v", r)
	}
	if err := os.WriteFile(filepath.Join(d.dir.List()[0].Path, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r = d.do("output", args{"id": id, "wait": "text", "match": "second\n", "since": before.Next, "timeout": 45})
	if r.TimedOut || r.Output != "second\n" || r.Lost != 0 {
		t.Errorf("%+v", r)
	}
	if l := d.do("list", args{"usage": true}); l.Total != 1 || l.Processes[0].ID != id ||
		l.Processes[0].Status != "running" || l.Processes[0].Processes < 2 {
		t.Errorf("%+v", l)
	}
	d.as = "other"
	if _, code := d.try("output", args{"id": id}); code != "not_found" {
		t.Errorf("another caller finds it: %q", code)
	}
	d.as = ""
	if r := d.do("stop", args{"id": id}); !r.Success {
		t.Errorf("%+v", r)
	}
	if r := d.ended(id); r.Status != "killed" {
		t.Errorf("%+v", r)
	}
	d.do("remove", args{"id": id})
	if names := left(t, folder); len(names) > 0 {
		t.Errorf("%v is left", names)
	}
}

// What ended is remembered by the next host as well: how, if a host saw it.
func TestTheEndOfADetachedProcessIsRemembered(t *testing.T) {
	folder := t.TempDir()
	d := keeping(t, folder, "")
	seen := d.detach("echo seen; exit 3")
	if r := d.ended(seen); r.Status != "exited" || r.ExitCode == nil || *r.ExitCode != 3 || r.Output != "seen\n" {
		t.Errorf("%+v", r)
	}
	away := d.detach("echo away; until [ -e go ]; do sleep 0.01; done; echo more")
	d.reads(away, "away\n")
	pid := d.do("list", args{"running_only": true}).Processes[0].PID
	if err := d.m.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.dir.List()[0].Path, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// It is a child of this process, so that waiting for it takes it away.
	p, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	p.Wait()

	d = d.next(folder, "")
	if r := d.do("output", args{"id": seen}); r.Status != "exited" || r.ExitCode == nil || *r.ExitCode != 3 ||
		r.Output != "seen\n" {
		t.Errorf("%+v", r)
	}
	if r := d.do("output", args{"id": away}); r.Status != "lost" || r.ExitCode != nil || r.Output != "away\nmore\n" {
		t.Errorf("%+v", r)
	}
	d = d.next(folder, `{"Retention":1}`)
	if l := d.do("list", args{}); l.Total != 0 || len(left(t, folder)) > 0 {
		t.Errorf("%+v, %v", l, left(t, folder))
	}
}

// Of two hosts at a time one has a process, and the other after it.
func TestADetachedProcessHasOneHost(t *testing.T) {
	folder := t.TempDir()
	first := keeping(t, folder, "")
	id := first.detach("echo x; sleep 1000")
	first.reads(id, "x\n")
	second := keeping(t, folder, "")
	if _, code := second.try("output", args{"id": id}); code != "not_found" {
		t.Errorf("two hosts have it: %q", code)
	}
	first.m.Close(t.Context())
	if r := second.reads(id, "x\n"); r.Status != "running" {
		t.Errorf("%+v", r)
	}
	if r := second.do("kill", args{"id": id}); !r.Success {
		t.Errorf("%+v", r)
	}
}

// The newest output is kept, and what came before it is given back to the disk.
func TestADetachedFloodIsBounded(t *testing.T) {
	folder := t.TempDir()
	d := keeping(t, folder, `{"buffer":100000}`)
	id := d.detach("head -c 50000000 /dev/zero | tr '\\0' x; echo the end; sleep 1000")
	if r := d.reads(id, "the end\n"); r.Lost < 40_000_000 {
		t.Errorf("%d bytes are lost", r.Lost)
	}
	d = d.next(folder, `{"buffer":100000}`)
	r := d.do("output", args{"id": id, "tail": 1})
	if r.Output != strings.Repeat("x", len(r.Output)-8)+"the end\n" || r.Next != 50_000_008 {
		t.Errorf("%.100q up to %d", r.Output, r.Next)
	}
	d.do("kill", args{"id": id})
}

func TestWhatCannotBeDetached(t *testing.T) {
	d := keeping(t, t.TempDir(), "")
	d.session = "s"
	for _, in := range []args{{"terminal": true}, {"lifetime": "session"}} {
		in["command"], in["detach"] = "sleep", true
		if _, code := d.try("start", in); code != "invalid_arguments" && code != "unsupported" {
			t.Errorf("%v: %q", in, code)
		}
	}
	if _, code := d.try("start", args{"command": "/no/such/program", "detach": true}); code != "not_started" {
		t.Errorf("%q", code)
	}
	if names := left(t, d.m.(*manager).cfg.Folder); len(names) > 0 {
		t.Errorf("%v is left", names)
	}
	if _, code := open(t, "").try("start", args{"command": "sleep", "detach": true}); code != "unsupported" {
		t.Errorf("on a host that keeps nothing: %q", code)
	}
	id := d.detach("sleep 1000")
	if _, code := d.try("input", args{"id": id, "input": "x"}); code == "" {
		t.Error("it can be typed to")
	}
	d.do("kill", args{"id": id})
}

// Cards that are broken, or of others, are left alone.
func TestBrokenCardsAreLeftAlone(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string]string{
		"empty": "", "half": `{"id":"half","mark":{`, "other": `{"id":"another","owner":"o"}`, "up": `{"id":"../up"}`,
		"bare": `{"id":"bare","owner":"o"}`, // without output
	} {
		if err := os.WriteFile(filepath.Join(folder, name+cardFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d := keeping(t, folder, "")
	if l := d.do("list", args{}); l.Total != 0 || len(left(t, folder)) != 5 {
		t.Errorf("%+v, %v", l, left(t, folder))
	}
}

// The processes of one context are limited together, for all callers.
func TestAContextHasALimit(t *testing.T) {
	d := open(t, `{"PerContext":2}`)
	d.as = "ann/default"
	first := d.sh("sleep 1000")
	d.as = "bob/default"
	d.sh("sleep 1000")
	if _, code := d.try("start", args{"command": "true"}); code != "busy" {
		t.Errorf("a third one: %q", code)
	}
	d.as = "ann/default"
	d.do("kill", args{"id": first})
	d.ended(first)
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) { // its place is free a moment later
		if _, code := d.try("start", args{"command": "sleep", "args": []string{"1000"}}); code == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatal("no place becomes free")
		}
	}
}

func FuzzCard(f *testing.F) {
	f.Add(
		[]byte(
			`{"id":"process-x","owner":"o","began":"2026-01-01T00:00:00Z","mark":{"pid":1,"born":"1-1-1","boot":"b"},"end":{"at":"2026-01-01T00:00:00Z","code":1}}`,
		),
	)
	f.Add([]byte(`{"id":"x"`))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		path := filepath.Join(dir, "x"+cardFile)
		for name, text := range map[string][]byte{cardFile: b, stdoutFile: []byte("out"), stderrFile: nil} {
			if err := os.WriteFile(filepath.Join(dir, "x"+name), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		files, c, err := claimFiles(path)
		if err != nil {
			return
		}
		defer files.closeFiles()
		if c.ID != "x" {
			t.Fatalf("it is the card of %q", c.ID)
		}
		if err := files.writeCard(&c); err != nil {
			t.Fatal(err)
		}
		if after, err := os.ReadFile(path); err != nil || !json.Valid(after) ||
			!bytes.Contains(after, []byte(`"id":"x"`)) {
			t.Fatalf("%s became %s, %v", b, after, err)
		}
	})
}
