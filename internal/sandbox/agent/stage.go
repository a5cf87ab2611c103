//go:build linux && (amd64 || arm64)

package agent

import (
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"gatehouse/internal/sandbox/agentprotocol"
	"gatehouse/internal/sandbox/landlock"
	"gatehouse/internal/sandbox/seccomp"

	"golang.org/x/sys/unix"
)

// A stage is the agent once more, as the first process of a space of process
// numbers and of a set of mounts that are one program's. It closes everything
// to a thread of its own and starts the program from there, as the user it
// shall be, reaps what is orphaned, and ends when the program does; the kernel
// ends whatever else is left with it. To the program it is out of reach: it is
// process 1, and another user unless there is only one.
//
// Its standard streams are the program's. With the agent it speaks frames over
// file 3: it gets a Setup, a Start and then Signals, and answers Ready when the
// program runs and Exit when it ended, or Failed.

// masked are files of proc that tell about the host.
var masked = []string{
	"kcore", "keys", "key-users", "timer_list", "kallsyms", "kpagecount", "kpageflags", "kpagecgroup",
	"config.gz", "cmdline", "kmsg", "sched_debug", "slabinfo", "vmallocinfo", "iomem", "ioports", "mdstat", "latency_stats", "timer_stats",
}

// emptied are folders of proc that tell about the host, or change it.
var emptied = []string{"acpi", "asound", "bus", "driver", "dynamic_debug", "fs", "irq", "scsi", "tty", "sysvipc", "pressure"}

// frozen are those that may be read.
var frozen = []string{"sys", "sysrq-trigger"}

const lookedUpIn = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func stage() error {
	// The first thread waits: it belongs to one goroutine, and each step of that
	// would be a switch between threads.
	done := make(chan error)
	go func() { done <- act() }()
	return <-done
}

func act() error {
	unix.CloseOnExec(channelFD)
	channel := os.NewFile(channelFD, "channel")
	if err := defaultSignals(); err != nil {
		return err
	}
	status, err := perform(channel)
	if err != nil {
		agentprotocol.Write(channel, agentprotocol.Frame{Kind: agentprotocol.Failed, ID: 1, Body: failure(err).Body()})
		return err
	}
	return agentprotocol.Write(channel, agentprotocol.Frame{Kind: agentprotocol.Exit, ID: 1, Body: status.Body()})
}

// defaultSignals gives up what the runtime does on signals. For the first process
// of a space the kernel throws a signal away that nothing is to be done on, and
// the program does not inherit that as it would if they were ignored.
func defaultSignals() error {
	const last = 64
	var standard [4]uint64 // a struct sigaction: SIG_DFL, no flags, an empty mask
	for s := 1; s <= last; s++ {
		if s == int(unix.SIGKILL) || s == int(unix.SIGSTOP) {
			continue
		}
		if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&standard)), 0, 8, 0, 0); errno != 0 {
			return call("rt_sigaction", fmt.Sprint(s), errno)
		}
	}
	return nil
}

// perform runs the one program from beginning to end.
func perform(channel *os.File) (agentprotocol.Ended, error) {
	plan, program, err := orders(channel)
	if err != nil {
		return agentprotocol.Ended{}, err
	}
	if err := ownProc(); err != nil {
		return agentprotocol.Ended{}, err
	}
	if err := bound(plan); err != nil {
		return agentprotocol.Ended{}, err
	}
	pid, err := startClosed(plan, program)
	if err != nil {
		return agentprotocol.Ended{}, err
	}
	setOOM("500") // of what is left, the program's own processes go first
	if err := agentprotocol.Write(channel, agentprotocol.Frame{Kind: agentprotocol.Ready, ID: 1}); err != nil {
		return agentprotocol.Ended{}, err
	}
	go passSignals(channel, pid)
	return reap(pid)
}

func orders(channel *os.File) (plan agentprotocol.Plan, program agentprotocol.Program, err error) {
	f, err := agentprotocol.Read(channel)
	if err == nil {
		plan, err = agentprotocol.ParsePlan(f.Body)
	}
	if err != nil {
		return plan, program, err
	}
	if f, err = agentprotocol.Read(channel); err == nil {
		program, err = agentprotocol.ParseProgram(f.Body)
	}
	return plan, program, err
}

