//go:build linux && (amd64 || arm64)

package agent

import (
	"errors"
	"fmt"
	"io"
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

// A launcher is the agent's executable, started again as the first process of a PID namespace and a mount
// namespace for one program. It gives up all privileges on a separate thread and starts the program from
// there, as the code's user. It reaps orphaned processes and exits when the program does; then the kernel
// kills the remaining processes of the namespace. The program cannot signal or trace it, because it is process
// 1 and has another user id, unless the sandbox has a single user.
//
// Its standard streams are the program's. It exchanges frames with the agent over file 3: it receives a Setup,
// a Start and then Signals, and answers Ready when the program runs and Exit when it has ended, or Failed.

// maskedFiles are files of /proc that reveal facts about the host.
var maskedFiles = []string{
	"kcore", "keys", "key-users", "timer_list", "kallsyms", "kpagecount", "kpageflags", "kpagecgroup",
	"config.gz", "cmdline", "kmsg", "sched_debug", "slabinfo", "vmallocinfo", "iomem", "ioports", "mdstat",
	"latency_stats", "timer_stats",
}

// maskedFolders are folders of /proc that reveal facts about the host or can change it.
var maskedFolders = []string{"acpi", "asound", "bus", "driver", "dynamic_debug", "fs", "irq", "scsi", "tty",
	"sysvipc", "pressure"}

// readOnlyPaths are paths of /proc that may be read but not written.
var readOnlyPaths = []string{"sys", "sysrq-trigger"}

// writableFolders are the folders in which a program can write.
var writableFolders = []string{home, "/tmp", "/var/tmp", "/dev"}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func runLauncher(supervise Supervise) error {
	// The first thread is locked to the main goroutine, so work there would switch threads at each step.
	done := make(chan error)
	go func() { done <- launch(supervise) }()
	return <-done
}

func launch(supervise Supervise) error {
	unix.CloseOnExec(channelFD)
	channel := os.NewFile(channelFD, "channel")
	if err := defaultSignals(); err != nil {
		return err
	}
	status, err := runToExit(channel, supervise)
	if err != nil {
		return sendFailure(channel, err)
	}
	return agentprotocol.Write(channel, agentprotocol.Frame{Kind: agentprotocol.Exit, ID: 1, Body: status.Body()})
}

// sendFailure reports why a program was not started. It returns the error.
func sendFailure(channel io.Writer, err error) error {
	agentprotocol.Write(channel, agentprotocol.Frame{Kind: agentprotocol.Failed, ID: 1, Body: failure(err).Body()})
	return err
}

// defaultSignals resets all signals to SIG_DFL, undoing the Go runtime's handlers. For the first process of a
// PID namespace the kernel discards signals with the default action, and unlike SIG_IGN the program does not
// inherit that.
func defaultSignals() error {
	const last = 64
	var standard [4]uint64 // a struct sigaction: SIG_DFL, no flags, an empty mask
	for s := 1; s <= last; s++ {
		if s == int(unix.SIGKILL) || s == int(unix.SIGSTOP) {
			continue
		}
		if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&standard)),
			0, 8, 0, 0); errno != 0 {
			return sysErr("rt_sigaction", fmt.Sprint(s), errno)
		}
	}
	return nil
}

// runToExit runs the program from start to exit.
func runToExit(channel *os.File, supervise Supervise) (agentprotocol.ExitStatus, error) {
	plan, program, err := readStart(channel)
	if err != nil {
		return agentprotocol.ExitStatus{}, err
	}
	if err := mountOwnProc(); err != nil {
		return agentprotocol.ExitStatus{}, err
	}
	if err := setLimits(plan); err != nil {
		return agentprotocol.ExitStatus{}, err
	}
	start := startConfined
	switch {
	case plan.Range && program.Lists != "":
		return agentprotocol.ExitStatus{}, errors.New("a sandbox with users of its own has no lists of programs")
	case plan.Range:
		start = startUser
	case program.Lists != "":
		return runSupervised(channel, plan, program, supervise)
	}
	pid, err := start(plan, program)
	if err != nil {
		return agentprotocol.ExitStatus{}, err
	}
	if err := programRuns(channel, pid); err != nil {
		return agentprotocol.ExitStatus{}, err
	}
	releaseCode()
	return reap(pid)
}

// programRuns reports that a program runs, and passes signals on to it.
func programRuns(channel *os.File, pid int) error {
	setOOM("500") // above the program's 1000, so that the kernel kills the program's processes first
	if err := agentprotocol.Write(channel, agentprotocol.Frame{Kind: agentprotocol.Ready, ID: 1}); err != nil {
		return err
	}
	go passSignals(channel, pid)
	return nil
}

