//go:build linux && (amd64 || arm64)

package supervisor

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"gatehouse/internal/exec/shellpolicy"
	"gatehouse/internal/sandbox/landlock"
	"gatehouse/internal/sandbox/seccomp"

	"golang.org/x/sys/unix"
)

const (
	hostFD      = 3   // of a supervisor: the channel to the host
	failedCode  = 127 // exit code of a supervisor that could not start its line
	flushBytes  = 16 << 10
	flushWait   = 100 // milliseconds that a report may wait
	reapWait    = 5000
	treeMark    = "GATEHOUSE_TREE=" // see package proc, which finds the line by it
	ruleVersion = 2                 // of Landlock
)

// A program that contains this package can be started as a supervisor. It begins here and not in main, so that this
// works for each program that embeds the host, and for tests.
func init() {
	if len(os.Args) < 2 || os.Args[1] != marker {
		return
	}
	if len(os.Args) > 2 {
		os.Exit(probeLine(os.Args[2]))
	}
	os.Exit(supervise())
}

// supervisor is the process above one line. All calls of ptrace are made by one thread, which is the tracer.
type supervisor struct {
	plan     plan
	rules    *shellpolicy.Rules
	listener int
	start    Start
	out      *bufio.Writer
	enc      *json.Encoder
	user     int

	first  int // the first process of the line; 0 before it was started
	status *unix.WaitStatus
	usage  unix.Rusage // of the first process

	files     map[string]*file // by path and identity
	processes map[int]process

	buf     []byte  // for what is read of a process
	refused Program // the last one, because a program looks for another at each place of PATH
}

// process is a process of the line that has started a program.
type process struct {
	born    string
	entries []int  // of the allow list, that fitted it or a process above it
	scope   string // the program of the line above it
}

// Start is how the first process of a line is started. Restrict and Process are called by the thread that starts it,
// which is locked and stays, because the line may end with it.
type Start struct {
	Restrict func(executable []string) error // limits the thread; executable is as for landlock.Restrict
	Process  func() (pid int, err error)
	Started  func(pid int)
	Failed   func(error) // called if Process failed; it does not return
	Report   io.Writer   // gets what ReadReport reads
}

// Supervise runs a line in this process, whose other children it would take away, and returns how its first process
// ended and what that used. It judges by the lists of s, and by its environment and folders, which are those of this
// process; the rest of s is not used. It is for processes that start one line and that the line can neither trace
// nor signal, such as the launcher of a sandbox.
func Supervise(s Spec, start Start) (unix.WaitStatus, unix.Rusage, error) {
	runtime.LockOSThread()
	// The starting thread keeps its processor while the kernel reports the start of the line to this one.
	runtime.GOMAXPROCS(max(4, runtime.GOMAXPROCS(0)))
	p, err := newPlan(s)
	if err != nil {
		return 0, unix.Rusage{}, err
	}
	v := newSupervisor(*p, start)
	// This process may be root in its own namespace alone, and then it cannot read every file.
	v.user = unprivileged
	if err := v.superviseLine(); err != nil {
		return 0, unix.Rusage{}, err
	}
	return *v.status, v.usage, nil
}

const unprivileged = -1

func newSupervisor(p plan, start Start) *supervisor {
	s := &supervisor{
		plan: p, start: start, user: os.Geteuid(), files: map[string]*file{},
		processes: map[int]process{}, buf: make([]byte, maxArgBytes),
	}
	s.out = bufio.NewWriterSize(start.Report, 2*flushBytes)
	s.enc = json.NewEncoder(s.out)
	return s
}

// supervise runs a line and returns its exit code. A line that is ended by a signal ends this process the same way.
func supervise() int {
	runtime.LockOSThread()
	runtime.GOMAXPROCS(4) // as in Supervise
	debug.SetGCPercent(-1)
	unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // no process of the line can look into this one
	unix.CloseOnExec(hostFD)
	host := os.NewFile(hostFD, "host")
	p, err := readPlan(host)
	s := newSupervisor(p, Start{Report: host})
	s.start.Restrict, s.start.Process = s.restrict, s.startProcess
	s.start.Started = func(int) { debug.SetGCPercent(100) }
	s.start.Failed = func(err error) {
		host.Write(fmt.Appendf(nil, "{\"failed\":%q}\n", err.Error()))
		os.Exit(failedCode)
	}
	if err == nil {
		ignoreSignals()
		err = s.superviseLine()
	}
	if err != nil {
		s.sendMessage(message{Failed: err.Error()})
		s.out.Flush()
		return failedCode
	}
	return exitLike(*s.status)
}

// superviseLine starts the line and judges its programs until its first process has ended.
func (s *supervisor) superviseLine() (err error) {
	if s.rules, err = shellpolicy.New(s.plan.Allow, s.plan.Deny); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl(PR_SET_CHILD_SUBREAPER): %w", err)
	}
	listening, ended := make(chan int), make(chan error, 1)
	go s.startLine(listening, ended)
	if s.listener = <-listening; s.listener < 0 {
		return <-ended
	}
	// The notification of the first program comes while the thread waits for its start.
	setFlags(s.listener)
	if err := s.serveReports(); err != nil {
		return err
	}
	s.sendMessage(message{Ended: true})
	return s.out.Flush()
}

