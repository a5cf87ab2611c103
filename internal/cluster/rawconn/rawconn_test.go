package rawconn

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"
)

// TestAConnection carries more than a socket takes at once, in both directions, and ends as connections do.
func TestAConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	a, b := Of(near), Of(far)
	defer a.Close()
	defer b.Close()
	sent := make([]byte, 16<<20)
	for i := range sent {
		sent[i] = byte(rand.Int())
	}
	go func() {
		if n, err := a.Write(sent); n != len(sent) || err != nil {
			t.Errorf("%d of %d bytes were written, %v", n, len(sent), err)
		}
	}()
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(b, got); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("what was read differs: %v", err)
	}
	if n, err := b.Read(nil); n != 0 || err != nil {
		t.Errorf("reading nothing: %d, %v", n, err)
	}

	a.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if _, err := a.Read(got); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after a deadline: %v", err)
	}
	a.SetReadDeadline(time.Time{})
	if _, err := b.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if n, err := a.Read(got); n != 1 || got[0] != 'x' || err != nil {
		t.Errorf("a short answer: %q, %v", got[:n], err)
	}
	a.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)) // what is not read stays
	if n, err := a.Write(sent); n >= len(sent) || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a write that is not read: %d bytes, %v", n, err)
	}
	a.Close()
	if _, err := a.Read(got); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after it was closed: %v", err)
	}
	if _, err := io.Copy(io.Discard, b); err != nil {
		t.Errorf("what was under way: %v", err)
	}
	if n, err := b.Read(got); n != 0 || err != io.EOF {
		t.Errorf("at the end: %d, %v", n, err)
	}
	b.Write([]byte("x"))
	reset := false
	for end := time.Now().Add(10 * time.Second); !reset && time.Now().Before(end); time.Sleep(time.Millisecond) {
		_, err := b.Write([]byte("x"))
		reset = err != nil
	}
	if !reset {
		t.Error("a connection that the other end has closed takes writes")
	}
}
