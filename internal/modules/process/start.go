package process

import (
	"context"
	"time"

	"gatehouse/internal/exec/proc"
	"gatehouse/tool"
)

// anything is what a program may do to the world.
const allEffects = tool.Writes | tool.Destroys | tool.OpenWorld

type startIn struct {
	Command  string   `json:"command" doc:"a program, not a command line" min:"1" names:"program"`
	Args     []string `json:"args,omitempty" names:"args"`
	Dir      string   `json:"dir,omitempty" doc:"where it begins, inside the roots" names:"path"`
	Env      []string `json:"env,omitempty" doc:"NAME=value, added to a minimal environment" names:"env"`
	Terminal bool     `json:"terminal,omitempty" doc:"run it in a terminal, as prompts, REPLs and editors need"`
	Cols     int      `json:"cols,omitempty" default:"80" min:"1" max:"1000"`
	Rows     int      `json:"rows,omitempty" default:"24" min:"1" max:"1000"`
	Lifetime string   `json:"lifetime,omitempty" doc:"it ends with the host, or already with your session" enum:"host,session" default:"host"`
	Detach   bool     `json:"detach,omitempty" doc:"it goes on when the host ends, and the next one finds it again; it reads nothing"`
}

type startOut struct {
	ID        string    `json:"id"`
	PID       int       `json:"pid"`
	Command   string    `json:"command"`
	Args      []string  `json:"args"`
	StartedAt time.Time `json:"startedAt"`
}

func (m *manager) startTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "process_start", Title: "Start a process", Effects: allEffects,
		Description: "Starts a program that goes on after this call. Read it with process_output or process_screen, drive it with process_input, end it with process_stop.",
		Help: `The program is run directly, without a shell; for pipes and the like run ` + "`sh`" + ` with ` + "`-c`" + `. It begins in ` + "`dir`" + `, a folder inside your roots; that holds nothing back once it runs.

It gets a minimal environment (PATH, HOME, language and the like), what the context has for its programs, whose secrets are hidden in what it prints, and what ` + "`env`" + ` adds. With ` + "`terminal`" + ` it has a terminal of ` + "`cols`" + ` by ` + "`rows`" + ` characters and its output is one stream; without, its input is a pipe that stays open until it is closed with ` + "`process_input`" + `'s ` + "`eof`" + `.

It outlives this call and your session, and ends with the host, unless it is told to ` + "`detach`" + `: then it goes on, and the next host finds it by its id, with the newest of what it printed. One that ended while no host was there is lost: nobody knows how. With ` + "`lifetime`" + ` session it is stopped when your session ends, if you have one. When it ends, everything that it started ends too, whatever process group or session that is in. How many processes it may become is limited by the host where the system can count them.`,
	}, func(_ context.Context, c *tool.Call, in startIn) (startOut, error) {
		s := &spec{command: in.Command, args: in.Args, dir: in.Dir, env: in.Env, input: true, grace: maxGrace}
		if in.Lifetime == "session" {
			if s.session = c.Caller.Session; s.session == "" {
				return startOut{}, &tool.Refusal{Code: "unsupported", Message: "this call belongs to no session that could end", Next: "Leave lifetime out, and stop the process when it is no longer needed."}
			}
		}
		if s.detach = in.Detach; s.detach {
			if in.Terminal || s.session != "" {
				return startOut{}, &tool.Refusal{Code: "invalid_arguments", Message: "detach: a process that outlives the host has no terminal and ends with no session", Next: "Leave terminal and lifetime out, or detach."}
			}
		}
		if in.Terminal {
			s.size = &proc.Size{Cols: in.Cols, Rows: in.Rows}
		}
		r, err := m.start(m.ctx, c, s)
		if err != nil {
			return startOut{}, err
		}
		return startOut{r.id, r.child.Pid(), r.command, nonNil(r.args), r.startedAt}, nil
	})
}

// list is never null.
func nonNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
