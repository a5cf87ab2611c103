package packages

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"gatehouse/internal/exec/cpushare"
	"gatehouse/internal/exec/proc"
	"gatehouse/internal/exec/shield"
	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/proxy"
	"gatehouse/tool"
)

const (
	createTime   = 30 * time.Second // to make a sandbox
	confinedOpen = 16384            // files that one process may have open
	diskInterval = 5 * time.Second  // between two looks at the size of a data folder
	diskShare    = 20               // a look takes at most this part of the time
	lookUpTime   = 10 * time.Second // for the addresses of registries
	inputWait    = 5 * time.Second  // for a program that does not read, as of package proc
	temporary    = ".tmp"           // in the data folder
)

// sandboxes are the sandboxes of a manager's packages.
type sandboxes struct {
	mu     sync.Mutex
	driver sandbox.Driver // nil before it is needed
	closed bool
}

// openDriver returns the driver that packages are confined by.
func (h *Manager) openDriver() (sandbox.Driver, error) {
	s := &h.sandboxes
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.driver != nil || s.closed {
		return s.driver, nil
	}
	d, err := h.opts.Sandboxes()
	if err == nil {
		s.driver = d
		if err := cpushare.ShortenSlices(); err != nil { // before the first package is started, which inherits it
			h.log.Warn("a package that calculates delays others more than it has to", "err", err)
		}
	}
	return d, err
}

// closeDriver ends what is left of the sandboxes.
func (h *Manager) closeDriver() error {
	s := &h.sandboxes
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.driver == nil {
		return nil
	}
	d := s.driver
	s.driver = nil
	return d.Close()
}

// confines reports whether a package runs in sandboxes.
func (p *managedPackage) confines(r *Record) bool {
	return r.Confinement == Sandboxed && p.manager.opts.Alone == nil
}

// cannotConfine says that a package does not run because nothing here can hold it.
func cannotConfine(id string, err error) error {
	return &tool.Refusal{
		Code:    tool.CodeUnavailable,
		Message: fmt.Sprintf("package %s cannot be confined on this machine, so nothing was run: %v", id, err),
		Next: fmt.Sprintf("gatehouse doctor says what sandboxes need. gatehouse package grant %s --trust runs it with "+
			"the rights of this host's user, in no sandbox.", id),
	}
}

// job is a program that runs in a sandbox of its own.
type job struct {
	argv   []string
	env    []string
	dir    string
	mounts []sandbox.Mount
	image  *sandbox.Image // nil for the programs of the machine
	users  *sandbox.Users // nil if it runs as one user
	grants Grants
	hosts  []string // that it may reach
	public []string // further addresses of these that are not public
	owner  *sandbox.Owner
	by     string // the interface that its connections use; "" means that of the system
	stdin  io.ReadCloser
	stdout io.Writer
	stderr io.Writer
}

// startConfined starts a program in a sandbox of its own.
func (p *managedPackage) startConfined(ctx context.Context, j job) (*confinedChild, error) {
	d, err := p.manager.openDriver()
	if err != nil {
		return nil, cannotConfine(p.id, err)
	}
	if d == nil {
		return nil, tool.Refuse(tool.CodeUnavailable, "%v; nothing was run", errClosing)
	}
	ports, err := proxy.Ports(j.hosts)
	if err != nil {
		return nil, err
	}
	for _, port := range []uint16{80, 443} { // so that what is refused there is told why
		if !slices.Contains(ports, port) && len(ports) < sandbox.MaxRoutePorts {
			ports = append(ports, port)
		}
	}
	seen := p.egressLog()
	spec := sandbox.Spec{
		Limits: sandbox.Limits{
			MemoryMiB: j.grants.memory(), DiskMiB: min(j.grants.disk(), j.grants.memory()/2+1), VCPUs: runtime.NumCPU(),
			Processes: j.grants.processes(), Descriptors: confinedOpen, Call: 24 * time.Hour,
		},
		Mounts: j.mounts, Apart: true, Image: j.image, Users: j.users, KeepOwners: j.image != nil && j.users == nil,
		WritableRoot: j.image != nil, Owner: j.owner,
		Route: &sandbox.Route{Ports: ports, Network: sandbox.Network{
			Allow: j.hosts, Interface: j.by, Special: slices.Concat(proxy.Addresses(j.hosts), j.public), Decided: seen,
			SpecialHint: fmt.Sprintf("a grant of the address: gatehouse package grant %s --allow-host ADDRESS:PORT",
				p.id),
		}},
	}
	making, cancel := context.WithTimeoutCause(ctx, createTime, errors.New("it took too long to make a sandbox"))
	defer cancel()
	box, err := d.Create(making, spec)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, cannotConfine(p.id, err)
	}
	run, end := context.WithCancelCause(ctx)
	program, err := box.Exec(run, sandbox.Command{
		Argv: j.argv, Dir: j.dir, Env: j.env, Stdin: j.stdin, Stdout: j.stdout, Stderr: j.stderr,
		Timeout: -1, OutputBytes: -1,
	})
	if err != nil {
		end(nil)
		box.Close()
		return nil, fmt.Errorf("%w (in a sandbox, where only the system's programs and granted folders are)", err)
	}
	return newConfinedChild(box, program, end, j), nil
}

