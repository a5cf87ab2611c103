// Package runtimes provides what the full image has beside the program: Python, git and a shell
// from Debian, Node with npm, and uv, each pinned by version and digest in a lock file.
package runtimes

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Kinds of items.
const (
	Deb   = "deb"   // a package of Debian
	Node  = "node"  // npm's package with Node's program for one processor
	NPM   = "npm"   // npm itself
	Wheel = "wheel" // a Python wheel with programs
)

// MirrorVariable names the environment variable with the base address of another mirror of
// Debian, such as http://mirror.example.com/debian; updates of Debian's security team are looked for
// beside it, in a folder of the same name that ends with -security.
const MirrorVariable = "GATEHOUSE_DEBIAN_MIRROR"

const (
	largestItem = 256 << 20 // bytes
	fetchLimit  = 10 * time.Minute
)

// Item is a file of a registry.
type Item struct {
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	Version string `json:"version"`
	Address string `json:"address"` // where it is published
	SHA256  string `json:"sha256"`
	Size    int64  `json:"size"` // bytes
}

// Lock is what images are made of.
type Lock struct {
	Suite string            `json:"suite"` // of Debian
	Time  time.Time         `json:"time"`  // when the versions were chosen
	Items map[string][]Item `json:"items"` // by processor, as Go names it
}

//go:embed lock.json
var locked []byte

// ReadLock returns the lock file that is part of the source.
func ReadLock() (*Lock, error) {
	var l Lock
	if err := json.Unmarshal(locked, &l); err != nil {
		return nil, fmt.Errorf("lock.json: %w", err)
	}
	return &l, nil
}

// addresses returns where an item may be found, in the order in which to try. Debian removes a
// package from its mirrors when there is a newer one, and keeps it in its archive of snapshots.
func (l *Lock) addresses(it Item, mirror string) (all []string) {
	if it.Kind != Deb {
		return []string{it.Address}
	}
	archive, rest, ok := strings.Cut(strings.TrimPrefix(it.Address, DebianBase), "/pool/")
	if !ok {
		return []string{it.Address}
	}
	if mirror != "" {
		base := strings.TrimSuffix(strings.TrimSuffix(mirror, "/"), "debian")
		all = append(all, base+strings.TrimPrefix(archive, "/")+"/pool/"+rest)
	}
	return append(all, it.Address,
		"https://snapshot.debian.org/archive"+archive+"/"+l.Time.UTC().Format("20060102T150405Z")+"/pool/"+rest)
}

// Fetch returns the bytes of an item, whose digest is that of the lock file. It keeps them in
// cache, a folder that several processes may use.
func (l *Lock) Fetch(ctx context.Context, it Item, cache string) ([]byte, error) {
	kept := filepath.Join(cache, it.SHA256)
	if b, err := os.ReadFile(kept); err == nil && digest(b) == it.SHA256 {
		return b, nil
	}
	var failed []error
	for _, address := range l.addresses(it, os.Getenv(MirrorVariable)) {
		b, err := download(ctx, address, it.Size)
		if err == nil && digest(b) != it.SHA256 {
			err = fmt.Errorf("%s: the digest is %s, not %s of lock.json", address, digest(b), it.SHA256)
		}
		if err != nil {
			failed = append(failed, err)
			continue
		}
		return b, keep(kept, b)
	}
	return nil, fmt.Errorf("%s %s: %w (go run ./runtimes/lock chooses versions that can be had)",
		it.Name, it.Version, errors.Join(failed...))
}

// keep writes a file whole or not at all.
func keep(name string, b []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// download reads an address. A size of 0 is not known.
func download(ctx context.Context, address string, size int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", address, resp.Status)
	}
	most := int64(largestItem)
	if size > 0 {
		most = size
	}
	var b bytes.Buffer
	n, err := io.Copy(&b, io.LimitReader(resp.Body, most+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	if n > most {
		return nil, fmt.Errorf("%s: longer than %d bytes", address, most)
	}
	return b.Bytes(), nil
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
