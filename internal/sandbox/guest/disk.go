//go:build linux && (amd64 || arm64)

package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"gatehouse/internal/sandbox"

	"golang.org/x/sys/unix"
)

// RemedyTools says what to do if file systems cannot be made.
const RemedyTools = "install e2fsprogs (apt-get install e2fsprogs), or name a finished root file system in the settings"

const (
	makeWait     = 10 * time.Minute // for making a file system
	largestTree  = 16 << 30         // bytes of files in one file system
	mostOfTree   = 4 << 20          // files in one file system
	blockSize    = 4096
	spareBlocks  = 2048 // for the file system's own data, in addition to a share of the content
	spareEntries = 256
)

// Disk is a file that contains a file system. Machines only read it.
type Disk struct {
	Path string
	Type string   // ext4, squashfs or erofs
	Hold *os.File // while it is open and referenced, the disk is not removed from Path; nil if it is never removed
}

// Root returns the root file system: that of the options, else one made of the image, or without an image of
// the host's programs.
func (g *Cache) Root(ctx context.Context, image *sandbox.Image) (Disk, error) {
	switch {
	case image != nil:
		return g.disk(ctx, "image", image.ID, image.Root)
	case g.options.Rootfs != "":
		return OpenDisk(g.options.Rootfs)
	}
	return g.hostRoot(ctx)
}

// Tree returns a file system with the current content of a folder of the host.
func (g *Cache) Tree(ctx context.Context, from string) (Disk, error) {
	info, err := os.Stat(from)
	if err != nil {
		return Disk{}, err
	}
	if !info.IsDir() {
		return Disk{}, fmt.Errorf("%s is not a folder; only folders can be mounted in a virtual machine", from)
	}
	_, key, err := measure(from)
	if err != nil {
		return Disk{}, err
	}
	return g.disk(ctx, "tree", key, from)
}

func (g *Cache) disk(ctx context.Context, kind, key, from string) (Disk, error) {
	return diskOf(g.cached(ctx, kind, kind+" "+key, func(path string) error { return format(ctx, path, from) }))
}

func diskOf(f *os.File, err error) (Disk, error) {
	if err != nil {
		return Disk{}, err
	}
	return Disk{Path: f.Name(), Type: "ext4", Hold: f}, nil
}

// OpenDisk detects the file system in a file.
func OpenDisk(path string) (Disk, error) {
	f, err := os.Open(path)
	if err != nil {
		return Disk{}, fmt.Errorf("open the root file system: %w", err)
	}
	defer f.Close()
	head := make([]byte, 2048)
	if _, err := io.ReadFull(f, head); err != nil {
		return Disk{}, fmt.Errorf("read the root file system %s: %w", path, err)
	}
	switch {
	case bytes.HasPrefix(head, []byte("hsqs")):
		return Disk{Path: path, Type: "squashfs"}, nil
	case bytes.Equal(head[1024:1028], []byte{0xe2, 0xe1, 0xf5, 0xe0}):
		return Disk{Path: path, Type: "erofs"}, nil
	case bytes.Equal(head[1080:1082], []byte{0x53, 0xef}):
		return Disk{Path: path, Type: "ext4"}, nil
	}
	return Disk{}, fmt.Errorf("the root file system %s is neither ext4 nor squashfs nor erofs", path)
}

// extent is the size of a folder's content.
type extent struct{ blocks, entries int64 }

// measure returns the size of a folder's content, and a key that changes if any file of it changes.
func measure(dir string) (e extent, key string, err error) {
	var names strings.Builder
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		link := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if link, err = os.Readlink(path); err != nil {
				return err
			}
		}
		e.entries++
		e.blocks += 1 + (info.Size()+blockSize-1)/blockSize
		fmt.Fprintf(&names, "%s %o %d %d %s\x00", rel, info.Mode(), info.Size(), info.ModTime().UnixNano(), link)
		if e.blocks*blockSize > largestTree || e.entries > mostOfTree {
			return fmt.Errorf("%s contains more than %d GiB or %d files, which is the most for a virtual machine",
				dir, largestTree>>30, mostOfTree)
		}
		return nil
	})
	return e, dir + "\x00" + names.String(), err
}

// format makes a file system at path with the content of a folder, just large enough. All files belong to
// root, and it has no journal, because it is never written to.
func format(ctx context.Context, path, from string) error {
	program, err := findTool("mke2fs")
	if err != nil {
		return err
	}
	e, _, err := measure(from)
	if err != nil {
		return err
	}
	blocks := e.blocks + e.blocks/16 + e.entries/8 + spareBlocks
	ctx, cancel := context.WithTimeout(ctx, makeWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-q", "-F", "-t", "ext4", "-b", fmt.Sprint(blockSize), "-m", "0",
		"-O", "^has_journal,^resize_inode", "-N", fmt.Sprint(e.entries+spareEntries),
		"-E", "root_owner=0:0,lazy_itable_init=1,nodiscard", "-d", from, path, fmt.Sprint(blocks))
	cmd.Env = []string{"PATH=/usr/sbin:/sbin:/usr/bin:/bin", "LANG=C"}
	// Cancelling kills the children of mke2fs too.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mke2fs of %s: %w: %s", from, errors.Join(err, context.Cause(ctx)), bytes.TrimSpace(said))
	}
	return nil
}

// findTool looks up a program also in the folders of administrators' tools, which a user's PATH often omits.
func findTool(name string) (string, error) {
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/bin", "/bin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	return "", fmt.Errorf("%s was not found; %s", name, RemedyTools)
}
