package machinetest

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

//go:embed boot.sh
var bootScript string

// inside is set for the program of the tests when it runs in the machine.
const inside = "GATEHOUSE_TEST_MACHINE"

// withheld are the capabilities that no process of the machine has: what they allow
// would change the machine that runs the tests.
const withheld = "-sys_time,-sys_module,-sys_rawio,-wake_alarm"

// bootTime bounds the start of systemd and of the daemon of D-Bus.
const bootTime = 90 * time.Second

// errNone is why there is no machine; nil if there is one.
var errNone = errors.New("TestMain does not call machinetest.Main")

// Main runs the tests of a package in a machine, and returns the exit code. If no
// machine can be had, it runs them here, and Need skips those that need one. It must
// be called by TestMain.
func Main(m *testing.M) int {
	if os.Getenv(inside) != "" {
		errNone = nil
		return m.Run()
	}
	runtime.LockOSThread() // the machine is killed when the thread that started it ends
	b, err := boot()
	if err != nil {
		errNone = err
		return m.Run()
	}
	code := b.run(os.Args[1:])
	return max(code, b.close())
}

// Inside reports whether this program runs in a machine.
func Inside() bool { return os.Getenv(inside) != "" }

// Need skips a test that does not run in a machine. If CI is set, it fails unless
// this system can have no machine.
func Need(t *testing.T) {
	t.Helper()
	if errNone == nil {
		return
	}
	if _, can := errors.AsType[*unable](errNone); !can && os.Getenv("CI") != "" {
		t.Fatalf("no machine: %v", errNone)
	}
	t.Skipf("not run, since there is no machine for it: %v", errNone)
}

// unable is the error for a system that can have no machine, whatever is installed.
type unable struct{ why string }

func (u *unable) Error() string { return u.why }

// box is a machine that runs.
type box struct {
	cmd     *exec.Cmd
	work    string
	cgroup  string
	console bytes.Buffer // what systemd printed; read after cmd has ended
}

func boot() (b *box, err error) {
	packages, repository, err := findFolders()
	if err != nil {
		return nil, err
	}
	b = &box{}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	if b.work, err = os.MkdirTemp("", "machine-"); err != nil {
		return nil, err
	}
	if b.cgroup, err = makeCgroup(); err != nil {
		return nil, err
	}
	folder, err := os.Open(b.cgroup)
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	b.cmd = exec.Command("/bin/sh", "-c", `exec unshare --cgroup -- /bin/sh -c "$0" boot "$@"`, bootScript,
		b.work, packages, repository, self, withheld, os.Getenv(FilesVariable))
	b.cmd.Stdout, b.cmd.Stderr = &b.console, &b.console
	b.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS |
			syscall.CLONE_NEWIPC,
		Pdeathsig: syscall.SIGKILL, UseCgroupFD: true, CgroupFD: int(folder.Fd()),
	}
	if err := b.cmd.Start(); err != nil {
		b.cmd = nil
		if errors.Is(err, fs.ErrPermission) {
			return nil, &unable{"namespaces: " + err.Error()}
		}
		return nil, err
	}
	return b, b.await()
}

// findFolders returns what install.sh unpacked and the folder of the repository.
func findFolders() (packages, repository string, err error) {
	if os.Getuid() != 0 {
		return "", "", &unable{"only root can start one"}
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", "", err
	}
	for repository = dir; ; repository = filepath.Dir(repository) {
		if _, err := os.Stat(filepath.Join(repository, "go.mod")); err == nil {
			break
		}
		if repository == filepath.Dir(repository) {
			return "", "", errors.New("there is no go.mod above " + dir)
		}
	}
	packages, err = filepath.EvalSymlinks(filepath.Join(repository, ".tools", "appliance", "root"))
	if err != nil {
		return "", "", errors.New("make setup has not unpacked the packages of the daemons into .tools/appliance")
	}
	return packages, repository, nil
}

// makeCgroup makes a cgroup for the machine in the hierarchy of version 2.
func makeCgroup() (string, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if len(f) < 9 || !strings.Contains(line, " - cgroup2 ") {
			continue
		}
		dir, err := os.MkdirTemp(f[4], "gatehouse-machine-")
		if err != nil {
			return "", &unable{"cgroups: " + err.Error()}
		}
		return dir, nil
	}
	return "", &unable{"cgroups of version 2 are not mounted"}
}

// await waits until the machine's D-Bus answers.
func (b *box) await() error {
	ctx, cancel := context.WithTimeout(context.Background(), bootTime)
	defer cancel()
	for {
		var state syscall.WaitStatus
		if pid, _ := syscall.Wait4(b.cmd.Process.Pid, &state, syscall.WNOHANG, nil); pid != 0 {
			b.cmd.Wait() // ends the copying of its output
			b.cmd = nil
			return fmt.Errorf("the machine ended at its start: %s", b.console.String())
		}
		if exec.CommandContext(ctx, "nsenter", b.enter("busctl", "call", "org.freedesktop.systemd1",
			"/org/freedesktop/systemd1", "org.freedesktop.DBus.Peer", "Ping")...).Run() == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("the machine was not ready in %v", bootTime)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// enter returns the arguments with which nsenter runs a program in the machine.
func (b *box) enter(args ...string) []string {
	return append([]string{"-t", strconv.Itoa(b.cmd.Process.Pid), "-m", "-u", "-i", "-n", "-p", "-C", "--",
		"setpriv", "--bounding-set=" + withheld, "--"}, args...)
}

// run runs the program of the tests in the machine, in the same folder.
func (b *box) run(args []string) int {
	dir, err := os.Getwd()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	line := []string{"/bin/sh", "-c", `cd "$0" && exec "$@"`, dir, "/test/program"}
	for _, a := range args {
		// These name files outside the machine, for a cache of results that must not hold these.
		if !strings.HasPrefix(a, "-test.testlogfile=") && !strings.HasPrefix(a, "-test.gocoverdir=") {
			line = append(line, a)
		}
	}
	cmd := exec.Command("nsenter", b.enter(line...)...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr // go test reads both as one
	cmd.Env = append(os.Environ(), inside+"=1", "TMPDIR=/tmp", "HOME=/root", "PATH=/usr/sbin:/usr/bin:/sbin:/bin")
	err = cmd.Run()
	if ended, is := errors.AsType[*exec.ExitError](err); is {
		return max(ended.ExitCode(), 1)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// close ends the machine and removes what it had. It returns 1 if something is left.
func (b *box) close() (code int) {
	if b.cmd != nil {
		b.cmd.Process.Kill() // process 1 of its namespace: all others end with it
		b.cmd.Wait()
	}
	var left error
	if b.cgroup != "" {
		for range 100 {
			if left = removeCgroup(b.cgroup); left == nil {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	if b.work != "" {
		left = errors.Join(left, os.Remove(b.work))
	}
	left = errors.Join(left, loopsLeft())
	if left != nil {
		fmt.Fprintln(os.Stderr, "the machine left something behind:", left)
		return 1
	}
	return 0
}

// removeCgroup removes a cgroup with those below it.
func removeCgroup(dir string) error {
	var all []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			all = append(all, path)
		}
		return err
	})
	for i := len(all) - 1; i >= 0; i-- {
		err = errors.Join(err, os.Remove(all[i]))
	}
	return err
}

// loopsLeft returns an error if a file of a machine is still attached.
func loopsLeft() (left error) {
	all, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, path := range all {
		b, err := os.ReadFile(path)
		if err == nil && strings.HasPrefix(string(b), LoopFile) {
			left = errors.Join(left, fmt.Errorf("%s: %s", path, b))
		}
	}
	return errors.Join(left, err)
}
