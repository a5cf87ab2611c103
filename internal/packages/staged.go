package packages

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"gatehouse/internal/files/merged"
	"gatehouse/internal/files/roots"
	"gatehouse/internal/sandbox"
	"gatehouse/tool"
)

// A call that is staged goes to an instance of its task's own, whose sandbox has the task's view of the granted folders
// in place of the folders, and a copy of the package's data. So nothing that it does is seen outside of the task. That
// holds for packages which can reach nothing else; calls of the others ask, see outside.

// Staging is the staged task that a request belongs to.
type Staging struct {
	Task   string
	Caller tool.Caller
	View   roots.View // of the folders; nil if programs cannot run in the task's view
	// Changes says that the request may change something, so that it must not go to another instance.
	Changes bool
}

const (
	copyTime   = 2 * time.Minute  // for the data of a package
	stillTime  = 10 * time.Second // of that, in which programs that use the data stand still
	endWait    = 10 * time.Second
	mostCopied = 200_000 // names in the data of a package
)

// stagingOf returns the task of a request; nil if it has none.
func stagingOf(from *Peer) *Staging {
	if from == nil {
		return nil
	}
	return from.Staged
}

// outside returns what a package may affect besides folders, so that its calls cannot be staged; "" if nothing.
func (r *Record) outside() string {
	of := func(what string, list []string) string { return what + " " + strings.Join(list, ", ") }
	g := &r.Grants
	switch {
	case r.Source.IsRemote():
		return "runs elsewhere"
	case r.Source.Kind == OpenAPI:
		return "calls the service of its document"
	case r.Confinement != Sandboxed:
		return "runs as the user of this host, in no sandbox"
	case len(g.Hosts) > 0:
		return of("may connect to", g.Hosts)
	case len(g.Sockets) > 0:
		return of("may use the sockets", g.Sockets)
	case len(g.Devices) > 0:
		return of("may use the devices", g.Devices)
	case r.Source.Kind == OCI:
		return "is an image, whose volumes have no copy for a task"
	}
	return ""
}

// unstaged returns why calls of a package cannot be staged; "" if they can.
func (h *Manager) unstaged(r *Record) string {
	why := r.outside()
	if why == "" {
		why = h.unstagedFolders(r)
	}
	if why == "" {
		return ""
	}
	return "package " + r.ID + " " + why + ", so its calls cannot be staged"
}

// unstagedFolders returns which granted folder cannot be in the view of a task; "" if all can.
func (h *Manager) unstagedFolders(r *Record) string {
	var first *sandbox.Owner
	for _, text := range r.Grants.Folders {
		path, _ := grantedFolder(text)
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			continue // no instance of it starts
		}
		info, err := os.Stat(real)
		if err != nil {
			continue
		}
		if h.opts.CannotStage != nil {
			folder := real
			if !info.IsDir() {
				folder = filepath.Dir(real)
			}
			if why := h.opts.CannotStage(folder); why != "" {
				return "may use " + path + " (" + why + ")"
			}
		}
		owner := sandbox.OwnerOf(info)
		if first == nil {
			first = owner
		}
		if os.Geteuid() == 0 && owner != nil && owner.UID != first.UID {
			return "may use folders of several users, which one program of a task cannot own for a host that is root"
		}
	}
	return ""
}

// stage returns the task of a request, nil if it goes to the instances that serve other requests. p.mu is held.
func (p *managedPackage) stage(from *Peer) (*Staging, error) {
	s := stagingOf(from)
	if s == nil {
		return nil, nil
	}
	why := p.rec.outside()
	if why == "" && s.View == nil {
		why = "has no view of the task's folders"
	}
	switch {
	case why == "":
		return s, nil
	case !s.Changes:
		return nil, nil
	}
	return nil, &tool.Refusal{
		Code: tool.CodeStale, Message: "package " + p.id + " " + why + " now, so the call was not staged; nothing was run",
		Next: "Repeat the call; the person is asked about it.",
	}
}

