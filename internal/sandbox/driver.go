package sandbox

// Tier is how much stands between the code and the host. A higher one is
// stronger.
type Tier int

const (
	Unknown    Tier = iota
	NoWall          // a process of the host
	Filtered        // system calls and paths are filtered, the rest is the host's
	Namespaces      // own users, files, processes and network on the host's kernel
	UserKernel      // a kernel in user space between the code and the host's
	Machine         // a virtual machine
)

func (t Tier) String() string {
	switch t {
	case NoWall:
		return "process"
	case Filtered:
		return "filtered"
	case Namespaces:
		return "namespaces"
	case UserKernel:
		return "user kernel"
	case Machine:
		return "machine"
	}
	return "unknown"
}

// Capabilities are what a driver holds on this machine.
type Capabilities struct {
	Tier      Tier
	Memory    Held // how Limits.MemoryMiB is held
	Processes Held // how Limits.Processes is held
	CPU       Held // how Limits.VCPUs is held
	OwnUsers  bool // each sandbox has users nobody else on the host has, and the agent is another one than the code
	Seccomp   bool // system calls are filtered
	Landlock  int  // version of the kernel's Landlock; 0 when it has none
	Terminals bool // Command.Terminal works
}

// Held is how a limit is held.
type Held string

const (
	NotHeld   Held = "not held"
	PerCall   Held = "per process" // each process by itself
	ByCgroup1 Held = "cgroup v1"   // all of the sandbox together
	ByCgroup2 Held = "cgroup v2"   // all of the sandbox together
	ByUser    Held = "per user"    // all of the sandbox together, by what its user may have
)

// Finding is one thing a driver needs, tried.
type Finding struct {
	Name   string // what was tried, in a few words
	OK     bool
	Needed bool   // without it there are no sandboxes; else they hold less
	Detail string // what was found; when not OK the system call and its error
	Remedy string // what to do about it, when not OK
}
