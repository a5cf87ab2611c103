package sandbox

import (
	"context"
	"errors"
	"time"

	"gatehouse/internal/sandbox/manager"
	"gatehouse/tool"
)

type keepIn struct {
	ID   string `json:"sandbox_id"`
	Name string `json:"name,omitempty" doc:"for you to know it by" max:"200"`
}

type keptSnapshot struct {
	ID        string    `json:"snapshot_id"`
	Name      string    `json:"name,omitempty"`
	Sandbox   string    `json:"sandbox_id" doc:"what it was made of"`
	Kept      string    `json:"kept" doc:"memory: files and what ran; files: what was in /home/user and /tmp" enum:"memory,files"`
	Size      int64     `json:"size" doc:"bytes on the host's disk"`
	Driver    string    `json:"driver"`
	Isolation string    `json:"isolation"`
	Template  string    `json:"template,omitempty"`
	Created   time.Time `json:"created_at"`
	Expires   time.Time `json:"expires_at"`
}

func kept(s *manager.Snapshot) keptSnapshot {
	return keptSnapshot{
		s.ID, s.Name, s.Sandbox, s.Kept, s.Size, s.Driver, s.Tier.String(), s.Template, s.Created.UTC(), s.ExpiresAt.UTC(),
	}
}

// keeping is how long a sandbox may take to be kept or to be made of what was
// kept.
const keeping = 5 * time.Minute

func (m *desk) snapshotTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "sandbox_snapshot", Title: "Keep a sandbox as it is", Effects: tool.Writes, Handle: "sandbox_id", Timeout: keeping,
		Description: "Keeps a sandbox as it is now, for sandbox_create's snapshot_id to go on from, any number of times. The sandbox goes on.",
		Help: `What is kept depends on the driver, and ` + "`kept`" + ` says it. With ` + "`memory`" + ` programs go on in what is made of it, with a right clock, new randomness and no connection: contexts and started processes are not to be reached in it any more. With ` + "`files`" + ` there is what was in /home/user and /tmp, as it was found while programs ran; nothing runs.

Snapshots are yours alone. They are limited in number and size, of everybody together, and are gone after their time and when the host ends. A network, open ports and secrets are not kept.`,
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
		return &tool.Refusal{Code: "busy", Message: err.Error(), Next: "sandbox_snapshot_remove makes room, of your own; otherwise try again later."}
	case errors.Is(err, manager.ErrNoSnapshot):
		return noSnapshot
	}
	return able(err)
}

var noSnapshot = &tool.Refusal{Code: "not_found", Message: "Snapshot not found or invalid ID", Next: "sandbox_snapshots shows those that are yours. One is gone after its time."}

type forkIn struct {
	ID       string `json:"sandbox_id"`
	Name     string `json:"name,omitempty" doc:"of the new one, for you to know it by"`
	Idle     int    `json:"idle_seconds,omitempty" doc:"unused for so long it ends; at most the host's limit" min:"1"`
	Lifetime int    `json:"lifetime_seconds,omitempty" doc:"it ends in any case; at most the host's limit" min:"1"`
}

type forkOut struct {
	createOut
	Kept string `json:"kept" doc:"what it has of the other: memory, or files alone" enum:"memory,files"`
}

func (m *desk) forkTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "sandbox_fork", Title: "Fork a sandbox", Effects: tool.Writes, Handle: "sandbox_id", Timeout: keeping,
		Description: "Makes another sandbox that goes on from where one is now. Afterwards neither knows of the other.",
		Help:        "It is a snapshot, a sandbox made of it, and the snapshot removed; `sandbox_snapshot` says what is kept.",
	}, func(ctx context.Context, c *tool.Call, in forkIn) (out forkOut, _ error) {
		began := time.Now()
		b, done, err := m.findAny(c, in.ID)
		if err != nil {
			return out, err
		}
		defer done()
		fork, kept, err := m.boxes.Fork(ctx, b, manager.Ask{Name: in.Name, Idle: seconds(in.Idle), Lifetime: seconds(in.Lifetime)})
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
}

func (m *desk) snapshotsTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "sandbox_snapshots", Title: "List snapshots", Effects: tool.Reads,
		Description: "Lists your snapshots of sandboxes, the oldest first.",
	}, func(_ context.Context, c *tool.Call, _ struct{}) (snapshotsOut, error) {
		all := []keptSnapshot{}
		for _, s := range m.boxes.Snapshots(c.Caller.Owner) {
			all = append(all, kept(s))
		}
		return snapshotsOut{all}, nil
	})
}

type snapshotIn struct {
	ID string `json:"snapshot_id"`
}

func (m *desk) snapshotRemoveTool() tool.Tool {
	return tool.New(tool.Def{
		Name: "sandbox_snapshot_remove", Title: "Remove a snapshot", Effects: tool.Destroys, Handle: "snapshot_id",
		Description: "Throws a snapshot away. Sandboxes that were made of it live on.",
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
