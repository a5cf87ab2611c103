//go:build amd64 || arm64

package gvisor

import (
	"os"
	"path/filepath"
	"sync"

	"gatehouse/internal/sandbox/bundle"
	"gatehouse/internal/sandbox/rootfs"
)

// root is the root file system of sandboxes, in a folder of the host. A sandbox, its snapshots and their
// sandboxes share one, because a restored kernel requires its files unchanged. It is read-only.
type root struct {
	path   string
	layout rootfs.Layout
	mounts []bundle.Mount

	mu    sync.Mutex
	users int
}

// newRoot creates a root with one user.
func (d *Driver) newRoot(layout rootfs.Layout) (*root, error) {
	path, err := os.MkdirTemp(d.folder, "root-")
	if err != nil {
		return nil, err
	}
	r := &root{path: path, layout: layout, users: 1}
	if err := os.Chmod(path, 0o755); err != nil {
		r.releaseRoot()
		return nil, err
	}
	if r.mounts, err = bundle.Fill(path, d.agent, layout); err != nil {
		r.releaseRoot()
		return nil, err
	}
	return r, nil
}

// acquire adds a user. It returns false if the last one has left.
func (r *root) acquire() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.users == 0 {
		return false
	}
	r.users++
	return true
}

// releaseRoot removes a user. The last one removes the folder.
func (r *root) releaseRoot() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.users--; r.users > 0 {
		return nil
	}
	return os.RemoveAll(filepath.Clean(r.path))
}
