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

// lastWords is how long the host may take to grant what an ended program said
// last. What it did not grant by then is thrown away.
const lastWords = 10 * time.Second

// streams are the ends of a program's standard streams.
type streams struct {
	theirs [3]*os.File
	stdin  *os.File // ours
	stdout *os.File
	stderr *os.File // nil with a terminal
}

// runProgram runs a program on a stage of its own.
func (r *request) runProgram(program agentprotocol.Program) error {
	before := memoryKills(r.desk.current())
	s, err := r.openStreams(program.Size)
	if err != nil {
		return err
	}
	defer s.close()
	ours, theirs, err := socketPair()
	if err != nil {
		return err
	}
	defer ours.Close()
	p, err := startStage(theirs, s.theirs, r.desk.stageUser())
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
	err = errors.Join(tell(agentprotocol.Setup, r.desk.current().Body()), tell(agentprotocol.Start, program.Body()))
	var first agentprotocol.Frame
	if err == nil {
		first, err = agentprotocol.Read(ours)
	}
	if err != nil || first.Kind != agentprotocol.Ready {
		return notStarted(p, first, err)
	}
	r.command(func(number uint8) {
		if unix.Signal(number) == unix.SIGKILL {
			p.Kill()
		} else {
			tell(agentprotocol.Signal, []byte{number})
		}
	}, s)
	defer r.command(nil, nil)
	r.send(agentprotocol.Ready, nil)
	return r.countKills(before, r.attend(p, ours, s))
}

// attend passes on what a running program says until it has ended.
func (r *request) attend(p *os.Process, control *os.File, s *streams) error {
	var output sync.WaitGroup
	output.Go(func() { r.sendAll(agentprotocol.Stdout, s.stdout, r.stdout) })
	if s.stderr != nil {
		output.Go(func() { r.sendAll(agentprotocol.Stderr, s.stderr, r.stderr) })
	} else {
		r.send(agentprotocol.Stderr, nil)
	}
	go r.typeIn(s)
	last, err := agentprotocol.Read(control)
	if _, waitErr := p.Wait(); waitErr != nil {
		return waitErr
	}
	late := time.AfterFunc(lastWords, func() {
		r.stdout.End()
		r.stderr.End()
	})
	output.Wait()
	late.Stop()
	switch {
	case err != nil:
		// The stage was killed before it could tell, and the program with it.
		return ended{agentprotocol.Ended{Signal: uint8(unix.SIGKILL)}}
	case last.Kind == agentprotocol.Exit:
		e, err := agentprotocol.ParseEnded(last.Body)
		if err != nil {
			return err
		}
		return ended{e}
	}
	return notStarted(nil, last, nil)
}

// typeIn passes on what the host types. A program that does not read it is not
// an error.
func (r *request) typeIn(s *streams) {
	r.receiveAll(s.stdin)
	if s.stderr != nil {
		s.stdin.Close()
		return
	}
	s.stdin.Write([]byte{4}) // end of transmission, as at a keyboard
}

// notStarted is why, in the words of the stage if it had any.
func notStarted(p *os.Process, f agentprotocol.Frame, err error) error {
	if p != nil {
		p.Kill()
		p.Wait()
	}
	if err != nil {
		return fmt.Errorf("the program could not be started, since the process that starts it ended: %w", err)
	}
	if f.Kind != agentprotocol.Failed {
		return fmt.Errorf("the program could not be started: a frame of kind %d came", f.Kind)
	}
	why, err := agentprotocol.ParseFailure(f.Body)
	if err != nil {
		return err
	}
	return why
}

// command sets what the host's signals and sizes do; nil ends that. Whoever
// was to be killed before it could be is killed now.
func (r *request) command(signal func(uint8), s *streams) {
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

// startStage starts one. It is born of a thread that is, for a moment and by
// name alone, a user of its own: the kernel counts the threads of a stage
// against the limit of processes that the stage takes on for its program, and
// would count those of all stages and of the agent together.
func startStage(control *os.File, files [3]*os.File, own int) (*os.Process, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if own != 0 {
		if err := realUser(own); err != nil {
			return nil, err
		}
		defer realUser(0)
	}
	// The kernel's limit on what a thread's children may outlive does not
	// matter here: when this process ends, so does its whole space.
	return os.StartProcess("/proc/self/exe", []string{stageName}, &os.ProcAttr{
		Env:   []string{"GOMAXPROCS=1"},
		Files: []*os.File{files[0], files[1], files[2], control},
		Sys:   &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS},
	})
}

// realUser changes whose the calling thread is called, and nothing of what it
// may do. Those of the standard library would do it to all threads.
func realUser(id int) error {
	const same = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(id), same, same); errno != 0 {
		return call("setresuid", strconv.Itoa(id), errno)
	}
	return nil
}

// Users of stages, beyond those that code may be and below what every sandbox
// has: who shares one with another stage shares what is counted.
const (
	firstStageUser = 32768
	stageUsers     = 16384
)

// stageUser is whose the next stage is called; 0 where there are no users to
// choose from.
func (d *desk) stageUser() int {
	if d.current().OneUser {
		return 0
	}
	return firstStageUser + int(d.stages.Add(1)%stageUsers)
}

func socketPair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, call("socketpair", "AF_UNIX", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, nil, call("fcntl", "O_NONBLOCK", err)
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
			s.close()
			return nil, err
		}
		if i == 0 {
			*ours, s.theirs[i] = out, in
		} else {
			*ours, s.theirs[i] = in, out
		}
		// The user of the code opens these anew by way of /dev/stdout.
		if !r.desk.current().OneUser {
			if err := s.theirs[i].Chown(int(r.desk.current().UID), int(r.desk.current().GID)); err != nil {
				s.close()
				return nil, err
			}
		}
	}
	return s, nil
}

func (r *request) openTerminal(size agentprotocol.Size) (*streams, error) {
	fd, err := unix.Open("/dev/pts/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, call("open", "/dev/pts/ptmx", err)
	}
	master := os.NewFile(uintptr(fd), "terminal")
	s := &streams{stdin: master, stdout: master}
	var unlock int32
	if err := ioctl(fd, unix.TIOCSPTLCK, unsafe.Pointer(&unlock)); err != nil {
		s.close()
		return nil, call("ioctl", "TIOCSPTLCK", err)
	}
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		s.close()
		return nil, call("ioctl", "TIOCGPTPEER", errno)
	}
	slave := os.NewFile(peer, "terminal")
	s.theirs = [3]*os.File{slave, slave, slave}
	if !r.desk.current().OneUser {
		if err := slave.Chown(int(r.desk.current().UID), int(r.desk.current().GID)); err != nil {
			s.close()
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

// close lets go of everything; what is closed already is left alone.
func (s *streams) close() {
	for _, f := range append(s.theirs[:], s.stdin, s.stdout, s.stderr) {
		if f != nil {
			f.Close()
		}
	}
}