// ownProc shows the processes of this space only, and hides what tells about
// the host.
func ownProc() error {
	if err := unix.Mount("proc", "/proc", "proc", procFlags, "hidepid=invisible"); err != nil {
		return call("mount", "proc", err)
	}
	for _, m := range masked {
		if err := unix.Mount("/dev/null", "/proc/"+m, "", unix.MS_BIND, ""); err != nil && !errors.Is(err, unix.ENOENT) {
			return call("mount", "over /proc/"+m, err)
		}
	}
	for _, e := range emptied {
		if err := unix.Mount("/sys", "/proc/"+e, "", unix.MS_BIND, ""); err != nil && !errors.Is(err, unix.ENOENT) {
			return call("mount", "over /proc/"+e, err)
		}
	}
	for _, f := range frozen {
		if err := freeze("/proc/" + f); err != nil && !errors.Is(err, unix.ENOENT) {
			return call("mount", "over /proc/"+f, err)
		}
	}
	return nil
}

func freeze(at string) error {
	if err := unix.Mount(at, at, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	return unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|procFlags, "")
}

// noCore is the limit of core files by which the kernel neither writes one nor
// starts the handler that the host's core_pattern names, as root and with the
// program's memory; with 0 it would start it. See core(5) and do_coredump.
const noCore = 1

// bound limits what one process may use, and offers the program to the kernel
// first when memory is short.
func bound(p agentprotocol.Plan) error {
	limits := map[int]uint64{
		unix.RLIMIT_CORE: noCore, unix.RLIMIT_MEMLOCK: 64 << 10, unix.RLIMIT_MSGQUEUE: 64 << 10,
		unix.RLIMIT_FSIZE: uint64(p.DiskBytes),
	}
	if p.Processes > 0 {
		limits[unix.RLIMIT_NPROC] = uint64(p.Processes)
	}
	if p.DataBytes > 0 {
		limits[unix.RLIMIT_DATA] = uint64(p.DataBytes)
	}
	for what, most := range limits {
		if err := lower(what, most); err != nil {
			return err
		}
	}
	// By way of syscall, which otherwise would give the program the limit
	// that the agent began with.
	most := uint64(p.Descriptors)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: most, Max: most}); err != nil {
		return call("setrlimit", "RLIMIT_NOFILE", err)
	}
	return setOOM("1000")
}

func lower(what int, most uint64) error {
	var now unix.Rlimit
	if err := unix.Getrlimit(what, &now); err != nil {
		return call("getrlimit", fmt.Sprint(what), err)
	}
	most = min(most, now.Max)
	err := unix.Setrlimit(what, &unix.Rlimit{Cur: most, Max: most})
	if errors.Is(err, unix.EPERM) {
		return nil // Linux refuses nobody less; a kernel in user space has not all of them
	}
	return call("setrlimit", fmt.Sprint(what), err)
}

func setOOM(score string) error { return os.WriteFile("/proc/self/oom_score_adj", []byte(score), 0) }

// startClosed starts the program from a thread that gave up everything, which
// the program inherits. The thread goes when the goroutine does.
func startClosed(plan agentprotocol.Plan, program agentprotocol.Program) (pid int, err error) {
	type started struct {
		pid int
		err error
	}
	done := make(chan started)
	go func() {
		runtime.LockOSThread()
		leave, err := joinPids()
		if err == nil {
			err = closeThread(plan)
		}
		if err != nil {
			done <- started{0, err}
			return
		}
		pid, err := start(plan, program)
		leave()
		done <- started{pid, err}
		select {} // the program is the child of this thread
	}()
	s := <-done
	return s.pid, s.err
}

// closeThread gives up, in an order that matters: each step needs what the
// next ones take away.
func closeThread(plan agentprotocol.Plan) error {
	for c := range 64 {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			break // the kernel has no more of them
		}
		if err != nil {
			return call("prctl", "PR_CAPBSET_DROP", err)
		}
	}
	if plan.OneUser {
		// Being user 0 in here must give the program nothing.
		const noRootEver = 0x2f // NOROOT, NO_SETUID_FIXUP and KEEP_CAPS off, each locked
		if err := unix.Prctl(unix.PR_SET_SECUREBITS, noRootEver, 0, 0, 0); err != nil {
			return call("prctl", "PR_SET_SECUREBITS", err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return call("prctl", "PR_SET_NO_NEW_PRIVS", err)
	}
	if err := landlock.Restrict([]string{home, "/tmp", "/var/tmp", "/dev"}); err != nil {
		return err
	}
	if plan.OneUser {
		if err := dropCapabilities(); err != nil {
			return err
		}
	}
	filter := seccomp.Default()
	if plan.Strict {
		filter = seccomp.Strict()
	}
	if plan.DataBytes > 0 { // the limit of a process's data does not count them
		filter = seccomp.Unbacked(filter)
	}
	return seccomp.Install(filter)
}

func dropCapabilities() error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	return call("capset", "none", unix.Capset(&head, &none[0]))
}

