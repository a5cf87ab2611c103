//go:build linux

// Command probe runs inside a sandbox and tries what must not work there. It prints a line for each attempt: the
// name, and "allowed" or the name of the error.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func main() {
	runtime.LockOSThread()
	out := bufio.NewWriter(os.NewFile(1, "stdout"))
	defer out.Flush()
	say := func(name, got string) { fmt.Fprintf(out, "%s: %s\n", name, got); out.Flush() }
	tries := map[string]func(say func(name, got string), args []string){
		"identity": identity, "isolation": isolation, "kernel": kernel, "strict": strict, "network": network,
		"hog": hog, "fill": fill, "inodes": inodes, "open": descriptors, "use-up": useUp, "foreign": foreign,
		"fetch": fetch, "serve": serve, "remember": remember,
		"take": take, "able": able, "kinds": kinds,
	}
	try := tries[os.Args[1]]
	if try == nil {
		os.Exit(3)
	}
	try(say, os.Args[2:])
}

// verdict returns the name of an error.
func verdict(err error) string {
	if err == nil {
		return "allowed"
	}
	for e := err; e != nil; {
		if errno, ok := e.(unix.Errno); ok {
			return unix.ErrnoName(errno)
		}
		u, ok := e.(interface{ Unwrap() error })
		if !ok {
			break
		}
		e = u.Unwrap()
	}
	return err.Error()
}

func raw(nr uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	_, _, errno := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
	if errno != 0 {
		return errno
	}
	return nil
}

func identity(say func(name, got string), _ []string) {
	say("uid", fmt.Sprint(os.Getuid(), os.Geteuid(), os.Getgid(), os.Getegid()))
	groups, _ := unix.Getgroups()
	say("groups", fmt.Sprint(groups))
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		if strings.HasPrefix(name, "Cap") || name == "NoNewPrivs" || name == "Seccomp" {
			say(name, strings.TrimSpace(value))
		}
	}
	host, _ := os.Hostname()
	say("hostname", host)
	env := os.Environ()
	sort.Strings(env)
	say("environment", strings.Join(env, " "))
	var open []string
	for fd := range 256 {
		var st unix.Stat_t
		link, _ := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		if unix.Fstat(fd, &st) == nil && !strings.Contains(link, "anon_inode") { // those are Go's own
			open = append(open, strconv.Itoa(fd))
		}
	}
	say("descriptors", strings.Join(open, " "))
	var core unix.Rlimit
	unix.Getrlimit(unix.RLIMIT_CORE, &core)
	say("core", fmt.Sprint(core.Cur, core.Max))
	var none unix.Rlimit
	for way, lower := range map[string]func(){
		"setrlimit": func() { raw(unix.SYS_SETRLIMIT, unix.RLIMIT_CORE, uintptr(unsafe.Pointer(&none))) },
		"prlimit":   func() { raw(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_CORE, uintptr(unsafe.Pointer(&none)), 0) },
		"prlimit by number": func() {
			raw(unix.SYS_PRLIMIT64, uintptr(os.Getpid()), unix.RLIMIT_CORE, uintptr(unsafe.Pointer(&none)), 0)
		},
	} {
		lower()
		unix.Prlimit(0, unix.RLIMIT_CORE, nil, &core)
		say("core after "+way, fmt.Sprint(core.Cur, core.Max))
	}
	adj, _ := os.ReadFile("/proc/self/oom_score_adj")
	say("oom", strings.TrimSpace(string(adj)))
}

