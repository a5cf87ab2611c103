package shell

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/exec/proc"
	"gatehouse/module"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

func TestContract(t *testing.T) {
	needShell(t)
	moduletest.Run(t, New(Config{}), moduletest.Options{Busy: map[string]json.RawMessage{
		"shell_run":             json.RawMessage(`{"command":"sleep 1000","timeout":300}`),
		"shell_system":          json.RawMessage(`{"command":"sleep 1000","timeout":300}`),
		"shell_execute_command": json.RawMessage(`{"command":"sleep 1000"}`),
	}})
}

func needShell(t testing.TB) {
	t.Helper()
	for _, name := range []string{"sh", "bash"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip(err)
		}
	}
}

// fixture is the module with one folder.
type fixture struct {
	t   testing.TB
	m   module.Module
	dir tool.Roots
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
	needShell(t)
	h := moduletest.NewHost(t)
	m, err := New(configOf(t, config))(t.Context(), h.Deps())
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{t: t, m: m, dir: moduletest.Folder(t)}
}

func (d *fixture) path(name string) string { return filepath.Join(d.dir.List()[0].Path, name) }

// args are the arguments of a call.
type args = map[string]any

// call calls a tool; its name is given without the module's.
func (d *fixture) call(ctx context.Context, name string, in args) (tool.Result, *moduletest.Peer, error) {
	d.t.Helper()
	c := moduletest.NewCall(d.t, in)
	c.Roots = d.dir
	res, err := c.Tool(ctx, moduletest.Tool(d.t, d.m, "shell_"+name))
	return res, c.Peer, err
}

// run runs a command that is not refused.
func (d *fixture) run(command string, more ...any) runOut {
	d.t.Helper()
	in := args{"command": command}
	for i := 0; i < len(more); i += 2 {
		in[more[i].(string)] = more[i+1]
	}
	res, _, err := d.call(d.t.Context(), "run", in)
	if err != nil {
		d.t.Fatalf("%s: %v", command, err)
	}
	return res.Structured.(runOut)
}

// refusal is the code with which a call is refused; "" when it is not.
func (d *fixture) refusal(name string, in args) string {
	d.t.Helper()
	_, _, err := d.call(d.t.Context(), name, in)
	if r, ok := errors.AsType[*tool.Refusal](err); ok {
		return string(r.Code)
	}
	if err != nil {
		d.t.Fatalf("%s %v: %v", name, in, err)
	}
	return ""
}

func TestRunsCommandLines(t *testing.T) {
	d := open(t, "")
	r := d.run("echo out; echo err >&2; exit 3")
	if r.Stdout != "out\n" || r.Stderr != "err\n" || r.ExitCode != 3 || r.TimedOut || r.Truncated || r.Signal != "" {
		t.Errorf("%+v", r)
	}
	if r := d.run("cat; echo $X", "stdin", "typed\n", "env", []string{"X=y z"}); r.Stdout != "typed\ny z\n" ||
		r.ExitCode != 0 {
		t.Errorf("%+v", r)
	}
	if r := d.run("cat"); r.Stdout != "" || r.ExitCode != 0 {
		t.Errorf("without input: %+v", r)
	}
	if r := d.run("kill -9 $$"); r.ExitCode != -1 || r.Signal == "" {
		t.Errorf("%+v", r)
	}
	if r := d.run("echo $BASH_VERSION", "shell", "bash"); len(r.Stdout) < 3 {
		t.Errorf("%+v", r)
	}
	if r := d.run("-x; echo on"); r.Stdout != "on\n" {
		t.Errorf("a command that begins with a dash: %+v", r)
	}
}

// The text of a result has what a client must not miss that shows no more.
func TestTextTellsOfFailure(t *testing.T) {
	d := open(t, "")
	for command, want := range map[string]string{
		"echo fine":               "[exit code 0]",
		"exit 2":                  "[exit code 2]",
		"echo bad >&2; exit 1":    "[stderr]\nbad\n[exit code 1]",
		"echo warning >&2":        "[stderr]\nwarning\n[exit code 0]",
		"kill -9 $$":              "[ended by a signal: killed]",
		"echo a >&2; kill -9 $$":  "[stderr]\na\n[ended by a signal: killed]",
		"printf '\\377' >&2; (:)": "[stderr]\n\\xff\n[exit code 0]",
	} {
		res, _, err := d.call(t.Context(), "run", args{"command": command})
		if err != nil {
			t.Fatal(err)
		}
		if res.Facts != want {
			t.Errorf("%s: got %q, want %q", command, res.Facts, want)
		}
	}
}

