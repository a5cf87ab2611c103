package main

import (
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// useUp takes one resource again and again until it is refused.
func useUp(say func(name, got string), args []string) {
	most, _ := strconv.Atoi(args[1])
	take := map[string]func(i int) error{
		"threads": thread, "memfd": memoryFile(), "memfds": memoryFiles(), "pipes": pipe, "inotify": watches(),
		"shm": sharedMemory, "shared": mapped(""), "zero": mapped("/dev/zero"), "sockets": socketPair, "queues": queue,
	}[args[0]]
	for i := range most {
		if err := take(i); err != nil {
			say("refused", verdict(err))
			say("after", strconv.Itoa(i))
			return
		}
	}
	say("after", args[1])
}

// thread starts a thread that does nothing. It uses the system call, because the Go runtime ends the program if it
// is refused a thread.
func thread(int) error {
	stack, err := unix.Mmap(-1, 0, 16<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	_ = stack
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	if pid == 0 { // a process counts as a thread does
		for {
			unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
			sleepABit()
		}
	}
	return nil
}

func sleepABit() {
	long := unix.Timespec{Sec: 1000}
	unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&long)), 0, 0)
}

// memoryFile grows a file without a name, in MiB.
func memoryFile() func(int) error {
	fd, err := unix.MemfdCreate("hog", 0)
	chunk := make([]byte, 1<<20)
	return func(int) error {
		if err == nil {
			_, err = unix.Write(fd, chunk)
		}
		return err
	}
}

// memoryFiles makes files without names of 8 MiB each, because a limit of the size of one file does not limit them
// together.
func memoryFiles() func(int) error {
	chunk := make([]byte, 8<<20)
	return func(int) error {
		fd, err := unix.MemfdCreate("hog", 0)
		if err == nil {
			_, err = unix.Write(fd, chunk)
		}
		return err
	}
}

func pipe(int) error {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_NONBLOCK); err != nil {
		return err
	}
	unix.FcntlInt(uintptr(p[1]), unix.F_SETPIPE_SZ, 1<<20)
	unix.Write(p[1], make([]byte, 1<<20))
	return nil
}

func watches() func(int) error {
	fd, err := unix.InotifyInit1(0)
	return func(i int) error {
		if err != nil {
			return err
		}
		dir := "/tmp/w" + strconv.Itoa(i)
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		_, err := unix.InotifyAddWatch(fd, dir, unix.IN_ALL_EVENTS)
		return err
	}
}

// sharedMemory makes segments of 1 MiB that outlive the process.
func sharedMemory(int) error {
	id, err := unix.SysvShmGet(unix.IPC_PRIVATE, 1<<20, unix.IPC_CREAT|0o600)
	if err != nil {
		return err
	}
	b, err := unix.SysvShmAttach(id, 0, 0)
	if err != nil {
		return err
	}
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	return nil
}

// mapped makes shared mappings of 1 MiB, of a device or of no file, and releases their pages, so that they no longer
// count as memory of this process.
func mapped(device string) func(int) error {
	fd, flags := -1, unix.MAP_SHARED|unix.MAP_ANONYMOUS
	return func(int) error {
		if device != "" && fd < 0 {
			f, err := unix.Open(device, unix.O_RDWR, 0)
			if err != nil {
				return err
			}
			fd, flags = f, unix.MAP_SHARED
		}
		b, err := unix.Mmap(fd, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, flags)
		if err != nil {
			return err
		}
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		return unix.Madvise(b, unix.MADV_DONTNEED)
	}
}

func socketPair(int) error {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	unix.SetsockoptInt(p[0], unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<20)
	unix.Write(p[0], make([]byte, 1<<20))
	return nil
}

func queue(i int) error {
	name := append([]byte("q"+strconv.Itoa(os.Getpid())+"-"+strconv.Itoa(i)), 0)
	_, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(&name[0])), unix.O_CREAT|unix.O_RDWR,
		0o600, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// foreign calls the kernel as a program for another processor would.
func foreign(say func(name, got string), args []string) {
	switch args[0] {
	case "x32":
		say("x32", verdict(raw(0x40000000|unix.SYS_GETPID)))
	case "int80":
		int80()
		say("int80", "allowed")
	}
}
