package proc

import "syscall"

// niceness is added to the host's for its children: one of them gets a third of what a thread of the host gets where
// both want the same processor. The host then answers others while programs of one principal use all processors.
const niceness = 5

// lowerPriority gives the calling thread the priority of children, which inherit it. restore gives the thread its own
// back, and reports whether that succeeded: an ordinary user may only lower a priority.
func lowerPriority() (restore func() bool) {
	const self = 0 // the calling thread
	raw, err := syscall.Getpriority(syscall.PRIO_PROCESS, self)
	own := 20 - raw // the system call returns 20 less the nice value
	if err != nil || syscall.Setpriority(syscall.PRIO_PROCESS, self, min(own+niceness, 19)) != nil {
		return func() bool { return true }
	}
	return func() bool { return syscall.Setpriority(syscall.PRIO_PROCESS, self, own) == nil }
}
