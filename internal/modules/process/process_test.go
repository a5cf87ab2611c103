package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/module"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

// fixture is the module with one folder, and its callers.
type fixture struct {
	t    testing.TB
	m    module.Module
	host *moduletest.Host
	dir  tool.Roots
	as   string // owner; "" means the usual one

	session string // of the calls; "" for none
	context string // of the calls; "" means the usual one
}

// configOf decodes dependencies that are plain data; "" means the defaults.
func configOf(t testing.TB, text string) (c Config) {
	t.Helper()
	if text == "" {
		return c
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		t.Fatal(err)
	}
	return c
}

func open(t testing.TB, config string) *fixture {
	t.Helper()
	h := moduletest.NewHost(t)
	m, err := New(configOf(t, config))(t.Context(), h.Deps())
	if err != nil {
		t.Fatal(err)
	}
	d := &fixture{t: t, m: m, host: h, dir: moduletest.Folder(t)}
	t.Cleanup(func() { m.Close(t.Context()) })
	return d
}

// args are the arguments of a call.
type args = map[string]any

// try calls a tool and gives its result, or the code of its refusal.
func (d *fixture) try(name string, in args) (out result, code string) {
	d.t.Helper()
	c := moduletest.NewCall(d.t, in)
	c.Roots, c.Caller.Session = d.dir, d.session
	if d.as != "" {
		c.Caller.Owner = d.as
	}
	if d.context != "" {
		c.Caller.Context = d.context
	}
	res, err := c.Tool(d.t.Context(), moduletest.Tool(d.t, d.m, "process_"+name))
	if r, ok := errors.AsType[*tool.Refusal](err); ok {
		return out, string(r.Code)
	}
	if err != nil {
		d.t.Fatalf("%s %v: %v", name, in, err)
	}
	b, _ := json.Marshal(res.Structured)
	if err := json.Unmarshal(b, &out); err != nil {
		d.t.Fatal(err)
	}
	return out, ""
}

func (d *fixture) do(name string, in args) result {
	d.t.Helper()
	out, code := d.try(name, in)
	if code != "" {
		d.t.Fatalf("%s %v: %s", name, in, code)
	}
	return out
}

// result holds the members of every tool's result that tests look at.
type result struct {
	ID                      string
	PID                     int
	Status, Signal, Message string
	ExitCode                *int
	Output, Screen, Title   string
	Next, Lost              int64
	More, TimedOut, Success bool
	Cols, Rows              int
	CursorCol, CursorRow    int
	FullScreen              bool
	Ports                   []int
	Processes               []listedProcess
	Total                   int
	StartedAt               time.Time
}

type listedProcess struct {
	ID, Command, Dir, Status string
	Args                     []string
	ExitCode                 *int
	PID, Processes           int
	Memory                   int64
	CPUSeconds               float64
	Ports                    []int
	Duration                 time.Duration
}

// sh starts a script.
func (d *fixture) sh(script string) string {
	d.t.Helper()
	return d.do("start", args{"command": "sh", "args": []string{"-c", script}}).ID
}

// terminal starts a program in a terminal.
func (d *fixture) terminal(command string, arg ...string) string {
	d.t.Helper()
	return d.do(
		"start", args{"command": command, "args": arg, "terminal": true, "env": []string{"PS1=$ ", "HISTFILE="}},
	).ID
}

// sees waits for a text on the screen.
func (d *fixture) sees(id, text string) result {
	d.t.Helper()
	r := d.do("screen", args{"id": id, "text": text, "timeout": 45})
	if r.TimedOut {
		d.t.Fatalf("there is no %q on the screen:\n%s", text, r.Screen)
	}
	return r
}

// reads waits for a text in the output.
func (d *fixture) reads(id, text string) result {
	d.t.Helper()
	r := d.do("output", args{"id": id, "wait": "text", "match": text, "timeout": 45})
	if r.TimedOut {
		d.t.Fatalf("it did not print %q: %q", text, r.Output)
	}
	return r
}

func (d *fixture) ended(id string) result {
	d.t.Helper()
	r := d.do("output", args{"id": id, "wait": "exit", "timeout": 45})
	if r.TimedOut {
		d.t.Fatalf("it did not end: %+v", r)
	}
	return r
}

func TestContract(t *testing.T) {
	moduletest.Run(t, New(Config{}), moduletest.Options{Busy: map[string]json.RawMessage{
		"process_run": json.RawMessage(`{"command":"sleep","args":["1000"],"timeout":3600}`),
	}})
}

