package main

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// counted are the resources that the kernel counts for all of the machine, for a user or for a namespace. Each
// function takes one more; what it takes is released when the process ends.
var counted = map[string]func(i int) error{
	"inotify instances":    inotifyInstance,
	"inotify watches":      inotifyWatch(),
	"fanotify groups":      fanotifyGroup,
	"fanotify marks":       fanotifyMark(),
	"AIO contexts":         aioContext,
	"terminals":            terminal,
	"keys":                 key,
	"timers":               timer,
	"pending signals":      pendingSignal(),
	"user namespaces":      namespace(unix.CLONE_NEWUSER),
	"other namespaces":     namespace(unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWNET),
	"mounts":               mount,
	"POSIX queues":         smallQueue,
	"System V queues":      systemVQueue,
	"semaphores":           semaphores,
	"shared memory":        sharedSegment,
	"pipes":                pipe,
	"epoll watches":        epollWatch(),
	"files in flight":      inFlight,
	"file locks":           fileLock(),
	"locked memory":        lockedMemory,
	"secret memory":        secretMemory,
	"socket filters":       socketFilter,
	"system call filters":  systemCallFilter,
	"TCP buffers":          tcpBuffers,
	"TCP orphans":          tcpOrphan(),
	"UDP buffers":          udpBuffers(),
	"Unix sockets":         socketPair,
	"open files":           openFile,
	"processes":            process,
	"io_uring":             ring,
	"events of the kernel": perfEvent,
	"programs of BPF":      bpfMap,
	"leases":               lease,
}

// take takes a resource in several processes at once until each is refused, prints how much that is, and keeps it.
// With 0 processes it takes the resource in this process.
func take(say func(name, got string), args []string) {
	most, _ := strconv.Atoi(args[1])
	processes, _ := strconv.Atoi(args[2])
	if processes > 0 {
		takeInMany(say, args[0], args[1], processes)
	} else {
		n, err := takeUpTo(args[0], most)
		say(strconv.Itoa(n), verdict(err))
	}
	for {
		time.Sleep(time.Hour)
	}
}

func takeUpTo(kind string, most int) (n int, err error) {
	for n < most && err == nil {
		if err = counted[kind](n); err == nil {
			n++
		}
	}
	return n, err
}

func takeInMany(say func(name, got string), kind, most string, processes int) {
	sum := 0
	reasons := map[string]bool{}
	for range processes {
		cmd := exec.Command("/proc/self/exe", "take", kind, most, "0")
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			reasons["start: "+verdict(err)] = true
			break
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		number, reason, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if err != nil {
			reason = "killed"
		}
		n, _ := strconv.Atoi(number)
		sum += n
		reasons[reason] = true
	}
	for r := range reasons {
		say("refused", r)
	}
	say("taken", strconv.Itoa(sum))
}

// able reports whether an amount of a resource can be had, and removes what would outlive this process.
func able(say func(name, got string), args []string) {
	want, _ := strconv.Atoi(args[1])
	_, err := takeUpTo(args[0], want)
	say("able", verdict(err))
	for _, remove := range lasting {
		remove()
	}
}

// lasting removes what outlives the process that made it.
var lasting []func()

// kinds lists the names of the resources.
func kinds(say func(name, got string), _ []string) {
	for k := range counted {
		say("kind", k)
	}
}

func inotifyInstance(int) error {
	_, err := unix.InotifyInit1(0)
	return err
}

// inotifyWatch watches many files of the system with several instances.
func inotifyWatch() func(int) error {
	var fds []int
	var paths []string
	return func(i int) error {
		if fds == nil {
			for range 8 {
				if fd, err := unix.InotifyInit1(0); err == nil {
					fds = append(fds, fd)
				}
			}
			for _, dir := range []string{"/usr/bin", "/usr/lib/x86_64-linux-gnu", "/usr/share/doc",
				"/usr/share/man/man1"} {
				for _, e := range must(os.ReadDir(dir)) {
					paths = append(paths, dir+"/"+e.Name())
				}
			}
		}
		if len(fds) == 0 {
			return unix.EMFILE
		}
		if i >= len(fds)*len(paths) {
			return errors.New("no more files")
		}
		_, err := unix.InotifyAddWatch(fds[i%len(fds)], paths[i/len(fds)], unix.IN_DELETE_SELF)
		if errors.Is(err, unix.ENOENT) { // a link that leads nowhere
			return nil
		}
		return err
	}
}

func fanotifyGroup(int) error {
	_, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_REPORT_FID, 0)
	return err
}

func fanotifyMark() func(int) error {
	fd, err := -1, error(nil)
	return func(i int) error {
		if i == 0 {
			fd, err = unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_REPORT_FID, 0)
		}
		if err != nil {
			return err
		}
		file := os.TempDir() + "/mark" + strconv.Itoa(os.Getpid()) + "-" + strconv.Itoa(i)
		f, err := os.Create(file)
		if err != nil {
			return err
		}
		f.Close()
		return unix.FanotifyMark(fd, unix.FAN_MARK_ADD, unix.FAN_OPEN, unix.AT_FDCWD, file)
	}
}

