package proxy

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// listensHere reports whether a listener of this process accepts connections to an address of this machine. It
// asks the kernel, so that no listener has to be registered: those of modules and exposed ports of sandboxes
// count too.
func listensHere(at netip.AddrPort) (bool, error) {
	var found []string // inodes of listening sockets there, of any process
	for _, name := range []string{"tcp", "tcp6"} {
		inodes, err := listening("/proc/self/net/"+name, at)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without IPv6
			return false, err
		}
		found = append(found, inodes...)
	}
	for _, inode := range found {
		if mine, err := holdsSocket(inode); mine || err != nil {
			return mine, err
		}
	}
	return false, nil
}

// Columns of /proc/net/tcp, and the state of a listening socket; see proc_net_tcp.rst in the kernel's
// documentation.
const (
	columnLocal = 1
	columnState = 3
	columnInode = 9
	stateListen = "0A"
)

func listening(file string, at netip.AddrPort) (inodes []string, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Scan() // skip the header
	for lines.Scan() {
		columns := strings.Fields(lines.Text())
		if len(columns) <= columnInode || columns[columnState] != stateListen {
			continue
		}
		local, err := parseLocal(columns[columnLocal])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if local.Port() != at.Port() {
			continue
		}
		a, to := local.Addr().Unmap(), at.Addr().Unmap()
		if a.IsUnspecified() || to.IsUnspecified() || a == to {
			inodes = append(inodes, columns[columnInode])
		}
	}
	return inodes, lines.Err()
}

// parseLocal parses an address as the kernel prints it: words of 32 bits in native byte order, and the port,
// in hexadecimal.
func parseLocal(text string) (netip.AddrPort, error) {
	host, port, _ := strings.Cut(text, ":")
	b, err := hex.DecodeString(host)
	if err != nil || len(b)%4 != 0 {
		return netip.AddrPort{}, fmt.Errorf("%q is not an address", text)
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	a, ok := netip.AddrFromSlice(b)
	n, err := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil {
		return netip.AddrPort{}, fmt.Errorf("%q is not an address", text)
	}
	return netip.AddrPortFrom(a, uint16(n)), nil
}

// holdsSocket reports whether this process has a socket open.
func holdsSocket(inode string) (bool, error) {
	const folder = "/proc/self/fd"
	d, err := os.Open(folder)
	if err != nil {
		return false, err
	}
	defer d.Close()
	for {
		names, err := d.Readdirnames(1000)
		for _, name := range names {
			if to, err := os.Readlink(filepath.Join(folder, name)); err == nil && to == "socket:["+inode+"]" {
				return true, nil
			}
		}
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
}
