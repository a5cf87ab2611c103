package sandbox

import (
	"context"
	"errors"
	"slices"
	"time"

	"gatehouse/internal/sandbox/manager"
	"gatehouse/module"
	"gatehouse/tool"
)

type keepIn struct {
	ID   string `json:"sandbox_id"`
	Name string `json:"name,omitempty" doc:"a name of your choice" max:"200"`
}

type keptSnapshot struct {
	ID        string    `json:"snapshot_id"`
	Name      string    `json:"name,omitempty"`
	Sandbox   string    `json:"sandbox_id" doc:"the sandbox it was taken of"`
	Kept      string    `json:"kept" doc:"memory: files and running programs; files: the content of /home/user and /tmp" enum:"memory,files"`
	Size      int64     `json:"size" doc:"bytes on the host's disk"`
	Driver    string    `json:"driver"`
	Isolation string    `json:"isolation"`
	Template  string    `json:"template,omitempty"`
	Created   time.Time `json:"created_at"`
	Expires   time.Time `json:"expires_at"`
	module.OnNode
}

func kept(s *manager.Snapshot) keptSnapshot {
	return keptSnapshot{
		s.ID, s.Name, s.Sandbox, s.Kept, s.Size, s.Driver, s.Tier.String(), s.Template, s.Created.UTC(),
		s.ExpiresAt.UTC(), module.OnNode{},
	}
}

// keeping is the time limit of taking or restoring a snapshot.
const keeping = 5 * time.Minute

func (m *sandboxTools) snapshotTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "sandbox_snapshot", Title: "Take a snapshot of a sandbox", Effects: tool.Writes,
		Handle: "sandbox_id", Timeout: keeping,
		Description: "Saves the current state of a sandbox. sandbox_create with snapshot_id restores it, any " +
			"number of times. The sandbox continues.",
		Help: `What is saved depends on the driver; ` + "`kept`" + ` says which. With ` + "`memory`" +
			` programs continue in a restored sandbox, with a correct clock, new randomness and no connections; its contexts and started processes cannot be accessed there. With ` + "`files`" + ` it contains /home/user and /tmp as they were found while programs ran, and no programs run.

Only you can use your snapshots. Their number and size is limited for all users together, and they are removed after their time and when the host ends. Network access, open ports and secrets are not saved.`,
	}, func(ctx context.Context, c *tool.Call, in keepIn) (keptSnapshot, error) {
		b, done, err := m.findAny(c, in.ID)
		if err != nil {
			return keptSnapshot{}, err
		}
		defer done()
		s, err := m.boxes.Snapshot(ctx, b, in.Name)
		if err != nil {
			return keptSnapshot{}, notKept(ctx, err)
		}
		return kept(s), nil
	})
}

func notKept(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, manager.ErrSnapshotsFull):
		return &tool.Refusal{
			Code:    tool.CodeBusy,
			Message: err.Error(),
			Next:    "Remove your own snapshots with sandbox_snapshot_remove, or try again later.",
		}
	case errors.Is(err, manager.ErrNoSnapshot):
		return noSnapshot
	}
	return able(err)
}

var noSnapshot = &tool.Refusal{
	Code:    tool.CodeNotFound,
	Message: "Snapshot not found or invalid ID",
	Next:    "sandbox_snapshots lists your snapshots. A snapshot is removed after its time.",
}

type forkIn struct {
	ID       string `json:"sandbox_id"`
	Name     string `json:"name,omitempty" doc:"a name of your choice for the new one"`
	Idle     int    `json:"idle_seconds,omitempty" doc:"it ends if it is unused for this long; at most the host's limit" min:"1"`
	Lifetime int    `json:"lifetime_seconds,omitempty" doc:"it ends after this time in any case; at most the host's limit" min:"1"`
}

type forkOut struct {
	createOut
	Kept string `json:"kept" doc:"what was copied: memory, or files only" enum:"memory,files"`
}

func (m *sandboxTools) forkTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "sandbox_fork", Title: "Fork a sandbox", Effects: tool.Writes, Handle: "sandbox_id", Timeout: keeping,
		Description: "Makes a copy of a sandbox that continues from its current state. Afterwards both are " +
			"independent.",
		Help: "It takes a snapshot, restores it and removes it; `sandbox_snapshot` documents what is copied.",
	}, func(ctx context.Context, c *tool.Call, in forkIn) (out forkOut, _ error) {
		began := time.Now()
		b, done, err := m.findAny(c, in.ID)
		if err != nil {
			return out, err
		}
		defer done()
		fork, kept, err := m.boxes.Fork(ctx, b,
			manager.Spec{Name: in.Name, Idle: seconds(in.Idle), Lifetime: seconds(in.Lifetime),
				Administrator: m.cfg.Rules.By(c.Caller)})
		if errors.Is(err, manager.ErrFull) {
			return out, notCreated(ctx, err)
		}
		if err != nil {
			return out, notKept(ctx, err)
		}
		return forkOut{made(fork, began), kept}, nil
	})
}

type snapshotsOut struct {
	Snapshots []keptSnapshot `json:"snapshots"`
	module.Unreached
}

func (m *sandboxTools) snapshotsTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "sandbox_snapshots", Title: "List snapshots", Effects: tool.Reads,
		Description: "Lists your snapshots of sandboxes, the oldest first.",
	}, func(ctx context.Context, c *tool.Call, _ struct{}) (snapshotsOut, error) {
		all := []keptSnapshot{}
		for _, s := range m.boxes.Snapshots(c.Caller.Owner) {
			all = append(all, kept(s))
			all[len(all)-1].Node = m.deps.Node
		}
		unreached := module.Gather(ctx, m.deps, c, func(_ string, there snapshotsOut) { all = append(all, there.Snapshots...) })
		slices.SortStableFunc(all, func(a, b keptSnapshot) int { return a.Created.Compare(b.Created) })
		return snapshotsOut{all, module.Unreached{Unreached: unreached}}, nil
	})
}

type snapshotIn struct {
	ID string `json:"snapshot_id"`
}

func (m *sandboxTools) snapshotRemoveTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "sandbox_snapshot_remove", Title: "Remove a snapshot", Effects: tool.Destroys, Handle: "snapshot_id",
		Description: "Removes a snapshot. Sandboxes restored from it continue.",
	}, func(_ context.Context, c *tool.Call, in snapshotIn) (successOut, error) {
		switch err := m.boxes.RemoveSnapshot(c.Caller.Owner, in.ID); {
		case errors.Is(err, manager.ErrNoSnapshot):
			return successOut{}, noSnapshot
		case err != nil:
			return successOut{}, err
		}
		return successOut{true}, nil
	})
}