func readPlan(host io.Reader) (p plan, err error) {
	var size [4]byte
	if _, err := io.ReadFull(host, size[:]); err != nil {
		return p, fmt.Errorf("read the plan: %w", err)
	}
	n := binary.LittleEndian.Uint32(size[:])
	if n > maxPlan {
		return p, fmt.Errorf("the plan has %d bytes; at most %d are allowed", n, maxPlan)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(host, body); err != nil {
		return p, fmt.Errorf("read the plan: %w", err)
	}
	return p, json.Unmarshal(body, &p)
}

// ignoreSignals keeps this process alive until its line has ended, which gets the same signals because it is in the
// same process group. The line gets the default of each signal, or ignores it if the host does. What ends a child is
// not reported by a signal, because each stop of a thread would be.
func ignoreSignals() {
	all := make(chan os.Signal, 1)
	for _, sig := range []os.Signal{
		unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGTSTP,
		unix.SIGTTIN, unix.SIGTTOU, unix.SIGWINCH, unix.SIGPIPE,
	} {
		if !signal.Ignored(sig) {
			signal.Notify(all, sig)
		}
	}
	defaultSignal(unix.SIGCHLD)
}

// defaultSignal sets the default action of a signal, which the runtime does not offer.
func defaultSignal(sig unix.Signal) {
	var standard [4]uint64 // a struct sigaction: SIG_DFL, no flags, an empty mask
	unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&standard)), 0, 8, 0, 0)
}

// startLine restricts a thread, and starts the line from it. The thread stays, because the line ends with it.
func (s *supervisor) startLine(listening chan<- int, ended chan<- error) {
	runtime.LockOSThread()
	listener, err := seccomp.Listen(seccomp.Programs())
	if err == nil {
		err = s.start.Restrict(s.plan.Executable)
	}
	if err != nil {
		ended <- err
		listening <- -1
		return
	}
	listening <- listener
	pid, err := s.start.Process()
	if err != nil {
		s.start.Failed(err)
	}
	s.start.Started(pid)
	select {}
}

// startProcess starts the line of this process's plan.
func (s *supervisor) startProcess() (int, error) {
	argv := s.plan.Argv
	env := slices.Clone(s.plan.Env)
	for _, kv := range os.Environ() {
		if strings.HasPrefix(kv, treeMark) {
			env = append(env, kv)
		}
	}
	pid, err := syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{
		Env: env, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", argv[0], err)
	}
	return pid, nil
}

// capabilities that could end the supervision, of a host that runs as root.
var capabilities = []uintptr{
	unix.CAP_SYS_PTRACE, unix.CAP_PERFMON, unix.CAP_SETPCAP, unix.CAP_SYS_ADMIN, unix.CAP_SYS_MODULE,
	unix.CAP_SYS_RAWIO, unix.CAP_SYS_BOOT, unix.CAP_BPF, unix.CAP_MKNOD,
}

// devices that a line may write to.
var devices = []string{
	"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/pts",
	"/dev/shm",
}

// restrict restricts the calling thread to what a line may do.
func (s *supervisor) restrict(executable []string) error {
	for _, c := range capabilities {
		unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0) // an ordinary user has none
	}
	if s.plan.Unconfined {
		return nil
	}
	if v := landlock.Version(); v < ruleVersion {
		return fmt.Errorf("the kernel's Landlock has version %d; confining a line needs %d", v, ruleVersion)
	}
	return landlock.Restrict(slices.Concat(s.plan.Writable, devices), executable)
}

// exitLike ends this process as the line ended.
func exitLike(status unix.WaitStatus) int {
	if !status.Signaled() {
		return status.ExitStatus()
	}
	sig := status.Signal()
	defaultSignal(sig)
	unix.Kill(os.Getpid(), sig)
	time.Sleep(time.Second) // the signal does not end the process only if another thread has to take it
	return 128 + int(sig)
}

// sendMessage adds a message to the report.
func (s *supervisor) sendMessage(m message) {
	if p := m.Program; p != nil && p.Refused != "" {
		if p.PID == s.refused.PID && p.Path == s.refused.Path && p.Refused == s.refused.Refused {
			return
		}
		s.refused = *p
	}
	s.enc.Encode(m)
	if s.out.Buffered() > flushBytes {
		s.out.Flush()
	}
}

// serveReports answers the kernel's reports until the first process of the line has ended.
func (s *supervisor) serveReports() error {
	fds := []unix.PollFd{{Fd: int32(s.listener), Events: unix.POLLIN}, {Fd: -1, Events: unix.POLLIN}}
	for s.status == nil {
		wait := reapWait
		if s.out.Buffered() > 0 {
			wait = flushWait
		}
		n, err := unix.Poll(fds, wait)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("poll: %w", err)
		}
		if n == 0 {
			s.out.Flush()
		}
		if fds[0].Revents&unix.POLLIN != 0 {
			s.answer()
		}
		if fds[0].Revents&^unix.POLLIN != 0 {
			fds[0].Fd = -1 // no process of the line is left to report
		}
		if s.first != 0 && fds[1].Fd < 0 {
			pidfd, err := unix.PidfdOpen(s.first, 0)
			if err != nil {
				return fmt.Errorf("pidfd_open: %w", err)
			}
			fds[1].Fd = int32(pidfd)
		}
		s.reap()
	}
	return nil
}

// reap takes away the processes that have ended, the orphans of the line among them.
func (s *supervisor) reap() {
	for s.status == nil {
		var status unix.WaitStatus
		var usage unix.Rusage
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG|unix.WALL, &usage)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid == 0 {
			return
		}
		s.ended(pid, status, &usage)
		if status.Stopped() {
			detach(pid, 0)
		}
	}
}

// ended notes the end of a process.
func (s *supervisor) ended(pid int, status unix.WaitStatus, usage *unix.Rusage) {
	if status.Stopped() {
		return
	}
	delete(s.processes, pid)
	if pid == s.first {
		s.status, s.usage = &status, *usage
	}
}
