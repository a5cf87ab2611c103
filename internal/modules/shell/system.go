package shell

import (
	"context"
	"fmt"
	"strings"
	"time"

	"gatehouse/tool"
)

type systemIn struct {
	Command string `json:"command" doc:"a command line for bash" min:"1"`
	Timeout int    `json:"timeout,omitempty" doc:"seconds" default:"30" min:"1" max:"300"`
}

// systemTool is the host shell of another server, by its name and with its
// text.
func (m *runner) systemTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "shell_system", Title: "Run a command on the host", Effects: anything, Timeout: MostSeconds*time.Second + time.Minute, Budget: -1,
		Description: "Runs a command with bash on this host and gives its output as text. It is an error when the command fails.",
		Aliases:     []string{"system.shell"},
		Help:        "Standard output comes first, then what was printed to standard error, then the exit code. `shell_run` gives the same apart from each other.",
	}, func(ctx context.Context, c *tool.Call, in systemIn) (tool.Result, error) {
		o, err := m.do(ctx, c, order{command: in.Command, shell: "bash", seconds: in.Timeout})
		if err != nil {
			return tool.Result{}, err
		}
		if o.timedOut() {
			text := fmt.Sprintf("Command timed out after %d seconds", in.Timeout)
			if printed := systemText(o); printed != "" {
				text += "\n" + printed
			}
			return tool.Result{Content: []tool.Content{tool.Text(text)}, IsError: true}, nil
		}
		text := systemText(o)
		if text == "" {
			text = "(no output)"
		}
		text += fmt.Sprintf("\n[exit code: %d]", o.state.Code)
		return tool.Result{Content: []tool.Content{tool.Text(text)}, IsError: o.state.Code != 0}, nil
	})
}

// systemText is both streams as one text.
func systemText(o *outcome) string {
	text := strings.TrimSuffix(o.stdout.text(), "\n")
	if failures := strings.TrimSuffix(o.stderr.text(), "\n"); failures != "" {
		if text != "" {
			text += "\n"
		}
		text += "[stderr]\n" + failures
	}
	return text
}
