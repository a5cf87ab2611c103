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
	WorkingDir string   `json:"working_dir,omitempty" doc:"working directory, inside the roots" names:"path"`
	Timeout    int      `json:"timeout,omitempty" doc:"seconds" default:"30" min:"1" max:"3600"`
	Env        []string `json:"env,omitempty" doc:"NAME=value, added to a minimal environment" names:"env"`
	Stdin      string   `json:"stdin,omitempty" doc:"its input"`
	Shell      string   `json:"shell,omitempty" doc:"a shell instead of the host's default" enum:"sh,bash,dash,zsh,ksh" names:"shell"`
}

type runOut struct {
	Stdout     string `json:"stdout" text:"product"`
	Stderr     string `json:"stderr" text:"facts"`
	ExitCode   int    `json:"exit_code" doc:"-1 if a signal ended it"`
	Signal     string `json:"signal,omitempty"`
	TimedOut   bool   `json:"timed_out"`
	Truncated  bool   `json:"truncated" doc:"a part of a stream is missing"`
	DurationMS int64  `json:"duration_ms"`

	Refused []string `json:"refused,omitempty" text:"facts" doc:"programs that the host's lists kept from running"`
}

// runHelp is the help of shell_run.
const runHelp = `The working directory is working_dir, inside your roots; that does not restrict which files the command
can use. The environment is minimal (PATH, HOME, language and the like), plus the variables of the context, plus env.
The input is stdin, or empty.

- At the timeout, and when the call is cancelled, the command is asked to end. Two seconds later it is killed, with
  every process it started, in whatever process group or session. Processes that it leaves in the background when it
  ends are stopped the same way. Where the system supports it, the host limits the number of processes.
- The result has up to 1 MiB of each stream: its beginning and its end, and between them a line with the number of
  missing bytes. The result of a command with long output, or that runs long, links to a resource with the whole output
  of both streams, which is kept for a while. Bytes that are not UTF-8 are shown as \xNN. Output is also sent as
  progress.
- A host may confine commands. Then each command runs in a sandbox of its own, which is removed afterwards. It can read
  your folders, at the same path as on the host or below /folders, and write to its home directory and /tmp. It has no
  other files of the host and no network. At its timeout it is killed at once.
- A host may allow and deny commands by patterns. A pattern is a glob on the name of a program and, after a space, a
  glob on its arguments: ls* (which also matches lsblk), git push*. The line is parsed first, and refused if a command
  in it is not allowed. Then the kernel reports each program that any process of the line starts, and the host compares
  the file and its arguments with the patterns: a copy or a link of a file is that file. The start of a program that is
  not allowed fails with "Permission denied", and the result names it in refused, with the program that started it.
- On such a host a line writes only in your folders, in those for temporary files and in those that the settings
  name. Programs get no privileges from their files, so sudo does not work, and debuggers do not either. A host whose
  kernel does not report programs judges the line alone, and refuses programs that run others.`

func (m *runner) runTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "shell_run", Title: "Run a command line", Effects: allEffects,
		Timeout: MaxSeconds*time.Second + time.Minute, Budget: -1,
		Description: "Runs a command line in a shell and returns its output and exit code. Every process it starts " +
			"ends with it; use process_start for one that continues.",
		Out:  reflect.TypeFor[runOut](),
		Help: runHelp,
	}, func(ctx context.Context, c *tool.Call, in runIn) (tool.Result, error) {
		o, err := m.runCommand(
			ctx, c,
			spec{
				command: in.Command,
				shell:   in.Shell,
				dir:     in.WorkingDir,
				env:     in.Env,
				stdin:   in.Stdin,
				seconds: in.Timeout,
			},
		)
		if err != nil {
			return tool.Result{}, err
		}
		out := runOut{
			Stdout: o.stdout.captured(), Stderr: o.stderr.captured(), ExitCode: o.state.Code, Signal: o.state.Signal,
			TimedOut: o.timedOut(), Truncated: o.truncated(), DurationMS: o.state.Took.Milliseconds(), Refused: o.notes,
		}
		res := tool.Typed(out)
		if out.TimedOut {
			res.Facts += fmt.Sprintf("\n[timed out after %d s]", in.Timeout)
		}
		return res, nil
	})
}

// Facts returns standard error and, on a last line of its own, how the command
// ended.
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
	for _, note := range r.Refused {
		fmt.Fprintf(&b, "\n[%s]", note)
	}
	return b.String()
}
