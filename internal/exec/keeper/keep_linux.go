package keeper

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

// Each program that contains this package can be started as a keeper: the host, programs that embed it, and tests.
func init() {
	if len(os.Args) == 2 && os.Args[1] == marker {
		os.Exit(superviseChild())
	}
}

const (
	prSetChildSubreaper = 36
	endWait             = 10 * time.Second // for the kernel to end what was killed
	endPause            = time.Millisecond
)

// superviseChild does what the plan says. It runs on the main thread, which starts the program: the kernel ties the program's
// life to that thread.
func superviseChild() (exit int) {
	runtime.LockOSThread()
	syscall.CloseOnExec(socketFD)
	syscall.SetNonblock(socketFD, false)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM,
		syscall.SIGPIPE,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM)
	host := socket{}
	p, err := readPlan(host)
	if err != nil {
		return planUnread
	}
	if p.Path == "" {
		standAside()
		io.Copy(io.Discard, host)
		endGroups(p)
		return 0
	}
	syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0)
	if p.Limit != 0 {
		setLimit(p.Limit)
	}
	pid, err := launchKeeper(p)
	errno, _ := err.(syscall.Errno)
	if err != nil && errno == 0 {
		errno = syscall.EINVAL
	}
	answer := binary.LittleEndian.AppendUint32(nil, uint32(pid))
	if _, err := host.Write(binary.LittleEndian.AppendUint32(answer, uint32(errno))); err != nil || errno != 0 {
		endDescendants()
		return 1
	}
	standAside()
	gone := make(chan struct{})
	go func() {
		io.Copy(io.Discard, host)
		endDescendants()
		os.Exit(0)
	}()
	if end, ok := awaitProgram(pid); ok {
		host.Write(encodeEnd(end))
	}
	<-gone // never: the goroutine ends the process
	return 0
}

// socket is the host. It is read and written without the runtime's poller, which a keeper does not need otherwise.
type socket struct{}

func (socket) Read(b []byte) (n int, err error) {
	for {
		n, err = syscall.Read(socketFD, b)
		if err == syscall.EINTR {
			continue
		}
		if n == 0 && err == nil {
			return 0, io.EOF
		}
		return max(n, 0), err
	}
}

func (socket) Write(b []byte) (int, error) {
	for {
		n, err := syscall.Write(socketFD, b)
		if err != syscall.EINTR {
			return max(n, 0), err
		}
	}
}

func readPlan(host io.Reader) (p plan, err error) {
	var size [4]byte
	if _, err = io.ReadFull(host, size[:]); err != nil {
		return p, err
	}
	n := binary.LittleEndian.Uint32(size[:])
	if n > mostPlan {
		return p, io.ErrShortBuffer
	}
	b := make([]byte, n)
	if _, err = io.ReadFull(host, b); err != nil {
		return p, err
	}
	return p, json.Unmarshal(b, &p)
}

// launchKeeper starts the program with the keeper's own files.
func launchKeeper(p plan) (pid int, err error) {
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if p.Session {
		attr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0, Pdeathsig: syscall.SIGKILL}
	}
	if s := p.Space; s != nil {
		attr.Cloneflags, attr.UidMappings, attr.GidMappings = s.Flags, s.Users, s.Groups
		attr.GidMappingsEnableSetgroups, attr.AmbientCaps = s.Setgroups, s.Ambient
	}
	files := []uintptr{0, 1, 2}
	for fd := socketFD + 1; fd <= socketFD+p.Files; fd++ {
		syscall.CloseOnExec(fd)
		files = append(files, uintptr(fd))
	}
	pid, err = syscall.ForkExec(p.Path, p.Args, &syscall.ProcAttr{Env: p.Env, Files: files, Sys: attr})
	for _, fd := range files[3:] {
		syscall.Close(int(fd))
	}
	return pid, err
}

// standAside gives up the files of the program, whose other ends may wait for their being closed, and the folder.
func standAside() {
	if null, err := syscall.Open("/dev/null", syscall.O_RDWR|syscall.O_CLOEXEC, 0); err == nil {
		for fd := range 3 {
			syscall.Dup3(null, fd, 0)
		}
		syscall.Close(null)
	}
	syscall.Chdir("/")
}

// awaitProgram waits for the end of the program, and takes away what else has ended meanwhile. The
// program stays a zombie, so that its number is not given to another. ok is false if the program
// was ended with all that came of it.
func awaitProgram(program int) (end End, ok bool) {
	for {
		pid, end := peek()
		switch {
		case pid == program:
			return end, true
		case pid > 0:
			syscall.Wait4(pid, nil, 0, nil)
		default:
			return End{}, false
		}
	}
}

