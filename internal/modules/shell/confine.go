package shell

import (
	"context"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"gatehouse/internal/exec/proc"
	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/namespaces"
	"gatehouse/tool"
)

// What a confined command may use. Its own files lie in memory, half of it.
const (
	confinedMiB   = 1024
	confinedFiles = 4096 // that one process may have open
	confinedCPUs  = 4
	createWait    = 20 * time.Second // for a sandbox to be made
)

// covered are the places in a sandbox that it has for itself. Folders there are
// shown below aside.
var reservedPaths = []string{"/tmp", "/var/tmp", "/home/user", "/run", "/dev", "/proc", "/sys", foldersPath}

const foldersPath = "/folders"

// confine prepares sandboxes, and fails where there can be none: nothing is ever
// run unconfined instead.
func (m *runner) prepareSandboxes(ctx context.Context) error {
	d, err := namespaces.New(namespaces.Options{Log: m.log})
	if err != nil {
		return fmt.Errorf("confine: %w", err)
	}
	for _, f := range d.Doctor(ctx) {
		if f.Needed && !f.OK {
			d.Close()
			return fmt.Errorf("confine: commands cannot be confined here, and are not run otherwise: %s: %s; %s", f.Name, f.Detail, f.Remedy)
		}
	}
	m.driver = d
	return nil
}

// shown is where a folder of the host is in a sandbox.
type mapping struct{ from, to string }

// show says where the folders of a call are in a sandbox: where they are on the
// host, unless the sandbox has something of its own there.
func mapFolders(folders []tool.Root) (all []mapping, err error) {
	for i, r := range folders {
		from := filepath.Clean(r.Path)
		if from == "/" {
			return nil, &tool.Refusal{Code: "unsupported", Message: "the whole file system cannot be shown to a command that is confined", Next: "Give the host folders, or the context, in place of --unrestricted."}
		}
		to := from
		for _, c := range reservedPaths {
			if isWithin(c, from) || isWithin(from, c) {
				to = path.Join(foldersPath, strconv.Itoa(i+1), path.Base(from))
			}
		}
		all = append(all, mapping{from, to})
	}
	return all, nil
}

// below reports whether a path is a folder or in it. Both are clean, and made by
// the host: nothing is allowed by it.
func isWithin(folder, p string) bool { return p == folder || strings.HasPrefix(p, folder+"/") }

// seen is where a path of the host is in a sandbox; "" where it is not.
func sandboxPath(all []mapping, p string) string {
	for _, s := range all {
		if isWithin(s.from, p) {
			return path.Join(s.to, strings.TrimPrefix(p, s.from))
		}
	}
	return ""
}

// confined runs a command in a sandbox of its own, in which there is nothing of
// the host's but its programs and the folders of the call, to be read.
func (m *runner) runConfined(ctx context.Context, c *tool.Call, o spec, at string, out *outcome, to streams) error {
	folders, err := mapFolders(c.Roots.List())
	if err != nil {
		return err
	}
	limits := sandbox.Limits{MemoryMiB: confinedMiB, DiskMiB: confinedMiB / 2, VCPUs: confinedCPUs, Processes: m.cfg.Processes, Descriptors: confinedFiles, Call: MaxSeconds * time.Second}
	spec := sandbox.Spec{Limits: limits}
	for _, f := range folders {
		spec.Trees = append(spec.Trees, sandbox.Tree{From: f.from, To: f.to})
	}
	making, cancel := context.WithTimeout(ctx, createWait)
	defer cancel()
	box, err := m.driver.Create(making, spec)
	if ctx.Err() != nil && err != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return &tool.Refusal{Code: "not_started", Message: err.Error(), Next: "Try again; if that does not help, the operator finds out more with: gatehouse doctor."}
	}
	defer box.Close()
	dir := sandboxPath(folders, at)
	cmd := sandbox.Command{
		Argv: []string{o.shell, "-c", asArgument(o.command)}, Dir: dir, Env: o.env, Timeout: time.Duration(o.seconds) * time.Second, OutputBytes: -1,
		Stdout: to.stdout, Stderr: to.stderr,
	}
	if dir != "" {
		cmd.Env = append([]string{"PWD=" + dir}, o.env...)
	}
	if o.stdin != "" {
		cmd.Stdin = strings.NewReader(o.stdin)
	}
	if m.cfg.NoStderr {
		cmd.Stderr = nil
	}
	p, err := box.Exec(ctx, cmd)
	if ctx.Err() != nil && err != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return &tool.Refusal{Code: "not_started", Message: err.Error(), Next: "The shell may be missing in the sandbox, or the folder may be closed to other users; a command that is confined has at most 60,000 bytes."}
	}
	r, err := p.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	out.state = stateOf(r)
	if r.Outcome == sandbox.Lost {
		return errors.Join(errors.New("the sandbox of the command broke"), err)
	}
	return nil
}

// stateOf tells the end in a sandbox as that of any command.
func stateOf(r sandbox.Result) proc.State {
	s := proc.State{Code: r.Code, Took: r.Took, CPU: r.CPU}
	if r.Signal != 0 {
		s.Code, s.Signal = -1, syscall.Signal(r.Signal).String()
	}
	switch r.Outcome {
	case sandbox.TimedOut:
		s.Code, s.Stopped = -1, errTimeout
	case sandbox.OutOfMemory:
		s.Signal = fmt.Sprintf("killed: it needed more memory than the %d MiB there are", confinedMiB)
	}
	return s
}
