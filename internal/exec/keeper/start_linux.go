package keeper

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

const (
	self     = "/proc/self/exe"
	marker   = "gatehouse-keeper: ends a program with its host"
	socketFD = 3

	mostPlan   = 16 << 20
	startWait  = 30 * time.Second       // for a keeper to say that the program runs
	watchPause = 100 * time.Millisecond // before a watcher that was killed is replaced

	planUnread = 2 // exit code of a keeper that has started nothing; that of Go's runtime too if it cannot start

	leaveWait = 8 * time.Second // for a keeper to leave when nothing is left of the program
)

// plan is what a keeper does.
type plan struct {
	Path    string   // the program; "" to watch Groups
	Args    []string // with the name
	Env     []string
	Session bool // it leads a session, whose terminal is its standard input; otherwise a process group

	Limit uint64 // marks what comes of the program; 0 is no mark

	Files int         // that follow the socket, and in the program standard error
	Space *namespaces // namespaces of the program; nil for those of the keeper

	Groups []string // folders of control groups
	Empty  []string // control groups that are removed in the end, with those in them, if there are no processes in them
	Prefix string   // of the names of those that belong to the host
}

// namespaces is the part of syscall.SysProcAttr that makes namespaces.
type namespaces struct {
	Flags     uintptr
	Users     []syscall.SysProcIDMap
	Groups    []syscall.SysProcIDMap
	Setgroups bool
	Ambient   []uintptr
}

// Kept is a program below its keeper. Safe for concurrent use, except that Await and Leave are called once.
type Kept struct {
	Cmd  *exec.Cmd // the keeper
	conn *os.File

	pid     int
	once    sync.Once
	end     End
	endOnce sync.Once
	late    *time.Timer // kills a keeper that does not leave; set by End
}

// Start starts what cmd describes below a keeper. Of SysProcAttr it uses Setsid, with which the program gets its
// standard input as terminal. The error is ErrNone if there is no keeper, ErrKilled if the keeper was killed before it
// could answer, or why the program could not be started, as cmd.Start would say it.
func Start(cmd *exec.Cmd) (*Kept, error) {
	if cmd.Err != nil {
		return nil, cmd.Err
	}
	p := plan{Path: cmd.Path, Args: cmd.Args, Env: cmd.Environ(), Limit: ownMark(),
		Session: cmd.SysProcAttr != nil && cmd.SysProcAttr.Setsid, Files: len(cmd.ExtraFiles)}
	if a := cmd.SysProcAttr; a != nil && a.Cloneflags != 0 {
		p.Space = &namespaces{a.Cloneflags, a.UidMappings, a.GidMappings, a.GidMappingsEnableSetgroups, a.AmbientCaps}
	}
	k, err := startKept(p, &exec.Cmd{Dir: cmd.Dir, Stdin: cmd.Stdin, Stdout: cmd.Stdout, Stderr: cmd.Stderr,
		ExtraFiles: cmd.ExtraFiles})
	if err != nil {
		return nil, err
	}
	var answer [8]byte
	k.conn.SetReadDeadline(time.Now().Add(startWait))
	_, err = io.ReadFull(k.conn, answer[:])
	k.conn.SetReadDeadline(time.Time{})
	errno := syscall.Errno(binary.LittleEndian.Uint32(answer[4:]))
	switch {
	case err != nil:
		err = ErrKilled
	case errno != 0:
		err = &os.PathError{Op: "fork/exec", Path: cmd.Path, Err: errno}
	default:
		k.pid = int(binary.LittleEndian.Uint32(answer[:]))
		return k, nil
	}
	k.Leave()
	if err == ErrKilled && k.Cmd.ProcessState.ExitCode() == planUnread {
		err = fmt.Errorf("%w: it could not read its plan", ErrNone)
	}
	return nil, err
}

