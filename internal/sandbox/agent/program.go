//go:build linux && (amd64 || arm64)

package agent

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"gatehouse/internal/sandbox/agentprotocol"

	"golang.org/x/sys/unix"
)

// outputGrace is how long the host may take to grant the rest of an ended program's output. What it has not
// granted by then is discarded.
const outputGrace = 10 * time.Second

// streams are both ends of a program's standard streams.
type streams struct {
	theirs [3]*os.File
	stdin  *os.File // the agent's end
	stdout *os.File
	stderr *os.File // nil with a terminal
}

// runProgram runs a program in a launcher of its own.
func (r *request) runProgram(program agentprotocol.Program) error {
	before := memoryKills(r.server.currentPlan())
	s, err := r.openStreams(program.Size)
	if err != nil {
		return err
	}
	defer s.closeStreams()
	ours, theirs, err := socketPair()
	if err != nil {
		return err
	}
	defer ours.Close()
	p, err := startLauncher(theirs, s.theirs, r.server.launcherUser())
	theirs.Close()
	for _, f := range s.theirs {
		f.Close()
	}
	if err != nil {
		return err
	}
	var control sync.Mutex
	tell := func(k agentprotocol.Kind, body []byte) error {
		control.Lock()
		defer control.Unlock()
		return agentprotocol.Write(ours, agentprotocol.Frame{Kind: k, ID: 1, Body: body})
	}
	err = errors.Join(tell(agentprotocol.Setup, r.server.currentPlan().Body()),
		tell(agentprotocol.Start, program.Body()))
	var first agentprotocol.Frame
	if err == nil {
		first, err = agentprotocol.Read(ours)
	}
	if err != nil || first.Kind != agentprotocol.Ready {
		return startFailure(p, first, err)
	}
	r.setHandlers(func(number uint8) {
		if unix.Signal(number) == unix.SIGKILL {
			p.Kill()
		} else {
			tell(agentprotocol.Signal, []byte{number})
		}
	}, s)
	defer r.setHandlers(nil, nil)
	r.sendReply(agentprotocol.Ready, nil)
	return r.addKills(before, r.relayProgram(p, ours, s))
}

// relayProgram relays the output of a running program until it has ended.
func (r *request) relayProgram(p *os.Process, control *os.File, s *streams) error {
	var output sync.WaitGroup
	output.Go(func() { r.sendAll(agentprotocol.Stdout, s.stdout, r.stdout) })
	if s.stderr != nil {
		output.Go(func() { r.sendAll(agentprotocol.Stderr, s.stderr, r.stderr) })
	} else {
		r.sendReply(agentprotocol.Stderr, nil)
	}
	go r.relayStdin(s)
	last, err := agentprotocol.Read(control)
	for err == nil && last.Kind == agentprotocol.Judged {
		r.sendReply(agentprotocol.Judged, last.Body)
		last, err = agentprotocol.Read(control)
	}
	if _, waitErr := p.Wait(); waitErr != nil {
		return waitErr
	}
	late := time.AfterFunc(outputGrace, func() {
		r.stdout.Close()
		r.stderr.Close()
	})
	output.Wait()
	late.Stop()
	switch {
	case err != nil:
		// The launcher was killed before it could report, and the program with it.
		return ended{agentprotocol.ExitStatus{Signal: uint8(unix.SIGKILL)}}
	case last.Kind == agentprotocol.Exit:
		e, err := agentprotocol.ParseExitStatus(last.Body)
		if err != nil {
			return err
		}
		return ended{e}
	}
	return startFailure(nil, last, nil)
}

// relayStdin relays standard input. It ignores errors, because a program need not read its input.
func (r *request) relayStdin(s *streams) {
	r.receiveAll(s.stdin)
	if s.stderr != nil {
		s.stdin.Close()
		return
	}
	s.stdin.Write([]byte{4}) // end of transmission, as typed at a keyboard
}

// startFailure returns why the program could not be started, in the launcher's words if it sent any.
func startFailure(p *os.Process, f agentprotocol.Frame, err error) error {
	if p != nil {
		p.Kill()
		p.Wait()
	}
	if err != nil {
		return fmt.Errorf("start the program: its launcher ended: %w", err)
	}
	if f.Kind != agentprotocol.Failed {
		return fmt.Errorf("start the program: unexpected frame of kind %d", f.Kind)
	}
	why, err := agentprotocol.ParseFailure(f.Body)
	if err != nil {
		return err
	}
	return why
}