func TestRefusesWhatCannotBeRun(t *testing.T) {
	d := open(t, "")
	for _, c := range []struct {
		want string
		in   args
	}{
		{"invalid_arguments", args{"command": " \n"}},
		{"invalid_arguments", args{"command": "a\x00b"}},
		{"invalid_arguments", args{"command": "ls", "timeout": 3601}},
		{"invalid_arguments", args{"command": "ls", "timeout": -1}},
		{"invalid_arguments", args{"command": "ls", "timeout": 0}},
		{"invalid_arguments", args{"command": "ls", "env": []string{"X"}}},
		{"invalid_arguments", args{"command": "ls", "env": []string{"=X"}}},
		{"invalid_arguments", args{"command": "ls", "env": []string{"GATEHOUSE_LOG=debug"}}},
		{"invalid_arguments", args{"command": "ls", "env": []string{"BASH_FUNC_ls%%=() { :; }"}}},
		{"too_large", args{"command": strings.Repeat("x", maxCommand+1)}},
		{"too_large", args{"command": "cat", "stdin": strings.Repeat("x", maxInput+1)}},
		{"too_large", args{"command": "ls", "env": []string{"X=" + strings.Repeat("x", maxValue+1)}}},
		{"too_large", args{"command": "ls", "env": slices.Repeat([]string{"X=1"}, maxEnv+1)}},
		{"not_found", args{"command": "ls", "working_dir": "nowhere"}},
		{"outside_root", args{"command": "ls", "working_dir": "/etc"}},
		{"outside_root", args{"command": "ls", "working_dir": "../.."}},
	} {
		if got := d.refusal("run", c.in); got != c.want {
			t.Errorf("%.60v: got %q, want %s", c.in, got, c.want)
		}
	}
	if got := open(t, `{"shell":"/no/such/shell"}`).refusal("run", args{"command": "ls"}); got != "not_started" {
		t.Errorf("without a shell: %q", got)
	}
}

func TestBeginsInsideTheRoots(t *testing.T) {
	d := open(t, "")
	os.MkdirAll(d.path("a/b"), 0o755)
	os.Symlink("/", d.path("out"))
	os.WriteFile(d.path("file"), nil, 0o600)
	real, err := filepath.EvalSymlinks(d.path("."))
	if err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{"": "", ".": "", "a/b": "/a/b", d.path("a"): "/a"} {
		if r := d.run("pwd -P; echo $PWD", "working_dir", dir); !strings.HasPrefix(r.Stdout, real+want+"\n") {
			t.Errorf("%q: it began in %q", dir, r.Stdout)
		}
	}
	for _, dir := range []string{"out", "out/etc", "file"} {
		if d.refusal("run", args{"command": "pwd", "working_dir": dir}) == "" {
			t.Errorf("%s: it began there", dir)
		}
	}
	there := open(t, `{"WorkingDir":"sub"}`)
	os.Mkdir(there.path("sub"), 0o755)
	if r := there.run("pwd -P"); !strings.HasSuffix(r.Stdout, "/sub\n") {
		t.Errorf("it began in %q", r.Stdout)
	}
}

// What the host knows, and what was not given, no command sees.
//
//redteam:attack Tools run with what the call carries: a command reads the host's own settings from its environment
func TestEnvironmentIsFiltered(t *testing.T) {
	for _, name := range []string{"GATEHOUSE_TOKEN", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "LD_LIBRARY_PATH",
		"BASH_ENV", "MY_PASSWORD"} {
		t.Setenv(name, "sesame")
	}
	d := open(t, "")
	for _, shell := range []string{"sh", "bash"} {
		r := d.run("env", "shell", shell, "env", []string{"MINE=1"})
		if strings.Contains(r.Stdout, "sesame") || !strings.Contains(r.Stdout, "MINE=1\n") ||
			!strings.Contains(r.Stdout, "PATH=") {
			t.Errorf("%s", r.Stdout)
		}
		// the mark is how what came of the command is found where there are no cgroups
		for line := range strings.Lines(r.Stdout) {
			if strings.HasPrefix(line, "GATEHOUSE_") && !strings.HasPrefix(line, "GATEHOUSE_TREE=") {
				t.Errorf("it sees %s", line)
			}
		}
	}
}

func TestADeadlineIsKept(t *testing.T) {
	t.Parallel()
	d := open(t, "")
	patiently(t, func(seconds int) bool {
		r := d.run("trap '' TERM; echo begun; while :; do sleep 1000; done", "timeout", seconds)
		if !r.TimedOut || r.ExitCode != -1 || r.DurationMS < int64(seconds)*1000 {
			t.Errorf("%+v", r)
		}
		return r.Stdout == "begun\n"
	})
}