// isolation tries to reach a file and a process of the host.
func isolation(say func(name, got string), args []string) {
	hostFile, hostPid := args[0], args[1]
	read := func(name, path string) {
		b := make([]byte, 64)
		f, err := os.Open(path)
		if err == nil {
			var n int
			if n, err = f.Read(b); err == io.EOF || err == nil && n == 0 {
				say(name, "empty")
				return
			}
		}
		say(name, verdict(err))
	}
	write := func(name, path string, flags int) {
		f, err := os.OpenFile(path, os.O_WRONLY|flags, 0o600)
		if err == nil {
			f.Close()
		}
		say(name, verdict(err))
	}
	read("read a file of the host", hostFile)
	for _, p := range []string{"/etc/shadow", "/root/.profile", "/boot/grub/grub.cfg", "/var/log/syslog",
		"/proc/kcore", "/proc/kmsg", "/proc/keys", "/proc/timer_list", "/proc/kallsyms", "/proc/config.gz",
		"/proc/cmdline", "/proc/sched_debug", "/proc/1/environ", "/proc/1/mem", "/proc/1/maps",
		"/proc/" + hostPid + "/environ", "/dev/mem", "/dev/kmsg", "/dev/vda", "/sys/kernel/uevent_helper"} {
		read("read "+p, p)
	}
	for _, p := range []string{"/etc/passwd", "/usr/bin/env", "/proc/sys/kernel/core_pattern",
		"/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/proc/1/oom_score_adj", "/sys/kernel/uevent_helper",
		"/proc/sys/fs/binfmt_misc/register"} {
		write("write "+p, p, 0)
	}
	for _, p := range []string{"/made", "/usr/made", "/etc/made", "/dev/made", "/run/made", "/var/made",
		"/home/made", "/proc/made"} {
		write("make "+p, p, os.O_CREATE)
	}
	for _, p := range []string{"/run/docker.sock", "/var/run/docker.sock", "/run/dbus/system_bus_socket"} {
		_, err := net.DialTimeout("unix", p, time.Second)
		say("reach "+p, verdict(err))
	}
	say("make a device", verdict(unix.Mknod("/tmp/device", unix.S_IFBLK|0o600, int(unix.Mkdev(8, 0)))))
	say("see the processes", strconv.Itoa(others()))
	pid, _ := strconv.Atoi(hostPid)
	for name, sig := range map[string]unix.Signal{"ask": 0, "stop": unix.SIGSTOP, "kill": unix.SIGKILL} {
		say(name+" process 1", verdict(unix.Kill(1, sig)))
		say(name+" a process of the host", verdict(unix.Kill(pid, sig)))
	}
	say("hard link to a file of the system", verdict(os.Link("/etc/passwd", "/tmp/passwd")))
	say("setuid", verdict(unix.Setuid(0)))
	suid(say)
	entries, _ := os.ReadDir("/proc/self/root/..")
	say("above the root", strconv.FormatBool(len(entries) == len(must(os.ReadDir("/")))))
}

func must(e []os.DirEntry, _ error) []os.DirEntry { return e }

// others counts the other processes that are visible.
func others() (n int) {
	for _, e := range must(os.ReadDir("/proc")) {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid != os.Getpid() {
			n++
		}
	}
	return n
}

// suid reports whether any file raises privileges.
func suid(say func(name, got string)) {
	var st unix.Statfs_t
	for _, p := range []string{"/", "/usr", "/tmp", "/home/user", "/dev/shm"} {
		got := "nosuid"
		if err := unix.Statfs(p, &st); err != nil || st.Flags&unix.ST_NOSUID == 0 {
			got = "suid"
		}
		say("setuid files of "+p, got)
	}
}

// kernel makes system calls that code in a sandbox does not need. The arguments are chosen so that a call which is
// let through has no effect.
func kernel(say func(name, got string), _ []string) {
	try := func(name string, nr uintptr, args ...uintptr) { say(name, verdict(raw(nr, args...))) }
	slash := append([]byte("/tmp"), 0)
	at := uintptr(unsafe.Pointer(&slash[0]))
	buf := make([]byte, 256)
	mem := uintptr(unsafe.Pointer(&buf[0]))
	try("mount", unix.SYS_MOUNT, at, at, at, unix.MS_BIND)
	try("umount", unix.SYS_UMOUNT2, at)
	try("pivot_root", unix.SYS_PIVOT_ROOT, at, at)
	try("chroot", unix.SYS_CHROOT, at)
	try("fsopen", unix.SYS_FSOPEN, at)
	try("open_tree", unix.SYS_OPEN_TREE, uintptr(1<<64-100&(1<<64-1)), at)
	try("move_mount", unix.SYS_MOVE_MOUNT)
	try("mount_setattr", unix.SYS_MOUNT_SETATTR)
	try("unshare a user namespace", unix.SYS_UNSHARE, unix.CLONE_NEWUSER)
	try("unshare a network", unix.SYS_UNSHARE, unix.CLONE_NEWNET)
	try("unshare mounts", unix.SYS_UNSHARE, unix.CLONE_NEWNS)
	try("clone a user namespace", unix.SYS_CLONE, unix.CLONE_NEWUSER|uintptr(unix.SIGCHLD))
	try("clone3", unix.SYS_CLONE3, 0, 0)
	try("setns", unix.SYS_SETNS, 0, 0)
	try("ptrace", unix.SYS_PTRACE, unix.PTRACE_ATTACH, 1)
	try("process_vm_readv", unix.SYS_PROCESS_VM_READV, 1, mem, 1, mem, 1)
	try("pidfd_getfd", unix.SYS_PIDFD_GETFD, 0, 0)
	try("kcmp", unix.SYS_KCMP, 1, 1)
	try("keyctl", unix.SYS_KEYCTL, 0, ^uintptr(2))
	try("add_key", unix.SYS_ADD_KEY)
	try("bpf", unix.SYS_BPF, 0, mem, 0)
	try("perf_event_open", unix.SYS_PERF_EVENT_OPEN, mem)
	try("userfaultfd", unix.SYS_USERFAULTFD)
	try("io_uring", unix.SYS_IO_URING_SETUP, 1, mem)
	try("open_by_handle_at", unix.SYS_OPEN_BY_HANDLE_AT)
	try("name_to_handle_at", unix.SYS_NAME_TO_HANDLE_AT)
	try("init_module", unix.SYS_INIT_MODULE)
	try("kexec", unix.SYS_KEXEC_LOAD)
	try("reboot", unix.SYS_REBOOT)
	try("swapon", unix.SYS_SWAPON)
	try("settimeofday", unix.SYS_SETTIMEOFDAY)
	try("clock_settime", unix.SYS_CLOCK_SETTIME)
	try("syslog", unix.SYS_SYSLOG, 3, mem, 256)
	try("quotactl", unix.SYS_QUOTACTL)
	try("acct", unix.SYS_ACCT)
	for name, s := range map[string][3]int{
		"vsock": {unix.AF_VSOCK, unix.SOCK_STREAM, 0}, "packet": {unix.AF_PACKET, unix.SOCK_RAW, 0},
		"alg": {unix.AF_ALG, unix.SOCK_SEQPACKET, 0}, "raw": {unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP},
		"netlink audit": {unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT},
		"bluetooth":     {unix.AF_BLUETOOTH, unix.SOCK_RAW, 0},
	} {
		fd, err := unix.Socket(s[0], s[1], s[2])
		say("socket "+name, verdict(err))
		if err == nil {
			unix.Close(fd)
		}
	}
	try("TIOCSTI", unix.SYS_IOCTL, 0, unix.TIOCSTI, mem)
	try("TIOCSTI with high bits", unix.SYS_IOCTL, 0, unix.TIOCSTI|1<<32, mem)
	try("TIOCLINUX", unix.SYS_IOCTL, 0, 0x541c, mem)
}

