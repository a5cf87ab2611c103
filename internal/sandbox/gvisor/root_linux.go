//go:build amd64 || arm64

package gvisor

import (
	"os"
	"path/filepath"
	"sync"

	"gatehouse/internal/sandbox/bundle"
	"gatehouse/internal/sandbox/rootfs"
)

// root is what sandboxes see of the host, laid out in a folder. A sandbox, its
// snapshots and what is made of them have one together, since a kernel that is
// made of an image wants its files to be as they were. It is only read.
type root struct {
	path   string
	look   rootfs.Look
	mounts []bundle.Mount

	mu    sync.Mutex
	users int
}

// newRoot makes one that has a user.
func (d *Driver) newRoot(look rootfs.Look) (*root, error) {
	path, err := os.MkdirTemp(d.folder, "root-")
	if err != nil {
		return nil, err
	}
	r := &root{path: path, look: look, users: 1}
	if err := os.Chmod(path, 0o755); err != nil {
		r.leave()
		return nil, err
	}
	if r.mounts, err = bundle.Fill(path, d.agent, look); err != nil {
		r.leave()
		return nil, err
	}
	return r, nil
}

// join is one more user; false says that the last one has left.
func (r *root) join() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.users == 0 {
		return false
	}
	r.users++
	return true
}

// leave is one user less. The last one takes the folder away.
func (r *root) leave() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.users--; r.users > 0 {
		return nil
	}
	return os.RemoveAll(filepath.Clean(r.path))
}
