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

// loadLocalToken reads the token stored at path, or creates one there. Several processes may do so at
// once and get the same.
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

// errNotMade means that the token did not exist and cannot be created, for example on a full disk. The
// host serves without it.
var errNotMade = errors.New("it cannot be created")

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
		return "", fmt.Errorf("%s can be read by others (mode %04o): remove it, and a new token is created", path, m)
	}
	b, err := io.ReadAll(io.LimitReader(f, 256))
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(b))
	if spell(token) != locals {
		return "", fmt.Errorf("%s holds no token: remove it, and a new one is created", path)
	}
	return token, nil
}

// makeLocalToken creates the file completely or not at all. It succeeds if another process created it
// first.
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
	// A link, unlike a rename, never replaces an existing file.
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w; keep the token on a file system that supports hard links", err)
	}
	return nil
}

// forwarding are the headers by which a proxy reports that it forwards the request of another host.
var forwarding = []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip", "Via"}

// From returns the address of a request, the zero Addr if it is unknown, and whether that is this
// machine. Callers behind a proxy on this machine are not local.
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