// patiently runs something out of its time, giving it more until it had enough
// to do what it begins with.
func patiently(t *testing.T, enough func(seconds int) bool) {
	t.Helper()
	for seconds := 1; seconds < 100; seconds *= 2 {
		if enough(seconds) {
			return
		}
	}
	t.Error("it did not do what it begins with")
}

func TestAForkBombIsBounded(t *testing.T) {
	t.Parallel()
	p, err := proc.Start(t.Context(), proc.Spec{Path: "true", Whole: true, Processes: 40})
	if err != nil {
		t.Skip(err)
	}
	p.Wait()
	if _, limited := p.Contained(); !limited {
		t.Skip("this system has no cgroup that counts processes, so that a fork bomb ends at the deadline alone")
	}
	d := open(t, `{"processes":40}`)
	patiently(t, func(seconds int) bool {
		os.Remove(d.path("n"))
		r := d.run(
			`b() { echo x >> n; [ $1 -le 0 ] || { b $(($1-1)) & b $(($1-1)) & }; sleep 1000; }; b 8 2>/dev/null; wait`,
			"timeout", seconds, "shell", "bash",
		)
		n, _ := os.ReadFile(d.path("n"))
		if len(n)/2 > 100 { // of 511; 40 at once, and one that cannot fork ends and frees a place
			t.Errorf("%d processes; %+v", len(n)/2, r)
		}
		return len(n)/2 > 10
	})
}

func TestAnyOutputIsShown(t *testing.T) {
	t.Parallel()
	d := open(t, "")
	for command, want := range map[string]string{
		`printf '\000\001\377\376a\303'`: "\x00\x01\\xff\\xfea\\xc3",
		`:`:                              "",
		`exec <&- >&- 2>&-; exit 0`:      "",
		`printf 'no newline'`:            "no newline",
		`printf '\342\202\254'`:          "€",
	} {
		if r := d.run(command); r.Stdout != want || r.ExitCode != 0 || r.Truncated {
			t.Errorf("%s: %+v", command, r)
		}
	}
	if r := d.run("exec <&- >&- 2>&-; sleep 1000", "timeout", 1); !r.TimedOut {
		t.Errorf("%+v", r)
	}
	patiently(t, func(seconds int) bool { // a maker of zombies
		r := d.run("for i in 1 2 3 4 5 6 7 8 9; do (exit 0) & done; echo made; exec sleep 1000", "timeout", seconds)
		return r.TimedOut && r.Stdout == "made\n"
	})
	if r := open(t, `{"NoStderr":true}`).run("echo out; echo err >&2"); r.Stdout != "out\n" || r.Stderr != "" {
		t.Errorf("%+v", r)
	}
}

// Of what is long the beginning and the end are kept; all of it goes to where
// it can be read.
func TestLongOutputKeepsBothEnds(t *testing.T) {
	d := open(t, `{"output":4096}`)
	res, peer, err := d.call(t.Context(), "run", args{"command": "seq 1 100000; seq 1 3 >&2"})
	if err != nil {
		t.Fatal(err)
	}
	r := res.Structured.(runOut)
	if !r.Truncated || len(r.Stdout) > 4096+200 || !strings.HasPrefix(r.Stdout, "1\n2\n3\n") ||
		!strings.HasSuffix(r.Stdout, "\n99999\n100000\n") || !strings.Contains(r.Stdout, " bytes are missing here") {
		t.Errorf("%d bytes: %.200s", len(r.Stdout), r.Stdout)
	}
	if r.Stderr != "1\n2\n3\n" {
		t.Errorf("%q", r.Stderr)
	}
	if want := int64(588895 + 6); peer.PrintedAll != want {
		t.Errorf("%d bytes can be read in full, want %d", peer.PrintedAll, want)
	}
	// What is short and quick needs no resource.
	if _, peer, err := d.call(t.Context(), "run", args{"command": "echo x"}); err != nil || peer.PrintedAll != 0 &&
		peer.PrintedAll != 2 {
		t.Errorf("%d bytes, %v", peer.PrintedAll, err)
	}
}

// A waiting caller gets the output so far.
func TestPartialOutputIsTold(t *testing.T) {
	t.Parallel()
	d := open(t, "")
	if _, peer, err := d.call(t.Context(), "run", args{"command": "echo first; sleep 2; echo second"}); err != nil ||
		string(peer.Printed) != "first\nsecond\n" {
		t.Errorf("%q, %v", peer.Printed, err)
	}
}

