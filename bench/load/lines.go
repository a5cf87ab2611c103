package load

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Lines is a client that speaks in lines. Not safe for concurrent use.
type Lines struct {
	w io.WriteCloser
	r *bufio.Reader
}

// NewLines speaks over two pipes.
func NewLines(r io.Reader, w io.WriteCloser) *Lines {
	return &Lines{w, bufio.NewReaderSize(r, 64<<10)}
}

// DialUnix connects to a socket that is about to be there.
func DialUnix(path string) (*Lines, error) {
	for end := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		conn, err := net.Dial("unix", path)
		if err == nil {
			return NewLines(conn, conn), nil
		}
		if time.Now().After(end) {
			return nil, err
		}
	}
}

// Close hangs up.
func (l *Lines) Close() error { return l.w.Close() }

// Greet shakes hands.
func (l *Lines) Greet() error {
	if _, err := io.WriteString(l.w, initialize+"\n"); err != nil {
		return err
	}
	if line, err := l.r.ReadSlice('\n'); err != nil {
		return fmt.Errorf("initialize: %w: %s", err, clip(line))
	}
	_, err := io.WriteString(l.w, ready+"\n")
	return err
}

// exchange sends a line and reads one.
func (l *Lines) exchange(r *Request) error {
	if _, err := l.w.Write(r.raw); err != nil {
		return err
	}
	line, err := l.r.ReadSlice('\n')
	if err != nil {
		return errors.Join(err, fmt.Errorf("after %s", clip(line)))
	}
	return r.Check(200, line)
}

// Run calls until the time is up.
func (l *Lines) Run(r *Request, d time.Duration) (Figures, error) {
	return run([]exchange{l.exchange}, r, nil, d, 0)
}
