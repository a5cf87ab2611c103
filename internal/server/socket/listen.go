package socket

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// probeTime is how long an existing socket may take to accept a probe, which shows that a process
// listens on it.
const probeTime = time.Second

// ListenTCP listens on host:port; without a host it listens on 127.0.0.1
// only.
func ListenTCP(addr string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("listen on tcp %q: expected host:port or :port: %w", addr, err)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	network := "tcp"
	if a, err := netip.ParseAddr(host); err == nil && a.Is4() {
		network = "tcp4" // with tcp, 0.0.0.0 would also mean every IPv6 address
	}
	ln, err := net.Listen(network, net.JoinHostPort(host, port))
	if err != nil {
		return nil, fmt.Errorf("listen on tcp: %w", err)
	}
	return ln, nil
}

// WarnExposed returns the warning for listening on an address that other machines can reach; nil for
// loopback.
func WarnExposed(addr string) []string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	a, err := netip.ParseAddr(host)
	if host == "" || host == "localhost" || err == nil && a.Unmap().IsLoopback() {
		return nil
	}
	reach := "exposes this server to every machine that can reach that address."
	if err == nil && a.IsUnspecified() {
		reach = "exposes this server to all network interfaces."
	}
	return []string{
		"WARNING: Binding to " + host + " " + reach,
		"         TCP has neither encryption nor authentication; prefer a Unix socket or HTTPS.",
	}
}

// maxPath is the longest path of a Unix socket that every platform supports.
const maxPath = 103

// ListenUnix listens on a Unix socket that only this user can use. If the folder does not exist, it is
// created for this user only. An existing socket is removed if no process answers on it; otherwise the
// error reports that a process listens. Closing the listener removes the socket.
func ListenUnix(path string) (net.Listener, error) {
	if len(path) > maxPath {
		return nil, fmt.Errorf(
			"listen on unix socket: the path has %d bytes, the system allows %d: %s",
			len(path),
			maxPath,
			path,
		)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("listen on unix socket: make its folder: %w", err)
	}
	if err := clear(path); err != nil {
		return nil, fmt.Errorf("listen on unix socket: %w", err)
	}
	ln, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on unix socket: %w", err)
	}
	u := &unixListener{UnixListener: ln.(*net.UnixListener), path: path}
	u.SetUnlinkOnClose(false) // the file may belong to another process by then
	if err := u.own(); err != nil {
		return nil, errors.Join(fmt.Errorf("listen on unix socket: %w", err), u.Close())
	}
	return u, nil
}

// clear removes a socket on which no process listens.
func clear(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s exists and is not a socket; remove it or choose another path", path)
	}
	conn, err := net.DialTimeout("unix", path, probeTime)
	if err == nil {
		conn.Close()
		return fmt.Errorf("another process listens on %s; stop it or choose another path", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("cannot determine whether another process listens on %s: %w", path, err)
	}
	return os.Remove(path)
}

// unixListener removes its socket when it closes, unless another process has put its own there.
type unixListener struct {
	*net.UnixListener
	path  string
	made  fs.FileInfo
	close sync.Once
}

// own closes the socket to other users. Before that, their connections are refused by their user ID.
func (u *unixListener) own() (err error) {
	if err := os.Chmod(u.path, 0o600); err != nil {
		return err
	}
	u.made, err = os.Lstat(u.path)
	return err
}

func (u *unixListener) Close() error {
	err := u.UnixListener.Close()
	u.close.Do(func() {
		if now, statErr := os.Lstat(u.path); statErr == nil && u.isOurs(now) {
			os.Remove(u.path)
		}
	})
	return err
}

// isOurs reports whether a file is the socket that this process made. Its inode number alone does not
// suffice, because the file system reuses the number of a removed file at once.
func (u *unixListener) isOurs(now fs.FileInfo) bool {
	return u.made == nil || os.SameFile(u.made, now) && u.made.ModTime().Equal(now.ModTime())
}
