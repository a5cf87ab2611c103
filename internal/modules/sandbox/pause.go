package sandbox

import (
	"context"
	"errors"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/manager"
	"gatehouse/tool"
)

type pausedOut struct {
	Paused bool `json:"paused"`
}

func (m *sandboxTools) pauseTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "sandbox_pause", Title: "Pause a sandbox", Effects: tool.Writes | tool.Idempotent, Handle: "sandbox_id",
		Description: "Stops all programs in a sandbox. sandbox_resume continues them.",
		Help: `A paused sandbox uses no processor and keeps its memory. Until it is resumed all calls in it are refused, except destroying and listing it; calls in progress stop, and the pause does not count against their time limits.

Its idle time stops while it is paused. Its lifetime does not.`,
	}, func(ctx context.Context, c *tool.Call, in idIn) (pausedOut, error) {
		return m.pausing(c, in.ID, true, func(b *manager.Box) error { return b.Pause(ctx) })
	})
}

func (m *sandboxTools) resumeTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "sandbox_resume", Title: "Resume a sandbox", Effects: tool.Writes | tool.Idempotent, Handle: "sandbox_id",
		Description: "Continues a sandbox that sandbox_pause has stopped.",
	}, func(ctx context.Context, c *tool.Call, in idIn) (pausedOut, error) {
		return m.pausing(c, in.ID, false, func(b *manager.Box) error { return b.Resume(ctx) })
	})
}

func (m *sandboxTools) pausing(c *tool.Call, id string, paused bool, do func(*manager.Box) error) (pausedOut, error) {
	b, done, err := m.findAny(c, id)
	if err != nil {
		return pausedOut{}, err
	}
	defer done()
	return pausedOut{paused}, able(do(b))
}

// able converts the error of an unsupported operation, or of an ended sandbox, to a refusal.
func able(err error) error {
	if errors.Is(err, manager.ErrUnsupported) {
		return &tool.Refusal{
			Code:    tool.CodeUnsupported,
			Message: err.Error(),
			Next:    "Use sandbox_create with another driver, if this host offers one; sandbox_stats lists them.",
		}
	}
	return gone(err)
}

var paused = &tool.Refusal{Code: tool.CodePaused, Message: sandbox.ErrPaused.Error(),
	Next: "Continue it with sandbox_resume."}