// startKept starts a keeper and hands it its plan.
func startKept(p plan, cmd *exec.Cmd) (*Kept, error) {
	b, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNone, err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "keeper"), os.NewFile(uintptr(fds[1]), "host")
	defer theirs.Close()
	cmd.Path, cmd.Args, cmd.Env = self, []string{"gatehouse", marker}, []string{}
	cmd.ExtraFiles = append([]*os.File{theirs}, cmd.ExtraFiles...)
	// No signal to the host's group or terminal is for the keeper. If the program has stopped it,
	// the kernel has it go on when the host ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGCONT}
	starting.RLock()
	err = cmd.Start()
	if err == nil {
		registerMark(cmd.Process.Pid)
	}
	starting.RUnlock()
	if err != nil {
		ours.Close()
		if pe, ok := errors.AsType[*os.PathError](err); ok && pe.Op == "chdir" {
			return nil, err
		}
		return nil, fmt.Errorf("%w: %w", ErrNone, err)
	}
	k := &Kept{Cmd: cmd, conn: ours}
	ours.SetWriteDeadline(time.Now().Add(startWait))
	if _, err = ours.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(b)))); err == nil {
		_, err = ours.Write(b)
	}
	ours.SetWriteDeadline(time.Time{})
	if err != nil {
		k.Leave()
		return nil, fmt.Errorf("%w: %w", ErrNone, err)
	}
	return k, nil
}

// Pid is the number of the program, and of its group.
func (k *Kept) Pid() int { return k.pid }

// Await waits for the end of the program. What came of it goes on, and its number stays its own until Leave.
func (k *Kept) Await() End {
	k.once.Do(func() {
		b, _ := io.ReadAll(io.LimitReader(k.conn, endSize))
		if len(b) == endSize {
			k.end = decodeEnd(b)
		} else {
			k.end = End{Code: -1, Signal: int(syscall.SIGKILL)}
		}
	})
	return k.end
}

// End has the keeper end the program, what is left of it, and itself. It does not wait for that.
func (k *Kept) End() {
	k.endOnce.Do(func() {
		if raw, err := k.conn.SyscallConn(); err == nil {
			raw.Control(func(fd uintptr) { syscall.Shutdown(int(fd), syscall.SHUT_WR) })
		}
		k.Cmd.Process.Signal(syscall.SIGCONT) // the program may have stopped it
		k.late = time.AfterFunc(leaveWait, func() { k.Cmd.Process.Kill() })
	})
}

// Leave waits for the end of the keeper and of what is left of the program. If the keeper was killed, Leave ends what
// it finds by the mark. It reports whether the keeper could do its work: otherwise something may be left.
func (k *Kept) Leave() (done bool) {
	k.End()
	err := k.Cmd.Wait()
	unregister(k.Cmd.Process.Pid)
	k.late.Stop()
	k.conn.Close()
	if err != nil {
		endStrays()
	}
	return err == nil
}

// Watch starts a keeper that ends the control groups below some folders whose names have a prefix, when this process
// has ended, and removes others that are empty then. It is not ended before; if it is killed, another one is started in its place.
func Watch(folders []string, prefix string, empty []string) error {
	p := plan{Groups: folders, Prefix: prefix, Empty: empty}
	k, err := startKept(p, &exec.Cmd{Dir: "/"})
	if err != nil {
		return err
	}
	go func() { // as long as this process runs; it holds the socket open
		for ; err == nil; k, err = startKept(p, &exec.Cmd{Dir: "/"}) {
			k.Cmd.Wait()
			unregister(k.Cmd.Process.Pid)
			k.conn.Close()
			time.Sleep(watchPause)
		}
	}()
	return nil
}

const endSize = 20

func encodeEnd(e End) []byte {
	b := binary.LittleEndian.AppendUint32(nil, 1)
	b = binary.LittleEndian.AppendUint32(b, uint32(int32(e.Code)))
	b = binary.LittleEndian.AppendUint32(b, uint32(e.Signal))
	return binary.LittleEndian.AppendUint64(b, uint64(e.CPU))
}

func decodeEnd(b []byte) End {
	return End{
		Seen:   true,
		Code:   int(int32(binary.LittleEndian.Uint32(b[4:]))),
		Signal: int(binary.LittleEndian.Uint32(b[8:])),
		CPU:    int64(binary.LittleEndian.Uint64(b[12:])),
	}
}