// confinedChild is a program in a sandbox of its own, with the methods of proc.Process that packages use.
type confinedChild struct {
	box     sandbox.Sandbox
	program sandbox.Process
	end     context.CancelCauseFunc // ends the program
	grants  Grants
	users   bool // it has users of its own
	done    chan struct{}

	mu      sync.Mutex
	in      *os.File // nil if it has no input
	stopped error    // why this host ended it

	state proc.State // set before done is closed
	err   error
}

func newConfinedChild(
	box sandbox.Sandbox, program sandbox.Process, end context.CancelCauseFunc, j job,
) *confinedChild {
	c := &confinedChild{
		box: box, program: program, end: end, grants: j.grants, users: j.users != nil, done: make(chan struct{}),
	}
	go func() {
		defer close(c.done)
		result, err := program.Wait()
		end(nil)
		err = errors.Join(err, box.Close())
		for _, w := range []io.Writer{j.stdout, j.stderr} {
			if f, ok := w.(interface{ Flush() error }); ok {
				err = errors.Join(err, f.Flush())
			}
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.in != nil {
			c.in.Close()
		}
		c.state = c.stateOf(result)
		if c.state.Stopped == nil && result.Outcome == sandbox.Lost {
			c.err = errors.Join(errors.New("its sandbox has ended"), err)
		}
	}()
	return c
}

// stateOf describes how the program ended; c.mu is held.
func (c *confinedChild) stateOf(r sandbox.Result) proc.State {
	s := proc.State{Code: r.Code, Took: r.Took, CPU: r.CPU, Stopped: c.stopped}
	if r.Signal != 0 {
		s.Code, s.Signal = -1, syscall.Signal(r.Signal).String()
	}
	if r.Outcome == sandbox.OutOfMemory && s.Stopped == nil {
		s.Stopped = fmt.Errorf(
			"it needed more than %d MiB of memory; gatehouse package grant NAME --memory gives it more",
			c.grants.memory(),
		)
	}
	return s
}

// Pid returns the process that is the first of the sandbox, 0 if the driver has none.
func (c *confinedChild) Pid() int {
	if p, ok := c.box.(interface{ Pid() int }); ok {
		return p.Pid()
	}
	return 0
}

// Usage describes what the sandbox uses, with the agent and the launcher in it.
func (c *confinedChild) Usage() (proc.Usage, error) {
	pid := c.Pid()
	if pid == 0 {
		return proc.Usage{}, errors.ErrUnsupported
	}
	return proc.UsageBelow(pid)
}

// Type writes to the input, as that of proc.Process does.
func (c *confinedChild) Type(ctx context.Context, b []byte) (int, error) {
	c.mu.Lock()
	in := c.in
	c.mu.Unlock()
	if in == nil {
		return 0, proc.ErrNoInput
	}
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	in.SetWriteDeadline(time.Now().Add(inputWait))
	defer context.AfterFunc(ctx, func() { in.SetWriteDeadline(time.Unix(1, 0)) })()
	n, err := in.Write(b)
	switch {
	case err == nil:
		return n, nil
	case ctx.Err() != nil:
		return n, context.Cause(ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, err
	}
	return n, proc.ErrNoInput
}

// CloseInput closes the input.
func (c *confinedChild) CloseInput(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.in == nil {
		return proc.ErrNoInput
	}
	err := c.in.Close()
	c.in = nil
	return err
}

// Stop asks the program to end, and kills it after the grace period or when ctx ends. It returns when everything in
// the sandbox has ended.
func (c *confinedChild) Stop(ctx context.Context) error {
	c.stop(proc.ErrStopped)
	if ctx.Err() == nil {
		c.program.Signal(int(syscall.SIGTERM))
		t := time.NewTimer(stopGrace)
		defer t.Stop()
		select {
		case <-c.done:
			return nil
		case <-t.C:
		case <-ctx.Done():
		}
	}
	c.box.Close()
	<-c.done
	return nil
}

// stop records why this host ends the program.
func (c *confinedChild) stop(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped == nil {
		c.stopped = why
	}
}

// kill ends everything in the sandbox at once.
func (c *confinedChild) kill(why error) {
	c.stop(why)
	c.box.Close()
}

// Wait returns how the program ended.
func (c *confinedChild) Wait() (proc.State, error) {
	<-c.done
	return c.state, c.err
}

// watchDisk ends a program whose package has more files of its own than it may. It returns when the program ends.
func (c *confinedChild) watchDisk(dir string) {
	size := func(ctx context.Context) (int64, error) { return folderSize(ctx, dir) }
	if owned, ok := c.box.(sandbox.OwnedFiles); ok && c.users {
		size = func(ctx context.Context) (int64, error) { return owned.TreeSize(ctx, imageHome) }
	}
	for pause := diskInterval; ; {
		t := time.NewTimer(pause)
		select {
		case <-c.done:
			t.Stop()
			return
		case <-t.C:
		}
		begun := time.Now()
		if err := checkDisk(context.Background(), size, dir, c.grants); err != nil {
			c.kill(err)
			return
		}
		pause = max(diskInterval, diskShare*time.Since(begun))
	}
}

// checkDisk refuses a package whose own files are more than they may be.
func checkDisk(ctx context.Context, measure func(context.Context) (int64, error), dir string, g Grants) error {
	size, err := measure(ctx)
	if err == nil && size > int64(g.disk())<<20 {
		err = &tool.Refusal{
			Code: tool.CodeTooLarge,
			Message: fmt.Sprintf("its own files have %d MiB, and at most %d MiB are allowed: %s", size>>20, g.disk(),
				dir),
			Next: "Remove some, or give it more with gatehouse package grant NAME --disk.",
		}
	}
	return err
}

// startServer starts the server of a package in a sandbox.
func (p *managedPackage) startServer(r *Record, command string, args, env []string, stdout, stderr io.Writer) (
	*confinedChild, error,
) {
	data, size := p.dataOf(r), p.dataSize
	if r.staged != nil {
		size = func(ctx context.Context) (int64, error) { return folderSize(ctx, data) }
	}
	if err := checkDisk(p.manager.ctx, size, data, r.Grants); err != nil {
		return nil, err
	}
	defer r.staged.close() // the sandbox has the mounts then
	j, command, err := p.serverJob(r, command)
	if err != nil {
		return nil, err
	}
	j.owner = r.staged.sandboxOwner()
	if r.staged == nil {
		p.using.starts.RLock()
		defer p.using.starts.RUnlock()
	}
	in, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	c, err := p.startConfined(p.manager.ctx, j.child(command, args, env, r, in, stdout, stderr))
	if err != nil {
		in.Close()
		out.Close()
		return nil, err
	}
	c.mu.Lock()
	c.in = out
	c.mu.Unlock()
	if r.staged == nil {
		p.mu.Lock()
		if p.using.running == nil {
			p.using.running = map[*confinedChild]bool{}
		}
		p.using.running[c] = true
		p.mu.Unlock()
	}
	p.manager.work.Go(func() { // the caller holds the manager open
		c.watchDisk(data)
		<-c.done
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.using.running, c)
	})
	return c, nil
}

// serverJob returns the files that the server of a package has, its working folder, and its program there.
func (p *managedPackage) serverJob(r *Record, command string) (j job, file string, err error) {
	if r.Source.Kind == OCI {
		j, err = p.imageJob(r)
		return j, command, err
	}
	file, tools, err := findProgram(command)
	if err != nil {
		return j, "", err
	}
	mounts, err := p.mounts(r)
	return job{dir: p.data(), mounts: append(tools, mounts...)}, file, err
}

// confinedEnvironment returns the variables of a program in a sandbox whose home is a folder.
func confinedEnvironment(home string) []string {
	env := []string{
		"HOME=" + home, "TMPDIR=" + filepath.Join(home, temporary),
		"XDG_CACHE_HOME=" + filepath.Join(home, ".cache"), "XDG_CONFIG_HOME=" + filepath.Join(home, ".config"),
		"XDG_DATA_HOME=" + filepath.Join(home, ".local", "share"),
		"XDG_STATE_HOME=" + filepath.Join(home, ".local", "state"),
		"XDG_RUNTIME_DIR=" + filepath.Join(home, temporary),
	}
	for _, kv := range proc.BaseEnv() {
		name, _, _ := strings.Cut(kv, "=")
		if name == "PATH" || name == "TZ" || strings.HasPrefix(name, "LANG") || strings.HasPrefix(name, "LC_") {
			env = append(env, kv)
		}
	}
	return env
}

// makeHome makes the folders that confinedEnvironment names, of which programs expect some.
func makeHome(home string) error {
	return os.MkdirAll(filepath.Join(home, temporary), 0o700)
}

// mounts returns what a package's server has of the host: what is granted, and the folders of the package.
func (p *managedPackage) mounts(r *Record) (all []sandbox.Mount, err error) {
	if all, err = p.grantedMounts(r); err != nil {
		return nil, err
	}
	all = append(all, sandbox.Mount{From: realPath(p.dataOf(r)), To: p.data(), Write: true})
	if r.Program != "" {
		top := filepath.Join(p.folder(), programTop(r.Program))
		all = append(all, sandbox.Mount{From: realPath(top), To: top, Write: !r.Shared && r.staged == nil})
	}
	return all, nil
}

// grantedMounts returns what is granted of the host, without the host's own files.
func (p *managedPackage) grantedMounts(r *Record) (all []sandbox.Mount, err error) {
	granted, err := r.Grants.Resolve()
	if err != nil {
		return nil, err
	}
	private := append(shield.Closed(), realPath(p.manager.opts.Folder))
	folders := withAnnounced(granted.Folders, r.announced)
	slices.SortFunc(folders, func(a, b string) int { return compare(a, b) }) // those inside others after these
	for _, text := range folders {
		path, write := grantedFolder(text)
		if i := slices.IndexFunc(private, func(f string) bool { return within(f, path) }); i >= 0 {
			return nil, invalid("folder %q: it is one of this host's own, which no package may have", path)
		}
		m := sandbox.Mount{From: path, Write: write}
		if r.staged != nil {
			if m, err = r.staged.stagedMount(path, write); err != nil {
				return nil, err
			}
		}
		all = append(all, m)
	}
	for _, path := range granted.Sockets {
		all = append(all, sandbox.Mount{From: path, Write: true})
	}
	for _, path := range granted.Devices {
		all = append(all, sandbox.Mount{From: path, Device: true})
	}
	for _, f := range private {
		if slices.ContainsFunc(all, func(m sandbox.Mount) bool { return within(cmp.Or(m.From, m.To), f) }) {
			all = append(all, sandbox.Mount{To: f})
		}
	}
	return all, nil
}

// realPath returns a path without symbolic links, or as it is if it does not exist.
func realPath(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

// systemFolders are those with programs that each sandbox has.
var systemFolders = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store"}

// findProgram finds a program of the host, and what a sandbox needs to run it if it is not one of the system's: its
// file, and the folder of its version of Node or Python if it is in one.
func findProgram(command string) (file string, mounts []sandbox.Mount, err error) {
	if file, err = lookPath(command); err != nil {
		return "", nil, fmt.Errorf("start %s: %w", command, err)
	}
	if file, err = filepath.Abs(file); err != nil {
		return "", nil, err
	}
	real, err := filepath.EvalSymlinks(file)
	if err != nil {
		return "", nil, err
	}
	for _, path := range []string{file, real} {
		if slices.ContainsFunc(systemFolders, func(f string) bool { return within(f, path) }) {
			continue
		}
		m := sandbox.Mount{From: real, To: path}
		if prefix := filepath.Dir(filepath.Dir(path)); isToolchain(prefix) {
			m = sandbox.Mount{From: realPath(prefix), To: prefix}
		}
		if !slices.Contains(mounts, m) {
			mounts = append(mounts, m)
		}
	}
	return file, mounts, nil
}

// named returns the files and folders of this machine that the arguments of a package name, without those that each
// sandbox has.
func (r *Record) named() (paths []string) {
	for _, arg := range r.Args {
		if name, value, ok := strings.Cut(arg, "="); ok && strings.HasPrefix(name, "-") {
			arg = value
		}
		if !filepath.IsAbs(arg) || filepath.Clean(arg) == "/" || strings.ContainsAny(arg, "\x00\n") {
			continue
		}
		real, err := filepath.EvalSymlinks(arg)
		if err != nil ||
			slices.ContainsFunc(append([]string{"/etc", "/dev", "/proc", "/sys", "/tmp"}, systemFolders...),
				func(f string) bool { return real == f || f != "/tmp" && within(f, real) }) {
			continue
		}
		paths = append(paths, filepath.Clean(arg))
	}
	return paths
}

// ungranted returns those of named that a confined package was not granted.
func (r *Record) ungranted() []string {
	if r.Confinement != Sandboxed {
		return nil
	}
	return slices.DeleteFunc(r.named(), func(path string) bool {
		return slices.ContainsFunc(r.Grants.Folders, func(text string) bool {
			folder, _ := grantedFolder(text)
			_, announced := announcedGrant(text) // not all of it, and nothing of it for a client without roots
			return !announced && within(folder, realPath(path))
		})
	})
}

// GrantNamed grants a package what its arguments name on this machine.
func (r *Record) GrantNamed() {
	r.Grants = r.Grants.with(Grants{Folders: r.named()})
}

// isToolchain reports whether a folder is an installation of Node or Python, or a virtual environment of Python, and
// nothing else. The system's folders are none.
func isToolchain(prefix string) bool {
	if slices.ContainsFunc(append([]string{"/"}, systemFolders...), func(f string) bool { return prefix == f }) {
		return false
	}
	if found, _ := filepath.Glob(filepath.Join(prefix, "lib", "python3.*", "os.py")); found != nil {
		return true
	}
	for _, mark := range []string{"pyvenv.cfg", "lib/node_modules/npm/package.json"} {
		if _, err := os.Stat(filepath.Join(prefix, mark)); err == nil {
			return true
		}
	}
	return false
}

// runConfinedStep runs a step of an installation in a sandbox: it has the folders that it names, the hosts that it
// names, and a home that is removed afterwards.
func (p *managedPackage) runConfinedStep(
	ctx context.Context, r *Record, s BuildStep, output io.Writer,
) (exit int, err error) {
	home, err := os.MkdirTemp(p.folder(), "build-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(home)
	if err := makeHome(home); err != nil {
		return 0, err
	}
	file, mounts, err := findProgram(s.Path)
	if err != nil {
		return 0, noStep(s.Path, err)
	}
	for _, path := range s.Read {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		mounts = append(mounts, sandbox.Mount{From: realPath(path), To: path})
	}
	for _, path := range append([]string{home, s.Dir}, s.Write...) {
		mounts = append(mounts, sandbox.Mount{From: realPath(path), To: path, Write: true})
	}
	var hosts []string
	if s.Hosts != nil {
		if hosts, err = s.Hosts(ctx); err != nil {
			return 0, err
		}
	}
	g := Grants{Memory: r.Grants.Memory, Processes: r.Grants.Processes, Disk: max(r.Grants.Disk, defaultDiskMiB)}
	c, err := p.startConfined(ctx, job{
		argv: append(
			[]string{file},
			s.Args...), env: append(confinedEnvironment(home), withoutUserFolders(s.Env)...), dir: s.Dir,
		mounts: mounts, grants: g, hosts: hosts, public: registryAddresses(ctx, hosts), stdout: output, stderr: output,
	})
	if err != nil {
		return 0, err
	}
	end, err := c.Wait()
	switch {
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case err == nil && end.Stopped != nil:
		err = end.Stopped
	}
	return end.Code, err
}

// registryAddresses returns the addresses of registries as rules, because one that the configuration of the host's user
// names may be in a private network.
func registryAddresses(ctx context.Context, hosts []string) (rules []string) {
	ctx, cancel := context.WithTimeout(ctx, lookUpTime)
	defer cancel()
	for _, host := range hosts {
		name, port, err := net.SplitHostPort(host)
		if err != nil {
			name, port = host, ""
		}
		found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		if err != nil {
			continue // the proxy says why
		}
		for _, a := range found {
			rules = append(rules, addressRule(a.Unmap(), port))
		}
	}
	return rules
}

func addressRule(a netip.Addr, port string) string {
	if port != "" {
		return net.JoinHostPort(a.String(), port)
	}
	return a.String()
}

const (
	egressWindow = time.Minute
	mostEgress   = 60 // different decisions that are recorded in the window
)

// egressLog returns what records the decisions on the network of one instance: each once in a minute, and only some.
func (p *managedPackage) egressLog() func(sandbox.Decision) {
	type key struct {
		allowed        bool
		method, target string
	}
	var mu sync.Mutex
	seen, since, full := map[key]bool{}, time.Now(), false
	return func(d sandbox.Decision) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(since) > egressWindow {
			seen, since, full = map[key]bool{}, time.Now(), false
		}
		k := key{d.Allowed, d.Method, d.Target}
		if seen[k] || full {
			return
		}
		if full = len(seen) >= mostEgress; full {
			p.journal.writeLine("[host] network: further attempts of this minute are not recorded")
			return
		}
		seen[k] = true
		verdict := "refused"
		if d.Allowed {
			verdict = "allowed"
		}
		p.journal.writeLine(fmt.Sprintf("[host] network: %s %s %s: %s", verdict, d.Method, d.Target, d.Reason))
		if p.manager.opts.Egress != nil {
			p.manager.opts.Egress(p.id, d)
		}
	}
}