func TestListsDecide(t *testing.T) {
	d := open(t, `{"allow":["ls*","echo","cat"],"deny":["rm*","lsof"]}`)
	for command, ok := range map[string]bool{
		"ls": true, "ls | cat": true, "echo x; ls": true,
		"id": false, "ls; rm x": false, "echo $(id)": false, "$x": false, "lsof": false, "ls (": false,
		"echo x > y": false,
	} {
		for _, name := range []string{"run", "system"} {
			want := "denied"
			if ok {
				want = ""
			}
			if got := d.refusal(name, args{"command": command}); got != want {
				t.Errorf("%s %s: got %q, want %q", name, command, got, want)
			}
		}
		res, _, err := d.call(t.Context(), "execute_command", args{"command": command})
		if err != nil {
			t.Fatal(err)
		}
		out := res.Structured.(executeOut)
		if res.IsError == ok || ok == (out.Output == "Command denied by security policy") ||
			ok == (out.ReturnCode == -1) || out.Command != command {
			t.Errorf("%s: %+v", command, res)
		}
	}
	for _, env := range []string{"PATH=/tmp", "LD_PRELOAD=x", "BASH_ENV=x", "x=a[$(id)]"} {
		if got := d.refusal("run", args{"command": "ls", "env": []string{env}}); got != "denied" {
			t.Errorf("%s: got %q", env, got)
		}
	}
	if r := d.run("ls", "env", []string{"X=1"}); r.ExitCode != 0 {
		t.Errorf("%+v", r)
	}
}

// Design E's result is its three members, design A's a text.
func TestOtherServersTools(t *testing.T) {
	t.Parallel()
	d := open(t, "")
	for command, want := range map[string]string{
		"echo out; echo err >&2": `{"command":"echo out; echo err >&2","output":"out\nerr\n","return_code":0}`,
		"exit 7":                 `{"command":"exit 7","output":"","return_code":7}`,
		"kill -9 $$":             `{"command":"kill -9 $$","output":"","return_code":-1}`,
		"printf '\\377'":         `{"command":"printf '\\377'","output":"\\xff","return_code":0}`,
	} {
		res, _, err := d.call(t.Context(), "execute_command", args{"command": command})
		if err != nil || res.IsError {
			t.Fatalf("%s: %+v, %v", command, res, err)
		}
		var b strings.Builder
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		enc.Encode(res.Structured)
		if got := strings.TrimSpace(b.String()); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	patiently(t, func(seconds int) bool {
		hurried := open(t, fmt.Sprintf(`{"timeout":%d}`, time.Duration(seconds)*time.Second))
		res, _, err := hurried.call(t.Context(), "execute_command", args{"command": "echo x; sleep 1000"})
		if err != nil || !res.IsError ||
			res.Content[0].Text != fmt.Sprintf("Command timed out after %d seconds", seconds) {
			t.Errorf("%+v, %v", res, err)
		}
		return res.Structured.(executeOut).Output == "x\n"
	})

	for command, want := range map[string]string{
		"echo out":                       "out\n[exit code: 0]",
		"echo out; echo err >&2; exit 2": "out\n[stderr]\nerr\n[exit code: 2]!",
		"echo err >&2; false":            "[stderr]\nerr\n[exit code: 1]!",
		":":                              "(no output)\n[exit code: 0]",
		"[[ a == a ]] && echo bash":      "bash\n[exit code: 0]",
	} {
		res, _, err := d.call(t.Context(), "system", args{"command": command})
		if err != nil {
			t.Fatal(err)
		}
		got := res.Structured.(systemOut).Output
		if res.IsError {
			got += "!"
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", command, got, want)
		}
	}
	patiently(t, func(seconds int) bool {
		res, _, err := d.call(t.Context(), "system", args{"command": "echo x; sleep 1000", "timeout": seconds})
		if err != nil || !res.IsError {
			t.Errorf("%+v, %v", res, err)
		}
		return res.Structured.(systemOut) == systemOut{
			fmt.Sprintf("Command timed out after %d seconds\nx", seconds), -1, true,
		}
	})
}

func TestConfiguration(t *testing.T) {
	for _, bad := range []Settings{
		{Timeout: 3601 * time.Second},
		{Timeout: -time.Second},
		{Timeout: time.Millisecond},
		{Timeout: 1500 * time.Millisecond},
		{Output: 10},
		{Processes: -1},
		{Allow: []string{""}},
		{Deny: []string{strings.Repeat("x", 1000)}},
	} {
		if _, err := New(Config{Settings: bad})(t.Context(), module.Deps{}); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
	m, err := New(Config{Settings: Settings{Timeout: 7 * time.Second}})(t.Context(), module.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	if in := string(moduletest.Tool(t, m, "shell_run").Input); !strings.Contains(in, `"default":7`) {
		t.Errorf("the schema says %s", in)
	}
}
