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

// probeTime is how long a socket that is there already may take to show that
// a process listens on it.
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
		network = "tcp4" // with tcp, 0.0.0.0 would mean every IPv6 address as well
	}
	ln, err := net.Listen(network, net.JoinHostPort(host, port))
	if err != nil {
		return nil, fmt.Errorf("listen on tcp: %w", err)
	}
	return ln, nil
}

// WarnExposed is what to say before listening on an address that other
// machines can reach; nothing for loopback.
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

// maxPath is the longest path of a Unix socket that every platform takes.
const maxPath = 103

// ListenUnix listens on a Unix socket. The folder is made, for this user only,
// if it is not there; the socket can be used by this user only. A socket that
// is there already is removed if no process answers on it, and the error says so
// if one does. Closing the listener removes the socket.
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
	u.SetUnlinkOnClose(false) // the file may be another's by then
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
		return fmt.Errorf("%s is there already and is not a socket; remove it or choose another path", path)
	}
	conn, err := net.DialTimeout("unix", path, probeTime)
	if err == nil {
		conn.Close()
		return fmt.Errorf("another process listens on %s; stop it or choose another path", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("cannot tell whether another process listens on %s: %w", path, err)
	}
	return os.Remove(path)
}

// unixListener removes its socket at the end, unless another process has put
// its own there.
type unixListener struct {
	*net.UnixListener
	path  string
	made  fs.FileInfo
	close sync.Once
}

// own closes the socket to other users. Until it has, they are turned away by
// their uid.
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

// isOurs reports whether a file is the one we made. Its number alone does not
// say so: it is given to another as soon as the first is removed.
func (u *unixListener) isOurs(now fs.FileInfo) bool {
	return u.made == nil || os.SameFile(u.made, now) && u.made.ModTime().Equal(now.ModTime())
}