func start(plan agentprotocol.Plan, program agentprotocol.Program) (int, error) {
	dir := program.Dir
	if dir == "" {
		dir = home
	} else if !path.IsAbs(dir) {
		dir = path.Join(home, dir)
	}
	env := environment(plan.Env, program.Env)
	file, err := find(program.Argv[0], dir, env)
	if err != nil {
		return 0, err
	}
	attr := &syscall.ProcAttr{Dir: dir, Env: env, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true}}
	if !plan.OneUser {
		attr.Sys.Credential = &syscall.Credential{Uid: uint32(plan.UID), Gid: uint32(plan.GID)}
	}
	if program.Size != (agentprotocol.Size{}) {
		attr.Sys.Setctty = true
	}
	pid, err := syscall.ForkExec(file, program.Argv, attr)
	if err != nil {
		return 0, explain(file, dir, err)
	}
	return pid, nil
}

// explain tells a folder that is missing from a program that is.
func explain(file, dir string, err error) error {
	if info, e := os.Stat(dir); e != nil {
		return fmt.Errorf("working directory: %w", e)
	} else if !info.IsDir() {
		return fmt.Errorf("working directory: %s: %w", dir, unix.ENOTDIR)
	}
	if errors.Is(err, unix.ENOEXEC) {
		return fmt.Errorf("%s is not a program for this machine, or a script without #!: %w", file, err)
	}
	if info, e := os.Stat(file); errors.Is(err, unix.ENOENT) && e == nil && !info.IsDir() {
		return fmt.Errorf("start %s: the interpreter or the loader that it names is not in the sandbox: %w", file, err)
	}
	return fmt.Errorf("start %s: %w", file, err)
}

// environment is one variable of each name, the later one.
func environment(lists ...[]string) (env []string) {
	at := map[string]int{}
	for _, l := range lists {
		for _, v := range l {
			name, _, _ := strings.Cut(v, "=")
			if i, ok := at[name]; ok {
				env[i] = v
				continue
			}
			at[name] = len(env)
			env = append(env, v)
		}
	}
	return env
}

// find looks up a program as a shell would, in the PATH the program gets.
func find(name, dir string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		if !path.IsAbs(name) {
			name = path.Join(dir, name)
		}
		return name, nil
	}
	in := lookedUpIn
	for _, v := range env {
		if p, ok := strings.CutPrefix(v, "PATH="); ok {
			in = p
		}
	}
	for d := range strings.SplitSeq(in, ":") {
		file := path.Join(d, name)
		if info, err := os.Stat(file); path.IsAbs(file) && err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", fmt.Errorf("there is no program %s in the sandbox (looked in %s): %w", name, in, unix.ENOENT)
}

// passSignals sends the program's process group what the agent asks for, and
// ends this stage when the agent is gone.
func passSignals(channel *os.File, pid int) {
	for {
		f, err := agentprotocol.Read(channel)
		if err != nil || f.Kind != agentprotocol.Signal {
			os.Exit(1)
		}
		unix.Kill(-pid, unix.Signal(f.Body[0]))
	}
}

// reap takes away whatever ends in this space until the program has.
func reap(pid int) (agentprotocol.Ended, error) {
	for {
		var status unix.WaitStatus
		var usage unix.Rusage
		got, err := unix.Wait4(-1, &status, 0, &usage)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return agentprotocol.Ended{}, call("wait4", "the program", err)
		}
		if got != pid || !status.Exited() && !status.Signaled() {
			continue
		}
		e := agentprotocol.Ended{
			CPU:    time.Duration(usage.Utime.Nano() + usage.Stime.Nano()),
			MaxRSS: usage.Maxrss << 10,
		}
		if status.Signaled() {
			e.Signal = uint8(status.Signal())
		} else {
			e.Code = uint8(status.ExitStatus())
		}
		return e, nil
	}
}
