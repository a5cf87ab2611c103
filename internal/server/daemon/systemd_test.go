package daemon

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"os"
)

func vars(m map[string]string) func(string) string { return func(n string) string { return m[n] } }

func TestManagerIsNotified(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Skip("no datagrams over Unix sockets here:", err)
	}
	defer c.Close()
	if err := Notify(vars(map[string]string{"NOTIFY_SOCKET": path}), "READY=1"); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	c.SetReadDeadline(time.Now().Add(testPatience))
	n, err := c.Read(b)
	if string(b[:n]) != "READY=1" {
		t.Errorf("got %q, %v", b[:n], err)
	}
	if err := Notify(vars(nil), "READY=1"); err != nil {
		t.Errorf("without a manager: %v", err)
	}
	if err := Notify(vars(map[string]string{"NOTIFY_SOCKET": path + "x"}), "READY=1"); err == nil {
		t.Error("a missing manager was notified")
	}
}

// The watchdog notifies the manager while the daemon works, and not otherwise.
func TestWatchdogHearsWhileAllIsWell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10500*time.Millisecond)
		defer cancel()
		looked := 0
		Watchdog(ctx, vars(map[string]string{"WATCHDOG_USEC": "2000000"}), func(context.Context) error {
			looked++
			return errors.New("not well")
		})
		if looked != 10 {
			t.Errorf("looked %d times in ten seconds, want 10", looked)
		}
		Watchdog(ctx, vars(nil), nil)
		Watchdog(ctx, vars(map[string]string{"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "1"}), nil)
	})
}

func TestSocketsOfAnotherProcessAreNotTaken(t *testing.T) {
	listeners, err := Passed(vars(map[string]string{"LISTEN_PID": strconv.Itoa(os.Getpid() + 1), "LISTEN_FDS": "3"}))
	if len(listeners) > 0 || err != nil {
		t.Errorf("got %v, %v", listeners, err)
	}
	_, err = Passed(vars(map[string]string{"LISTEN_PID": strconv.Itoa(os.Getpid()), "LISTEN_FDS": "many"}))
	if err == nil {
		t.Error("a number that is none was taken")
	}
}

func TestSocketsAreKnownByNameAndKind(t *testing.T) {
	unix, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	for _, c := range []struct {
		name string
		ln   net.Listener
		want string
	}{
		{"socket", unix, "socket"}, {"gatehouse.socket", unix, "socket"}, {"", tcp, "tcp"}, {"http", tcp, "http"},
		{"health", tcp, "health"},
		{"http", unix, ""}, {"socket", tcp, ""},
	} {
		name, err := listenerOf(c.name, c.ln)
		if name != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%q: got %q, %v", c.name, name, err)
		}
	}
}
