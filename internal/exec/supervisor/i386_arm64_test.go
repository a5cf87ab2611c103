package supervisor

import "syscall"

func execI386([]string) error { return syscall.ENOSYS }
