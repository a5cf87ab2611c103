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

func (m *desk) pauseTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "sandbox_pause", Title: "Pause a sandbox", Effects: tool.Writes | tool.Idempotent, Handle: "sandbox_id",
		Description: "Stops everything in a sandbox where it is. sandbox_resume lets it go on.",
		Help: `A paused sandbox uses no processor and keeps its memory. Until it is resumed every other call in it is refused, but for destroying and listing it; calls that were under way stand still, and that time does not count against theirs.

It does not end for want of use while it is paused. Its lifetime goes on.`,
	}, func(ctx context.Context, c *tool.Call, in idIn) (pausedOut, error) {
		return m.pausing(c, in.ID, true, func(b *manager.Box) error { return b.Pause(ctx) })
	})
}

func (m *desk) resumeTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "sandbox_resume", Title: "Resume a sandbox", Effects: tool.Writes | tool.Idempotent, Handle: "sandbox_id",
		Description: "Lets a sandbox go on that sandbox_pause has stopped.",
	}, func(ctx context.Context, c *tool.Call, in idIn) (pausedOut, error) {
		return m.pausing(c, in.ID, false, func(b *manager.Box) error { return b.Resume(ctx) })
	})
}

func (m *desk) pausing(c *tool.Call, id string, paused bool, do func(*manager.Box) error) (pausedOut, error) {
	b, done, err := m.findAny(c, id)
	if err != nil {
		return pausedOut{}, err
	}
	defer done()
	return pausedOut{paused}, able(do(b))
}

// able puts what a sandbox cannot do, or cannot do any more, into a refusal.
func able(err error) error {
	if errors.Is(err, manager.ErrUnsupported) {
		return &tool.Refusal{Code: "unsupported", Message: err.Error(), Next: "sandbox_create takes another driver, if this host offers one; sandbox_stats names them."}
	}
	return gone(err)
}

var paused = &tool.Refusal{Code: "paused", Message: sandbox.ErrPaused.Error(), Next: "sandbox_resume lets it go on."}
