package app

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"gatehouse/internal/config"
)

// Rules over op.paths compare the resolved path, however the call spells it.
//
//redteam:attack One function says yes: other spellings of a path and of a program pass a rule
func TestRulesSeeThePathsThatTheHostResolves(t *testing.T) {
	cfg := settings(t)
	dir, err := filepath.EvalSymlinks(cfg.Roots.Folders[0])
	if err != nil {
		t.Fatal(err)
	}
	putFile(t, "secret text", dir, "private/x")
	putFile(t, "open text", dir, "a/open")
	for _, l := range [][2]string{{"private", "link"}, {dir + "/private/x", "a/file"}, {"../link", "a/again"},
		{"../a/open", "private/out"}} {
		if err := os.Symlink(l[0], filepath.Join(dir, l[1])); err != nil {
			t.Fatal(err)
		}
	}
	private := filepath.Join(dir, "private")
	cfg.Contexts = []config.Context{
		{Name: "main", Modules: []string{"file", "filesystem", "shell"}},
		{Name: "kept", Modules: []string{"file"}, ClientRoots: true},
	}
	cfg.Rules = []config.Rule{{
		Name: "private", Methods: []string{"*"}, Then: "refuse", Reason: "kept out",
		When: fmt.Sprintf(`op.paths.exists(p, p == %q || p.startsWith(%q))`, private, private+"/"),
	}}
	c := clientOf(t, cfg)
	no := func() string { return announce(dir) }
	for _, path := range []string{
		"private/x", "./private/x", "a/../private/x", "private//x", "./a/.././private/./x", private + "/x",
		dir + "//private/x",
		dir + "/a/../private/x", "link/x", "a/file", "a/again/x", "link/../private/x", "private/none/deep", "private",
		"private/", "link", "private/out",
	} {
		q, _ := json.Marshal(path)
		if got := callModern(c, "main", "file_read", `{"path":`+string(q)+`}`, false, no); !strings.Contains(
			got,
			"kept out",
		) {
			t.Errorf("file_read %s: %s", path, got)
		}
		if got := callModern(c, "main", "filesystem_read_text_file",
			`{"path":`+string(q)+`}`, false, no); !strings.Contains(
			got,
			"kept out",
		) {
			t.Errorf("filesystem_read_text_file %s: %s", path, got)
		}
	}
	for args, name := range map[string]string{
		`{"paths":["a/open","./link/x"]}`:               "file_read",
		`{"oldPath":"a/open","newPath":"a/again/new"}`:  "file_copy",
		`{"oldPath":"private/out","newPath":"a/moved"}`: "file_rename",
		`{"path":"private/out"}`:                        "file_delete", // the link itself lies there
		`{"source":"a/open","destination":"link/new"}`:  "filesystem_move_file",
		// encoding/json takes the last
		`{"path":"a/open","PATH":"link/x","Path":"link/x"}`:  "filesystem_read_text_file",
		`{"command":"true","working_dir":"a/again"}`:         "shell_run",
		`{"path":"../elsewhere/x"}`:                          "file_read", // cannot be resolved
		`{}`:                                                 "file_undo", // nor can what was changed before
		`{"path":"a/open\u0000"}`:                            "file_read",
		`{"pattern":"secret","path":"link"}`:                 "file_search",
		`{"edits":[],"path":"link/x"}`:                       "filesystem_edit_file",
		`{"path":"link/x","content":"new","mode":"prepend"}`: "file_write",
	} {
		if got := callModern(c, "main", name, args, false, no); !strings.Contains(got, "kept out") {
			t.Errorf("%s %s: %s", name, args, got)
		}
	}
	for _, path := range []string{"a/open", "./a/../a//open", dir + "/a/open", "link/../a/open"} {
		if got := callModern(c, "main", "file_read", `{"path":"`+path+`"}`, false, no); !strings.Contains(
			got,
			"open text",
		) {
			t.Errorf("%s is refused: %s", path, got)
		}
	}
	if got := callModern(c, "main", "file_read", `{"path":"PRIVATE/x"}`, false, no); strings.Contains(
		got,
		"secret text",
	) {
		t.Errorf("in upper case: %s", got)
	}
	// If the client announces its folders, a relative path cannot be resolved before the call; an absolute path
	// can.
	if got := callModern(c, "kept", "file_read", `{"path":"a/open"}`, true, no); !strings.Contains(got, "kept out") {
		t.Errorf("a relative path of a client with folders of its own: %s", got)
	}
	if got := callModern(c, "kept", "file_read", `{"path":"`+dir+`/a/open"}`, true, no); !strings.Contains(
		got,
		"open text",
	) {
		t.Errorf("an absolute path of such a client: %s", got)
	}
	for uri, want := range map[string]string{
		"file://" + private + "/x": "kept out", "file://" + dir + "/link/x": "kept out",
		"file://" + dir + "/%70rivate/x": "kept out",
		"file://" + dir + "/a/open":      "open text",
	} {
		if got := readModern(c, uri); !strings.Contains(got, want) {
			t.Errorf("%s: got %s, want %q in it", uri, got, want)
		}
	}
}

