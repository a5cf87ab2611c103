//go:build !linux

package proc

// lowerPriority does nothing: a priority is that of a whole process here.
func lowerPriority() (restore func() bool) { return func() bool { return true } }
