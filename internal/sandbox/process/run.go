package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"gatehouse/internal/exec/proc"
	"gatehouse/internal/sandbox"
)

const (
	grace     = 250 * time.Millisecond // from asking a program to end to killing it
	longArgv  = 60_000                 // bytes, as in the other drivers
	typeChunk = 4 << 10
)

var (
	errTimeUp = errors.New("the time of the call is up")
	errFull   = errors.New("the program printed too much")
	errKilled = errors.New("the program was killed")
)

// running is a program that was started.
type running struct {
	instance *instance
	proc     *proc.Process
	began    time.Time
	stop     context.CancelCauseFunc
	out      *limitedWriter
	errs     *limitedWriter
	done     chan struct{}
	result   sandbox.Result
	err      error
}

// Exec starts a program as a process of the host.
func (b *instance) Exec(ctx context.Context, c sandbox.Command) (sandbox.Process, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err := checkLength(c); err != nil {
		return nil, err
	}
	if c.Lists != nil {
		return nil, errors.New("the driver process does not judge which programs a command starts")
	}
	if err := b.enter(); err != nil {
		return nil, err
	}
	r, err := b.startProcess(ctx, c)
	if err != nil {
		b.runs.Done()
		return nil, err
	}
	return r, nil
}

func checkLength(c sandbox.Command) error {
	if len(c.Argv) == 0 {
		return errors.New("the command names no program: Argv is empty")
	}
	n := len(c.Dir)
	for _, s := range append(append([]string(nil), c.Argv...), c.Env...) {
		n += len(s)
	}
	if n > longArgv {
		return fmt.Errorf("the arguments and the environment together have %d bytes, which is too long: pass "+
			"long data by standard input or a file", n)
	}
	return nil
}

func (b *instance) startProcess(ctx context.Context, c sandbox.Command) (_ *running, err error) {
	dir, env := b.folder(c.Dir), merged(b.env, c.Env)
	if info, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("working directory: %w", err)
	} else if !info.IsDir() {
		return nil, fmt.Errorf("working directory: %s: %w", dir, syscall.ENOTDIR)
	}
	path, err := lookPath(c.Argv[0], dir)
	if err != nil {
		return nil, err
	}
	// The program ends with the call or the sandbox, whichever ends first.
	life, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	ends := []func() bool{
		context.AfterFunc(ctx, func() { stop(context.Cause(ctx)) }),
		context.AfterFunc(b.life, func() { stop(sandbox.ErrClosed) }),
	}
	r := &running{instance: b, began: time.Now(), stop: stop, done: make(chan struct{})}
	r.out, r.errs = r.sink(c.Stdout, c), r.sink(c.Stderr, c)
	spec := proc.Spec{
		Path:   path,
		Args:   c.Argv[1:],
		Dir:    dir,
		Env:    env,
		Stdout: r.out,
		Stderr: r.errs,
		Grace:  grace,
		Whole:  true,
	}
	if c.Terminal != nil {
		spec.Terminal, spec.Stderr = &proc.Size{Cols: int(c.Terminal.Cols), Rows: int(c.Terminal.Rows)}, nil
	} else {
		spec.Stdin = c.Stdin
	}
	r.proc, err = proc.Start(life, spec)
	if err != nil {
		for _, e := range ends {
			e()
		}
		stop(err)
		return nil, err
	}
	go r.supervise(c, ends)
	return r, nil
}

