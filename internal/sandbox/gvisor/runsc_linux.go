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

// runsc is the program that makes the kernels.
type runsc struct {
	path     string
	state    string // its folder
	rootless bool   // it is not run by root, which can do less
}

// findRunsc looks for the program that was asked for, or for ours, or for one
// that is installed.
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
		return nil, fmt.Errorf("gVisor's program %s is not there; %s", asked, remedyMissing)
	}
	return nil, fmt.Errorf("there is no %s beside gatehouse and no runsc in the PATH; %s", Program, remedyMissing)
}

// beside is a program in the folder of the one that runs.
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

// global are the arguments of every command.
//
// The limits are those of our own control groups, in which everything is born,
// so that they hold in every layout. What can be written is in the memory of the
// kernel in user space already, so that no layer is put over it.
func (r *runsc) global(log string) []string {
	args := []string{
		r.path, "--root", r.state, "--log", log, "--platform=systrap", "--network=none", "--ignore-cgroups", "--overlay2=none",
		"--host-settings=ignore", "--app-huge-pages=false", "--gofer-network-namespace=new", "--in-sandbox-cgroup=v1",
	}
	if r.rootless {
		args = append(args, "--rootless")
	}
	return args
}

// run are the arguments that make a kernel, start the first process in it and
// wait for its end.
func (r *runsc) run(id, bundle string) []string {
	return append(r.global(filepath.Join(bundle, logFile)), "run", "--bundle", bundle, id)
}

// restore are the arguments that make one of an image and wait for its end.
func (r *runsc) restore(id, bundle, image string) []string {
	return append(r.global(filepath.Join(bundle, logFile)), "restore", "--bundle", bundle, "--image-path", image, id)
}

const logFile = "log" // of a bundle

// do runs a command about a sandbox to its end.
func (r *runsc) do(ctx context.Context, folder string, args ...string) error {
	all := append(r.global(filepath.Join(folder, logFile)), args...)
	cmd := exec.CommandContext(ctx, all[0], all[1:]...)
	cmd.Env, cmd.Dir, cmd.WaitDelay = environment(), "/", time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("runsc %s: %w: %s", args[0], errors.Join(err, context.Cause(ctx)), bundle.Words(string(out)))
	}
	return nil
}

// said is what runsc wrote to a log, of which each line is a JSON object that
// has a message, or is taken as it is.
func said(log string) string {
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
	return bundle.Words(strings.Join(all, " "))
}

// environment is that of runsc, with nothing of ours that is not needed.
func environment() []string {
	env := []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	for _, name := range []string{"XDG_RUNTIME_DIR", "TMPDIR"} {
		if v := os.Getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// start starts runsc in a group, to be called on a thread of the starter: the
// kernel ends runsc when the thread is gone, and runsc sees to it that what it
// started ends with it.
func (r *runsc) start(args []string, files []*os.File, g *cgroup.Group) (*os.Process, error) {
	born, err := g.Born()
	if err != nil {
		return nil, err
	}
	if born != nil {
		defer born.Close()
	}
	if err := g.Enter(); err != nil {
		return nil, err
	}
	attr := &os.ProcAttr{Env: environment(), Files: files, Dir: "/", Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}}
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
