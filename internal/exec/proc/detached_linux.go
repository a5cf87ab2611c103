package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"gatehouse/internal/exec/procid"
	"gatehouse/internal/exec/shield"

	"golang.org/x/sys/unix"
)

// keptPrefix is the prefix of the names of groups that outlive a host.
const keptPrefix = leafPrefix + "kept-"

// Detached is a process that does not end with its host. It is safe for concurrent use.
type Detached struct {
	mark  Mark
	whole whole
	grace time.Duration
	began time.Time
	child bool     // child of this host, so that its exit status can be read
	pidfd *os.File // readable when the process has ended
	done  chan struct{}
	state State
	over  chan struct{} // closed when followToEnd has returned

	mu      sync.Mutex
	reaped  bool
	stopped error
}

// Detach starts a process that continues after the host ends. Stdin must be nil or a file, Stdout and
// Stderr must be files; Input and Terminal are ignored. Whole is implied. The caller must call Leave,
// or wait for Done.
func Detach(spec Spec) (*Detached, error) {
	d := &Detached{grace: spec.Grace, whole: whole{kept: true}}
	started := make(chan error)
	shield.Thread(func() (spoilt bool) { // the thread enters the groups of version 1
		spoilt, err := d.start(spec)
		started <- err
		return spoilt
	})
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Path, explain(err, spec.Dir))
	}
	return d, nil
}

