//go:build unix

package daemon

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// sourceOf returns a source for an input. For a file, it polls the file together with a pipe of its
// own, so that waiting can be ended without reading bytes.
func sourceOf(r io.Reader) feed {
	f, ok := r.(*os.File)
	if !ok {
		return plain{r}
	}
	wake, stop, err := os.Pipe()
	if err != nil {
		return plain{r}
	}
	return &polled{f: f, fd: int(f.Fd()), wake: wake, stop: stop}
}

// polled is a file that is read only when it is readable.
type polled struct {
	f          *os.File // kept, so that the finalizer does not close it
	fd         int
	wake, stop *os.File
}

func (p *polled) interrupt()        { p.stop.Close() }
func (*polled) interruptible() bool { return true }

func (p *polled) read(b []byte) (int, error) {
	wait := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}, {Fd: int32(p.wake.Fd()), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(wait, -1)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, err
		case wait[1].Revents != 0:
			return 0, errInterrupted
		}
		n, err := unix.Read(p.fd, b)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			continue
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		}
		return n, nil
	}
}