func TestAProcessOutlivesItsCall(t *testing.T) {
	d := open(t, "")
	id := d.sh("echo out; echo err >&2; read -r x; echo got $x; exit 3")
	d.reads(id, "out")
	d.reads(id, "err")
	r := d.do("output", args{"id": id})
	if r.Status != "running" || r.ExitCode != nil || r.Output != "out\nerr\n" && r.Output != "err\nout\n" {
		t.Errorf("%+v", r)
	}
	d.do("input", args{"id": id, "input": "word\n"})
	end := d.ended(id)
	if end.Status != "exited" || end.ExitCode == nil || *end.ExitCode != 3 {
		t.Errorf("%+v", end)
	}
	if more := d.do("output", args{"id": id, "since": r.Next}); more.Output != "got word\n" || more.More ||
		more.Lost != 0 {
		t.Errorf("since: %+v", more)
	}
	if one := d.do("output", args{"id": id, "stream": "stderr"}); one.Output != "err\n" {
		t.Errorf("one stream: %+v", one)
	}
	if tail := d.do("output", args{"id": id, "tail": 1}); tail.Output != "got word\n" {
		t.Errorf("tail: %+v", tail)
	}
	facts := ""
	// it is told a moment after the end is seen
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if facts = fmt.Sprint(d.host.Facts()); strings.Contains(facts, "process.exited") {
			break
		}
	}
	if !strings.Contains(facts, "process.started") || !strings.Contains(facts, "process.exited") {
		t.Errorf("published: %s", facts)
	}
}

func TestInputEnds(t *testing.T) {
	d := open(t, "")
	id := d.do("start", args{"command": "cat"}).ID
	d.do("input", args{"id": id, "input": "a", "eof": true})
	if r := d.ended(id); r.Output != "a" || *r.ExitCode != 0 {
		t.Errorf("%+v", r)
	}
	if _, code := d.try("input", args{"id": id, "input": "b"}); code != "closed" {
		t.Errorf("typed after the end: %q", code)
	}
	for _, in := range []args{{"id": id}, {"id": id, "keys": []string{"NoSuchKey"}}} {
		if _, code := d.try("input", in); code != "invalid_arguments" {
			t.Errorf("%v: %q", in, code)
		}
	}
}

func TestStopEndsAllThatCameOfIt(t *testing.T) {
	d := open(t, "")
	for name, how := range map[string]args{"stop": {"grace": 1}, "kill": {}} {
		id := d.sh("sleep 1000 & (setsid sleep 1000 &) ; trap '' TERM; echo ready; while :; do sleep 1; done")
		d.reads(id, "ready")
		var l listedProcess
		for end := time.Now().Add(time.Minute); l.Processes < 4 && time.Now().Before(end); {
			l = d.do("list", args{"usage": true, "running_only": true}).Processes[0]
		}
		if l.ID != id || l.Processes < 4 || l.Memory == 0 {
			t.Errorf("%+v", l)
		}
		how["id"] = id
		if r := d.do(name, how); !r.Success {
			t.Errorf("%s: %+v", name, r)
		}
		if r := d.do("output", args{"id": id}); r.Status != "killed" || r.Signal != "killed" {
			t.Errorf("%s: %+v", name, r)
		}
		rec, _ := d.m.(*manager).findProcess(&tool.Call{Caller: tool.Caller{Owner: "anonymous/default"}}, id)
		if u, err := rec.child.Usage(); err != nil || u.Processes != 0 {
			t.Errorf("left: %+v, %v", u, err)
		}
		if r := d.do(name, how); !r.Success || !strings.Contains(r.Message, "already") {
			t.Errorf("again: %+v", r)
		}
	}
}

//redteam:attack What is not yours is not there: processes of other principals are named
func TestNobodyElseFindsAProcess(t *testing.T) {
	d := open(t, "")
	id := d.sh("sleep 1000")
	d.as = "mallory/default"
	for name, in := range map[string]args{
		"output": {"id": id}, "stop": {"id": id}, "kill": {"id": id}, "remove": {"id": id},
		"input":  {"id": id, "input": "x"},
		"screen": {"id": id}, "resize": {"id": id, "cols": 10, "rows": 10},
	} {
		if _, code := d.try(name, in); code != "not_found" {
			t.Errorf("%s: %q", name, code)
		}
	}
	if r := d.do("list", args{}); r.Total != 0 {
		t.Errorf("%+v", r)
	}
}

func TestEndedOnesAreKeptForAWhile(t *testing.T) {
	d := open(t, `{"MaxEnded":2,"Retention":3600000000000}`)
	var ids []string
	for range 3 {
		id := d.sh("exit 0")
		d.ended(id)
		ids = append(ids, id)
	}
	for end := time.Now().Add(time.Minute); d.do("list", args{}).Total != 2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the oldest was not forgotten")
		}
	}
	if _, code := d.try("output", args{"id": ids[0]}); code != "not_found" {
		t.Errorf("the oldest is still there: %q", code)
	}
	d.do("remove", args{"id": ids[1]})
	if r := d.do("list", args{}); r.Total != 1 || r.Processes[0].ID != ids[2] {
		t.Errorf("%+v", r)
	}
	id := d.sh("sleep 1000")
	if _, code := d.try("remove", args{"id": id}); code != "busy" {
		t.Errorf("a running one was removed: %q", code)
	}

	d = open(t, `{"Retention":1000000}`)
	d.sh("exit 0")
	for end := time.Now().Add(time.Minute); d.do("list", args{}).Total != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it was kept")
		}
	}
}

