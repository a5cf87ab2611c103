//go:build linux && (amd64 || arm64)

package firecracker

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/firecracker/fake"
	"gatehouse/internal/sandbox/guest"
)

// The program of the tests is also the stand-ins for the programs tested with.
func TestMain(m *testing.M) {
	if code, ok := fake.Main(os.Args, os.Stdout); ok {
		// What looks for races would have the process wait for a second.
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, uintptr(code), 0, 0)
	}
	os.Exit(m.Run())
}

// standIns is a folder with the stand-ins.
func standIns(t testing.TB) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"firecracker", "jailer"} {
		if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// disks are files where a machine's would be.
type disks struct{ dir string }

func (d disks) file(name, says string) (string, error) {
	if d.dir == "" {
		return "", errors.New("there is no folder for " + name) // and not the source tree
	}
	path := filepath.Join(d.dir, name)
	return path, os.WriteFile(path, []byte(says), 0o600)
}

func (d disks) Vmlinux(context.Context) (string, error) {
	return d.file("vmlinux", "\x7fELF and so on")
}
func (d disks) Initrd(context.Context) (string, error) { return d.file("initrd.cpio", "070701") }
func (d disks) Root(context.Context, *sandbox.Image) (guest.Disk, error) {
	path, err := d.file("root.ext4", "a file system")
	return guest.Disk{Path: path, Type: "ext4"}, err
}
func (d disks) MakeRoom(int64) error            { return nil }
func (d disks) CountFolder(string, func() bool) {}
func (d disks) Tree(_ context.Context, from string) (guest.Disk, error) {
	path, err := d.file(filepath.Base(from)+".ext4", from)
	return guest.Disk{Path: path, Type: "ext4"}, err
}

// faked is a driver with the stand-ins that is closed with the test, which fails
// when something is left.
func faked(t testing.TB, jailed bool) *Driver {
	t.Helper()
	chroot := t.TempDir()
	d := fakedAt(t, chroot, jailed)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if left, err := os.ReadDir(chroot); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	})
	return d
}

// fakedAt is one with its jails in a folder.
func fakedAt(t testing.TB, chroot string, jailed bool) *Driver {
	t.Helper()
	d, err := New(Options{Binary: filepath.Join(standIns(t), "firecracker"), Chroot: chroot, Cache: t.TempDir()})
	if err == nil && d.folder == "" { // there is no kernel here
		err = d.makeFolder(chroot)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !jailed {
		d.parts.jailer = nil
	} else if d.parts.jailer == nil {
		d.Close()
		t.Skip("only root has machines in jails")
	}
	d.setSystem(disks{t.TempDir()})
	d.missing = nil
	return d
}
