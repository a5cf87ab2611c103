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

// runtimeProgram is the program that makes containers.
type runtimeProgram struct {
	path    string
	state   string // its folder
	noGroup bool   // it can be told to leave control groups alone
}

// errMissing is why there are no containers.
var errMissing = errors.New("there is no container runtime, neither crun nor runc, in the PATH; " + remedyMissing)

// findRuntime looks for the program that was asked for, or for any.
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
		// Only crun knows how; others make one where they are told to.
		return &runtimeProgram{path: path, state: state, noGroup: strings.Contains(filepath.Base(path), "crun")}, nil
	}
	if asked != "" {
		return nil, fmt.Errorf("the container runtime %s is not there; %s", asked, remedyMissing)
	}
	return nil, errMissing
}

// groups is the control group that the runtime makes for the container, which is
// taken into ours once it runs; "" when it makes none and the container is born
// in ours.
func (r *runtimeProgram) groups(id string) string {
	if r.noGroup {
		return ""
	}
	return "/" + id
}

// run are the arguments that make a container and wait for its end. Files from
// 3 on are given to it.
func (r *runtimeProgram) run(id, bundle string, files int) []string {
	args := r.global(filepath.Join(bundle, "log"))
	return append(args, "run", "--pid-file", filepath.Join(bundle, pidFile), "--bundle", bundle, "--preserve-fds", fmt.Sprint(files), id)
}

// pidFile is where in a bundle the number of the container's first process is.
const pidFile = "pid"

// remove are the arguments that end a container whatever it does.
func (r *runtimeProgram) remove(id, log string) []string {
	return append(r.global(log), "delete", "--force", id)
}

func (r *runtimeProgram) global(log string) []string {
	args := []string{r.path, "--root", r.state, "--log", log}
	if r.noGroup {
		args = append(args, "--cgroup-manager", "disabled")
	}
	return args
}

// hybrid is where version 2 of control groups is mounted beside version 1. Some
// runtimes refuse to work there, although they are told to leave groups alone.
const hybrid = "/sys/fs/cgroup/unified"

// start starts the runtime on a thread of the starter. It ends with this process.
func (r *runtimeProgram) start(args []string, files []*os.File, born *os.File) (*os.Process, error) {
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

// hideHybrid takes version 2 out of this thread's sight where both are mounted.
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

// said is what the runtime wrote to its log.
func said(log string) string {
	b, _ := os.ReadFile(log)
	return bundle.Words(string(b))
}
