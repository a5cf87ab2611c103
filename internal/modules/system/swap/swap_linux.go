package swap

import (
	"os"
	"syscall"
	"unsafe"
)

const prefersPriority = 0x8000 // SWAP_FLAG_PREFER: the lower bits are the priority

// On has the kernel swap to a device.
func On(path string, priority int) error {
	return swapCall(syscall.SYS_SWAPON, path, uintptr(prefersPriority|priority))
}

// Off takes back what was swapped to a device, and ends swapping to it.
func Off(path string) error { return swapCall(syscall.SYS_SWAPOFF, path, 0) }

func swapCall(number uintptr, path string, flags uintptr) error {
	p, err := syscall.BytePtrFromString(path)
	if err != nil {
		return err
	}
	if _, _, e := syscall.Syscall(number, uintptr(unsafe.Pointer(p)), flags, 0); e != 0 {
		return os.NewSyscallError("swap", e)
	}
	return nil
}
