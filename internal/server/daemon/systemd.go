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

// Notify tells the system's manager something, as systemd's sd_notify does:
// "READY=1", "STOPPING=1" and so on. If no manager asked for notifications, it does
// nothing.
func Notify(getenv func(string) string, state string) error {
	path := getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	if path[0] == '@' {
		path = "\x00" + path[1:] // in no folder
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("tell the system's manager: %w", err)
	}
	defer conn.Close()
	conn.SetWriteDeadline(time.Now().Add(time.Second))
	if _, err := conn.Write([]byte(state)); err != nil {
		return fmt.Errorf("tell the system's manager: %w", err)
	}
	return nil
}

// Watchdog tells the system's manager that the daemon is well, twice in each
// period it asks for, until ctx is done. When check fails it stays silent.
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

// Doors that the system's manager can open for a daemon, by the name that the
// unit gives them (FileDescriptorName=).
const (
	DoorSocket = "socket" // the daemon's own Unix socket
	DoorTCP    = "tcp"
	DoorHTTP   = "http"
	DoorHealth = "health"
)

const firstPassed = 3 // descriptor, by systemd's convention

// Passed returns the listeners that the system's manager has opened for this
// process (LISTEN_FDS), by door. One without a name of ours is the socket when
// it is a Unix socket, else tcp. It takes them once: clear the variables
// afterwards, so that no child believes them to be its own.
func Passed(getenv func(string) string) (doors map[string]net.Listener, err error) {
	if getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return nil, nil
	}
	n, err := strconv.Atoi(getenv("LISTEN_FDS"))
	if err != nil || n < 0 || n > 16 {
		return nil, fmt.Errorf("LISTEN_FDS is %q: expected a number up to 16", getenv("LISTEN_FDS"))
	}
	names := strings.Split(getenv("LISTEN_FDNAMES"), ":")
	doors = map[string]net.Listener{}
	defer func() {
		if err != nil {
			for _, ln := range doors {
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
			return doors, err
		}
		door, err := doorOf(name, ln)
		if err == nil && doors[door] != nil {
			err = fmt.Errorf(
				"the unit opens two sockets for the door %s; name them socket, tcp, http or health (FileDescriptorName=)",
				door,
			)
		}
		if err != nil {
			return doors, errors.Join(err, ln.Close())
		}
		doors[door] = ln
	}
	return doors, nil
}

// passed makes a listener of the i-th descriptor.
func passed(i int) (net.Listener, error) {
	f := os.NewFile(uintptr(firstPassed+i), "passed-"+strconv.Itoa(i))
	if f == nil {
		return nil, fmt.Errorf("the unit's socket %d is not open", i+1)
	}
	defer f.Close() // the listener has its own
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("the unit's socket %d cannot be listened on: %w", i+1, err)
	}
	return ln, nil
}

func doorOf(name string, ln net.Listener) (string, error) {
	unix := ln.Addr().Network() == "unix"
	switch name {
	case DoorSocket:
		if !unix {
			return "", errors.New("the unit's socket named socket is no Unix socket")
		}
		return name, nil
	case DoorTCP, DoorHTTP, DoorHealth:
		if unix {
			return "", fmt.Errorf("the unit's socket named %s is a Unix socket; expected TCP", name)
		}
		return name, nil
	}
	if unix {
		return DoorSocket, nil
	}
	return DoorTCP, nil
}
