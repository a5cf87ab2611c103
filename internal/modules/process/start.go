package process

import (
	"context"
	"time"

	"gatehouse/internal/exec/proc"
	"gatehouse/tool"
)

// allEffects are the possible effects of a program.
const allEffects = tool.Writes | tool.Destroys | tool.OpenWorld

type startIn struct {
	Command  string   `json:"command" doc:"a program, not a command line" min:"1" names:"program"`
	Args     []string `json:"args,omitempty" names:"args"`
	Dir      string   `json:"dir,omitempty" doc:"working directory, inside the roots" names:"path"`
	Env      []string `json:"env,omitempty" doc:"NAME=value, added to a minimal environment" names:"env"`
	Terminal bool     `json:"terminal,omitempty" doc:"run it in a terminal, which prompts, REPLs and editors need"`
	Cols     int      `json:"cols,omitempty" default:"80" min:"1" max:"1000"`
	Rows     int      `json:"rows,omitempty" default:"24" min:"1" max:"1000"`
	Lifetime string   `json:"lifetime,omitempty" doc:"it ends with the host or with your session" enum:"host,session" default:"host"`
	Detach   bool     `json:"detach,omitempty" doc:"it outlives the host, and the next host lists it; its input is empty"`
}

type startOut struct {
	ID        string    `json:"id"`
	PID       int       `json:"pid"`
	Command   string    `json:"command"`
	Args      []string  `json:"args"`
	StartedAt time.Time `json:"startedAt"`
}

// startHelp is the help of process_start.
const startHelp = `The program is run directly, without a shell; for pipes and the like run sh with -c. Its working
directory is dir, inside your roots; that does not restrict which files the program can use.

- Its environment is minimal (PATH, HOME, language and the like), plus the variables of the context, whose secrets are
  hidden in the output, plus env.
- With terminal it runs in a terminal of cols by rows characters, and its output is one stream. Without, its input is a
  pipe that stays open until process_input closes it with eof.
- It outlives this call and your session, and ends with the host. With lifetime session it is stopped when your session
  ends. With detach it continues after the host has ended, and the next host lists it by its id with its newest output.
  If it ended while no host was running, its status is lost.
- When it ends, every process that it started ends too, in whatever process group or session. Where the system supports
  it, the host limits the number of these processes.`

func (m *manager) startTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "process_start", Title: "Start a process", Effects: allEffects,
		Description: "Starts a program that outlives this call. Read it with process_output or process_screen, type " +
			"to it with process_input, stop it with process_stop.",
		Help: startHelp,
	}, func(ctx context.Context, c *tool.Call, in startIn) (startOut, error) {
		s := &spec{command: in.Command, args: in.Args, dir: in.Dir, env: in.Env, input: true, grace: maxGrace}
		if in.Lifetime == "session" {
			if s.session = c.Caller.Session; s.session == "" {
				return startOut{}, &tool.Refusal{
					Code:    tool.CodeUnsupported,
					Message: "this call belongs to no session that could end",
					Next:    "Leave lifetime out, and stop the process when it is no longer needed.",
				}
			}
		}
		if s.detach = in.Detach; s.detach {
			if in.Terminal || s.session != "" {
				return startOut{}, &tool.Refusal{
					Code:    tool.CodeInvalidArguments,
					Message: "detach: a process that outlives the host has no terminal and ends with no session",
					Next:    "Leave terminal and lifetime out, or detach.",
				}
			}
		}
		if in.Terminal {
			s.size = &proc.Size{Cols: in.Cols, Rows: in.Rows}
		}
		r, err := m.startProcess(ctx, m.ctx, c, s)
		if err != nil {
			return startOut{}, err
		}
		return startOut{r.id, r.child.Pid(), r.command, nonNil(r.args), r.startedAt}, nil
	})
}

// nonNil returns s, or an empty slice for nil, so that JSON has [] and not null.
func nonNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