// dataOf returns the data folder of an instance: that of the package, or the copy of a task.
func (p *managedPackage) dataOf(r *Record) string {
	if r.staged == nil {
		return p.data()
	}
	return filepath.Join(r.staged.View.Private(p.id), dataFolder)
}

// copyData makes the copy of the data folder that the instances of a task have, once for each task.
func (p *managedPackage) copyData(r *Record) error {
	to := p.dataOf(r)
	if _, err := os.Stat(to); err == nil {
		return nil
	}
	if p.hasOwners() {
		return errors.New("its data belong to users of an image, so a staged task has no copy of them")
	}
	if err := checkDisk(p.manager.ctx, p.dataSize, p.data(), r.Grants); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	temp, err := p.copyStill(filepath.Dir(to))
	if errors.Is(err, errNotStill) {
		p.journal.writeLine(
			fmt.Sprintf("[host] the copy of the data for a staged task is made while programs run: %v", err))
		temp, err = p.copyTo(p.manager.ctx, filepath.Dir(to), copyTime)
	}
	if err != nil {
		return fmt.Errorf("copy the data of the package for the task: %w", err)
	}
	err = os.Rename(temp, to)
	if errors.Is(err, fs.ErrExist) { // another instance of the task was faster
		err = os.RemoveAll(temp)
	}
	return err
}

// dataUsers are the programs that have the data folder of a package itself, and not the copy of a task.
type dataUsers struct {
	// starts is held for reading while one starts, and for writing while the folder is copied; taken before the mu of
	// the package, which guards running.
	starts  sync.RWMutex
	running map[*confinedChild]bool
}

// errNotStill is returned if a copy of data can only be made while programs change them.
var errNotStill = errors.New("they could not be stopped for it")

// copyStill copies the data folder into a new folder in dir, while the programs that use it are paused and none starts,
// so that the copy has the files as they were at one moment.
func (p *managedPackage) copyStill(dir string) (to string, err error) {
	p.using.starts.Lock()
	defer p.using.starts.Unlock()
	p.mu.Lock()
	using := slices.Collect(maps.Keys(p.using.running))
	p.mu.Unlock()
	pausing, cancel := context.WithTimeout(p.manager.ctx, stillTime)
	defer cancel()
	for _, c := range using {
		box, ok := c.box.(sandbox.Pausable)
		if !ok {
			return "", fmt.Errorf("%w: their sandboxes cannot be paused", errNotStill)
		}
		defer func() {
			resuming, cancel := context.WithTimeout(context.Background(), stillTime)
			defer cancel()
			if err := box.Resume(resuming); err != nil && !errors.Is(err, sandbox.ErrClosed) {
				c.kill(fmt.Errorf("it could not be continued after its data were copied: %w", err))
			}
		}()
		if err := box.Pause(pausing); err != nil && !errors.Is(err, sandbox.ErrClosed) {
			return "", fmt.Errorf("%w: %w", errNotStill, err)
		}
	}
	to, err = p.copyTo(pausing, dir, stillTime)
	if err != nil && pausing.Err() != nil && p.manager.ctx.Err() == nil {
		err = fmt.Errorf("%w: the copy took more than %v", errNotStill, stillTime)
	}
	return to, err
}

// copyTo copies the data folder into a new folder in dir, and returns that.
func (p *managedPackage) copyTo(ctx context.Context, dir string, limit time.Duration) (string, error) {
	temp, err := os.MkdirTemp(dir, "copy-")
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errors.New("it took too long"))
	defer cancel()
	if err := copyTree(ctx, p.data(), temp); err != nil {
		return "", errors.Join(err, os.RemoveAll(temp))
	}
	return temp, nil
}

