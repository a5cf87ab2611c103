package shell

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"

	"gatehouse/tool"
)

type systemIn struct {
	Command string `json:"command" doc:"a command line for bash" min:"1" names:"line"`
	Timeout int    `json:"timeout,omitempty" doc:"seconds" default:"30" min:"1" max:"3600"`
}

type systemOut struct {
	Output   string `json:"output" text:"product" doc:"its output, and how it ended"`
	ExitCode int    `json:"exit_code" text:"facts" doc:"-1 if a signal ended it"`
	TimedOut bool   `json:"timed_out" text:"facts"`
}

// systemTool returns a tool with the name, arguments and text result of the host
// shell of another server.
func (m *runner) systemTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "shell_system", Title: "Run a command on the host", Effects: allEffects,
		Timeout: MaxSeconds*time.Second + time.Minute, Budget: -1,
		Description: "Runs a command with bash on this host and returns its output as text. If the command fails, " +
			"the result is an error.",
		Aliases: []string{"system.shell"},
		Out:     reflect.TypeFor[systemOut](),
		Help: "The text is standard output, then standard error, then the exit code. `shell_run` returns " +
			"them separately.",
	}, func(ctx context.Context, c *tool.Call, in systemIn) (tool.Result, error) {
		o, err := m.runCommand(ctx, c, spec{command: in.Command, shell: "bash", seconds: in.Timeout})
		if err != nil {
			return tool.Result{}, err
		}
		out := systemOut{Output: systemText(o), ExitCode: o.state.Code, TimedOut: o.timedOut()}
		switch {
		case out.TimedOut && out.Output == "":
			out.Output = timedOut(in.Timeout)
		case out.TimedOut:
			out.Output = timedOut(in.Timeout) + "\n" + out.Output
		default:
			out.Output = fmt.Sprintf("%s\n[exit code: %d]", cmp.Or(out.Output, "(no output)"), out.ExitCode)
		}
		res := tool.Typed(out)
		res.IsError = out.TimedOut || out.ExitCode != 0
		return res, nil
	})
}

func timedOut(seconds int) string { return fmt.Sprintf("Command timed out after %d seconds", seconds) }

// systemText returns both streams as one text.
func systemText(o *outcome) string {
	text := strings.TrimSuffix(o.stdout.captured(), "\n")
	if failures := strings.TrimSuffix(o.stderr.captured(), "\n"); failures != "" {
		if text != "" {
			text += "\n"
		}
		text += "[stderr]\n" + failures
	}
	for _, note := range o.notes {
		text += "\n[" + note + "]"
	}
	return strings.TrimPrefix(text, "\n")
}