func (d *Detached) start(spec Spec) (spoilt bool, err error) {
	cmd := exec.Command(spec.Path, spec.Args...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = spec.Dir, spec.Env, &syscall.SysProcAttr{Setsid: true}
	if spec.Env == nil {
		cmd.Env = BaseEnv()
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = spec.Stdin, spec.Stdout, spec.Stderr
	d.whole.prepare(cmd, &spec)
	d.began = time.Now()
	if err := spec.enterSandbox(cmd); err != nil {
		d.whole.close()
		return false, err
	}
	if spoilt, err = d.whole.launch(&cmd, &spec); err != nil {
		d.whole.close()
		return spoilt, err
	}
	pid := cmd.Process.Pid
	cmd.Process.Release() // followToEnd waits for it
	d.child = true
	d.mark = Mark{Pid: pid, Born: procid.Of(pid), Boot: boot(), V2: d.whole.v2, V1: d.whole.v1, Label: d.whole.marked}
	if err := d.followToEnd(); err != nil {
		syscall.Kill(-pid, syscall.SIGKILL)
		d.whole.kill()
		syscall.Wait4(pid, nil, 0, nil)
		d.whole.close()
		return spoilt, err
	}
	return spoilt, nil
}

// FindDetached returns a process that an earlier host detached. ErrGone means that it has ended; then Find also
// ends its remaining descendants.
func FindDetached(m Mark, grace time.Duration) (*Detached, error) {
	for _, group := range []string{m.V2, m.V1} {
		if group != "" && !strings.HasPrefix(filepath.Base(group), keptPrefix) {
			return nil, fmt.Errorf("%q is no group of a detached process", group)
		}
	}
	d := &Detached{mark: m, grace: grace, whole: whole{v2: m.V2, v1: m.V1, marked: m.Label, kept: true}}
	if m.Boot != boot() {
		return nil, ErrGone
	}
	parent, zombie, there := parentOf(m.Pid)
	d.child = parent == os.Getpid()
	if !there || m.Born == "" || procid.Of(m.Pid) != m.Born || zombie && !d.child {
		d.whole.kill()
		d.whole.close()
		return nil, ErrGone
	}
	if err := d.followToEnd(); err != nil {
		return nil, err
	}
	return d, nil
}

// followToEnd follows the process to its end. The opened descriptor belongs to the right process if
// that process still has its number afterwards.
func (d *Detached) followToEnd() error {
	fd, err := unix.PidfdOpen(d.mark.Pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return errors.Join(ErrNotDetached, err)
	}
	d.pidfd = os.NewFile(uintptr(fd), "process")
	if procid.Of(d.mark.Pid) != d.mark.Born {
		d.pidfd.Close()
		return ErrGone
	}
	if d.grace <= 0 {
		d.grace = defaultGrace
	}
	d.done, d.over = make(chan struct{}), make(chan struct{})
	go d.follow()
	return nil
}

func (d *Detached) follow() {
	defer close(d.over)
	defer d.pidfd.Close()
	raw, err := d.pidfd.SyscallConn()
	if err == nil {
		err = raw.Read(func(fd uintptr) bool {
			n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			return n == 1
		})
	}
	if err != nil {
		return // Leave was called
	}
	d.whole.kill()
	bury(d.mark.Pid)
	d.mu.Lock()
	d.reap()
	d.state.Stopped = d.stopped
	d.mu.Unlock()
	d.whole.close()
	close(d.done)
}

// reap collects the zombie and its exit status. The caller holds d.mu.
func (d *Detached) reap() {
	d.reaped = true
	d.state = State{Code: -1, Unseen: true}
	if !d.began.IsZero() {
		d.state.Took = time.Since(d.began)
	}
	if !d.child {
		return
	}
	syscall.Kill(-d.mark.Pid, syscall.SIGKILL) // the zombie still occupies the number
	var status syscall.WaitStatus
	var usage syscall.Rusage
	if pid, err := syscall.Wait4(d.mark.Pid, &status, 0, &usage); err != nil || pid != d.mark.Pid {
		return
	}
	d.state.Unseen, d.state.Code = false, status.ExitStatus()
	d.state.CPU = time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	if status.Signaled() {
		d.state.Code, d.state.Signal = -1, status.Signal().String()
	}
}

// Wait waits for the end and returns the state. The end of a process that was found by Find cannot be
// observed: its State is Unseen.
func (d *Detached) Wait() (State, error) {
	<-d.done
	return d.state, nil
}

// Leave stops following the process, which continues. It does not close Done.
func (d *Detached) Leave() {
	d.pidfd.SetReadDeadline(time.Unix(1, 0))
	<-d.over
}

// Stop asks the process and its descendants to end, and kills them after the grace period or when ctx
// ends. It does nothing after Leave.
func (d *Detached) Stop(ctx context.Context) error {
	select {
	case <-d.over:
		return d.followError()
	default:
	}
	d.signal(ErrStopped, syscall.SIGTERM)
	d.signal(nil, syscall.SIGCONT)
	d.whole.requestEnd()
	grace := time.NewTimer(d.grace)
	defer grace.Stop()
	select {
	case <-d.over:
		return d.followError()
	case <-grace.C:
	case <-ctx.Done():
	}
	d.signal(nil, syscall.SIGKILL)
	d.whole.kill()
	select {
	case <-d.over:
		return d.followError()
	case <-time.After(killWait):
		return fmt.Errorf("process %d was killed and is still there", d.mark.Pid)
	}
}

// Kill kills the process and its descendants at once. It does nothing after Leave.
func (d *Detached) Kill() error {
	d.signal(ErrStopped, syscall.SIGKILL)
	d.whole.kill()
	select {
	case <-d.over:
		return d.followError()
	case <-time.After(killWait):
		return fmt.Errorf("process %d was killed and is still there", d.mark.Pid)
	}
}

// followError returns the error for a process that is no longer followed.
func (d *Detached) followError() error {
	select {
	case <-d.done:
		return nil
	default:
		return fmt.Errorf("process %d is not this host's any more", d.mark.Pid)
	}
}

// signal signals the group while its number certainly belongs to it.
func (d *Detached) signal(why error, s syscall.Signal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.reaped || procid.Of(d.mark.Pid) != d.mark.Born {
		return
	}
	if why != nil && d.stopped == nil {
		d.stopped = why
	}
	syscall.Kill(-d.mark.Pid, s)
}

// Usage returns the sum of the present usage of the process and its descendants.
func (d *Detached) Usage() (Usage, error) { return usageOf(&d.whole, d.mark.Pid) }

// boot identifies the present boot of the system.
var boot = sync.OnceValue(func() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
})

// parentOf returns the parent of a process, and whether the process has ended.
func parentOf(pid int) (parent int, zombie, there bool) {
	stat, err := procid.ReadStat(pid)
	if err != nil {
		return 0, false, false
	}
	parent, err = strconv.Atoi(stat.Field(4))
	return parent, stat.Ended(), err == nil
}

// Free releases the disk space of the beginning of a file; the length of the file does not change.
func Free(f *os.File, until int64) error {
	return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, until)
}