// setHandlers sets the handlers of the host's Signal and Resize frames; nil removes them. A request that was
// killed before is killed at once.
func (r *request) setHandlers(signal func(uint8), s *streams) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.signal, r.resize = signal, nil
	if signal != nil && r.killed {
		signal(uint8(unix.SIGKILL))
	}
	if s != nil && s.stderr == nil {
		r.resize = func(size agentprotocol.Size) { setSize(s.stdout, size) }
	}
}

// startLauncher starts a launcher. While it is forked, the calling thread has the real user id own, which grants
// nothing: the kernel counts the threads of a launcher against RLIMIT_NPROC of its real user, and with one
// user for all it would count those of all launchers and of the agent together.
func startLauncher(control *os.File, files [3]*os.File, own int) (*os.Process, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if own != 0 {
		if err := realUser(own); err != nil {
			return nil, err
		}
		defer realUser(0)
	}
	// The calling thread need not outlive its child: when the agent ends, so does its whole PID namespace.
	return os.StartProcess("/proc/self/exe", []string{launcherName}, &os.ProcAttr{
		Env:   []string{"GOMAXPROCS=1"},
		Files: []*os.File{files[0], files[1], files[2], control},
		Sys:   &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS},
	})
}

// realUser changes the real user id of the calling thread, and none of its permissions. It makes the raw
// system call because the functions of the standard library change all threads.
func realUser(id int) error {
	const same = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(id), same, same); errno != 0 {
		return sysErr("setresuid", strconv.Itoa(id), errno)
	}
	return nil
}

// User ids of launchers lie above those of the code and below those that are reserved in every sandbox.
// Launchers with the same id share a process count.
const (
	firstLauncherUser = 32768
	launcherUsers     = 16384
)

// launcherUser returns the real user id of the next launcher, or 0 if the sandbox has a single user.
func (d *server) launcherUser() int {
	if d.currentPlan().SingleUser {
		return 0
	}
	return firstLauncherUser + int(d.launchers.Add(1)%launcherUsers)
}

func socketPair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, sysErr("socketpair", "AF_UNIX", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, nil, sysErr("fcntl", "O_NONBLOCK", err)
	}
	return os.NewFile(uintptr(fds[0]), "control"), os.NewFile(uintptr(fds[1]), "control"), nil
}

func (r *request) openStreams(size agentprotocol.Size) (*streams, error) {
	if size != (agentprotocol.Size{}) {
		return r.openTerminal(size)
	}
	s := &streams{}
	for i, ours := range []**os.File{&s.stdin, &s.stdout, &s.stderr} {
		in, out, err := os.Pipe()
		if err != nil {
			s.closeStreams()
			return nil, err
		}
		if i == 0 {
			*ours, s.theirs[i] = out, in
		} else {
			*ours, s.theirs[i] = in, out
		}
		// The code's user may open these again through /dev/stdout.
		if !r.server.currentPlan().SingleUser {
			if err := s.theirs[i].Chown(int(r.server.currentPlan().UID), int(r.server.currentPlan().GID)); err != nil {
				s.closeStreams()
				return nil, err
			}
		}
	}
	return s, nil
}

func (r *request) openTerminal(size agentprotocol.Size) (*streams, error) {
	fd, err := unix.Open("/dev/pts/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, sysErr("open", "/dev/pts/ptmx", err)
	}
	master := os.NewFile(uintptr(fd), "terminal")
	s := &streams{stdin: master, stdout: master}
	var unlock int32
	if err := ioctl(fd, unix.TIOCSPTLCK, unsafe.Pointer(&unlock)); err != nil {
		s.closeStreams()
		return nil, sysErr("ioctl", "TIOCSPTLCK", err)
	}
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER,
		unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		s.closeStreams()
		return nil, sysErr("ioctl", "TIOCGPTPEER", errno)
	}
	slave := os.NewFile(peer, "terminal")
	s.theirs = [3]*os.File{slave, slave, slave}
	if !r.server.currentPlan().SingleUser {
		if err := slave.Chown(int(r.server.currentPlan().UID), int(r.server.currentPlan().GID)); err != nil {
			s.closeStreams()
			return nil, err
		}
	}
	setSize(master, size)
	return s, nil
}

func setSize(terminal *os.File, size agentprotocol.Size) {
	conn, err := terminal.SyscallConn()
	if err != nil {
		return
	}
	conn.Control(func(fd uintptr) {
		unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Rows, Col: size.Cols})
	})
}

// closeStreams closes all streams. Closing a stream twice is harmless.
func (s *streams) closeStreams() {
	for _, f := range append(s.theirs[:], s.stdin, s.stdout, s.stderr) {
		if f != nil {
			f.Close()
		}
	}
}
