package shell

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/internal/exec/supervisor"
	"gatehouse/internal/sandbox"
)

// judgedConfined is a fixture with lists whose commands are confined and whose programs the kernel reports.
func judgedConfined(t *testing.T, config string) *fixture {
	t.Helper()
	needShell(t)
	d := confining(t, config)
	if m := d.m.(*runner); !m.judged() {
		t.Skip(m.hints)
	}
	return d
}

// With a sandbox for each command, the agent in it judges the programs, and the result says what was refused.
func TestTheAgentOfASandboxJudgesPrograms(t *testing.T) {
	t.Parallel()
	d := judgedConfined(t, `{"deny":["rm"],"confine":true}`)
	r := d.run(`cd; touch victim; awk 'BEGIN{system("rm victim")}'; ls; exit 3`)
	if len(r.Refused) != 1 || !strings.Contains(r.Refused[0], ` may not run rm: the pattern "rm" denies it`) ||
		r.Stdout != "victim\n" || r.ExitCode != 3 {
		t.Errorf("%+v", r)
	}
	if r := d.run("kill -TERM $$"); r.Signal != "terminated" || len(r.Refused) > 0 {
		t.Errorf("%+v", r)
	}
	if r := d.run("sleep 60", "timeout", 1); !r.TimedOut {
		t.Errorf("%+v", r)
	}
	if r := d.run("(sleep 100 &) ; ls | cat | cat; yes | head -n 100000 | tail -n 1"); r.Stdout != "y\n" ||
		r.ExitCode != 0 {
		t.Errorf("%+v", r)
	}
	allowing := judgedConfined(t, `{"allow":["sh","cd","cp","ls","env with: id"],"confine":true}`)
	for line, want := range map[string]int{
		"ls": 0, "env id": 0, "sh -c id": 1, `sh -c 'cp /bin/id ls; PATH=.:$PATH; ls -n'`: 1,
	} {
		if r := allowing.run("cd; " + line); len(r.Refused) != want {
			t.Errorf("%s: %+v", line, r)
		}
	}
}

// trickLines returns lines that remove the file victim by rm, of programs that this machine has; each tenth without
// GATEHOUSE_TEST_ALL.
func trickLines(t *testing.T) (lines []string) {
	for _, file := range []string{"tricks.txt", "others.txt"} {
		b, err := os.ReadFile(filepath.Join("../../exec/supervisor/testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for line := range strings.Lines(string(b)) {
			program, line, found := strings.Cut(strings.TrimSuffix(line, "\n"), "|")
			if !found || strings.HasPrefix(program, "#") {
				continue
			}
			if n++; os.Getenv("GATEHOUSE_TEST_ALL") != "" || n%10 == 0 {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

//redteam:attack Lists of commands are judged by the kernel: the same lines in a sandbox of modules.shell.confine
func TestNoTrickRunsADeniedProgramInASandbox(t *testing.T) {
	d := judgedConfined(t, `{"deny":["rm"],"confine":true}`)
	m := d.m.(*runner)
	var refused, executed atomic.Int32
	lines := trickLines(t)
	t.Run("all", func(t *testing.T) {
		for _, line := range lines {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				got, out := m.runTrick(t, line, true)
				if !strings.Contains(out, "KEPT") {
					executed.Add(1)
					t.Errorf("executed: %s\n%+v\n%s", line, got, out)
				}
				if len(got.Refused) > 0 {
					refused.Add(1)
				}
			})
		}
	})
	t.Logf("%d lines: %d executed; something was refused in %d", len(lines), executed.Load(), refused.Load())
	if int(refused.Load()) < len(lines)/3 {
		t.Errorf("something was refused in %d of %d lines alone", refused.Load(), len(lines))
	}
}

// runTrick runs a line in a sandbox, in a folder with the file victim, and returns what its output says of that.
func (m *runner) runTrick(t *testing.T, line string, judged bool) (got supervisor.Report, text string) {
	box, err := m.driver.Create(t.Context(), sandbox.Spec{Limits: confinedLimits(512)})
	if err != nil {
		t.Fatal(err)
	}
	defer box.Close()
	var out bytes.Buffer
	c := sandbox.Command{
		Argv: []string{
			"/bin/sh",
			"-c",
			`mkdir ~/w; cd ~/w; export PWD=$PWD HOME=$PWD; echo x > victim; timeout -k 1 20 sh -c "$TRICK" </dev/null
			[ -e victim ] && echo "KEPT"`,
		},
		Env:    []string{"TRICK=" + line, "TERM=dumb", "GIT_TERMINAL_PROMPT=0", "LC_ALL=C"},
		Stdout: &out, Timeout: time.Minute, OutputBytes: -1,
	}
	report := func() supervisor.Report { return supervisor.Report{} }
	if judged {
		c.Lists, report = m.listsOf(nil)
	}
	p, err := box.Exec(t.Context(), c)
	if err == nil {
		var r sandbox.Result
		if r, err = p.Wait(); r.Outcome == sandbox.TimedOut {
			err = fmt.Errorf("the line %q took too long", line)
		}
	}
	got = report()
	if err != nil {
		t.Error(err)
	}
	return got, out.String()
}
