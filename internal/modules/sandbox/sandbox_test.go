package sandbox

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/manager"
	"gatehouse/internal/sandbox/namespaces"
	"gatehouse/module"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

// reception is the module, and the callers that come to it.
type reception struct {
	t    testing.TB
	m    module.Module
	host *moduletest.Host
	dir  tool.Roots
	as   string // owner; "" means the usual one
	in   string // context
}

// open makes the module. A machine on which no sandboxes can be made skips the
// test, with what is missing.
func open(t testing.TB, c Config) *reception {
	t.Helper()
	d, err := namespaces.New(namespaces.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, f := range d.Doctor(t.Context()) {
		if f.Needed && !f.OK {
			t.Skipf("%s: %s; %s", f.Name, f.Detail, f.Remedy)
		}
	}
	return reach(t, c)
}

// reach makes the module whether or not the machine has sandboxes.
func reach(t testing.TB, c Config) *reception {
	t.Helper()
	h := moduletest.NewHost(t)
	deps := h.Deps()
	cfg := c
	m, err := New(cfg)(t.Context(), deps)
	if err != nil {
		t.Fatal(err)
	}
	r := &reception{t: t, m: m, host: h, dir: moduletest.Folder(t), as: "ann"}
	t.Cleanup(func() {
		if err := m.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return r
}

type args = map[string]any

// result holds the members of every tool's result that tests look at.
type result struct {
	SandboxID   string `json:"sandbox_id"`
	ContextID   string `json:"context_id"`
	ProcessID   string `json:"process_id"`
	Isolation   string
	FromPool    bool `json:"from_pool"`
	MemoryMiB   int  `json:"memory_mib"`
	Success     bool
	Sandboxes   []listedBox
	ExitCode    *int `json:"exit_code"`
	Outcome     string
	Output      string
	Stdout      string
	Stderr      string
	Error       *failure
	Shown       int
	Forgot      bool `json:"context_forgot"`
	Content     string
	Next        int64
	NextOffset  int64 `json:"next_offset"`
	Size        int64
	Entries     []listedFile
	More        bool
	Found       []found
	Cut         bool
	Running     bool
	Processes   []listedProcess
	Contexts    []listedContext
	Path, URI   string
	Mode        string
	Yours       int
	Pool        *poolStats
	Sandbox     *boxStats
	Held        *heldStats
	Allow, Deny []string
	Decisions   []decision
	Paused      bool
	SnapshotID  string `json:"snapshot_id"`
	Snapshots   []keptSnapshot
	Kept        string
	From        string `json:"created_from"`
	Driver      string
	Drivers     []string
	Templates   []string
	Template    string
	Address     string
	Secrets     []swapped
	Socket      string
	parts       []tool.Content
}

// try calls a tool and gives its result or its error.
func (r *reception) try(name string, in args) (out result, err error) {
	r.t.Helper()
	if in == nil {
		in = args{}
	}
	c := moduletest.NewCall(r.t, in)
	c.Roots, c.Caller.Owner, c.Caller.Context = r.dir, r.as, r.in
	res, err := c.Tool(r.t.Context(), moduletest.Tool(r.t, r.m, "sandbox_"+name))
	if err != nil {
		return out, err
	}
	b, err := json.Marshal(res.Structured)
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	out.parts = res.Content
	return out, nil
}

func (r *reception) do(name string, in args) result {
	r.t.Helper()
	out, err := r.try(name, in)
	if err != nil {
		r.t.Fatalf("%s %.200v: %v", name, in, err)
	}
	return out
}

// code is that of a refusal.
func (r *reception) code(name string, in args) string {
	r.t.Helper()
	_, err := r.try(name, in)
	if f, ok := errors.AsType[*tool.Refusal](err); ok {
		return string(f.Code)
	}
	return fmt.Sprint(err)
}

func (r *reception) box() string {
	r.t.Helper()
	return r.do("create", nil).SandboxID
}

// needs skips a test of an interpreter that sandboxes do not see here.
func needs(t testing.TB, program string) {
	t.Helper()
	for _, dir := range []string{"/usr/local/bin/", "/usr/bin/", "/bin/"} {
		if _, err := os.Stat(dir + program); err == nil {
			return
		}
	}
	t.Skipf("this machine has no %s where sandboxes look for it", program)
}

// with returns the default settings without a pool, changed by change.
func with(change func(*manager.Settings)) manager.Settings {
	s := manager.DefaultSettings()
	s.Pool.Enabled = false
	if change != nil {
		change(&s)
	}
	return s
}

func TestModuleKeepsTheContract(t *testing.T) { moduletest.Run(t, New(Config{}), moduletest.Options{}) }

func TestALifeOfASandbox(t *testing.T) {
	r := open(t, Config{Settings: with(nil)})
	made := r.do("create", args{"name": "first", "memory_mib": 128, "env": []string{"WHO=ann"}})
	if made.SandboxID == "" || made.MemoryMiB != 128 || made.Isolation != "namespaces" {
		t.Fatalf("%+v", made)
	}
	id := made.SandboxID
	if all := r.do("list", nil).Sandboxes; len(all) != 1 || all[0].ID != id || all[0].State != "Ready" ||
		all[0].Name != "first" {
		t.Errorf("%+v", all)
	}
	if got := r.do("exec",
		args{"sandbox_id": id, "command": "echo $WHO; echo oops >&2; exit 3"}); *got.ExitCode != 3 ||
		got.Outcome != "error" || !strings.Contains(got.Output, "ann\n") || !strings.Contains(got.Output, "oops\n") {
		t.Errorf("%+v", got)
	}
	if got := r.do("exec", args{
		"sandbox_id": id,
		"command":    "cat; pwd; echo $X; echo e >&2",
		"stdin":      "in\n",
		"dir":        "/tmp",
		"env":        []string{"X=y"},
		"separate":   true,
	}); got.Stdout != "in\n/tmp\ny\n" || got.Stderr != "e\n" || got.Output != "" {
		t.Errorf("%+v", got)
	}
	if s := r.do("stats", args{"sandbox_id": id}); s.Yours != 1 || s.Sandbox.Limits.Memory != 128 ||
		s.Sandbox.Calls < 2 || s.Held.Isolation != "namespaces" {
		t.Errorf("%+v %+v", s, s.Sandbox)
	}
	if !r.do("destroy", args{"sandbox_id": id}).Success {
		t.Error("it was not destroyed")
	}
	if got := r.code("exec", args{"sandbox_id": id, "command": "true"}); got != "not_found" {
		t.Errorf("afterwards: %s", got)
	}
	var facts []string
	for _, f := range r.host.Facts() {
		facts = append(facts, f.Subject)
	}
	if got := strings.Join(facts, " "); got != "sandbox.created sandbox.destroyed" {
		t.Errorf("what was told: %s", got)
	}
}

// Whatever a caller asks of an id that is not theirs, the answer is one and the
// same, whether or not there is such a sandbox.
func TestNobodyFindsWhatIsNotTheirs(t *testing.T) {
	r := open(t, Config{Settings: with(nil)})
	id := r.box()
	own := r.do("context", args{"sandbox_id": id, "action": "create", "language": "bash"}).ContextID
	calls := map[string]args{
		"destroy": {}, "run": {"language": "bash", "code": "true"}, "exec": {"command": "true"},
		"read": {"path": "x"}, "write": {"path": "x", "content": ""},
		"dir": {"path": "."}, "stat": {"path": "."}, "move": {"from": "a", "to": "b"}, "remove": {"path": "x"},
		"search": {}, "context": {"action": "list"},
		"start": {"command": "true"}, "output": {"process_id": "x"}, "input": {"process_id": "x"},
		"processes": {}, "stats": {},
		"download": {"from": "x", "to": "x"}, "network": {"action": "show"}, "pause": {}, "resume": {},
		"snapshot": {}, "fork": {},
		"expose": {"port": 80}, "unexpose": {"port": 80},
	}
	offer, err := r.m.Offer(t.Context(), module.Audience{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tl := range offer.Tools {
		name := strings.TrimPrefix(tl.Name, "sandbox_")
		if name == "create" || name == "list" || strings.HasPrefix(name, "snapshot_") || name == "snapshots" {
			continue
		}
		if _, tried := calls[name]; !tried && name != "upload" {
			t.Errorf("%s is not tried", name)
		}
		if tl.Handle != "sandbox_id" {
			t.Errorf("%s is not routed by its handle", name)
		}
	}
	texts := map[string]bool{}
	for _, as := range []string{"bob", "", "ann "} {
		r.as = as
		if n := len(r.do("list", nil).Sandboxes); n != 0 {
			t.Errorf("%q sees %d sandboxes", as, n)
		}
		for name, in := range calls {
			for _, try := range []string{id, "sandbox_none", "../x", id + " "} {
				in["sandbox_id"] = try
				_, err := r.try(name, in)
				f, ok := errors.AsType[*tool.Refusal](err)
				if !ok {
					t.Errorf("%s as %q: %v", name, as, err)
					continue
				}
				texts[f.Text()] = true
			}
		}
	}
	if len(texts) != 1 ||
		!texts["not_found: "+
			notFound+"\nsandbox_list lists your sandboxes. A sandbox ends if it is unused for its idle time."] {
		t.Errorf("there is more than one answer: %v", texts)
	}
	r.as = "ann"
	other := r.box()
	if got := r.code("run", args{
		"sandbox_id": other,
		"language":   "bash",
		"code":       "true",
		"context_id": own,
	}); got != "not_found" {
		t.Errorf("a context of another sandbox: %s", got)
	}
}

func TestCodeOfEachLanguageRuns(t *testing.T) {
	r := open(t, Config{Settings: with(nil)})
	id := r.box()
	for _, c := range []struct{ program, names, code string }{
		{"python3", "python python3 Python", "print(6 * 7)"},
		{"node", "node javascript js", "console.log(6 * 7)"}, {"bash", "bash", "echo $((6 * 7))"},
		{"sh", "sh", "echo 42"},
	} {
		t.Run(c.program, func(t *testing.T) {
			needs(t, c.program)
			for name := range strings.FieldsSeq(c.names) {
				if got := r.do("run",
					args{"sandbox_id": id, "language": name, "code": c.code}); got.Output != "42\n" ||
					got.Outcome != "ok" || *got.ExitCode != 0 {
					t.Errorf("%s: %+v", name, got)
				}
			}
		})
	}
	if got := r.code("run", args{"sandbox_id": id, "language": "cobol", "code": ""}); got != "invalid_arguments" {
		t.Errorf("%s", got)
	}
}

func TestResultsAreRich(t *testing.T) {
	needs(t, "python3")
	r := open(t, Config{Settings: with(nil)})
	id := r.box()
	got := r.do("run", args{"sandbox_id": id, "language": "python", "code": `
class Picture:
    def _repr_png_(self): return b'\x89PNG\r\n'
display(Picture(), {'a': 1}, 'text')
1/0`})
	if got.Outcome != "error" || got.Error == nil || got.Error.Name != "ZeroDivisionError" ||
		!strings.Contains(got.Error.Traceback, "line 5") || got.Shown != 3 || len(got.parts) != 3 {
		t.Fatalf("%+v, %+v, %+v", got, got.Error, got.parts)
	}
	if p := got.parts[0]; p.Type != "image" || p.MIME != "image/png" || string(p.Data) != "\x89PNG\r\n" {
		t.Errorf("%+v", p)
	}
	if got.parts[1].Text != `{"a": 1}` || got.parts[2].Text != "'text'" {
		t.Errorf("%+v", got.parts[1:])
	}
}

func TestEndsAreJudged(t *testing.T) {
	r := open(t, Config{Settings: with(func(s *manager.Settings) { s.Output = 5000 })})
	id := r.do("create", args{"memory_mib": 64}).SandboxID
	for _, c := range []struct {
		command, want string
		timeout       float64
		code          int
	}{
		{"exit 0", "ok", 0, 0}, {"exit 4", "error", 0, 4}, {"kill -SEGV $$", "signal", 0, -1},
		{"sleep 1000", "timeout", 0.3, -1}, {"yes", "output-limit", 0, -1},
	} {
		got := r.do("exec", args{"sandbox_id": id, "command": c.command, "timeout": c.timeout})
		if got.Outcome != c.want || *got.ExitCode != c.code {
			t.Errorf("%s: %+v, want %s with %d", c.command, got, c.want, c.code)
		}
		if cut := strings.Contains(got.Output,
			"[output cut: the limit of 5000 bytes was reached]"); cut != (c.want == "output-limit") {
			t.Errorf("%s: marked as cut %v", c.command, cut)
		}
	}
	if h := r.do("stats", nil).Held; strings.HasPrefix(h.Memory, "cgroup") {
		got := r.do("exec", args{
			"sandbox_id": id,
			"command":    "head -c 500M /dev/zero | tail -c 400M >/dev/null; exit $?",
		})
		if got.Outcome != "oom" && got.Outcome != "ok" { // the shell may have coped
			t.Errorf("%+v", got)
		}
		if _, err := os.Stat("/usr/bin/python3"); err == nil {
			if got := r.do("run", args{
				"sandbox_id": id,
				"language":   "python",
				"code":       "x = b'x' * 500_000_000",
			}); got.Outcome != "oom" {
				t.Errorf("%+v", got)
			}
		}
	}
	if got := r.do("exec", args{"sandbox_id": id, "command": "echo alive"}); got.Output != "alive\n" {
		t.Errorf("afterwards: %+v", got)
	}
}

func TestOutputDoesNothingToWhoeverShowsIt(t *testing.T) {
	r := open(t, Config{Settings: with(nil)})
	got := r.do("exec", args{"sandbox_id": r.box(), "command": `printf '\033[2Jred\007\xff\xe2\x80\xae\n'`})
	if got.Output != "␛[2Jred␇\uFFFD\uFFFD\n" {
		t.Errorf("%q", got.Output)
	}
}

func TestFilesComeAndGo(t *testing.T) {
	r := open(t, Config{Settings: with(nil)})
	id := r.box()
	f := func(name string, in args) args {
		in["sandbox_id"] = id
		return in
	}
	if got := r.do("write",
		f("write", args{"path": "deep/er/file.txt", "content": "one\ntwo\n", "mode": "0600"})); !got.Success ||
		got.Size != 8 {
		t.Errorf("%+v", got)
	}
	r.do("write", f("write", args{"path": "deep/er/file.txt", "content": "three\n", "append": true}))
	if got := r.do("read",
		f("read", args{"path": "/home/user/deep/er/file.txt"})); got.Content != "one\ntwo\nthree\n" || got.Size != 14 {
		t.Errorf("%+v", got)
	}
	if got := r.do("read",
		f("read", args{"path": "deep/er/file.txt", "offset": 4, "length": 4})); got.Content != "two\n" ||
		got.NextOffset != 8 {
		t.Errorf("%+v", got)
	}
	if got := r.do("stat", f("stat", args{"path": "deep/er/file.txt"})); got.Size != 14 || got.Mode != "-rw-------" {
		t.Errorf("%+v", got)
	}
	binary := []byte{0, 0xff, 'x'}
	r.do("write", f("write", args{
		"path":     "bin",
		"content":  base64.StdEncoding.EncodeToString(binary),
		"encoding": "base64",
	}))
	if got := r.do("read",
		f("read", args{"path": "bin",
			"encoding": "base64"})); got.Content != base64.StdEncoding.EncodeToString(binary) {
		t.Errorf("%+v", got)
	}
	if got := r.do("dir", f("dir", args{"path": "."})); len(got.Entries) != 2 || got.Entries[0].Name != "bin" ||
		!got.Entries[1].IsDir {
		t.Errorf("%+v", got.Entries)
	}
	if got := r.do("search", f("search", args{"name": "*.txt", "text": "^t"})); len(got.Found) != 2 ||
		got.Found[0].Path != "/home/user/deep/er/file.txt" || got.Found[0].Line != 2 || got.Found[1].Text != "three" {
		t.Errorf("%+v", got.Found)
	}
	if got := r.do("search", f("search", args{"name": "file*"})); len(got.Found) != 1 || got.Found[0].Line != 0 {
		t.Errorf("%+v", got.Found)
	}
	r.do("move", f("move", args{"from": "bin", "to": "moved"}))
	r.do("remove", f("remove", args{"path": "deep", "recursive": true}))
	if got := r.do("dir", f("dir", args{"path": "."})); len(got.Entries) != 1 || got.Entries[0].Name != "moved" {
		t.Errorf("%+v", got.Entries)
	}
	for name, c := range map[string]struct {
		tool string
		in   args
		want string
	}{
		"a file that is missing": {"read", args{"path": "none"}, "not_found"},
		"a folder read":          {"read", args{"path": "/tmp"}, "is_a_directory"},
		"no text":                {"read", args{"path": "moved"}, "binary"},
		"a file of the host":     {"read", args{"path": "/etc/shadow"}, "not_found"},
		"of proc":                {"read", args{"path": "/proc/self/environ"}, "denied"},
		"above":                  {"read", args{"path": "../../../etc/shadow"}, "not_found"},
		"read-only":              {"write", args{"path": "/usr/x", "content": ""}, "denied"},
		"a full folder":          {"remove", args{"path": "/home"}, "denied"},
		"a pattern":              {"search", args{"name": "["}, "invalid_arguments"},
	} {
		if got := r.code(c.tool, f(c.tool, c.in)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestFilesPassBetweenTheFoldersAndASandbox(t *testing.T) {
	r := open(t, Config{Settings: with(nil)})
	id, dir := r.box(), r.dir.List()[0].Path
	if err := os.WriteFile(filepath.Join(dir, "data.csv"), []byte("a,b\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := r.do("upload", args{"sandbox_id": id, "from": "data.csv"}); got.Path != "data.csv" ||
		got.Size != 4 || got.URI != "sandbox://"+id+"/home/user/data.csv" {
		t.Errorf("%+v", got)
	}
	r.do("exec", args{"sandbox_id": id, "command": "tr a-z A-Z <data.csv >out.csv"})
	if got := r.do("download", args{"sandbox_id": id, "from": "out.csv", "to": "result.csv"}); got.Size != 4 {
		t.Errorf("%+v", got)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "result.csv")); string(b) != "A,B\n" {
		t.Errorf("%q, %v", b, err)
	}
	for _, c := range []struct {
		tool string
		in   args
	}{
		{"download", args{"from": "out.csv", "to": "result.csv"}},
		{"download", args{"from": "out.csv", "to": "../outside.csv"}}, {"upload", args{"from": "/etc/passwd"}},
	} {
		c.in["sandbox_id"] = id
		if _, err := r.try(c.tool, c.in); err == nil {
			t.Errorf("%s %v was allowed", c.tool, c.in)
		}
	}
	offer, _ := r.m.Offer(t.Context(), module.Audience{})
	read := func(owner, uri string) (tool.Result, error) {
		c := moduletest.NewCall(t)
		c.Caller.Owner, c.Name = owner, uri
		return c.Run(t.Context(), offer.Templates[0].Read)
	}
	res, err := read("ann", "sandbox://"+id+"/home/user/out.csv")
	if err != nil || len(res.Content) != 1 || res.Content[0].Text != "A,B\n" ||
		!strings.HasPrefix(res.Content[0].MIME, "text/csv") {
		t.Errorf("%+v, %v", res, err)
	}
	for _, c := range [][2]string{{"bob", "sandbox://" + id + "/home/user/out.csv"}, {"ann", "sandbox://" + id},
		{"ann", "file:///etc/passwd"}, {"ann", "sandbox:///etc/passwd"}} {
		if res, err := read(c[0], c[1]); err == nil {
			t.Errorf("%q was given %s: %+v", c[0], c[1], res)
		}
	}
}

func TestContextsRememberAndForget(t *testing.T) {
	r := open(t, Config{Settings: with(nil)})
	id := r.box()
	k := r.do("context", args{"sandbox_id": id, "action": "create", "language": "bash"}).ContextID
	run := func(code string) result {
		t.Helper()
		return r.do("run", args{"sandbox_id": id, "language": "bash", "code": code, "context_id": k})
	}
	run("x=1; cd /tmp")
	if got := run("echo $x $PWD"); got.Output != "1 /tmp\n" {
		t.Errorf("%+v", got)
	}
	if got := r.do("context", args{"sandbox_id": id, "action": "list"}).Contexts; len(got) != 1 ||
		got[0].ID != k || got[0].Language != "bash" {
		t.Errorf("%+v", got)
	}
	r.do("context", args{"sandbox_id": id, "action": "restart", "context_id": k})
	if got := run("echo ${x-none}"); got.Output != "none\n" {
		t.Errorf("%+v", got)
	}
	if got := r.code("run", args{
		"sandbox_id": id,
		"language":   "python",
		"code":       "1",
		"context_id": k,
	}); got != "invalid_arguments" {
		t.Errorf("another language: %s", got)
	}
	r.do("context", args{"sandbox_id": id, "action": "remove", "context_id": k})
	for _, action := range []string{"interrupt", "restart", "remove"} {
		if got := r.code("context", args{"sandbox_id": id, "action": action, "context_id": k}); got != "not_found" {
			t.Errorf("%s of one that is gone: %s", action, got)
		}
	}
	if got := r.code("context",
		args{"sandbox_id": id, "action": "create", "language": "cobol"}); got != "invalid_arguments" {
		t.Errorf("%s", got)
	}
}

// A search that cannot go everywhere says so.
func TestASearchTellsOfPathsTooLongForIt(t *testing.T) {
	r := open(t, Config{Settings: with(nil)})
	id := r.box()
	const dig = `n=$(printf 'y%.0s' $(seq 200)); mkdir $1 && cd $1 || exit 1; i=0; while [ $i -lt $2 ]; do mkdir $n && cd $n || exit 1; i=$((i+1)); done; : >bottom`
	for _, c := range []struct {
		name   string
		levels int
		found  int
		cut    bool
	}{{"some", 3, 1, false}, {"many", 30, 0, true}} {
		if ran := r.do("exec", args{
			"sandbox_id": id,
			"command":    fmt.Sprintf("set -- %s %d; %s", c.name, c.levels, dig),
		}); ran.Outcome != "ok" {
			t.Fatalf("%+v", ran)
		}
		if got := r.do("search",
			args{"sandbox_id": id, "path": c.name, "name": "bottom"}); len(got.Found) != c.found || got.Cut != c.cut {
			t.Errorf("%s: %d found, cut %v", c.name, len(got.Found), got.Cut)
		}
	}
}

func TestProcessesHaveTheShellOfCommands(t *testing.T) {
	r := open(t, Config{Settings: with(nil)})
	id := r.box()
	const which = "echo ${BASH_VERSION:-none}"
	want := r.do("exec", args{"sandbox_id": id, "command": which}).Output
	p := r.do("start", args{"sandbox_id": id, "command": which}).ProcessID
	if got := r.do("output", args{"sandbox_id": id, "process_id": p, "wait": 30}).Output; got != want || want == "" {
		t.Errorf("the shell is %q, want %q", got, want)
	}
}

func TestProcessesGoOn(t *testing.T) {
	r := open(t, Config{Settings: with(nil)})
	id := r.box()
	p := r.do("start", args{"sandbox_id": id, "command": "while read l; do echo got $l; done; exit 5"}).ProcessID
	with := func(in args) args {
		in["sandbox_id"], in["process_id"] = id, p
		return in
	}
	r.do("input", with(args{"text": "one\n"}))
	got := r.do("output", with(args{"wait": 30}))
	if got.Output != "got one\n" || !got.Running || got.ExitCode != nil {
		t.Errorf("%+v", got)
	}
	r.do("input", with(args{"end": true}))
	for end := time.Now().Add(time.Minute); got.Running; {
		if got = r.do("output", with(args{"wait": 5, "since": got.Next})); time.Now().After(end) {
			t.Fatal("it does not end")
		}
	}
	if *got.ExitCode != 5 || got.Outcome != "error" {
		t.Errorf("%+v", got)
	}
	q := r.do("start", args{"sandbox_id": id, "command": "sleep 1000"}).ProcessID
	r.do("input", args{"sandbox_id": id, "process_id": q, "signal": "TERM"})
	p = q
	for end := time.Now().Add(time.Minute); ; {
		if got = r.do("output", with(args{"wait": 5})); !got.Running {
			break
		}
		if time.Now().After(end) {
			t.Fatal("it does not end")
		}
	}
	if got.Outcome != "signal" || *got.ExitCode != -1 {
		t.Errorf("%+v", got)
	}
	if all := r.do("processes", args{"sandbox_id": id}).Processes; len(all) != 2 || all[0].Running ||
		all[1].Outcome != "signal" {
		t.Errorf("%+v", all)
	}
	p = "process_none"
	if got := r.code("output", with(args{})); got != "not_found" {
		t.Errorf("%s", got)
	}
}

func TestWhatIsTooLongIsRefusedBeforeTheIdIsLookedAt(t *testing.T) {
	m := reach(t, Config{}).m.(*sandboxTools)
	c := &moduletest.NewCall(t).Call
	long := strings.Repeat("x", mostContent+1)
	_, _, code := m.code(t.Context(), c, codeIn{Code: long})
	_, _, command := m.command(t.Context(), c, commandIn{Command: long[:mostCommand+1]})
	_, _, content := m.writeFile(t.Context(), c, writeIn{Content: long})
	for want, err := range map[string]error{
		"Code exceeds maximum size (10485761 bytes > 10485760 bytes)":    code,
		"Command exceeds maximum size (1048577 bytes > 1048576 bytes)":   command,
		"Content exceeds maximum size (10485761 bytes > 10485760 bytes)": content,
	} {
		f, ok := errors.AsType[*tool.Refusal](err)
		if !ok || f.Message != want || f.Code != "too_large" {
			t.Errorf("%v, want %s", err, want)
		}
		if f, ok := errors.AsType[*tool.Refusal](inItsWords(err, "Execution failed: ")); !ok || f.Text() != want {
			t.Errorf("in the words of the original: %v, want %s", f, want)
		}
	}
}

func TestThereAreOnlySoMany(t *testing.T) {
	r := open(t, Config{Settings: with(func(s *manager.Settings) { s.Most = 2 })})
	r.box()
	r.as = "bob"
	id := r.box()
	if got := r.code("create", nil); got != "busy" {
		t.Errorf("a third: %s", got)
	}
	r.do("destroy", args{"sandbox_id": id})
	r.box()
	if got := r.code("create", args{"memory_mib": 1 << 30}); got != "busy" && got != "invalid_arguments" {
		t.Errorf("too much memory: %s", got)
	}
}

// A driver that is missing is no reason not to start; a caller who asks for a
// sandbox learns what to do about it.
func TestAMissingDriverIsNamedWhenASandboxIsAskedFor(t *testing.T) {
	r := reach(t, Config{Ladder: []manager.LadderEntry{{Name: "none", Open: func() (sandbox.Driver, error) {
		return nil, errors.New("clone(CLONE_NEWUSER): operation not permitted (run as root)")
	}}}})
	_, err := r.try("create", nil)
	if f, ok := errors.AsType[*tool.Refusal](err); !ok || f.Code != "unsupported" ||
		!strings.Contains(f.Message, "run as root") || !strings.Contains(f.Next, "gatehouse doctor") {
		t.Errorf("%v", err)
	}
	if s := r.do("list", nil); len(s.Sandboxes) != 0 {
		t.Errorf("%+v", s)
	}
}

func TestMistakesInTheSettingsAreNamed(t *testing.T) {
	for name, c := range map[string]Config{
		"negative":      {Settings: manager.Settings{Memory: -1}},
		"min_isolation": {Settings: manager.Settings{Isolation: "wishes"}},
	} {
		if _, err := c.Options(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// With the names of the original come its members and texts.
func TestAnswersAsTheOriginalGivesThem(t *testing.T) {
	r := open(t, Config{Settings: with(nil), Original: func(context string) bool { return context == "sandbox" }})
	as := func(name string, in args) string {
		t.Helper()
		c := moduletest.NewCall(t, in)
		c.Caller.Owner, c.Caller.Context = "ann", "sandbox"
		tl := moduletest.Tool(t, r.m, "sandbox_"+name)
		res, err := c.Tool(t.Context(), tl)
		if f, ok := errors.AsType[*tool.Refusal](err); ok {
			return "Error: " + f.Text()
		}
		if err != nil {
			t.Fatal(err)
		}
		var raw struct {
			Content           []struct{ Type, Text string }
			StructuredContent json.RawMessage
		}
		if err := json.Unmarshal(res.Raw, &raw); err != nil || len(raw.Content) != 1 || raw.Content[0].Type != "text" {
			t.Fatalf("%s: %v", res.Raw, err)
		}
		var flat bytes.Buffer
		json.Compact(&flat, []byte(raw.Content[0].Text))
		if flat.String() != string(raw.StructuredContent) || !strings.Contains(raw.Content[0].Text, "\n  \"") {
			t.Errorf("the text is %q, the structure %s", raw.Content[0].Text, raw.StructuredContent)
		}
		if err := json.Unmarshal(raw.StructuredContent, reflect.New(tl.Out).Interface()); err != nil {
			t.Error(err)
		}
		return flat.String()
	}
	var made struct {
		ID string `json:"sandbox_id"`
	}
	json.Unmarshal([]byte(as("create", args{"memory_mib": 64, "vcpu_count": 1})), &made)
	id := made.ID
	for _, c := range []struct {
		name string
		in   args
		want string
	}{
		{"write", args{"path": "/home/user/a/f", "content": "text <&>"}, `{"success":true}`},
		{"read", args{"path": "/home/user/a/f"}, `{"content":"text <&>"}`},
		{"dir", args{"path": "/home/user"}, `{"entries":[{"name":"a","is_dir":true,"size":60}]}`},
		{"dir", args{"path": "/home/user/a"}, `{"entries":[{"name":"f","is_dir":false,"size":8}]}`},
		{"exec", args{"command": "echo out; echo err >&2; exit 2"},
			`{"exit_code":2,"stdout":"out\n","stderr":"err\n"}`},
		{"run", args{"language": "bash", "code": "echo x"}, `{"exit_code":0,"stdout":"x\n","stderr":""}`},
		{"exec", args{"command": "printf begun; printf odd >&2; sleep 600", "timeout": 0.5},
			`{"exit_code":-1,"stdout":"begun","stderr":"odd\n[ended after N ms: its time was up; use timeout to give it more]\n"}`},
		{"exec", args{"command": "kill -9 $$"},
			`{"exit_code":-1,"stdout":"","stderr":"[ended after N ms: it was killed by a signal (9)]\n"}`},
		{"read", args{"path": "/none"}, "Error: Failed to read file: /none: no such file or directory"},
		{"dir", args{"path": "/none"}, "Error: Failed to list directory: /none: no such file or directory"},
		{"run", args{"language": "cobol", "code": ""}, "Error: Execution failed: Unsupported language: cobol"},
		{"destroy", args{}, `{"success":true}`},
		{"destroy", args{}, "Error: Sandbox not found or invalid ID"},
		{"exec", args{"command": "true"}, "Error: Sandbox not found or invalid ID"},
		{"exec", args{"command": "true", "sandbox_id": ""}, "Error: Missing required parameters: sandbox_id"},
		{"run", args{"language": "sh", "code": "true", "sandbox_id": ""},
			"Error: Missing required parameters: sandbox_id"},
		{"list", args{}, `{"sandboxes":[]}`},
	} {
		if _, given := c.in["sandbox_id"]; !given && c.name != "list" {
			c.in["sandbox_id"] = id
		}
		got := regexp.MustCompile(`after [0-9]+ ms`).ReplaceAllString(as(c.name, c.in), "after N ms")
		if got != c.want {
			t.Errorf("%s %v: %s, want %s", c.name, c.in, got, c.want)
		}
	}
}
