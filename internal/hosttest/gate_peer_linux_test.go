package hosttest_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

const nobodysUID = 65534

// asNobody does something on a thread that is another user's for good, and so
// ends with it.
func asNobody(t *testing.T, do func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked
		_, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, nobodysUID, nobodysUID, nobodysUID)
		if errno == 0 {
			do()
			done <- nil
			return
		}
		done <- errno
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// Processes of other users come no further than the socket: its folder and its
// mode keep them out, and should somebody have opened both, the kernel says who
// they are.
func TestOtherUsersAreTurnedAway(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can be somebody else for a while")
	}
	g := guardedGate(t, false)
	dial := func() string {
		conn, err := net.Dial("unix", g.cfg.Doors.Unix)
		if err != nil {
			return "no connection"
		}
		defer conn.Close()
		l := &byLine{t: t, dial: func() (net.Conn, error) { return conn, nil }}
		return fmt.Sprint(l.open(), " ", l.session.ask(modernEra, "tools/list", "", ""))
	}
	for _, c := range []struct {
		folder, socket os.FileMode
		want           string
	}{{0o700, 0o600, "no connection"}, {0o755, 0o600, "no connection"}, {0o755, 0o666, "-32603 closed"}} {
		must(t, os.Chmod(filepath.Dir(g.cfg.Doors.Unix), c.folder))
		must(t, os.Chmod(g.cfg.Doors.Unix, c.socket))
		got := ""
		asNobody(t, func() { got = dial() })
		if got != c.want && !(c.socket == 0o666 && strings.HasSuffix(got, "closed")) {
			t.Errorf("folder %o, socket %o: got %s, want %s", c.folder, c.socket, got, c.want)
		}
		if got := dial(); got != "ok ok" {
			t.Errorf("its own user: %s", got)
		}
	}
}
