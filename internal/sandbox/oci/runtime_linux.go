//go:build amd64 || arm64

package oci

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"gatehouse/internal/sandbox/bundle"

	"golang.org/x/sys/unix"
)

// runtimeProgram is a container runtime.
type runtimeProgram struct {
	path    string
	state   string // folder of its state
	noGroup bool   // it can be told to create no control groups
}

// errMissing is why no container can be made.
var errMissing = errors.New("no container runtime found: neither crun nor runc is in the PATH; " + remedyMissing)

// findRuntime finds the named program, or the first of runtimes.
func findRuntime(asked, state string) (*runtimeProgram, error) {
	names := runtimes
	if asked != "" {
		names = []string{asked}
	}
	for _, n := range names {
		path, err := exec.LookPath(n)
		if err != nil {
			continue
		}
		if path, err = filepath.Abs(path); err != nil {
			return nil, err
		}
		// Only crun supports this; others create a group at the given path.
		return &runtimeProgram{path: path, state: state, noGroup: strings.Contains(filepath.Base(path), "crun")}, nil
	}
	if asked != "" {
		return nil, fmt.Errorf("the container runtime %s was not found; %s", asked, remedyMissing)
	}
	return nil, errMissing
}

// groups returns the path of the control group that the runtime creates for the container, whose process is
// moved to the sandbox's group once it runs. It is "" if the runtime creates none and the container starts in
// the sandbox's group.
func (r *runtimeProgram) groups(id string) string {
	if r.noGroup {
		return ""
	}
	return "/" + id
}

// runArgs returns the command that makes a container and waits for its end. It inherits files files from 3 on.
func (r *runtimeProgram) runArgs(id, bundle string, files int) []string {
	args := r.global(filepath.Join(bundle, "log"))
	return append(args, "run", "--pid-file", filepath.Join(bundle, pidFile), "--bundle", bundle, "--preserve-fds",
		fmt.Sprint(files), id)
}

// pidFile is the file of a bundle with the id of the container's first process.
const pidFile = "pid"

// removeArgs returns the command that ends a container by force.
func (r *runtimeProgram) removeArgs(id, log string) []string {
	return append(r.global(log), "delete", "--force", id)
}

func (r *runtimeProgram) global(log string) []string {
	args := []string{r.path, "--root", r.state, "--log", log}
	if r.noGroup {
		args = append(args, "--cgroup-manager", "disabled")
	}
	return args
}

// hybrid is where control groups version 2 are mounted beside version 1. Some runtimes fail there, even if
// they are told to create no groups.
const hybrid = "/sys/fs/cgroup/unified"

// startRuntime starts the runtime on a thread of the starter. The kernel kills it when this process ends.
func (r *runtimeProgram) startRuntime(args []string, files []*os.File, born *os.File) (*os.Process, error) {
	attr := &os.ProcAttr{
		Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, Files: files, Dir: "/",
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		attr.Env = append(attr.Env, "XDG_RUNTIME_DIR="+dir)
	}
	if born != nil {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(born.Fd())
	}
	return os.StartProcess(r.path, args, attr)
}

// hideHybrid unmounts version 2 for this thread if both versions are mounted.
func hideHybrid() error {
	var st unix.Statfs_t
	if os.Geteuid() != 0 || unix.Statfs(hybrid, &st) != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare(CLONE_NEWNS): %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mount(make / private): %w", err)
	}
	if err := unix.Unmount(hybrid, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("umount2(%s): %w", hybrid, err)
	}
	return nil
}

// logged returns what the runtime logged, in one line.
func logged(log string) string {
	b, _ := os.ReadFile(log)
	return bundle.OneLine(string(b))
}
