package config

import "time"

// Sandboxes are what the sandbox module is told: what a sandbox may use, how
// long it lives, and how many are kept ready.
type Sandboxes struct {
	Memory      int           `yaml:"memory_mib" doc:"Memory of a sandbox, in MiB, unless its maker asks otherwise." env:"GATEHOUSE_SANDBOX_MEMORY_MIB"`
	VCPUs       int           `yaml:"vcpu_count" doc:"Processors it may keep busy, unless its maker asks otherwise." env:"GATEHOUSE_SANDBOX_VCPU_COUNT"`
	Processes   int           `doc:"Processes and threads alive at once in it, unless its maker asks otherwise." env:"GATEHOUSE_SANDBOX_PROCESSES"`
	Disk        int           `yaml:"disk_mib" doc:"All its files together, in MiB, unless its maker asks otherwise. They are kept in memory, so at most half of that is used." env:"GATEHOUSE_SANDBOX_DISK_MIB"`
	Descriptors int           `doc:"Files that one process in it may have open." env:"GATEHOUSE_SANDBOX_DESCRIPTORS"`
	Output      int           `doc:"What each output stream of a call may bring before the call is ended." unit:"bytes" env:"GATEHOUSE_SANDBOX_OUTPUT"`
	Call        time.Duration `doc:"Time for one call in it, unless the call asks otherwise." env:"GATEHOUSE_SANDBOX_CALL"`
	MostMemory  int           `yaml:"most_memory_mib" doc:"Memory that may be asked for, in MiB." env:"GATEHOUSE_SANDBOX_MOST_MEMORY_MIB"`
	MostVCPUs   int           `yaml:"most_vcpu_count" doc:"Processors that may be asked for." env:"GATEHOUSE_SANDBOX_MOST_VCPU_COUNT"`
	MostCall    time.Duration `doc:"Time that a sandbox's maker may ask for one call." env:"GATEHOUSE_SANDBOX_MOST_CALL"`
	Idle        time.Duration `doc:"A sandbox ends when nobody has used it for so long." env:"GATEHOUSE_SANDBOX_IDLE"`
	Lifetime    time.Duration `doc:"A sandbox ends after so long in any case." env:"GATEHOUSE_SANDBOX_LIFETIME"`
	Most        int           `doc:"Sandboxes alive at once, of everybody together." env:"GATEHOUSE_SANDBOX_MOST"`
	Isolation   string        `yaml:"min_isolation" doc:"What has to stand between the code and the host at least. Where no driver offers that, there are no sandboxes." enum:"process,filtered,namespaces,user kernel,machine" env:"GATEHOUSE_SANDBOX_MIN_ISOLATION"`
	Driver      string        `doc:"What makes sandboxes. The first needs nothing installed, oci a container runtime, and process makes no wall at all, for which unsafe has to be set as well." enum:"namespaces,oci,process" env:"GATEHOUSE_SANDBOX_DRIVER"`
	Runtime     string        `doc:"The container runtime of the driver oci, a path or a name. Empty means crun, or else runc." env:"GATEHOUSE_SANDBOX_RUNTIME"`
	Unsafe      bool          `doc:"Let the driver process run code that may do whatever the host's user may. min_isolation has to allow it too." env:"GATEHOUSE_SANDBOX_UNSAFE"`
	Network     bool          `doc:"Let callers open a way out of their sandboxes, by a proxy with rules. Loopback, private networks and metadata services stay closed unless a rule names that very address." env:"GATEHOUSE_SANDBOX_NETWORK"`
	NetworkDeny []string      `doc:"What no sandbox ever reaches, whatever its rules: such as example.com, *.example.com:443 or 203.0.113.0/24." env:"GATEHOUSE_SANDBOX_NETWORK_DENY"`
	Pool        SandboxPool   `doc:"Sandboxes that are ready before anybody asks."`
}

// SandboxPool is how many sandboxes are ready before anybody asks.
type SandboxPool struct {
	Enabled  bool `doc:"Keep some ready, from when somebody came to whom sandboxes are offered." env:"GATEHOUSE_POOL_ENABLED"`
	MinSize  int  `doc:"How many are kept ready." env:"GATEHOUSE_POOL_MIN_SIZE"`
	MaxBoots int  `doc:"How many are made at the same time; 0 means twice the number of processors." env:"GATEHOUSE_POOL_MAX_BOOTS"`
}

// defaultSandboxes are what a host is told that is told nothing.
func defaultSandboxes() Sandboxes {
	return Sandboxes{
		Memory: 256, VCPUs: 2, Processes: 256, Disk: 1024, Descriptors: 1024, Output: 1 << 20, Call: 30 * time.Second,
		MostMemory: 32768, MostVCPUs: 32, MostCall: time.Hour, Idle: 15 * time.Minute, Lifetime: 24 * time.Hour, Most: 100,
		Isolation: "namespaces", Driver: "namespaces", Pool: SandboxPool{Enabled: true, MinSize: 3},
	}
}

func (s Sandboxes) validate(w *wrong) {
	for _, n := range []struct {
		name string
		got  int
	}{
		{"memory_mib", s.Memory}, {"vcpu_count", s.VCPUs}, {"processes", s.Processes}, {"disk_mib", s.Disk}, {"descriptors", s.Descriptors},
		{"output", s.Output}, {"most", s.Most}, {"pool.min_size", s.Pool.MinSize},
	} {
		atLeast(w, "modules.sandbox."+n.name, n.name, n.got, 1)
	}
	for _, d := range []struct {
		name string
		got  time.Duration
	}{{"call", s.Call}, {"idle", s.Idle}, {"lifetime", s.Lifetime}} {
		atLeast(w, "modules.sandbox."+d.name, d.name, d.got, time.Millisecond)
	}
	atLeast(w, "modules.sandbox.most_memory_mib", "most_memory_mib", s.MostMemory, s.Memory)
	atLeast(w, "modules.sandbox.most_vcpu_count", "most_vcpu_count", s.MostVCPUs, s.VCPUs)
	atLeast(w, "modules.sandbox.most_call", "most_call", s.MostCall, s.Call)
	atLeast(w, "modules.sandbox.pool.max_boots", "max_boots", s.Pool.MaxBoots, 0)
	switch s.Driver {
	case "namespaces", "oci":
	case "process":
		if !s.Unsafe {
			w.add("modules.sandbox.driver", "the driver process holds nothing back, which has to be wanted: set unsafe: true beside it")
		}
	default:
		w.add("modules.sandbox.driver", "%q is no driver; expected namespaces, oci or process", s.Driver)
	}
	switch s.Isolation {
	case "process", "filtered", "namespaces", "user kernel", "machine":
	default:
		w.add("modules.sandbox.min_isolation", "%q is no tier; expected process, filtered, namespaces, user kernel or machine", s.Isolation)
	}
}
