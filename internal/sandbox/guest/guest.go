//go:build linux && (amd64 || arm64)

// Package guest makes what a virtual machine boots: a kernel with its modules,
// the agent as its first process, and a root file system of the host's own
// programs or of an image.
//
// What it makes is kept in a folder, named by what it was made of, so that it
// is made once and by one process only; what is half made is never seen.
package guest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// What to do when a kernel cannot be used.
const (
	remedyNoKernel = "install one with its modules: apt-get install linux-image-cloud-amd64 (Debian), linux-image-virtual (Ubuntu), " +
		"dnf install kernel-core (Fedora); or name one by GATEHOUSE_KERNEL, and its modules by GATEHOUSE_SANDBOX_KERNEL_MODULES"
	remedyNamed = "name a kernel that this user can read by GATEHOUSE_KERNEL, and its modules by GATEHOUSE_SANDBOX_KERNEL_MODULES; " +
		"without these settings it is the newest in /boot"
)

// Remedy is what to do about an error of New.
func Remedy(err error) string {
	switch {
	case errors.Is(err, ErrNoKernel):
		return remedyNoKernel
	case errors.Is(err, ErrKernel):
		return remedyNamed
	}
	return "see that this user can write to the cache folder, in which machines are prepared"
}

const (
	half   = ".half-"            // part of the name of what is not finished
	unused = 30 * 24 * time.Hour // after which something made is thrown away
	stuck  = time.Hour           // after which something half made is
)

// Options are for New. The zero value serves where a kernel is installed.
type Options struct {
	Kernel  string       // a kernel's file; "" means the newest in /boot whose modules are there too
	Modules string       // the folder of its modules; "" means the one of its version, near it or in /lib/modules
	Boot    string       // the folder in which a kernel is looked for; "" means /boot
	Rootfs  string       // a file with an ext4, squashfs or erofs; "" makes one of the host's own programs
	Folder  string       // for what is made; "" means the user's folder for caches
	Most    int64        // bytes that what is made may take on disk, in use or not, with the copies of it that Beside names; 0 means DefaultMost
	Log     *slog.Logger // nil means nothing is logged
}

// Guest is safe for concurrent use.
type Guest struct {
	options Options
	kernel  Kernel
	folder  string
	log     *slog.Logger

	mu     sync.Mutex
	making map[string]chan struct{} // by the name of what is being made
	pinned map[string]*os.File      // what is in use as long as the host runs, by path
	beside string                   // set before it is used
	drop   func() bool
}

// New finds the kernel and prepares the folder. Remedy tells what to do about an
// error.
func New(o Options) (*Guest, error) {
	g := &Guest{options: o, folder: o.Folder, log: o.Log, making: map[string]chan struct{}{}, pinned: map[string]*os.File{}}
	if g.options.Most == 0 {
		g.options.Most = DefaultMost
	}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	var err error
	boot := o.Boot
	if boot == "" {
		boot = "/boot"
	}
	if g.kernel, err = findKernel(boot, o.Kernel, o.Modules); err != nil {
		return nil, err
	}
	if g.folder == "" {
		caches, err := os.UserCacheDir()
		if err != nil {
			caches = filepath.Join(os.TempDir(), fmt.Sprintf("gatehouse-%d", os.Geteuid()))
		}
		g.folder = filepath.Join(caches, "gatehouse", "guests")
	}
	if err := os.MkdirAll(g.folder, 0o700); err != nil {
		return nil, err
	}
	g.sweep()
	g.clear(0)
	return g, nil
}

// Kernel is the one that was found.
func (g *Guest) Kernel() Kernel { return g.kernel }

// Unnamed is a file on the disk of what is made, which is gone when nobody has
// it any more, also where the host is killed.
func (g *Guest) Unnamed() (*os.File, error) {
	if fd, err := unix.Open(g.folder, unix.O_RDWR|unix.O_CLOEXEC|unix.O_TMPFILE, 0o600); err == nil {
		return os.NewFile(uintptr(fd), filepath.Join(g.folder, "unnamed")), nil
	}
	// The file system has none that never had a name.
	f, err := os.CreateTemp(g.folder, "unnamed"+half)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// sweep throws away what was never finished and what nobody uses any more.
func (g *Guest) sweep() {
	entries, _ := os.ReadDir(g.folder)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue
		}
		path, age := filepath.Join(g.folder, e.Name()), time.Since(info.ModTime())
		switch {
		case strings.Contains(e.Name(), half):
			if age > stuck {
				os.RemoveAll(path)
			}
		case age > unused:
			remove(path)
		}
	}
}

// pin is made for what is to be there as long as the host runs.
func (g *Guest) pin(ctx context.Context, kind, key string, make func(path string) error) (string, error) {
	f, err := g.made(ctx, kind, key, make)
	if err != nil {
		return "", err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.pinned[f.Name()] != nil {
		return f.Name(), f.Close()
	}
	g.pinned[f.Name()] = f
	return f.Name(), nil
}

// made is what kind and key name, which stays as long as the file is open. make
// makes it at the path it is given when it is not there yet, for all who want
// it now. Any user may read the result, who may get at it.
func (g *Guest) made(ctx context.Context, kind, key string, make func(path string) error) (*os.File, error) {
	sum := sha256.Sum256([]byte(key))
	name := kind + "-" + hex.EncodeToString(sum[:12])
	for {
		g.mu.Lock()
		done, busy := g.making[name]
		if !busy {
			done = nil
			g.making[name] = newTurn()
		}
		g.mu.Unlock()
		if !busy {
			break
		}
		select {
		case <-done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	defer func() {
		g.mu.Lock()
		close(g.making[name])
		delete(g.making, name)
		g.mu.Unlock()
	}()
	return g.once(filepath.Join(g.folder, name), make)
}

func newTurn() chan struct{} { return make(chan struct{}) }

func (g *Guest) once(path string, make func(path string) error) (*os.File, error) {
	if f, err := hold(path); !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	began := time.Now()
	temporary := path + half + rand.Text()
	f, err := g.finish(temporary, path, make)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(temporary))
	}
	g.log.Info("made for virtual machines", "file", path, "took", time.Since(began))
	return f, nil
}

// finish makes something at one path, and gives it the other when it is whole.
func (g *Guest) finish(temporary, path string, make func(path string) error) (*os.File, error) {
	if err := make(temporary); err != nil {
		return nil, err
	}
	info, err := os.Stat(temporary)
	if err != nil {
		return nil, err
	}
	if err := g.MakeRoom(space(info)); err != nil {
		return nil, err
	}
	f, err := hold(temporary) // it is not removed as soon as it has its name
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := errors.Join(os.Chmod(temporary, 0o444), os.Rename(temporary, path)); err != nil {
		return nil, err
	}
	return hold(path)
}
