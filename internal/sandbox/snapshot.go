package sandbox

import "context"

// Pausable is what a Sandbox offers whose programs can be stopped for a while.
// Both may be called again when they have been already. While it is paused it
// answers ErrPaused to everything but Resume and Close.
type Pausable interface {
	// Pause stops every program in it where it is, between two instructions,
	// and returns when none runs any more.
	Pause(ctx context.Context) error
	// Resume lets them go on. The time they stood still for does not count
	// against the time of a call.
	Resume(ctx context.Context) error
}

// Snapshotter is what a Sandbox offers that can be kept as it is at a moment,
// with its files and with the programs that run in it. What only has Archive
// can have its files kept.
type Snapshotter interface {
	// Snapshot stops the sandbox, keeps what it is, and lets it go on. A
	// sandbox that is paused stays so.
	Snapshot(ctx context.Context) (Snapshot, error)
}

// Snapshot is a sandbox at one moment. It stays when that sandbox ends, and
// ends with its driver. It is safe for concurrent use.
type Snapshot interface {
	// Size is how many bytes it takes on disk.
	Size() int64
	// Create makes a sandbox that goes on from that moment, any number of
	// times. Each has a clock that is right, randomness of its own and no
	// connection of the old one; what a caller of the old one had started runs
	// on in it with its output thrown away. ctx bounds the making only.
	Create(ctx context.Context) (Sandbox, error)
	// Close throws it away. What was made of it lives on.
	Close() error
}
