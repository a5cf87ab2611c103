package build_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/files/roots"
	"gatehouse/internal/modules/build"
	"gatehouse/module"
	"gatehouse/module/moduletest"
)

// bench is the module with a project, and the events that it published.
type bench struct {
	t      *testing.T
	module module.Module
	dir    string
	roots  *roots.Set
	owner  string

	mu     sync.Mutex
	events []string
}

func newBench(t *testing.T, path string, files map[string]string) *bench {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b := &bench{t: t, dir: dir, owner: "ann/lab"}
	if b.roots, err = roots.Open([]roots.Dir{{Path: dir}}, roots.Options{}); err != nil {
		t.Fatal(err)
	}
	b.module, err = build.New(build.Config{Path: path})(t.Context(), module.Deps{Publish: func(what string, fact any) {
		text, err := json.Marshal(fact)
		if err != nil {
			t.Error(err)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.events = append(b.events, what+" "+string(text))
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.module.Close(t.Context()); err != nil {
			t.Error(err)
		}
		b.roots.Close()
	})
	return b
}

func (b *bench) call(name, args string, into any) string {
	b.t.Helper()
	c := moduletest.NewCall(b.t, args)
	c.Caller.Owner, c.Roots = b.owner, b.roots
	return c.Ask(b.t, b.module, name, into)
}

// published waits until the events contain something, because the last one follows the end of the build.
func (b *bench) published(what string) string {
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		b.mu.Lock()
		events := strings.Join(b.events, "\n")
		b.mu.Unlock()
		if strings.Contains(events, what) || time.Now().After(end) {
			return events
		}
	}
}

type built struct {
	ID, Status, Tool, Repo, Branch string
	Errors, Passed, Failed         int
	Problems                       []struct {
		File, Excerpt string
		Line, Column  int
	}
}

var broken = map[string]string{
	"go.mod": "module example.com/p\n\ngo 1.25\n",
	"p.go":   "package p\n\nfunc Add(a, b int) int { return a - b }\n",
	"p_test.go": "package p\n\nimport \"testing\"\n\nfunc TestAdd(t *testing.T) {\n\tif Add(1, 2) != 3 {\n\t\tt.Error(\"wrong\")\n\t}\n}\n\n" +
		"func TestFine(t *testing.T) {\n\tt.Run(\"inner\", func(t *testing.T) {})\n}\n",
	".git/HEAD": "ref: refs/heads/main\n",
}

func TestTheModuleKeepsTheContract(t *testing.T) {
	moduletest.Run(t, build.New(build.Config{}), moduletest.Options{})
}

// A failed test is reported with its place, its line and the tree of tests; the history outlives the host.
func TestAFailedBuild(t *testing.T) {
	path := filepath.Join(t.TempDir(), "builds.db")
	b := newBench(t, path, broken)
	var got built
	if bad := b.call("build_run", `{"task":"test","wait":45}`, &got); bad != "" {
		t.Fatal(bad)
	}
	if got.Status != "failed" || got.Tool != "go" || got.Branch != "main" || got.Failed != 1 || got.Passed != 1 ||
		len(got.Problems) != 1 || got.Problems[0].File != "p_test.go" || got.Problems[0].Line != 7 ||
		got.Problems[0].Excerpt != `t.Error("wrong")` {
		t.Fatalf("got %+v", got)
	}
	var tests struct{ Text string }
	if bad := b.call("build_tests", `{"id":"`+got.ID+`"}`, &tests); bad != "" || !strings.HasPrefix(tests.Text, "failed TestAdd\npassed TestFine") {
		t.Errorf("got %s %q", bad, tests.Text)
	}
	events := b.published("\nfailed {")
	if !strings.HasPrefix(events, `start {"Owner":"ann/lab"`) || !strings.Contains(events, "\nfailed {") {
		t.Errorf("events:\n%s", events)
	}
	again := newBench(t, path, nil)
	var list struct{ Builds []built }
	if bad := again.call("build_list", `{}`, &list); bad != "" || len(list.Builds) != 1 || list.Builds[0].Status != "failed" {
		t.Errorf("after a restart: %s %+v", bad, list)
	}
	again.owner = "bob/lab"
	if bad := again.call("build_status", `{"id":"`+got.ID+`"}`, nil); !strings.HasPrefix(bad, "not_found") {
		t.Errorf("another owner: %s", bad)
	}
}

// The real Gradle is recognised and run, and both errors of its compiler are found, the first of which has the name of the
// task before it.
func TestARealGradle(t *testing.T) {
	for _, program := range []string{"gradle", "javac"} {
		if _, err := exec.LookPath(program); err != nil && os.Getenv("CI") != "" {
			t.Fatalf("make setup installs it: %v", err)
		} else if err != nil {
			t.Skip(err)
		}
	}
	t.Setenv("GRADLE_USER_HOME", t.TempDir())
	b := newBench(t, filepath.Join(t.TempDir(), "builds.db"), map[string]string{
		"build.gradle":         "apply plugin: 'java'\n",
		"settings.gradle":      "rootProject.name = 'p'\n",
		"gradle.properties":    "org.gradle.daemon=false\n",
		"src/main/java/A.java": "class A {\n\tint x = \"no\";\n}\n",
		"src/main/java/B.java": "class B {\n\n\tint y = missing;\n}\n",
	})
	var got built
	if bad := b.call("build_run", `{"wait":45}`, &got); bad != "" {
		t.Fatal(bad)
	}
	for end := time.Now().Add(5 * time.Minute); got.Status == "running" && time.Now().Before(end); time.Sleep(time.Second) {
		if bad := b.call("build_status", `{"id":"`+got.ID+`"}`, &got); bad != "" {
			t.Fatal(bad)
		}
	}
	var places []string
	for _, p := range got.Problems {
		places = append(places, fmt.Sprintf("%s:%d %s", p.File, p.Line, p.Excerpt))
	}
	slices.Sort(places)
	want := "src/main/java/A.java:2 int x = \"no\";\nsrc/main/java/B.java:3 int y = missing;"
	if got.Status != "failed" || got.Tool != "gradle" || strings.Join(places, "\n") != want {
		var log struct{ Text string }
		b.call("build_logs", `{"id":"`+got.ID+`"}`, &log)
		t.Errorf("got %+v\n%s", got, log.Text)
	}
}

// The pages of a log have each line once, and grep and tail select lines.
func TestLogsArePaged(t *testing.T) {
	b := newBench(t, "", map[string]string{"Makefile": "all:\n\t@seq 1 20000\n\t@exit 3\n"})
	var got built
	if bad := b.call("build_run", `{"wait":45}`, &got); bad != "" || got.Status != "failed" || got.Tool != "make" {
		t.Fatalf("%s %+v", bad, got)
	}
	var all strings.Builder
	cursor := ""
	for {
		var page struct {
			Text       string
			NextCursor string `json:"next_cursor"`
		}
		if bad := b.call("build_logs", `{"id":"`+got.ID+`","cursor":"`+cursor+`"}`, &page); bad != "" {
			t.Fatal(bad)
		}
		if len(page.Text) > 25<<10 {
			t.Errorf("a page has %d bytes", len(page.Text))
		}
		all.WriteString(page.Text)
		if cursor = page.NextCursor; cursor == "" {
			break
		}
	}
	lines := strings.Split(all.String(), "\n")
	if len(lines) < 20000 || lines[0] != "1" || lines[19999] != "20000" {
		t.Errorf("%d lines", len(lines))
	}
	var page struct{ Text string }
	if bad := b.call("build_logs", `{"id":"`+got.ID+`","grep":"1999","tail":2}`, &page); bad != "" || page.Text != "19998\n19999\n" {
		t.Errorf("%s %q", bad, page.Text)
	}
}

// A build that does not end is followed by its id and stopped with all of its processes.
func TestABuildIsStopped(t *testing.T) {
	b := newBench(t, "", map[string]string{"Makefile": "all:\n\t@echo begun; sleep 300\n"})
	var got built
	if bad := b.call("build_run", `{"wait":0}`, &got); bad != "" || got.Status != "running" {
		t.Fatalf("%s %+v", bad, got)
	}
	if bad := b.call("build_stop", `{"id":"`+got.ID+`"}`, &got); bad != "" || got.Status != "cancelled" {
		t.Errorf("%s %+v", bad, got)
	}
}

func TestToolsAreDetected(t *testing.T) {
	b := newBench(t, "", map[string]string{"readme.txt": "x"})
	if bad := b.call("build_run", `{}`, nil); !strings.Contains(bad, "found: none") {
		t.Errorf("got %s", bad)
	}
}