func TestAnOwnerHasALimit(t *testing.T) {
	d := open(t, `{"PerOwner":2,"Total":3}`)
	ids := []string{d.sh("sleep 1000"), d.sh("sleep 1000")}
	start := args{"command": "sleep", "args": []string{"1000"}}
	if _, code := d.try("start", start); code != "busy" {
		t.Errorf("a third: %q", code)
	}
	d.as = "bob/default"
	d.do("start", start)
	if _, code := d.try("start", start); code != "busy" {
		t.Errorf("more than all may have: %q", code)
	}
	d.as = ""
	d.do("kill", args{"id": ids[0]})
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, code := d.try("start", start); code == "" {
			break
		} else if time.Now().After(end) {
			t.Fatal("the place was not given back")
		}
	}
	for range 10 { // what does not start takes no place
		d.try("start", args{"command": "no-such-program"})
	}
	d.do("kill", args{"id": ids[1]})
}

func TestBeginsInsideTheRoots(t *testing.T) {
	d := open(t, "")
	root := d.dir.List()[0].Path
	os.MkdirAll(filepath.Join(root, "a", "b"), 0o755)
	os.Symlink("/", filepath.Join(root, "out"))
	os.WriteFile(filepath.Join(root, "file"), nil, 0o600)
	real, _ := filepath.EvalSymlinks(root)
	for dir, want := range map[string]string{"": "", "a/b": "/a/b"} {
		r := d.do("run", args{"command": "sh", "args": []string{"-c", "pwd -P"}, "dir": dir})
		if r.Output != real+want+"\n" {
			t.Errorf("%q: it began in %q", dir, r.Output)
		}
	}
	for _, dir := range []string{"..", "/etc", "out", "out/etc", "nowhere", "file"} {
		if _, code := d.try("start", args{"command": "pwd", "dir": dir}); code == "" {
			t.Errorf("%s: it began there", dir)
		}
	}
}

func TestRefusesWhatCannotBeStarted(t *testing.T) {
	d := open(t, "")
	for want, in := range map[string]args{
		"not_started":       {"command": "no-such-program"},
		"invalid_arguments": {"command": "echo", "env": []string{"novalue"}},
		"too_large":         {"command": "echo", "args": []string{strings.Repeat("x", maxArgBytes+1)}},
	} {
		if _, code := d.try("start", in); code != want {
			t.Errorf("%v: got %q, want %s", want, code, want)
		}
	}
	if _, code := d.try("start", args{"command": "echo", "args": []string{"a\x00b"}}); code != "invalid_arguments" {
		t.Errorf("a NUL byte: %q", code)
	}
	if _, err := New(Config{Settings: Settings{Retention: -1}})(t.Context(), module.Deps{}); err == nil {
		t.Error("a wrong configuration was taken")
	}
}

func TestRunsToTheEnd(t *testing.T) {
	d := open(t, "")
	c := moduletest.NewCall(t, args{"command": "sh", "args": []string{"-c", "echo one; echo two >&2; exit 4"}})
	res, err := c.Tool(t.Context(), moduletest.Tool(t, d.m, "process_run"))
	if err != nil {
		t.Fatal(err)
	}
	r := res.Structured.(runOut)
	if r.ExitCode != 4 || !strings.Contains(r.Output, "one\n") || !strings.Contains(r.Output, "two\n") ||
		r.TimedOut || r.Command != "sh" {
		t.Errorf("%+v", r)
	}
	slow := d.do(
		"run",
		args{"command": "sh", "args": []string{"-c", "echo begun; (setsid sleep 1000 &); sleep 1000"}, "timeout": 1},
	)
	if !slow.TimedOut || slow.Output != "begun\n" || *slow.ExitCode != -1 {
		t.Errorf("%+v", slow)
	}
}

func TestWaits(t *testing.T) {
	d := open(t, "")
	id := d.sh("echo first; sleep 0.05; echo line 42 done; sleep 1000")
	if r := d.do("output", args{"id": id, "wait": "regexp", "match": `^line \d+`, "timeout": 45}); r.TimedOut ||
		!strings.Contains(r.Output, "line 42") {
		t.Errorf("%+v", r)
	}
	if r := d.do("output", args{"id": id, "wait": "text", "match": "never", "timeout": 0}); !r.TimedOut ||
		r.Status != "running" {
		t.Errorf("%+v", r)
	}
	if r := d.do("output", args{"id": id, "wait": "idle", "timeout": 45}); r.TimedOut {
		t.Errorf("%+v", r)
	}
	if r := d.do("output", args{"id": id, "wait": "output", "timeout": 0}); !r.TimedOut || r.Output != "" {
		t.Errorf("%+v", r)
	}
	if r := d.do("output", args{"id": id, "wait": "output", "since": 0}); r.TimedOut || r.Output == "" {
		t.Errorf("%+v", r)
	}
	for _, match := range []string{"", "("} {
		if _, code := d.try("output", args{"id": id, "wait": "regexp", "match": match}); code != "invalid_arguments" {
			t.Errorf("%q: %q", match, code)
		}
	}
	done := d.sh("exit 0")
	d.ended(done)
	if r := d.do("output", args{"id": done, "wait": "text", "match": "x", "timeout": 45}); !r.TimedOut {
		t.Errorf("%+v", r)
	}
}
