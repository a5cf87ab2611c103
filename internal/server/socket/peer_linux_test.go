package socket

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

const nobody = 65534

// asOtherUser runs do on a thread that changes its user permanently, and therefore ends with it.
func asOtherUser(t *testing.T, do func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
			done <- errno
			return
		}
		do()
		done <- nil
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// Processes of other users cannot get beyond the socket: its folder and its mode exclude them, and if
// both were opened, the kernel reports their user.
func TestOtherUsersAreTurnedAway(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become another user")
	}
	ln, path := listenUnix(t)
	open(t, ln, nil, Options{})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Chmod(filepath.Dir(filepath.Dir(path)), 0o755))
	ask := func() string {
		conn, err := net.Dial("unix", path)
		if err != nil {
			return "no connection"
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(time.Minute))
		fmt.Fprintln(conn, hello) // may arrive too late to be read
		conn.(*net.UnixConn).CloseWrite()
		said, _ := io.ReadAll(conn) // a refused peer is disconnected
		return string(said)
	}
	for _, c := range []struct {
		folder, socket os.FileMode
		want           string
	}{
		{0o700, 0o600, "no connection"}, {0o755, 0o600, "no connection"}, {0o700, 0o666, "no connection"},
		{0o755, 0o666, "user 65534 may not connect"},
	} {
		must(os.Chmod(filepath.Dir(path), c.folder))
		must(os.Chmod(path, c.socket))
		got := ""
		asOtherUser(t, func() { got = ask() })
		if !strings.Contains(got, c.want) || strings.Contains(got, "protocolVersion") {
			t.Errorf("folder %o, socket %o: got %s, want %s", c.folder, c.socket, got, c.want)
		}
		if got := ask(); !strings.Contains(got, "protocolVersion") {
			t.Errorf("folder %o, socket %o, its own user: %s", c.folder, c.socket, got)
		}
	}
}
