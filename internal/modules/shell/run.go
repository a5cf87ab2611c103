package shell

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"

	"gatehouse/tool"
)

type runIn struct {
	Command    string   `json:"command" doc:"a command line" min:"1" names:"line"`
	WorkingDir string   `json:"working_dir,omitempty" doc:"where it begins, inside the roots" names:"path"`
	Timeout    int      `json:"timeout,omitempty" doc:"seconds" default:"30" min:"1" max:"3600"`
	Env        []string `json:"env,omitempty" doc:"NAME=value, added to a minimal environment" names:"env"`
	Stdin      string   `json:"stdin,omitempty" doc:"what it reads"`
	Shell      string   `json:"shell,omitempty" doc:"another shell than the host's usual one" enum:"sh,bash,dash,zsh,ksh" names:"shell"`
}

type runOut struct {
	Stdout     string `json:"stdout" text:"product"`
	Stderr     string `json:"stderr" text:"facts"`
	ExitCode   int    `json:"exit_code" doc:"-1 when a signal ended it"`
	Signal     string `json:"signal,omitempty"`
	TimedOut   bool   `json:"timed_out"`
	Truncated  bool   `json:"truncated" doc:"a stream is not all here"`
	DurationMS int64  `json:"duration_ms"`
}

func (m *runner) runTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "shell_run", Title: "Run a command line", Effects: allEffects, Timeout: MaxSeconds*time.Second + time.Minute, Budget: -1,
		Description: "Runs a command line in a shell and gives its output and exit code. Everything it starts ends with it; use a process for what is to go on.",
		Out:         reflect.TypeFor[runOut](),
		Help: `The command begins in ` + "`working_dir`" + `, a folder inside your roots; that holds nothing back once it runs. It gets a minimal environment (PATH, HOME, language and the like), what the context has for its programs and what ` + "`env`" + ` adds, and reads ` + "`stdin`" + ` or nothing.

At the deadline, and when the call is cancelled, it is asked to end; two seconds later it is killed, together with everything that came of it, in whatever process group or session. The same happens to what it leaves in the background when it ends. How many processes it may become is limited where the system can count them.

Up to 1 MiB of each stream is in the answer: its beginning and its end, with a line between that says how much is left out. What is long, or takes long, can be read in full as the resource the result links to, both streams as they came, for a while. Bytes that are no UTF-8 are shown as ` + "`\\xNN`" + `. What it prints rides on progress.

A host may confine commands: then each runs in a sandbox of its own that goes with it. There it can read your folders, which lie where they do on the host or below ` + "`/folders`" + `; it can write to its home and ` + "`/tmp`" + `, and reaches nothing else of the host and no network. At its deadline it is killed at once.

A host may allow and deny commands by patterns. Each is a glob on a program's name and, after a space, one on its arguments: ` + "`ls*`" + ` (which also means lsblk), ` + "`git push*`" + `. The line is parsed, and every command in it is held against them, through pipes, lists, substitutions and programs that run others; what cannot be judged is refused where there are patterns. They are a seat belt: what must be kept in is kept in by a sandbox.`,
	}, func(ctx context.Context, c *tool.Call, in runIn) (tool.Result, error) {
		o, err := m.runCommand(ctx, c, spec{command: in.Command, shell: in.Shell, dir: in.WorkingDir, env: in.Env, stdin: in.Stdin, seconds: in.Timeout})
		if err != nil {
			return tool.Result{}, err
		}
		out := runOut{
			Stdout: o.stdout.text(), Stderr: o.stderr.text(), ExitCode: o.state.Code, Signal: o.state.Signal,
			TimedOut: o.timedOut(), Truncated: o.truncated(), DurationMS: o.state.Took.Milliseconds(),
		}
		res := tool.Typed(out)
		if out.TimedOut {
			res.Facts += fmt.Sprintf("\n[timed out after %d s]", in.Timeout)
		}
		return res, nil
	})
}

// Facts holds what was printed to standard error, and says how the command
// ended on a line of its own, the last.
func (r runOut) Facts() string {
	var b strings.Builder
	if r.Stderr != "" {
		fmt.Fprintf(&b, "[stderr]\n%s\n", strings.TrimSuffix(r.Stderr, "\n"))
	}
	if r.Signal != "" {
		fmt.Fprintf(&b, "[ended by a signal: %s]", r.Signal)
	} else {
		fmt.Fprintf(&b, "[exit code %d]", r.ExitCode)
	}
	return b.String()
}