// childInfo is the part of siginfo_t that waitid fills in.
type childInfo struct {
	_      [2]int32
	code   int32
	_      int32
	pid    int32
	_      uint32
	status int32
	_      [100]byte
}

// peek waits for a child to end and leaves it a zombie.
func peek() (pid int, end End) {
	const all, exited, cldExited = 0, 0x4, 1
	var info childInfo
	var usage syscall.Rusage
	for {
		_, _, e := syscall.Syscall6(syscall.SYS_WAITID, all, 0, uintptr(unsafe.Pointer(&info)),
			exited|syscall.WNOWAIT, uintptr(unsafe.Pointer(&usage)), 0)
		if e == syscall.EINTR {
			continue
		}
		if e != 0 {
			return 0, End{}
		}
		break
	}
	end.CPU = usage.Utime.Nano() + usage.Stime.Nano()
	if end.Code = int(info.status); info.code != cldExited {
		end.Code, end.Signal = -1, int(info.status)
	}
	return int(info.pid), end
}

// endDescendants ends all that came of the program. It stops the processes before it kills them, so that none is
// started while others are killed.
func endDescendants() {
	if reapEnded() {
		return
	}
	stopped := map[int]bool{}
	for end := time.Now().Add(endWait); time.Now().Before(end); {
		fresh := false
		all := descendants()
		for _, pid := range all {
			if !stopped[pid] {
				stopped[pid], fresh = true, true
				syscall.Kill(pid, syscall.SIGSTOP)
			}
		}
		if fresh {
			continue
		}
		for _, pid := range all {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		if reapEnded() {
			return
		}
		time.Sleep(endPause)
	}
}

// reapEnded takes away the children that have ended and reports whether there are no others: then nothing is left of
// the program, because its orphans are children of this process.
func reapEnded() bool {
	for {
		switch pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); {
		case err == syscall.ECHILD:
			return true
		case pid <= 0 && err != syscall.EINTR:
			return false
		}
	}
}

// descendants are the processes that came of this one and have not ended.
func descendants() (all []int) {
	parents := map[int]int{}
	for _, pid := range processes() {
		if parent, ok := parentOf(pid); ok {
			parents[pid] = parent
		}
	}
	own := os.Getpid()
	for pid := range parents {
		for up, steps := parents[pid], 0; up > 1 && steps < len(parents); up, steps = parents[up], steps+1 {
			if up == own {
				all = append(all, pid)
				break
			}
		}
	}
	return all
}

func processes() (pids []int) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// parentOf tells whose child a process is that has not ended.
func parentOf(pid int) (parent int, ok bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:])) // the name may hold anything
	if len(f) < 2 || f[0] == "Z" || f[0] == "X" {
		return 0, false
	}
	parent, err = strconv.Atoi(f[1])
	return parent, err == nil
}

// endGroups ends the control groups of a host that has ended.
func endGroups(p plan) {
	for end := time.Now().Add(endWait); time.Now().Before(end); time.Sleep(endPause) {
		left := false
		for _, folder := range p.Groups {
			entries, _ := os.ReadDir(folder)
			for _, e := range entries {
				if strings.HasPrefix(e.Name(), p.Prefix) && !endGroup(filepath.Join(folder, e.Name())) {
					left = true
				}
			}
		}
		if !left {
			break
		}
	}
	for _, path := range p.Empty {
		entries, _ := os.ReadDir(path)
		for _, e := range entries {
			if e.IsDir() {
				syscall.Rmdir(filepath.Join(path, e.Name()))
			}
		}
		syscall.Rmdir(path)
	}
}

// endGroup kills what is in a group and in the groups in it, and reports whether the group is gone.
func endGroup(path string) bool {
	if syscall.Rmdir(path) == nil {
		return true
	}
	entries, _ := os.ReadDir(path)
	for _, e := range entries {
		if e.IsDir() {
			endGroup(filepath.Join(path, e.Name()))
		}
	}
	os.WriteFile(filepath.Join(path, "pids.max"), []byte("0"), 0)
	if os.WriteFile(filepath.Join(path, "cgroup.kill"), []byte("1"), 0) == nil {
		return false
	}
	b, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
	for f := range strings.FieldsSeq(string(b)) {
		if pid, err := strconv.Atoi(f); err == nil && pid > 1 {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	return false
}