// copyTree copies folders, files and links of a folder in which a program may be working. It follows no link.
func copyTree(ctx context.Context, from, to string) error {
	src, err := os.OpenRoot(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer dst.Close()
	names := 0
	return fs.WalkDir(src.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if names++; names > mostCopied {
			return fmt.Errorf("it has more than %d names", mostCopied)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil && name != "." {
			err = copyEntry(src, dst, name, d)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it was removed meanwhile
		}
		return err
	})
}

func copyEntry(src, dst *os.Root, name string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	switch d.Type() {
	case fs.ModeDir:
		return dst.Mkdir(name, info.Mode().Perm()|0o700)
	case fs.ModeSymlink:
		target, err := src.Readlink(name)
		if err != nil {
			return err
		}
		return dst.Symlink(target, name)
	case 0:
	default:
		return nil // sockets and pipes end with their programs
	}
	// It may have become a pipe, which must not be waited for.
	in, err := src.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	if now, err := in.Stat(); err != nil || !now.Mode().IsRegular() {
		return err
	}
	out, err := dst.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	err = errors.Join(merged.CopyContent(out, in), out.Close())
	return errors.Join(err, dst.Chtimes(name, info.ModTime(), info.ModTime()))
}

// stagedMount returns what is granted of the host as the task of an instance sees it.
func (s *stagedStart) stagedMount(path string, write bool) (sandbox.Mount, error) {
	f, err := s.View.Mount(path, write)
	if err != nil {
		return sandbox.Mount{}, err
	}
	s.opened = append(s.opened, f)
	info, err := f.Stat()
	if err != nil {
		return sandbox.Mount{}, err
	}
	if s.owner == nil {
		s.owner = sandbox.OwnerOf(info)
	}
	return sandbox.Mount{File: f, To: path, Write: write}, nil
}

// stagedStart is one start of an instance of a task.
type stagedStart struct {
	*Staging
	opened []*os.File     // until the sandbox has them
	owner  *sandbox.Owner // of what is granted; nil if nothing is
}

func (s *stagedStart) close() {
	if s == nil {
		return
	}
	for _, f := range s.opened {
		f.Close()
	}
	s.opened = nil
}

// sandboxOwner returns the user as whom the program of an instance runs; nil means one of the sandbox's own.
func (s *stagedStart) sandboxOwner() *sandbox.Owner {
	if s == nil {
		return nil
	}
	return s.owner
}

// EndTask ends the instances of a staged task: all, or those that have nothing to do. It returns when they have exited.
func (h *Manager) EndTask(task string, all bool) {
	leave, err := h.addWork()
	if err != nil {
		return // they have ended with the manager
	}
	defer leave()
	var ends sync.WaitGroup
	for _, p := range h.sortedPackages() {
		p.mu.Lock()
		for _, i := range p.poolInstances() {
			if i.key.task != task {
				continue
			}
			u := i.running
			switch {
			case p.retireInstance(i):
				if u != nil {
					ends.Go(func() { sleepUntil(u.gone, endWait) })
				}
			case all:
				ends.Go(func() {
					if err := i.stopInstance(); err != nil {
						h.log.Warn("a server of a staged task did not end as it was asked to", "package", p.id, "task", task,
							"err", err)
					}
					p.mu.Lock()
					defer p.mu.Unlock()
					p.retireInstance(i)
				})
			}
		}
		p.mu.Unlock()
	}
	ends.Wait()
}

// endClosedTasks ends the instances of tasks that are not open any more, such as those that another program has
// refused.
func (h *Manager) endClosedTasks() {
	if h.opts.TaskOpen == nil {
		return
	}
	tasks := map[string]bool{}
	for _, p := range h.sortedPackages() {
		p.mu.Lock()
		for key := range p.pool {
			tasks[key.task] = true
		}
		p.mu.Unlock()
	}
	for task := range tasks {
		if task != "" && !h.opts.TaskOpen(task) {
			h.goWork(func(context.Context) { h.EndTask(task, true) })
		}
	}
}

// useSecrets reports that a server of a task was started with secrets.
func (h *Manager) useSecrets(r *Record) {
	if r.staged == nil || h.opts.SecretsUsed == nil {
		return
	}
	if names := r.secretNames(); len(names) > 0 {
		h.opts.SecretsUsed(r.staged.Caller, r.staged.Task, names)
	}
}