func aioContext(int) error {
	var ctx uintptr
	return raw(unix.SYS_IO_SETUP, 64, uintptr(unsafe.Pointer(&ctx)))
}

func terminal(int) error {
	_, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY, 0)
	return err
}

func key(i int) error {
	_, err := unix.AddKey("user", "probe"+strconv.Itoa(i), []byte("x"), unix.KEY_SPEC_PROCESS_KEYRING)
	return err
}

func timer(int) error {
	var id int32
	return raw(unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, 0, uintptr(unsafe.Pointer(&id)))
}

// pendingSignal queues real-time signals for this process, which blocks them.
func pendingSignal() func(int) error {
	const signal = 40
	return func(i int) error {
		if i == 0 {
			set := unix.Sigset_t{}
			set.Val[0] = 1 << (signal - 1)
			if err := unix.PthreadSigmask(unix.SIG_BLOCK, &set, nil); err != nil {
				return err
			}
		}
		info := [128]byte{}
		*(*int32)(unsafe.Pointer(&info[0])) = signal
		*(*int32)(unsafe.Pointer(&info[8])) = -1 // SI_QUEUE
		return raw(unix.SYS_RT_TGSIGQUEUEINFO, uintptr(os.Getpid()), uintptr(unix.Gettid()), signal,
			uintptr(unsafe.Pointer(&info[0])))
	}
}

// namespace makes a namespace, which exists as long as its process.
func namespace(flags uintptr) func(int) error {
	return func(int) error { return raw(unix.SYS_UNSHARE, flags) }
}

func mount(i int) error {
	if i == 0 && unix.Unshare(unix.CLONE_NEWNS) == nil { // of the host: its own mounts stay as they are
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp("", "mount")
	if err != nil {
		return err
	}
	return unix.Mount("tmpfs", dir, "tmpfs", 0, "")
}

func systemVQueue(int) error {
	id, _, errno := unix.Syscall(unix.SYS_MSGGET, unix.IPC_PRIVATE, unix.IPC_CREAT|0o600, 0)
	if errno != 0 {
		return errno
	}
	lasting = append(lasting, func() { unix.Syscall(unix.SYS_MSGCTL, id, unix.IPC_RMID, 0) })
	message := append(make([]byte, 8), make([]byte, 8000)...)
	message[0] = 1
	for range 2 {
		if err := raw(unix.SYS_MSGSND, id, uintptr(unsafe.Pointer(&message[0])), 8000, unix.IPC_NOWAIT); err != nil {
			return err
		}
	}
	return nil
}

func semaphores(int) error {
	id, _, errno := unix.Syscall(unix.SYS_SEMGET, unix.IPC_PRIVATE, 250, unix.IPC_CREAT|0o600)
	if errno != 0 {
		return errno
	}
	lasting = append(lasting, func() { unix.Syscall6(unix.SYS_SEMCTL, id, 0, unix.IPC_RMID, 0, 0, 0) })
	return nil
}

// sharedSegment makes a segment without pages, because the number of segments is limited too.
func sharedSegment(int) error {
	id, err := unix.SysvShmGet(unix.IPC_PRIVATE, 4096, unix.IPC_CREAT|0o600)
	if err == nil {
		lasting = append(lasting, func() { unix.SysvShmCtl(id, unix.IPC_RMID, nil) })
	}
	return err
}

// epollWatch watches one pipe with many instances, and with each many copies of it.
func epollWatch() func(int) error {
	var files []int
	epoll := -1
	return func(i int) error {
		if files == nil {
			var p [2]int
			if err := unix.Pipe(p[:]); err != nil {
				return err
			}
			for range 400 {
				if fd, err := unix.Dup(p[0]); err == nil {
					files = append(files, fd)
				}
			}
		}
		if len(files) == 0 {
			return unix.EMFILE
		}
		if i%len(files) == 0 {
			fd, err := unix.EpollCreate1(0)
			if err != nil {
				return err
			}
			epoll = fd
		}
		return unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, files[i%len(files)], &unix.EpollEvent{Events: unix.EPOLLIN})
	}
}

// inFlight sends a descriptor to a socket that does not receive it.
func inFlight(int) error {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer unix.Close(p[0])
	for range 2 {
		many := make([]int, 250)
		for i := range many {
			many[i] = p[1]
		}
		if err := unix.Sendmsg(p[0], []byte("x"), unix.UnixRights(many...), nil, 0); err != nil {
			return err
		}
	}
	return nil
}

// fileLock locks every second byte of a file.
func fileLock() func(int) error {
	var f *os.File
	return func(i int) (err error) {
		if f == nil {
			if f, err = os.CreateTemp("", "locks"); err != nil {
				return err
			}
			os.Remove(f.Name())
		}
		return unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: int64(2 * i), Len: 1})
	}
}

func lockedMemory(int) error {
	b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	return unix.Mlock(b)
}

