package agentprotocol

// The kernel of a virtual machine passes these to the agent, which is its first
// process, in its arguments.
const (
	BootChannel = "gatehouse.channel=" // BootSerial or BootVsock
	BootRoot    = "gatehouse.root="    // disk:type of the root file system
	BootTree    = "gatehouse.tree="    // disk:type:path of one more; may come several times

	BootSerial = "serial" // the channel is the port BootPort of a virtio console
	BootVsock  = "vsock"  // the agent listens at VsockPort
	BootPort   = "gatehouse"
	VsockPort  = 52
)

// What an agent's own group counts, as the Entries of UsedGroup name it.
const (
	UsedCPU       = "cpu"       // microseconds
	UsedMemory    = "memory"    // bytes
	UsedPeak      = "peak"      // bytes
	UsedProcesses = "processes" // with those of the agent itself
	UsedKills     = "oom"       // ended for want of memory
)