// network tries to reach an address and an abstract socket of the host.
func network(say func(name, got string), args []string) {
	dial := func(name, kind, to string) {
		c, err := net.DialTimeout(kind, to, 3*time.Second)
		if err == nil && kind == "udp" {
			_, err = c.Write([]byte("x"))
		}
		say(name, verdict(err))
	}
	dial("loopback of the host", "tcp", args[0])
	dial("abstract socket of the host", "unix", "@"+args[1])
	dial("metadata", "tcp", "169.254.169.254:80")
	dial("private", "tcp", "10.0.0.1:80")
	dial("public", "tcp", "192.0.2.1:80")
	dial("public by IPv6", "tcp", "[2001:db8::1]:80")
	dial("DNS", "udp", "192.0.2.53:53")
	interfaces, _ := net.Interfaces()
	var names []string
	for _, i := range interfaces {
		if i.Flags&net.FlagUp != 0 {
			names = append(names, i.Name)
		}
	}
	say("interfaces", strings.Join(names, " "))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		_, err = net.DialTimeout("tcp", l.Addr().String(), 3*time.Second)
	}
	say("loopback of its own", verdict(err))
}

// hog allocates memory, in MiB, until it is refused.
func hog(say func(name, got string), args []string) {
	most, _ := strconv.Atoi(args[0])
	var all [][]byte
	for i := range most {
		b, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			for _, b := range all[len(all)/2:] {
				unix.Munmap(b) // to tell takes memory too
			}
			say("refused", verdict(err))
			say("MiB", strconv.Itoa(i))
			return
		}
		all = append(all, b)
		for j := 0; j < len(b); j += 4096 {
			b[j] = 1
		}
	}
	say("MiB", args[0])
}

// fill writes files to a folder, in MiB, until it is full.
func fill(say func(name, got string), args []string) {
	most, _ := strconv.Atoi(args[1])
	chunk := make([]byte, 1<<20)
	n := 0
	var err error
	for file := 0; n < most && err == nil; file++ {
		var f *os.File
		if f, err = os.Create(args[0] + "/fill" + strconv.Itoa(file)); err != nil {
			break
		}
		for range 16 {
			if _, err = f.Write(chunk); err != nil || n >= most {
				break
			}
			n++
		}
		f.Close()
	}
	say("error", verdict(err))
	say("MiB", strconv.Itoa(n))
}

// inodes makes files until it is refused.
func inodes(say func(name, got string), args []string) {
	most, _ := strconv.Atoi(args[1])
	for i := range most {
		fd, err := unix.Open(args[0]+"/i"+strconv.Itoa(i), unix.O_CREAT|unix.O_WRONLY, 0o600)
		if err != nil {
			say("error", verdict(err))
			say("files", strconv.Itoa(i))
			return
		}
		unix.Close(fd)
	}
	say("files", args[1])
}

// descriptors opens files until it is refused.
func descriptors(say func(name, got string), args []string) {
	most, _ := strconv.Atoi(args[0])
	for i := range most {
		if _, err := unix.Open("/dev/null", unix.O_RDONLY, 0); err != nil {
			say("error", verdict(err))
			say("files", strconv.Itoa(i))
			return
		}
	}
	say("files", args[0])
}
