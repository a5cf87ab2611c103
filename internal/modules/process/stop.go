package process

import (
	"context"
	"fmt"
	"time"

	"gatehouse/tool"
)

// noGrace means that a process is killed without being asked to end.
const noGrace = time.Duration(-1)

// maxGrace is the maximum time between the request to end and the kill.
const maxGrace = 30 * time.Second

type stopIn struct {
	ID    string `json:"id" min:"1"`
	Grace int    `json:"grace,omitempty" doc:"seconds between SIGTERM and SIGKILL" default:"5" min:"0" max:"30"`
}

type idIn struct {
	ID string `json:"id" min:"1"`
}

type actionOut struct {
	ID      string `json:"id"`
	Success bool   `json:"success"`
	Message string `json:"message,omitempty"`
}

func (m *manager) stopTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "process_stop", Title: "Stop a process", Effects: tool.Destroys | tool.Idempotent, Handle: "id",
		Description: "Asks a process to end (SIGTERM), kills it after grace seconds, and returns when it and every " +
			"process it started have ended.",
	}, func(ctx context.Context, c *tool.Call, in stopIn) (actionOut, error) {
		return m.stopOne(ctx, c, in.ID, time.Duration(in.Grace)*time.Second)
	})
}

func (m *manager) killTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "process_kill", Title: "Kill a process", Effects: tool.Destroys | tool.Idempotent, Handle: "id",
		Description: "Kills a process and every process it started at once (SIGKILL).",
	}, func(ctx context.Context, c *tool.Call, in idIn) (actionOut, error) {
		return m.stopOne(ctx, c, in.ID, noGrace)
	})
}

// stopOne stops one process. The process is killed after the grace even if the
// caller cancels the call.
func (m *manager) stopOne(ctx context.Context, c *tool.Call, id string, grace time.Duration) (actionOut, error) {
	r, err := m.findAs(c, id, m.cfg.Rules.By(c.Caller)) // administrators may stop the processes of all callers
	if err != nil {
		return actionOut{}, err
	}
	if s, over := r.ended(); over {
		if s.Unseen {
			return actionOut{id, true, "it had ended already"}, nil
		}
		return actionOut{id, true, fmt.Sprintf("it had ended already, with exit code %d", s.Code)}, nil
	}
	if grace == noGrace {
		err = r.child.Kill()
	} else {
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		err = r.child.Stop(limit)
	}
	if err != nil {
		return actionOut{id, false, err.Error()}, nil
	}
	s, _ := r.ended()
	how := fmt.Sprintf("it ended with exit code %d", s.Code)
	switch {
	case s.Unseen:
		how = "it ended"
	case s.Signal != "":
		how = "it ended by a signal: " + s.Signal
	}
	return actionOut{id, true, how}, nil
}

func (m *manager) removeTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "process_remove", Title: "Forget a process", Effects: tool.Destroys, Handle: "id",
		Description: "Removes an ended process and its output from the list.",
	}, func(_ context.Context, c *tool.Call, in idIn) (actionOut, error) {
		r, err := m.findProcess(c, in.ID)
		if err != nil {
			return actionOut{}, err
		}
		if _, over := r.ended(); !over {
			return actionOut{}, &tool.Refusal{
				Code:    tool.CodeBusy,
				Message: "the process is running",
				Next:    "Stop it first with process_stop.",
			}
		}
		m.removeProcess(r)
		return actionOut{in.ID, true, ""}, nil
	})
}
