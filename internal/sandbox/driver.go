package sandbox

// Tier says how strongly the code is isolated from the host. A higher tier is stronger.
type Tier int

const (
	Unknown     Tier = iota
	NoIsolation      // a process of the host, not isolated
	Filtered         // system calls and paths are filtered; everything else is the host's
	Namespaces       // own users, files, processes and network on the host's kernel
	UserKernel       // a kernel in user space between the code and the host's
	Machine          // a virtual machine
)

func (t Tier) String() string {
	switch t {
	case NoIsolation:
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

// Capabilities describe what a driver enforces on this machine.
type Capabilities struct {
	Tier      Tier
	Memory    Enforcement // how Limits.MemoryMiB is enforced
	Processes Enforcement // how Limits.Processes is enforced
	CPU       Enforcement // how Limits.VCPUs is enforced
	OwnUsers  bool        // each sandbox has user ids of its own on the host, and the agent's differs from the code's
	Seccomp   bool        // system calls are filtered
	Landlock  int         // version of the kernel's Landlock; 0 if it has none
	Terminals bool        // Command.Terminal works
}

// Enforcement says how a limit is enforced.
type Enforcement string

const (
	NotEnforced Enforcement = "not held"
	PerProcess  Enforcement = "per process" // for each process separately
	ByCgroup1   Enforcement = "cgroup v1"   // for all processes of the sandbox together
	ByCgroup2   Enforcement = "cgroup v2"   // for all processes of the sandbox together
	PerUser     Enforcement = "per user"    // for all processes of the sandbox together, by the limits of its user
)

// Finding is the result of trying one thing that a driver needs.
type Finding struct {
	Name   string // what was tried, in a few words
	OK     bool
	Needed bool   // if it fails, no sandbox can be made; otherwise sandboxes enforce less
	Detail string // what was found; if not OK, the system call and its error
	Remedy string // what to do about it, if not OK
}

// ParseTier returns the tier of a name, as String returns it; Unknown if there is none.
func ParseTier(name string) Tier {
	for t := NoIsolation; t <= Machine; t++ {
		if t.String() == name {
			return t
		}
	}
	return Unknown
}
