package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// Notify sends a notification to the service manager, as systemd's sd_notify does: "READY=1",
// "STOPPING=1" and so on. If no manager asked for notifications, it does nothing.
func Notify(getenv func(string) string, state string) error {
	path := getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	if path[0] == '@' {
		path = "\x00" + path[1:] // an abstract socket
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	defer conn.Close()
	conn.SetWriteDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte(state)); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return nil
}

// Watchdog notifies the service manager that the daemon works, twice in each period that the manager
// asks for, until ctx is done. If check fails, it sends nothing.
func Watchdog(ctx context.Context, getenv func(string) string, check func(context.Context) error) {
	usec, err := strconv.ParseInt(getenv("WATCHDOG_USEC"), 10, 64)
	if pid := getenv("WATCHDOG_PID"); err != nil || usec <= 0 || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return
	}
	period := max(time.Duration(usec)*time.Microsecond/2, time.Millisecond)
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		soon, cancel := context.WithTimeout(ctx, period)
		if check(soon) == nil {
			Notify(getenv, "WATCHDOG=1")
		}
		cancel()
	}
}

// Listeners that the service manager can open for a daemon, by the name that the unit gives them
// (FileDescriptorName=).
const (
	ListenerSocket = "socket" // the daemon's own Unix socket
	ListenerTCP    = "tcp"
	ListenerHTTP   = "http"
	ListenerHealth = "health"
)

const firstPassed = 3 // descriptor, by systemd's convention

// Passed returns the listeners that the service manager has opened for this process (LISTEN_FDS), by
// name. A listener with another name is the socket if it is a Unix socket, else tcp. Call it once, and
// clear the variables afterwards, so that no child uses them.
func Passed(getenv func(string) string) (listeners map[string]net.Listener, err error) {
	if getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return nil, nil
	}
	n, err := strconv.Atoi(getenv("LISTEN_FDS"))
	if err != nil || n < 0 || n > 16 {
		return nil, fmt.Errorf("LISTEN_FDS is %q: expected a number up to 16", getenv("LISTEN_FDS"))
	}
	names := strings.Split(getenv("LISTEN_FDNAMES"), ":")
	listeners = map[string]net.Listener{}
	defer func() {
		if err != nil {
			for _, ln := range listeners {
				ln.Close()
			}
		}
	}()
	for i := range n {
		name := ""
		if i < len(names) {
			name = names[i]
		}
		ln, err := passed(i)
		if err != nil {
			return listeners, err
		}
		listener, err := listenerOf(name, ln)
		if err == nil && listeners[listener] != nil {
			err = fmt.Errorf(
				"the unit opens two sockets for the listener %s; name them socket, tcp, http or health "+
					"(FileDescriptorName=)",
				listener,
			)
		}
		if err != nil {
			return listeners, errors.Join(err, ln.Close())
		}
		listeners[listener] = ln
	}
	return listeners, nil
}

// passed returns a listener on the i-th descriptor.
func passed(i int) (net.Listener, error) {
	f := os.NewFile(uintptr(firstPassed+i), "passed-"+strconv.Itoa(i))
	if f == nil {
		return nil, fmt.Errorf("the unit's socket %d is not open", i+1)
	}
	defer f.Close() // the listener has a copy
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("the unit's socket %d cannot be listened on: %w", i+1, err)
	}
	return ln, nil
}

func listenerOf(name string, ln net.Listener) (string, error) {
	unix := ln.Addr().Network() == "unix"
	switch name {
	case ListenerSocket:
		if !unix {
			return "", errors.New("the unit's socket named socket is not a Unix socket")
		}
		return name, nil
	case ListenerTCP, ListenerHTTP, ListenerHealth:
		if unix {
			return "", fmt.Errorf("the unit's socket named %s is a Unix socket; expected TCP", name)
		}
		return name, nil
	}
	if unix {
		return ListenerSocket, nil
	}
	return ListenerTCP, nil
}
