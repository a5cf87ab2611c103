//go:build linux && (amd64 || arm64)

// Package guest makes what a virtual machine boots: a kernel with its modules, the agent as its first process,
// and a root file system of the host's programs or of an image.
//
// It caches the results in a folder, named by a hash of what they were made of, so that each is made once, by
// one process. Unfinished files have temporary names.
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

// What to do if a kernel cannot be used.
const (
	remedyNoKernel = "install one with its modules: apt-get install linux-image-cloud-amd64 (Debian), " +
		"linux-image-virtual (Ubuntu), dnf install kernel-core (Fedora); or name one by GATEHOUSE_KERNEL, and its " +
		"modules by GATEHOUSE_SANDBOX_KERNEL_MODULES"
	remedyNamed = "name a kernel that this user can read by GATEHOUSE_KERNEL, and its modules by " +
		"GATEHOUSE_SANDBOX_KERNEL_MODULES; without these settings it is the newest in /boot"
)

// Remedy says what to do about an error of New.
func Remedy(err error) string {
	switch {
	case errors.Is(err, ErrNoKernel):
		return remedyNoKernel
	case errors.Is(err, ErrKernel):
		return remedyNamed
	}
	return "make sure that this user can write to the cache folder, in which machines are prepared"
}

const (
	unfinished    = ".half-"            // part of the name of an unfinished file
	unusedAge     = 30 * 24 * time.Hour // age after which an unused file is removed
	unfinishedAge = time.Hour           // age after which an unfinished file is removed
)

// Options are for New. The zero value is sufficient if a kernel is installed.
type Options struct {
	Kernel  string // path of a kernel; "" means the newest in /boot with modules
	Modules string // folder of its modules; "" means the one of its version, near it or in /lib/modules
	Boot    string // folder in which a kernel is looked for; "" means /boot
	Rootfs  string // a file with an ext4, squashfs or erofs file system; "" makes one of the host's programs
	Folder  string // cache folder; "" means the user's
	// MaxBytes is the most bytes of all files on disk, in use or not, including the copies that Beside names; 0
	// means DefaultMaxBytes.
	MaxBytes int64
	Log      *slog.Logger // nil means nothing is logged
}

// Cache makes and caches files for virtual machines. It is safe for concurrent use.
type Cache struct {
	options Options
	kernel  Kernel
	folder  string
	log     *slog.Logger

	mu     sync.Mutex
	making map[string]chan struct{} // closed when the file with that name is finished
	pinned map[string]*os.File      // files in use as long as the host runs, by path
	beside string                   // set before the first use
	drop   func() bool
}

// New finds the kernel and prepares the folder. Remedy says what to do about an error.
func New(o Options) (*Cache, error) {
	g := &Cache{
		options: o,
		folder:  o.Folder,
		log:     o.Log,
		making:  map[string]chan struct{}{},
		pinned:  map[string]*os.File{},
	}
	if g.options.MaxBytes == 0 {
		g.options.MaxBytes = DefaultMaxBytes
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
	g.removeUnused()
	g.clear(0)
	return g, nil
}

// Kernel returns the kernel that was found.
func (g *Cache) Kernel() Kernel { return g.kernel }

// Unnamed creates a file without a name in the cache folder. It disappears when it is closed, also if the host
// is killed.
func (g *Cache) Unnamed() (*os.File, error) {
	if fd, err := unix.Open(g.folder, unix.O_RDWR|unix.O_CLOEXEC|unix.O_TMPFILE, 0o600); err == nil {
		return os.NewFile(uintptr(fd), filepath.Join(g.folder, "unnamed")), nil
	}
	// The file system does not support O_TMPFILE.
	f, err := os.CreateTemp(g.folder, "unnamed"+unfinished)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// removeUnused removes old unfinished and unused files.
func (g *Cache) removeUnused() {
	entries, _ := os.ReadDir(g.folder)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue
		}
		path, age := filepath.Join(g.folder, e.Name()), time.Since(info.ModTime())
		switch {
		case strings.Contains(e.Name(), unfinished):
			if age > unfinishedAge {
				os.RemoveAll(path)
			}
		case age > unusedAge:
			removeStale(path)
		}
	}
}

// pin is made for files that are in use as long as the host runs.
func (g *Cache) pin(ctx context.Context, kind, key string, make func(path string) error) (string, error) {
	f, err := g.cached(ctx, kind, key, make)
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

// cached returns the file that kind and key name, which is not removed as long as it is open. If it does not
// exist, make creates it at a temporary path, once for concurrent callers. All users may read it.
func (g *Cache) cached(ctx context.Context, kind, key string, make func(path string) error) (*os.File, error) {
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
	return g.makeFile(filepath.Join(g.folder, name), make)
}

func newTurn() chan struct{} { return make(chan struct{}) }

func (g *Cache) makeFile(path string, make func(path string) error) (*os.File, error) {
	if f, err := openHeld(path); !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	began := time.Now()
	temporary := path + unfinished + rand.Text()
	f, err := g.finishFile(temporary, path, make)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(temporary))
	}
	g.log.Info("made for virtual machines", "file", path, "took", time.Since(began))
	return f, nil
}

// finishFile makes a file at a temporary path and renames it.
func (g *Cache) finishFile(temporary, path string, make func(path string) error) (*os.File, error) {
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
	f, err := openHeld(temporary) // so that it is not removed right after the rename
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := errors.Join(os.Chmod(temporary, 0o444), os.Rename(temporary, path)); err != nil {
		return nil, err
	}
	return openHeld(path)
}
