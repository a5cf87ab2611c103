package sandbox

import "context"

// Pausable is implemented by a Sandbox whose programs can be stopped for a while. Repeated calls of either
// method succeed. While the sandbox is paused, every method but Resume and Close returns ErrPaused.
type Pausable interface {
	// Pause stops every program in the sandbox between two instructions and returns when none runs any more.
	Pause(ctx context.Context) error
	// Resume continues the programs. The pause does not count against the time of a call.
	Resume(ctx context.Context) error
}

// Snapshotter is implemented by a Sandbox whose state can be saved with its files and its running programs. Of
// a sandbox that only implements Archive, the files alone can be saved.
type Snapshotter interface {
	// Snapshot stops the sandbox, saves its state and lets it continue. A paused sandbox stays paused.
	Snapshot(ctx context.Context) (Snapshot, error)
}

// Snapshot is the state of a sandbox at one moment. It outlives that sandbox but not its driver. It is safe
// for concurrent use.
type Snapshot interface {
	// Size returns how many bytes it occupies on disk.
	Size() int64
	// Create makes a sandbox that continues from that moment, any number of times. Each has a correct clock,
	// fresh randomness and no connection of the old one. Programs that callers of the old sandbox started run
	// on in it, and their output is discarded. ctx bounds the creation only.
	Create(ctx context.Context) (Sandbox, error)
	// Close deletes the snapshot. Sandboxes made from it live on.
	Close() error
}
