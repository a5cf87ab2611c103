//go:build linux && (amd64 || arm64)

package firecracker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Files in a jail. The process is given these relative paths, which are the same whether its root is the jail
// or only its working directory, so that a snapshot works in any jail.
const (
	apiSocket   = "api.sock"
	agentSocket = "agent.sock"
	kernelFile  = "kernel"
	initrdFile  = "initrd"
	stateFile   = "state" // of a snapshot being taken
	memoryFile  = "memory"
	wasState    = "was-state" // of the snapshot that the machine was restored from; read-only
	wasMemory   = "was-memory"
)

// jail is the folder of one machine's process: base/program/id/root, as the jailer requires. The process may
// change anything in root, so nothing there is trusted.
type jail struct {
	base, program, id string
	uid, gid          int // its owner
	root              *os.File
}

// newJail creates the folder. The caller must call remove.
func newJail(base, program, id string, uid, gid int) (*jail, error) {
	j := &jail{base: base, program: program, id: id, uid: uid, gid: gid}
	if err := os.MkdirAll(j.path(""), 0o700); err != nil {
		return nil, err
	}
	var err error
	if j.root, err = os.OpenFile(j.path(""), os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0); err == nil {
		err = j.root.Chown(uid, gid)
	}
	if err != nil {
		return nil, errors.Join(err, j.removeJail())
	}
	return j, nil
}

func (j *jail) folder() string { return filepath.Join(j.base, filepath.Base(j.program), j.id) }

func (j *jail) path(name string) string { return filepath.Join(j.folder(), "root", name) }

// removeJail deletes the folder. The process must have ended.
func (j *jail) removeJail() error {
	var err error
	if j.root != nil {
		err = j.root.Close()
	}
	return errors.Join(err, os.RemoveAll(j.folder()))
}

// addFile links a file of the same file system into the jail.
func (j *jail) addFile(from, name string) error { return os.Link(from, j.path(name)) }

// moveOut moves a file that the process wrote out of the jail. Only the host may write to the destination, so
// the file's type cannot change after the check.
func (j *jail) moveOut(name, to string) error {
	if err := os.Rename(j.path(name), to); err != nil {
		return err
	}
	info, err := os.Lstat(to)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("firecracker wrote %s as %s; expected a regular file", name, info.Mode())
	}
	return errors.Join(os.Lchown(to, os.Geteuid(), os.Getegid()), os.Chmod(to, 0o444))
}

// dial connects to a socket in the jail without following links. It uses the open folder, so that the length
// of paths does not matter.
func (j *jail) dial(ctx context.Context, name string) (net.Conn, error) {
	fd, err := unix.Openat2(int(j.root.Fd()), name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil, &os.PathError{Op: "openat2", Path: name, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, &os.PathError{Op: "fstat", Path: name, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, &os.PathError{Op: "connect", Path: name, Err: unix.ENOTSOCK}
	}
	var d net.Dialer
	return d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", fd))
}

// jailerCommand is the jailer's command line. Zero fields are left out.
type jailerCommand struct {
	jailer, binary string
	id             string
	uid, gid       int
	base           string // folder in which the jail is created
	netns          string // path of a network namespace
	cgroupVersion  int
	parentCgroup   string
	cgroups        []string // file=value
	fileSize       int64    // most bytes of a file that the process writes
	descriptors    int      // most open files
	arguments      []string // for firecracker
}

func (w jailerCommand) command() []string {
	args := []string{w.jailer, "--id", w.id, "--exec-file", w.binary, "--uid", strconv.Itoa(w.uid), "--gid",
		strconv.Itoa(w.gid)}
	add := func(name, value string) {
		if value != "" && value != "0" {
			args = append(args, name, value)
		}
	}
	add("--chroot-base-dir", w.base)
	add("--netns", w.netns)
	add("--cgroup-version", strconv.Itoa(w.cgroupVersion))
	add("--parent-cgroup", w.parentCgroup)
	for _, c := range w.cgroups {
		add("--cgroup", c)
	}
	if w.fileSize > 0 {
		add("--resource-limit", "fsize="+strconv.FormatInt(w.fileSize, 10))
	}
	if w.descriptors > 0 {
		add("--resource-limit", "no-file="+strconv.Itoa(w.descriptors))
	}
	return append(append(args, "--"), w.arguments...)
}