func readStart(channel *os.File) (plan agentprotocol.Plan, program agentprotocol.Program, err error) {
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

// mountOwnProc mounts a /proc that shows only the processes of this namespace, and hides files that reveal facts
// about the host.
func mountOwnProc() error {
	if err := unix.Mount("proc", "/proc", "proc", procFlags, "hidepid=invisible"); err != nil {
		return sysErr("mount", "proc", err)
	}
	for _, m := range maskedFiles {
		if err := unix.Mount("/dev/null", "/proc/"+m, "", unix.MS_BIND, ""); err != nil &&
			!errors.Is(err, unix.ENOENT) {
			return sysErr("mount", "over /proc/"+m, err)
		}
	}
	for _, e := range maskedFolders {
		if err := unix.Mount("/sys", "/proc/"+e, "", unix.MS_BIND, ""); err != nil && !errors.Is(err, unix.ENOENT) {
			return sysErr("mount", "over /proc/"+e, err)
		}
	}
	for _, f := range readOnlyPaths {
		if err := remountReadOnly("/proc/" + f); err != nil && !errors.Is(err, unix.ENOENT) {
			return sysErr("mount", "over /proc/"+f, err)
		}
	}
	return nil
}

func remountReadOnly(at string) error {
	if err := unix.Mount(at, at, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	return unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|procFlags, "")
}

// noCore is the limit of core files. With 1 the kernel neither writes one nor starts the handler that the
// host's core_pattern names, which would run as root and receive the program's memory; with 0 it would start
// it. See core(5) and do_coredump.
const noCore = 1

// setLimits sets the resource limits of one process, and makes the program the first that the kernel kills when
// memory runs out.
func setLimits(p agentprotocol.Plan) error {
	limits := map[int]uint64{
		unix.RLIMIT_CORE: noCore, unix.RLIMIT_FSIZE: uint64(p.DiskBytes),
		// The kernel counts these for a user; without users of its own a sandbox shares them with the host.
		unix.RLIMIT_MEMLOCK: 64 << 10, unix.RLIMIT_MSGQUEUE: 16 << 10, unix.RLIMIT_SIGPENDING: 1024,
	}
	if p.Processes > 0 {
		limits[unix.RLIMIT_NPROC] = uint64(p.Processes)
	}
	if p.DataBytes > 0 {
		limits[unix.RLIMIT_DATA] = uint64(p.DataBytes)
	}
	for what, most := range limits {
		if err := lowerLimit(what, most); err != nil {
			return err
		}
	}
	// Package syscall is used because it otherwise restores the limit that the agent started with in the
	// child.
	most := uint64(p.Descriptors)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: most, Max: most}); err != nil {
		return sysErr("setrlimit", "RLIMIT_NOFILE", err)
	}
	return setOOM("1000")
}

func lowerLimit(what int, most uint64) error {
	var now unix.Rlimit
	if err := unix.Getrlimit(what, &now); err != nil {
		return sysErr("getrlimit", fmt.Sprint(what), err)
	}
	most = min(most, now.Max)
	err := unix.Setrlimit(what, &unix.Rlimit{Cur: most, Max: most})
	if errors.Is(err, unix.EPERM) {
		return nil // Linux always allows lowering a limit; gVisor does not support all of them
	}
	return sysErr("setrlimit", fmt.Sprint(what), err)
}

func setOOM(score string) error { return os.WriteFile("/proc/self/oom_score_adj", []byte(score), 0) }

// startConfined starts the program from a thread that has given up all privileges, which the program inherits.
// The thread exits with the goroutine.
func startConfined(plan agentprotocol.Plan, program agentprotocol.Program) (pid int, err error) {
	type started struct {
		pid int
		err error
	}
	done := make(chan started)
	go func() {
		runtime.LockOSThread()
		leave, err := joinPidsGroup()
		if err == nil {
			err = confineThread(plan, nil)
		}
		if err != nil {
			done <- started{0, err}
			return
		}
		pid, err := startProgram(plan, program)
		leave()
		done <- started{pid, err}
		select {} // the program is killed when its parent thread exits, so the thread stays
	}()
	s := <-done
	return s.pid, s.err
}

// confineThread gives up the thread's privileges. The order matters: each step needs what the next ones take
// away. executable are the only programs that can be started, see landlock.Restrict.
func confineThread(plan agentprotocol.Plan, executable []string) error {
	if err := dropBounding(0); err != nil {
		return err
	}
	if plan.SingleUser {
		// User 0 in the sandbox must not give the program any capability.
		const noRootEver = 0x2f // NOROOT, NO_SETUID_FIXUP and KEEP_CAPS off, each locked
		if err := unix.Prctl(unix.PR_SET_SECUREBITS, noRootEver, 0, 0, 0); err != nil {
			return sysErr("prctl", "PR_SET_SECUREBITS", err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return sysErr("prctl", "PR_SET_NO_NEW_PRIVS", err)
	}
	if err := landlock.Restrict(writablePaths(plan), executable); err != nil {
		return err
	}
	if plan.SingleUser {
		if err := dropCapabilities(); err != nil {
			return err
		}
	}
	filter := seccomp.Default()
	if plan.Strict {
		filter = seccomp.Strict()
	}
	if plan.DataBytes > 0 { // the limit of a process's data does not count shared mappings without a file
		filter = seccomp.Unbacked(filter)
	}
	if plan.KeepOwners {
		if !plan.SingleUser { // which the filter would only pretend later
			if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
				return sysErr("setgroups", "none", errno)
			}
		}
		return keepOwners(filter, uint32(plan.UID), uint32(plan.GID))
	}
	return seccomp.Install(filter)
}

func dropCapabilities() error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	return sysErr("capset", "none", unix.Capset(&head, &none[0]))
}