// lookPath looks up a program as a shell in dir does.
func lookPath(name, dir string) (string, error) {
	if strings.ContainsAny(name, `/\`) && !filepath.IsAbs(name) {
		name = filepath.Join(dir, name)
	}
	path, err := exec.LookPath(name)
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("program %s does not exist: %w", name, fs.ErrNotExist)
	}
	if err != nil {
		return "", err
	}
	return filepath.Abs(path)
}

// supervise ends the program when its time is up, and judges how it ended.
func (r *running) supervise(c sandbox.Command, ends []func() bool) {
	defer r.instance.runs.Done()
	timeout := c.Timeout
	if timeout == 0 {
		timeout = r.instance.limits.Call
	}
	if timeout > 0 {
		t := time.AfterFunc(timeout, func() { r.stop(errTimeUp) })
		defer t.Stop()
	}
	if c.Terminal != nil && c.Stdin != nil {
		go r.typeStdin(c.Stdin)
	}
	state, err := r.proc.Wait()
	for _, e := range ends {
		e()
	}
	if closer, ok := c.Stdin.(io.Closer); ok {
		closer.Close()
	}
	r.judge(state, err)
	r.stop(nil)
	close(r.done)
}

func (r *running) judge(state proc.State, err error) {
	seen := sandbox.Evidence{
		Reaped: true, Code: max(state.Code, 0), Signal: signalNumber(state.Signal),
		TimeUp: errors.Is(state.Stopped, errTimeUp), OutputFull: errors.Is(state.Stopped, errFull),
	}
	full, failed := r.out.ended(r.errs)
	seen.OutputFull = seen.OutputFull || full
	switch {
	case errors.Is(state.Stopped, sandbox.ErrClosed):
		seen = sandbox.Evidence{}
		r.err = sandbox.ErrClosed
	case failed != nil:
		r.err = failed
	case state.Stopped != nil && !errors.Is(state.Stopped, errKilled) && !seen.TimeUp && !seen.OutputFull:
		r.err = state.Stopped
	case state.Stopped == nil && err != nil:
		r.err = err
	}
	if seen.Signal != 0 {
		seen.Code = 0
	}
	r.result = sandbox.Result{
		Outcome: seen.Outcome(), Code: seen.Code, Signal: seen.Signal, Took: time.Since(r.began), CPU: state.CPU,
		StdoutSize: r.out.size(), StderrSize: r.errs.size(),
	}
}

// signalNumber returns the number of a signal with the given name.
func signalNumber(words string) int {
	for n := 1; n <= 64 && words != ""; n++ {
		if syscall.Signal(n).String() == words {
			return n
		}
	}
	return 0
}

func (r *running) typeStdin(from io.Reader) {
	b := make([]byte, typeChunk)
	ctx := context.Background() // Type has a time limit of its own
	for {
		n, err := from.Read(b)
		if n > 0 {
			if _, err := r.proc.Type(ctx, b[:n]); err != nil {
				return
			}
		}
		if err != nil {
			r.proc.CloseInput(ctx)
			return
		}
	}
}

// Signal sends a signal to the program's process group.
func (r *running) Signal(n int) error {
	select {
	case <-r.done:
		return nil
	default:
	}
	if n == 9 {
		gone, cancel := context.WithCancel(context.Background())
		cancel() // an ended context makes Stop kill at once
		go r.proc.Stop(gone)
		return nil
	}
	return signal(r.proc, n)
}

// Resize implements sandbox.Process.
func (r *running) Resize(s sandbox.Size) error {
	return r.proc.Resize(proc.Size{Cols: int(s.Cols), Rows: int(s.Rows)})
}

// Done implements sandbox.Process.
func (r *running) Done() <-chan struct{} { return r.done }

// Wait implements sandbox.Process.
func (r *running) Wait() (sandbox.Result, error) {
	<-r.done
	return r.result, r.err
}

// limitedWriter passes on a stream up to a limit.
type limitedWriter struct {
	to   io.Writer
	stop func(error)
	left int64 // less than 0 means there is no limit

	mu    sync.Mutex
	wrote int64
	full  bool
	err   error
}

func (r *running) sink(to io.Writer, c sandbox.Command) *limitedWriter {
	s := &limitedWriter{to: to, stop: r.stop, left: int64(r.instance.limits.OutputBytes)}
	if c.OutputBytes != 0 {
		s.left = int64(c.OutputBytes)
	}
	return s
}

// Write accepts all data, so that a program that is being ended does not block.
func (s *limitedWriter) Write(b []byte) (int, error) {
	pass := b
	s.mu.Lock()
	if s.left >= 0 && s.wrote+int64(len(b)) > s.left {
		pass = b[:max(s.left-s.wrote, 0)]
		s.full = true
	}
	full, broken := s.full, s.err != nil
	s.mu.Unlock()
	if len(pass) > 0 && !broken && s.to != nil {
		n, err := s.to.Write(pass)
		s.mu.Lock()
		s.wrote, s.err = s.wrote+int64(n), err
		s.mu.Unlock()
		if err != nil {
			s.stop(err)
			return len(b), nil
		}
	} else if s.to == nil {
		s.mu.Lock()
		s.wrote += int64(len(pass))
		s.mu.Unlock()
	}
	if full {
		s.stop(errFull)
	}
	return len(b), nil
}

func (s *limitedWriter) size() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wrote
}

// ended reports whether either stream exceeded its limit, or a Writer failed.
func (s *limitedWriter) ended(other *limitedWriter) (full bool, err error) {
	for _, one := range []*limitedWriter{s, other} {
		one.mu.Lock()
		full, err = full || one.full, errors.Join(err, one.err)
		one.mu.Unlock()
	}
	return full, err
}