func secretMemory(int) error {
	fd, _, errno := unix.Syscall(unix.SYS_MEMFD_SECRET, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	if err := unix.Ftruncate(int(fd), 4096); err != nil {
		return err
	}
	b, err := unix.Mmap(int(fd), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err == nil {
		b[0] = 1
	}
	return err
}

// longFilter installs a filter of the greatest length, which does nothing. The kernel compiles it into memory of
// which the machine has a fixed amount.
func longFilter(most int, last unix.SockFilter) *unix.SockFprog {
	code := make([]unix.SockFilter, most)
	for i := range code {
		code[i] = unix.SockFilter{Code: unix.BPF_LD | unix.BPF_IMM, K: uint32(i)}
	}
	code[most-1] = last
	return &unix.SockFprog{Len: uint16(most), Filter: &code[0]}
}

func socketFilter(int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		longFilter(2000, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0xffff}))
}

func systemCallFilter(int) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return raw(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(
		longFilter(4000, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}))))
}

// connected returns a connection over loopback.
func connected() (client, server int, err error) {
	listener, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, -1, err
	}
	defer unix.Close(listener)
	if err := errors.Join(unix.Bind(listener, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}),
		unix.Listen(listener, 1)); err != nil {
		return -1, -1, err
	}
	at, err := unix.Getsockname(listener)
	if err != nil {
		return -1, -1, err
	}
	if client, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0); err != nil {
		return -1, -1, err
	}
	if err = unix.Connect(client, at); err == nil {
		server, _, err = unix.Accept(listener)
	}
	return client, server, err
}

// tcpBuffers fills the buffers of a connection.
func tcpBuffers(int) error {
	client, server, err := connected()
	if err != nil {
		return err
	}
	for _, fd := range []int{client, server} {
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4<<20)
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<20)
		unix.SetNonblock(fd, true)
	}
	chunk := make([]byte, 64<<10)
	sent := 0
	for full := 0; full < 20; {
		n, err := unix.Write(client, chunk)
		if errors.Is(err, unix.EAGAIN) {
			full++
			time.Sleep(time.Millisecond)
			continue
		}
		if err != nil {
			return err
		}
		sent += n
	}
	if sent < 16<<10 {
		return unix.ENOBUFS
	}
	return nil
}

// tcpOrphan closes one end of a connection with bytes that the other end does not read.
func tcpOrphan() func(int) error {
	return func(int) error {
		client, server, err := connected()
		if err != nil {
			return err
		}
		unix.SetsockoptInt(server, unix.SOL_SOCKET, unix.SO_RCVBUF, 1)
		unix.SetNonblock(client, true)
		chunk := make([]byte, 64<<10)
		for {
			if _, err := unix.Write(client, chunk); err != nil {
				break
			}
		}
		return unix.Close(client)
	}
}

// udpBuffers fills the buffer of a socket.
func udpBuffers() func(int) error {
	return func(int) error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<20)
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			return err
		}
		at, err := unix.Getsockname(fd)
		if err != nil {
			return err
		}
		chunk := make([]byte, 32<<10)
		for range 2 << 20 / len(chunk) {
			if err := unix.Sendto(fd, chunk, 0, at); err != nil {
				return err
			}
		}
		for range 2 { // of what was sent, so much must have been kept
			if _, _, err := unix.Recvfrom(fd, chunk, 0); err != nil {
				return err
			}
		}
		return nil
	}
}

// smallQueue makes the smallest queue of messages.
func smallQueue(i int) error {
	name := append([]byte("s"+strconv.Itoa(os.Getpid())+"-"+strconv.Itoa(i)), 0)
	size := [8]int64{1: 1, 2: 1}
	err := raw(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(&name[0])), unix.O_CREAT|unix.O_RDWR, 0o600,
		uintptr(unsafe.Pointer(&size[0])))
	if err != nil && !errors.Is(err, unix.EACCES) { // Landlock refuses to open the queue that was made
		return err
	}
	lasting = append(lasting, func() { raw(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(&name[0]))) })
	return nil
}

// process starts a process that does nothing and ends with this one.
func process(int) error {
	c := exec.Command("/bin/sleep", "1000")
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return c.Start()
}

func openFile(int) error {
	_, err := unix.Open("/dev/null", unix.O_RDONLY, 0)
	return err
}

func ring(int) error {
	var params [120]byte
	return raw(unix.SYS_IO_URING_SETUP, 8, uintptr(unsafe.Pointer(&params[0])))
}

func perfEvent(int) error {
	attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_DUMMY}
	attr.Size = uint32(unsafe.Sizeof(attr))
	_, err := unix.PerfEventOpen(&attr, 0, -1, -1, 0)
	return err
}

func bpfMap(int) error {
	attr := [16]uint32{unix.BPF_MAP_TYPE_ARRAY, 4, 4, 1}
	return raw(unix.SYS_BPF, unix.BPF_MAP_CREATE, uintptr(unsafe.Pointer(&attr[0])), unsafe.Sizeof(attr))
}

func lease(i int) error {
	f, err := os.CreateTemp("", "lease")
	if err != nil {
		return err
	}
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, syscall.F_WRLCK)
	return err
}
