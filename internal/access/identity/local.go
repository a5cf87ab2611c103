package identity

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// loadLocalToken reads the token kept at path, or makes one there. Several
// processes may do so at once and get the same.
func loadLocalToken(path string) (string, error) {
	token, err := readLocalToken(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return token, err
	}
	if err := makeLocalToken(path); err != nil {
		return "", fmt.Errorf("%w: %w", errNotMade, err)
	}
	return readLocalToken(path)
}

// errNotMade is a token that was not there and cannot be made, on a disk that is
// full for example. The host serves without it.
var errNotMade = errors.New("it cannot be made")

func readLocalToken(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file", path)
	}
	if m := info.Mode().Perm(); m&0o077 != 0 && runtime.GOOS != "windows" {
		return "", fmt.Errorf("%s can be read by others (mode %04o): remove it, and a new token is made", path, m)
	}
	b, err := io.ReadAll(io.LimitReader(f, 256))
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(b))
	if spell(token) != locals {
		return "", fmt.Errorf("%s holds no token: remove it, and a new one is made", path)
	}
	return token, nil
}

// makeLocalToken makes the file whole or not at all. That another process was
// faster is no error.
func makeLocalToken(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.tmp") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(newSecret(localPrefix) + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	// A link, unlike a rename, never replaces what is there.
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w; keep the token on a file system that knows hard links", err)
	}
	return nil
}

// forwarding are the headers by which a proxy says that the caller is not who
// is connecting.
var forwarding = []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip", "Via"}

// From is the address a request comes from, the zero Addr when it cannot be
// told, and whether that is this machine. A proxy on this machine does not make
// its callers local.
func From(r *http.Request) (from netip.Addr, local bool) {
	a, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}, false
	}
	from = a.Addr().Unmap()
	for _, name := range forwarding {
		if len(r.Header[name]) > 0 {
			return from, false
		}
	}
	return from, from.IsLoopback()
}
