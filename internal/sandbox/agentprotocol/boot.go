package agentprotocol

// The kernel of a virtual machine passes these in its arguments to the agent, which is its first process.
const (
	BootChannel = "gatehouse.channel=" // BootSerial or BootVsock
	BootRoot    = "gatehouse.root="    // disk:type of the root file system
	BootTree    = "gatehouse.tree="    // disk:type:path of a further file system; may be repeated

	BootSerial = "serial" // the channel is the port BootPort of a virtio console
	BootVsock  = "vsock"  // the agent listens on VsockPort
	BootPort   = "gatehouse"
	VsockPort  = 52
)

// Names of the counters of the agent's own control group, as the Entries of GroupUsage report them.
const (
	UsageCPU       = "cpu"       // microseconds
	UsageMemory    = "memory"    // bytes
	UsagePeak      = "peak"      // bytes
	UsageProcesses = "processes" // including those of the agent itself
	UsageOOMKills  = "oom"       // processes killed because memory ran out
)

// MaxTerminals is the option of a sandbox's devpts that limits its terminals. The kernel has a fixed number for the
// machine, 4096, of which other hundred sandboxes may have their part.
const MaxTerminals = "max=24"
