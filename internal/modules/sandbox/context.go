package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"gatehouse/internal/sandbox/interpreter"
	"gatehouse/internal/sandbox/manager"
	"gatehouse/tool"
)

type contextIn struct {
	ID       string `json:"sandbox_id"`
	Action   string `json:"action" enum:"create,list,interrupt,restart,remove"`
	Language string `json:"language,omitempty" doc:"language of a new context: python, node or bash"`
	Context  string `json:"context_id,omitempty" doc:"the context to interrupt, restart or remove"`
}

type listedContext struct {
	ID       string    `json:"context_id"`
	Language string    `json:"language"`
	Created  time.Time `json:"created_at"`
}

type contextOut struct {
	ID       string          `json:"context_id,omitempty"`
	Contexts []listedContext `json:"contexts,omitempty"`
	Success  bool            `json:"success"`
}

func (m *sandboxTools) contextTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "sandbox_context", Title: "Contexts in a sandbox", Effects: inside, Handle: "sandbox_id",
		Description: "Creates, lists, interrupts, restarts or removes contexts: interpreters in a sandbox that " +
			"keep their state, for context_id of sandbox_run.",
		Help: `Code in a context can use the variables and definitions of earlier code there. A context runs one piece of code at a time. Code whose time is up, or that is interrupted, receives an interrupt as by Ctrl-C, and the state of the context is kept if the code stops.

Bash keeps variables, functions, options and the working directory; the others keep everything. ` + "`restart`" + ` drops the state and keeps the id.`,
	}, func(_ context.Context, c *tool.Call, in contextIn) (contextOut, error) {
		b, done, err := m.findBox(c, in.ID)
		if err != nil {
			return contextOut{}, err
		}
		defer done()
		return onContexts(b, in)
	})
}

func onContexts(b *manager.Box, in contextIn) (contextOut, error) {
	out := contextOut{ID: in.Context, Success: true}
	switch in.Action {
	case "create":
		k, err := newContext(b, in.Language)
		if err != nil {
			return contextOut{}, err
		}
		out.ID = k.ID
		return out, nil
	case "list":
		for _, k := range b.Contexts() {
			out.Contexts = append(out.Contexts, listedContext{k.ID, string(k.Language), k.Created.UTC()})
		}
		return out, nil
	case "interrupt":
		k, err := b.Context(in.Context)
		if err != nil {
			return contextOut{}, noContext(err)
		}
		k.Interrupt()
		return out, nil
	case "restart":
		return out, noContext(b.RestartContext(in.Context))
	}
	return out, noContext(b.RemoveContext(in.Context))
}

func newContext(b *manager.Box, language string) (*manager.Context, error) {
	l, known := interpreter.Languages()[language]
	if l == interpreter.Shell {
		l = interpreter.Bash
	}
	if !known {
		return nil, &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: fmt.Sprintf("%q has no contexts; expected python, node or bash", language),
		}
	}
	k, err := b.NewContext(l)
	switch {
	case errors.Is(err, manager.ErrTooManyContexts):
		return nil, beyond(err)
	case errors.Is(err, fs.ErrNotExist):
		return nil, notRun(b, err)
	case err != nil:
		return nil, gone(err)
	}
	return k, nil
}

func noContext(err error) error {
	if errors.Is(err, manager.ErrNoContext) {
		return &tool.Refusal{
			Code:    tool.CodeNotFound,
			Message: err.Error(),
			Next:    "sandbox_context with the action list shows the contexts.",
		}
	}
	return err
}
