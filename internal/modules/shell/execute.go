package shell

import (
	"context"
	"errors"
	"reflect"
	"time"

	"gatehouse/tool"
)

type executeIn struct {
	Command string `json:"command" doc:"a command line" min:"1" names:"line"`
}

type executeOut struct {
	Command    string `json:"command"`
	Output     string `json:"output"`
	ReturnCode int    `json:"return_code" doc:"-1 if it was refused, or ended by a signal"`
}

// executeTool returns a tool with the name, arguments and result of the tool of
// another shell server. It differs in two points: a refused command is an error,
// and the timeout is enforced.
func (m *runner) executeTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "shell_execute_command", Title: "Execute a command", Effects: allEffects,
		Timeout: MaxSeconds*time.Second + time.Minute, Budget: -1,
		Description: "Executes a shell command and returns its output.",
		Aliases:     []string{"execute_command"},
		Out:         reflect.TypeFor[executeOut](),
		Help: "The output is standard output followed by standard error, which a host may omit. `shell_run` " +
			"does the same with a timeout, input, environment and separate streams.",
	}, func(ctx context.Context, c *tool.Call, in executeIn) (tool.Result, error) {
		out := executeOut{Command: in.Command}
		o, err := m.runCommand(ctx, c, spec{command: in.Command, seconds: m.seconds()})
		if no, ok := errors.AsType[*tool.Refusal](err); ok && no.Code == codeDenied {
			out.Output, out.ReturnCode = "Command denied by security policy", -1
			return tool.Result{Structured: out, Content: []tool.Content{tool.Text(no.Text())}, IsError: true}, nil
		}
		if err != nil {
			return tool.Result{}, err
		}
		out.Output, out.ReturnCode = o.stdout.captured()+o.stderr.captured(), o.state.Code
		for _, note := range o.notes {
			out.Output += "[" + note + "]\n"
		}
		res := tool.Result{Structured: out}
		if o.timedOut() {
			res.IsError = true
			res.Content = []tool.Content{tool.Text(timedOut(m.seconds()))}
		}
		return res, nil
	})
}