func readModern(c *tenant, uri string) string {
	c.next++
	c.pipe.Receive(
		fmt.Appendf(
			nil,
			`{"jsonrpc":"2.0","id":%d,"method":"resources/read","params":{"uri":%q,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"gatehouse/context":"main"}}}`,
			c.next,
			uri,
		),
	)
	return string(c.message())
}

// Rules over op.commands compare the programs that would run, however the command line spells them.
//
//redteam:attack One function says yes: quotes, paths, wrappers and variables hide a program from a rule
func TestRulesSeeTheCommandsThatWouldRun(t *testing.T) {
	needShell(t)
	cfg := settings(t)
	dir := cfg.Roots.Folders[0]
	cfg.Contexts = []config.Context{{Name: "main", Modules: []string{"shell", "process"}}}
	cfg.Rules = []config.Rule{
		{Name: "rm", Then: "refuse", Reason: "kept out", When: `op.commands.exists(c, c.name == "rm")`},
	}
	c := clientOf(t, cfg)
	no := func() string { return "[]" }
	call := func(name string, args map[string]any) string {
		b, err := json.Marshal(args)
		if err != nil {
			t.Fatal(err)
		}
		return callModern(c, "main", name, string(b), false, no)
	}
	putFile(t, "still here", dir, "f")
	for _, line := range []string{
		"rm f", "/bin/rm f", "/usr/bin/../bin/rm f", `r\m f`, `'r'm f`, "r''m f", "env rm f", "env -i A=b rm f",
		"sh -c 'rm f'", `sh -c "sh -c 'r\m f'"`, "true && rm f",
		"echo $(rm f)", "echo `rm f`", "ls | xargs rm", "find . -name f -exec rm {} +", "nohup rm f", "command rm f",
		"busybox rm f", "X=rm; $X f", "eval rm f",
		"f() { rm f; }; f", "{ rm f; }", "python3 -c 'import os; os.remove(\"f\")'", "echo rm f | sh", "RM f", "if",
		"cat <<E\n$(rm f)\nE",
	} {
		for _, name := range []string{"shell_run", "shell_system", "shell_execute_command"} {
			if got := call(name, map[string]any{"command": line}); !strings.Contains(got, "kept out") {
				t.Errorf("%s %s: %s", name, line, got)
			}
		}
	}
	for _, args := range []map[string]any{
		{"command": "rm", "args": []string{"f"}}, {"command": "/bin/rm", "args": []string{"f"}},
		{"command": "env", "args": []string{"rm", "f"}},
		{"command": "sh", "args": []string{"-c", "rm f"}}, {"command": "sh"},
		{"command": "ls", "env": []string{"LD_PRELOAD=./x.so"}},
	} {
		for _, name := range []string{"process_run", "process_start"} {
			if got := call(name, args); !strings.Contains(got, "kept out") {
				t.Errorf("%s %v: %s", name, args, got)
			}
		}
	}
	if got := call("shell_run", map[string]any{"command": "cat f", "env": []string{"PATH=."}}); !strings.Contains(
		got,
		"kept out",
	) {
		t.Errorf("another PATH: %s", got)
	}
	for _, line := range []string{"cat f", "echo rm f; cat f", "cat ./f 2>/dev/null", "X=$HOME; cat f $X"} {
		if got := call("shell_run", map[string]any{"command": line}); !strings.Contains(got, "still here") {
			t.Errorf("%s is refused: %s", line, got)
		}
	}
	if got := call("process_run", map[string]any{"command": "cat", "args": []string{"f"}}); !strings.Contains(
		got,
		"still here",
	) {
		t.Errorf("process_run cat: %s", got)
	}
}

// logText collects the text of the log.
type logText struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// A host warns once of each rule that compares text, including rules that are added later.
func TestAHostWarnsOfRulesThatCompareText(t *testing.T) {
	cfg := settings(t)
	rule := config.Rule{Name: "first", When: `args.path == "x"`, Then: "refuse"}
	cfg.Rules = []config.Rule{rule, {Name: "fine", When: `op.paths == ["/x"]`, Then: "refuse"}}
	var said logText
	a, err := New(t.Context(), cfg, Options{Log: slog.New(slog.NewTextHandler(&said, nil))})
	if err != nil {
		t.Fatal(err)
	}
	clientTo(t, a)
	next := cfg
	next.Rules = append(slices.Clone(cfg.Rules), config.Rule{Name: "later", When: `args.path == "x"`, Then: "refuse"})
	if _, _, err := a.Reload(next); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"first": 1, "later": 1, "fine": 0} {
		if got := strings.Count(said.String(), name+" compares args.path as text"); got != want {
			t.Errorf("%s: warned of %d times, want %d: %s", name, got, want, said.String())
		}
	}
}
