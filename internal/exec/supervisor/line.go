//go:build linux && (amd64 || arm64)

package supervisor

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// plan is what a supervisor is told.
type plan struct {
	Spec
	Folders    []string // those of programs, without links
	Files      []known
	Executable []string // what Landlock lets the line start; nil means everything
}

const (
	maxPlan    = 8 << 20
	probeWait  = 20 * time.Second
	reportWait = 2 * time.Second // for the rest of a report after the supervisor has ended
)

// New prepares a line.
func New(s Spec) (*Line, error) {
	p, err := newPlan(s)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "supervisor"), os.NewFile(uintptr(fds[1]), "supervisor")
	l := &Line{
		Path: "/proc/self/exe", Args: []string{marker}, Env: []string{"GOTRACEBACK=none"},
		Files: []*os.File{theirs}, ours: ours, each: s.Each, done: make(chan struct{}),
	}
	go l.exchange(body)
	return l, nil
}

// Started is called when the process of the line was started, or could not be.
func (l *Line) Started() {
	for _, f := range l.Files {
		f.Close()
	}
}

// exchange sends the plan and reads the report.
func (l *Line) exchange(body []byte) {
	defer close(l.done)
	size := binary.LittleEndian.AppendUint32(nil, uint32(len(body)))
	if _, err := l.ours.Write(append(size, body...)); err != nil {
		return
	}
	l.report = ReadReport(l.ours, l.each)
}

// Close waits for the rest of the report.
func (l *Line) Close() Report {
	l.ours.SetDeadline(time.Now().Add(reportWait))
	<-l.done
	l.ours.Close()
	return l.report
}

// available is tried once, because what the kernel offers to a process does not grow.
var available = sync.OnceValue(probe)

// Available reports whether lines can be supervised on this machine. It tries one.
func Available(context.Context) error { return available() }

func probe() error {
	// The line starts this program, which starts itself once more and then may not: see probeLine.
	l, err := New(Spec{Argv: []string{"/proc/self/exe", marker, probeFirst}, Deny: []string{"* * " + probeRefused}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, l.Path, l.Args...)
	cmd.Env, cmd.ExtraFiles, cmd.Dir = l.Env, l.Files, "/"
	err = cmd.Start()
	l.Started()
	if err == nil {
		err = cmd.Wait()
	}
	r := l.Close()
	switch {
	case r.Failed != "":
		return fmt.Errorf("%w: %s", ErrNone, r.Failed)
	case len(r.Refused) > 0 && r.Refused[0].Pattern == "":
		return fmt.Errorf("%w: %s", ErrNone, r.Refused[0].Refused)
	case err != nil:
		return fmt.Errorf("%w: the attempt failed: %w", ErrNone, err)
	case len(r.Refused) != 1:
		return fmt.Errorf("%w: %d programs of an attempt were refused, not 1", ErrNone, len(r.Refused))
	}
	return nil
}

// The steps of a line that tries what the kernel offers.
const (
	probeFirst   = "first"
	probeSecond  = "second"
	probeRefused = "refused"
)

// probeLine is the line of probe. It returns the exit code of the process.
func probeLine(step string) int {
	next := map[string]string{probeFirst: probeSecond, probeSecond: probeRefused}[step]
	if next == "" {
		return 0
	}
	err := unix.Exec("/proc/self/exe", []string{"/proc/self/exe", marker, next}, os.Environ())
	if next == probeRefused && err == unix.EACCES {
		return 0
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}
