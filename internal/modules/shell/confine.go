package shell

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"gatehouse/internal/exec/proc"
	"gatehouse/internal/exec/supervisor"
	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/namespaces"
	"gatehouse/tool"
)

// Limits of a confined command. Its files are in memory and use at most half of
// it.
const (
	confinedMiB   = 1024
	confinedFiles = 4096 // open files of one process
	confinedCPUs  = 4
	createWait    = 20 * time.Second // time to make a sandbox
)

// reservedPaths are the paths at which a sandbox has its own files. A folder of
// the caller at such a path is mounted below foldersPath.
var reservedPaths = []string{"/tmp", "/var/tmp", "/home/user", "/run", "/dev", "/proc", "/sys", foldersPath}

const foldersPath = "/folders"

// prepareSandboxes prepares the driver. It returns an error if this machine
// cannot run sandboxes, because a command must not run unconfined instead.
func (m *runner) prepareSandboxes(ctx context.Context) error {
	d, err := namespaces.New(namespaces.Options{Log: m.log})
	if err != nil {
		return fmt.Errorf("confine: %w", err)
	}
	for _, f := range d.Doctor(ctx) {
		if f.Needed && !f.OK {
			d.Close()
			return fmt.Errorf(
				"confine: this machine cannot confine commands, so none can run: %s: %s; %s", f.Name, f.Detail,
				f.Remedy,
			)
		}
	}
	m.driver = d
	return nil
}

// mapping is a folder of the host and its path in a sandbox.
type mapping struct{ from, to string }

// mapFolders returns the paths in a sandbox of the folders of a call: the same as
// on the host, unless that path is reserved.
func mapFolders(folders []tool.Root) (all []mapping, err error) {
	for i, r := range folders {
		from := filepath.Clean(r.Path)
		if from == "/" {
			return nil, &tool.Refusal{
				Code:    tool.CodeUnsupported,
				Message: "a confined command cannot have the whole file system as its folder",
				Next:    "Ask an administrator to give the host or the context folders instead of --unrestricted.",
			}
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

// isWithin reports whether p is folder or below it. Both are clean paths of the
// host; the result decides nothing about permissions.
func isWithin(folder, p string) bool { return p == folder || strings.HasPrefix(p, folder+"/") }

// sandboxPath returns the path in a sandbox of a path of the host, or "" if the
// sandbox does not have it.
func sandboxPath(all []mapping, p string) string {
	for _, s := range all {
		if isWithin(s.from, p) {
			return path.Join(s.to, strings.TrimPrefix(p, s.from))
		}
	}
	return ""
}

func confinedLimits(processes int) sandbox.Limits {
	return sandbox.Limits{
		MemoryMiB:   confinedMiB,
		DiskMiB:     confinedMiB / 2,
		VCPUs:       confinedCPUs,
		Processes:   processes,
		Descriptors: confinedFiles,
		Call:        MaxSeconds * time.Second,
	}
}

// runConfined runs a command in a sandbox of its own. Of the host, the sandbox has
// only the programs and the folders of the call, all read-only.
func (m *runner) runConfined(
	ctx context.Context, c *tool.Call, o spec, at string, out *outcome, to streams, seen *programs,
) error {
	folders, err := mapFolders(c.Roots.List())
	if err != nil {
		return err
	}
	spec := sandbox.Spec{Limits: confinedLimits(m.cfg.Processes)}
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
		return &tool.Refusal{
			Code:    tool.CodeNotStarted,
			Message: err.Error(),
			Next:    "Try again. If that fails too, ask an administrator to run gatehouse doctor on the host.",
		}
	}
	defer box.Close()
	dir := sandboxPath(folders, at)
	cmd := sandbox.Command{
		Argv: []string{o.shell, "-c", asArgument(o.command)}, Dir: dir, Env: o.env,
		Timeout: time.Duration(o.seconds) * time.Second, OutputBytes: -1,
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
	report := func() supervisor.Report { return supervisor.Report{} }
	if m.judged() {
		cmd.Lists, report = m.listsOf(seen.noteProgram)
	}
	p, err := box.Exec(ctx, cmd)
	if ctx.Err() != nil && err != nil {
		report()
		return context.Cause(ctx)
	}
	if err != nil {
		report()
		return &tool.Refusal{
			Code:    tool.CodeNotStarted,
			Message: err.Error(),
			Next: "The sandbox may have no such shell, or other users may have no permission on the folder. A " +
				"confined command has at most 60,000 bytes.",
		}
	}
	r, err := p.Wait()
	out.notes = notes(report(), false)
	seen.close()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	out.state = stateOf(r)
	if r.Outcome == sandbox.Lost {
		return errors.Join(errors.New("the sandbox of the command failed"), err)
	}
	return nil
}

// listsOf returns the lists of a command in a sandbox, and what waits for the end of their report.
// each gets each program.
func (m *runner) listsOf(each func(supervisor.Program)) (*sandbox.Lists, func() supervisor.Report) {
	from, to := io.Pipe()
	read := make(chan supervisor.Report, 1)
	go func() { read <- supervisor.ReadReport(from, each) }()
	return &sandbox.Lists{Allow: m.cfg.Allow, Deny: m.cfg.Deny, Report: to}, func() supervisor.Report {
		to.Close() // the command has ended, and writes nothing any more
		return <-read
	}
}

// tryLists finds out whether programs in sandboxes can be judged on this machine.
func (m *runner) tryLists(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, createWait)
	defer cancel()
	box, err := m.driver.Create(ctx, sandbox.Spec{Limits: confinedLimits(supervisorThreads + 16)})
	if err != nil {
		return err
	}
	defer box.Close()
	refused := 0
	lists, report := m.listsOf(func(p supervisor.Program) {
		if p.Pattern != "" {
			refused++
		}
	})
	lists.Allow, lists.Deny = nil, []string{"env"}
	p, err := box.Exec(ctx, sandbox.Command{Argv: []string{"/bin/sh", "-c", "env; env; :"}, Lists: lists})
	if err == nil {
		_, err = p.Wait()
	}
	if r := report(); err == nil && (refused != 2 || !r.Ended) {
		err = fmt.Errorf("%d programs of an attempt in a sandbox were refused, not 2", refused)
	}
	return err
}

// stateOf converts the result of a sandbox to the state of a process.
func stateOf(r sandbox.Result) proc.State {
	s := proc.State{Code: r.Code, Took: r.Took, CPU: r.CPU}
	if r.Signal != 0 {
		s.Code, s.Signal = -1, syscall.Signal(r.Signal).String()
	}
	switch r.Outcome {
	case sandbox.TimedOut:
		s.Code, s.Stopped = -1, errTimeout
	case sandbox.OutOfMemory:
		s.Signal = fmt.Sprintf("killed: it needed more than %d MiB of memory", confinedMiB)
	}
	return s
}