// located finds the file, the working directory and the environment of a program.
func located(plan agentprotocol.Plan, program agentprotocol.Program) (file, dir string, env []string, err error) {
	dir = program.Dir
	if dir == "" {
		dir = home
	} else if !path.IsAbs(dir) {
		dir = path.Join(home, dir)
	}
	env = environment(plan.Env, program.Env)
	file, err = lookPath(program.Argv[0], dir, env)
	return file, dir, env, err
}

func startProgram(plan agentprotocol.Plan, program agentprotocol.Program) (int, error) {
	file, dir, env, err := located(plan, program)
	if err != nil {
		return 0, err
	}
	attr := &syscall.ProcAttr{Dir: dir, Env: env, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true}}
	if !plan.SingleUser {
		attr.Sys.Credential = &syscall.Credential{
			Uid: uint32(plan.UID), Gid: uint32(plan.GID), NoSetGroups: plan.KeepOwners,
		}
	}
	if program.Size != (agentprotocol.Size{}) {
		attr.Sys.Setctty = true
	}
	pid, err := syscall.ForkExec(file, program.Argv, attr)
	if err != nil {
		return 0, startError(file, dir, err)
	}
	return pid, nil
}

// startError distinguishes a missing working directory from a missing program.
func startError(file, dir string, err error) error {
	if info, e := os.Stat(dir); e != nil {
		return fmt.Errorf("working directory: %w", e)
	} else if !info.IsDir() {
		return fmt.Errorf("working directory: %s: %w", dir, unix.ENOTDIR)
	}
	if errors.Is(err, unix.ENOEXEC) {
		return fmt.Errorf("%s is not a program for this machine, or a script without #!: %w", file, err)
	}
	if info, e := os.Stat(file); errors.Is(err, unix.ENOENT) && e == nil && !info.IsDir() {
		return fmt.Errorf("start %s: its interpreter or loader does not exist in the sandbox: %w", file, err)
	}
	return fmt.Errorf("start %s: %w", file, err)
}

// environment merges lists of variables; later values override earlier ones.
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

// lookPath looks up a program in the PATH of its environment, as a shell does.
func lookPath(name, dir string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		if !path.IsAbs(name) {
			name = path.Join(dir, name)
		}
		return name, nil
	}
	in := defaultPath
	for _, v := range env {
		if p, ok := strings.CutPrefix(v, "PATH="); ok {
			in = p
		}
	}
	for d := range strings.SplitSeq(in, ":") {
		file := path.Join(d, name)
		if info, err := os.Stat(file); path.IsAbs(file) && err == nil && info.Mode().IsRegular() &&
			info.Mode()&0o111 != 0 {
			return file, nil
		}
	}
	return "", fmt.Errorf("program %s does not exist in the sandbox (looked in %s): %w", name, in, unix.ENOENT)
}

// passSignals forwards signals from the agent to the program's process group, and exits when the agent's end
// of the channel closes.
func passSignals(channel *os.File, pid int) {
	for {
		f, err := agentprotocol.Read(channel)
		if err != nil || f.Kind != agentprotocol.Signal {
			os.Exit(1)
		}
		unix.Kill(-pid, unix.Signal(f.Body[0]))
	}
}

// reap waits for all processes of the namespace until the program has ended.
func reap(pid int) (agentprotocol.ExitStatus, error) {
	for {
		var status unix.WaitStatus
		var usage unix.Rusage
		got, err := unix.Wait4(-1, &status, 0, &usage)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return agentprotocol.ExitStatus{}, sysErr("wait4", "the program", err)
		}
		if got != pid || !status.Exited() && !status.Signaled() {
			continue
		}
		return exitStatus(status, usage), nil
	}
}

func exitStatus(status unix.WaitStatus, usage unix.Rusage) agentprotocol.ExitStatus {
	e := agentprotocol.ExitStatus{
		CPU:    time.Duration(usage.Utime.Nano() + usage.Stime.Nano()),
		MaxRSS: usage.Maxrss << 10,
	}
	if status.Signaled() {
		e.Signal = uint8(status.Signal())
	} else {
		e.Code = uint8(status.ExitStatus())
	}
	return e
}
