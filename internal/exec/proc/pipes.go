package proc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// pipes copies data between the child and readers or writers that are not files. exec.Cmd could do
// that, but it would not distinguish the child's end from the end of its output.
type pipes struct {
	theirs []*os.File // the child's ends; closed in this process after the child has them
	ours   []*os.File
	copies []func()

	out  sync.WaitGroup // running copies of output
	over chan struct{}  // closed when those have ended

	mu  sync.Mutex
	err error
}

// openPipes sets the command's three files.
func (p *pipes) openPipes(cmd *exec.Cmd, spec Spec) (err error) {
	p.over = make(chan struct{})
	defer func() {
		if err != nil {
			p.started(false)
		}
	}()
	if cmd.Stdin, err = p.input(spec.Stdin); err != nil {
		return err
	}
	if cmd.Stdout, err = p.output(spec.Stdout); err != nil {
		return err
	}
	if same(spec.Stdout, spec.Stderr) {
		cmd.Stderr = cmd.Stdout
		return nil
	}
	cmd.Stderr, err = p.output(spec.Stderr)
	return err
}

// same compares writers of any type, including types that are not comparable.
func same(a, b io.Writer) (equal bool) {
	defer func() { recover() }()
	return a != nil && a == b
}

func (p *pipes) input(from io.Reader) (io.Reader, error) {
	if f, ok := from.(*os.File); ok || from == nil {
		if f == nil {
			return nil, nil
		}
		return f, nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.theirs, p.ours = append(p.theirs, r), append(p.ours, w)
	p.copies = append(p.copies, func() {
		_, err := io.Copy(w, from)
		w.Close()
		// The child may end, or close its input, before all input is read.
		if err != nil && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, os.ErrClosed) && !isPipeGone(err) {
			p.fail(fmt.Errorf("input: %w", err))
		}
	})
	return r, nil
}

func (p *pipes) output(to io.Writer) (io.Writer, error) {
	if f, ok := to.(*os.File); ok || to == nil {
		if f == nil {
			return nil, nil
		}
		return f, nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.theirs, p.ours = append(p.theirs, w), append(p.ours, r)
	p.out.Add(1)
	p.copies = append(p.copies, func() {
		defer p.out.Done()
		err := pass(to, r)
		r.Close() // the child gets EPIPE if it continues to print
		if err != nil && !errors.Is(err, os.ErrClosed) {
			p.fail(fmt.Errorf("output: %w", err))
		}
	})
	return w, nil
}

// pass copies all data, and flushes.
func pass(to io.Writer, from io.Reader) error {
	_, err := io.Copy(to, from)
	if f, ok := to.(interface{ Flush() error }); ok {
		err = errors.Join(err, f.Flush())
	}
	return err
}

// started closes the child's ends, and starts to copy if the child was started.
func (p *pipes) started(ok bool) {
	for _, f := range p.theirs {
		f.Close()
	}
	p.theirs = nil
	if !ok {
		p.close()
		return
	}
	for _, c := range p.copies {
		go c()
	}
	go func() {
		p.out.Wait()
		close(p.over)
	}()
}

// waitForEnd reports whether all output arrived within d.
func (p *pipes) waitForEnd(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-p.over:
		return true
	case <-t.C:
		return false
	}
}

// close ends the copies, except for one that a Reader or Writer blocks.
func (p *pipes) close() {
	for _, f := range p.ours {
		f.Close()
	}
}

func (p *pipes) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = errors.Join(p.err, err)
}

func (p *pipes) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}
