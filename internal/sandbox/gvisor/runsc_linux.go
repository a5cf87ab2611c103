//go:build amd64 || arm64

package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"gatehouse/internal/sandbox/bundle"
	"gatehouse/internal/sandbox/cgroup"
)

// runsc is the program that starts the kernels.
type runsc struct {
	path     string
	state    string // folder of its state
	rootless bool   // not run by root, which supports fewer features
}

// findRunsc finds the named program, or Program, or an installed runsc.
func findRunsc(asked, state string) (*runsc, error) {
	r := &runsc{state: state, rootless: os.Geteuid() != 0}
	names := []string{asked}
	if asked == "" {
		names = []string{beside(Program), "runsc"}
	}
	for _, n := range names {
		path, err := exec.LookPath(n)
		if err != nil {
			continue
		}
		r.path, err = filepath.Abs(path)
		return r, err
	}
	if asked != "" {
		return nil, fmt.Errorf("gVisor's program %s was not found; %s", asked, remedyMissing)
	}
	return nil, fmt.Errorf("neither %s in the folder of gatehouse nor runsc in the PATH was found; %s", Program,
		remedyMissing)
}

// beside returns the path of a program in the folder of the running one.
func beside(name string) string {
	self, err := os.Executable()
	if err != nil {
		return name
	}
	if real, err := filepath.EvalSymlinks(self); err == nil {
		self = real
	}
	return filepath.Join(filepath.Dir(self), name)
}

// global returns the start of every command.
//
// The limits are those of the sandbox's control group on the host, in which everything starts, so that they
// work with every version of control groups. Writable files are in the memory of gVisor's kernel already, so
// that no overlay is used.
func (r *runsc) global(log string) []string {
	args := []string{
		r.path, "--root", r.state, "--log", log, "--platform=systrap", "--network=none", "--ignore-cgroups",
		"--overlay2=none",
		"--host-settings=ignore", "--app-huge-pages=false", "--gofer-network-namespace=new", "--in-sandbox-cgroup=v1",
	}
	if r.rootless {
		args = append(args, "--rootless")
	}
	return args
}

// runArgs returns the command that starts a kernel and its first process, and waits for its end.
func (r *runsc) runArgs(id, bundle string) []string {
	return append(r.global(filepath.Join(bundle, logFile)), "run", "--bundle", bundle, id)
}

// restore returns the command that restores a kernel from a snapshot and waits for its end.
func (r *runsc) restore(id, bundle, image string) []string {
	return append(r.global(filepath.Join(bundle, logFile)), "restore", "--bundle", bundle, "--image-path", image, id)
}

const logFile = "log" // in a bundle

// do runs a command about a sandbox and waits for it.
func (r *runsc) do(ctx context.Context, folder string, args ...string) error {
	all := append(r.global(filepath.Join(folder, logFile)), args...)
	cmd := exec.CommandContext(ctx, all[0], all[1:]...)
	cmd.Env, cmd.Dir, cmd.WaitDelay = runscEnvironment(), "/", time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("runsc %s: %w: %s", args[0], errors.Join(err, context.Cause(ctx)),
			bundle.OneLine(string(out)))
	}
	return nil
}

// logged returns what runsc logged: the message of each line that is a JSON object, and other lines unchanged.
func logged(log string) string {
	b, _ := os.ReadFile(log)
	var all []string
	for line := range strings.Lines(string(b)) {
		var entry struct {
			Message string `json:"msg"`
		}
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Message != "" {
			line = entry.Message
		}
		all = append(all, line)
	}
	return bundle.OneLine(strings.Join(all, " "))
}

// runscEnvironment returns the environment of runsc, which contains nothing of the host's that is not required.
func runscEnvironment() []string {
	env := []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	for _, name := range []string{"XDG_RUNTIME_DIR", "TMPDIR"} {
		if v := os.Getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// startRunsc starts runsc in a control group. It must be called on a thread of the starter: the kernel kills runsc
// when the thread exits, and runsc makes what it started end with it.
func (r *runsc) startRunsc(args []string, files []*os.File, g *cgroup.Group) (*os.Process, error) {
	born, err := g.OpenV2()
	if err != nil {
		return nil, err
	}
	if born != nil {
		defer born.Close()
	}
	if err := g.Enter(); err != nil {
		return nil, err
	}
	attr := &os.ProcAttr{
		Env:   runscEnvironment(),
		Files: files,
		Dir:   "/",
		Sys:   &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	}
	if born != nil {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(born.Fd())
	}
	p, err := os.StartProcess(r.path, args, attr)
	if e := g.Leave(); e != nil && err == nil {
		p.Kill()
		p.Wait()
		return nil, e
	}
	return p, err
}
