package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"gatehouse/internal/access/approvals"
	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/exec/proc"
	"gatehouse/internal/exec/shield"
	"gatehouse/internal/exec/supervisor"
	"gatehouse/internal/files/fusemount"
	"gatehouse/internal/maintenance/backup"
	"gatehouse/internal/modules/administration"
	"gatehouse/internal/modules/lsp"
	"gatehouse/internal/modules/shell"
	"gatehouse/internal/packages"
)

// finding is the result of one check. fix is the command or advice that would help.
type finding struct {
	grade string // ok, warn or fail
	what  string
	fix   string
}

func ok(format string, args ...any) finding {
	return finding{grade: "ok", what: fmt.Sprintf(format, args...)}
}

func (f finding) but(grade, fix string, args ...any) finding {
	return finding{grade, f.what, fmt.Sprintf(fix, args...)}
}

func doctor(w Environment) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Check what this machine has and lacks",
		Long: `Check what this machine has and lacks: settings, folders, the default listener,
limits, the clients that are connected, one call through a complete host, and the
requirements of sandboxes. Each line is ok, warn or fail; a line that is not ok
names the fix. The exit code is 1 if a check failed.`,
		Example: "  gatehouse doctor",
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return printFindings(w, examine(c.Context(), w, c))
		},
	}
}

// examine checks the machine. With c it also builds a host and looks whether the port of the settings is free, which
// a running host does not do.
func examine(ctx context.Context, w Environment, c *cobra.Command) []finding {
	cfg, err := config.Load(w.Getenv, "")
	if err == nil {
		err = checked(cfg)
	}
	findings := append([]finding{checkSettings(cfg.File, err)}, checkFolders(cfg.Folders)...)
	findings = append(findings, checkSocket(cfg.Folders), checkHere())
	if c != nil {
		findings = append(findings, checkPort(cfg.Listen.HTTP))
	}
	findings = append(findings, checkDescriptors(), checkChildren(cfg.Children), checkShares(), checkApprovals(cfg.Config))
	if c != nil {
		findings = append(findings, checkCall(c, w), checkPackages(c, w))
	}
	findings = append(findings, ok("other programs: none are needed"), checkInstallers(), checkMounts(),
		checkDaemons(ctx))
	findings = append(findings, checkClients(w, cfg)...)
	findings = append(findings, checkLanguageServers(cfg.Modules.LSP), checkBrowser(ctx, cfg.Modules.WebView))
	findings = append(findings, checkModels(ctx, cfg.Modules)...)
	findings = append(findings, checkLists(ctx, cfg.Modules.Shell)...)
	findings = append(findings, checkStaging(cfg.Folders, cfg.Stage), checkEngine(cfg.Cluster))
	return append(findings, checkSandboxes(ctx, cfg.Modules.Sandbox, cfg.Folders.Cache)...)
}

// doctorOf returns what the tool doctor_run calls in a running host.
func doctorOf(w Environment) func(context.Context) ([]administration.Finding, error) {
	return func(ctx context.Context) (all []administration.Finding, err error) {
		for _, f := range examine(ctx, w, nil) {
			all = append(all, administration.Finding{Grade: f.grade, What: f.what, Fix: f.fix})
		}
		return all, ctx.Err()
	}
}

// printFindings prints the findings and fails if one of them is a failure.
func printFindings(w Environment, findings []finding) error {
	failed := 0
	for _, f := range findings {
		fmt.Fprintf(w.Out, "%-4s  %s\n", f.grade, f.what)
		if f.fix != "" {
			fmt.Fprintf(w.Out, "      fix: %s\n", f.fix)
		}
		if f.grade == "fail" {
			failed++
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d checks failed", failed, len(findings))
	}
	return nil
}

func checkSettings(file string, err error) finding {
	switch _, inFile := errors.AsType[*config.PositionError](err); {
	case err == nil && file == "":
		return ok("settings: the environment is valid")
	case err == nil:
		return ok("settings: the environment and %s are valid", file)
	case inFile:
		return ok(
			"settings: %s",
			strings.ReplaceAll(err.Error(), "\n", "; "),
		).but("fail", "correct the file; gatehouse config check checks it again")
	}
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	name, _, _ := strings.Cut(text, ":")
	if name == "HOME" {
		return ok("settings: %s", text).but("fail", "set HOME to a folder of your own")
	}
	return ok("settings: %s", text).but("fail", "unset %s, or correct it", name)
}

// checkInstallers names the programs that install servers as packages. A machine needs only those of the servers that
// it runs, so that none of them is missing.
func checkInstallers() finding {
	has := func(name string) bool { _, err := exec.LookPath(name); return err == nil }
	var here []string
	for _, one := range []struct{ program, registry string }{
		{"npm", "npm"}, {"uv", "PyPI"}, {"python3", "PyPI"}, {"cargo", "crates"}, {"go", "Go modules"},
	} {
		if has(one.program) && (one.program != "python3" || !has("uv")) {
			here = append(here, one.program+" ("+one.registry+")")
		}
	}
	f := ok("programs that install packages: %s", cmp.Or(strings.Join(here, ", "), "none"))
	if !has("uv") {
		f.fix = packages.InstallUV + " installs uv, which is faster than pip"
	}
	return f
}

// checkLanguageServers names the language servers that the module lsp would use.
func checkLanguageServers(s lsp.Settings) finding {
	missing, install := lsp.Missing(s.Servers)
	if len(missing) == 0 {
		return ok("language servers for the module lsp: those of Go, TypeScript and Python are installed")
	}
	f := ok("language servers for the module lsp: %s not installed", strings.Join(missing, ", "))
	f.fix = "for those languages, run " + strings.Join(install, "; ")
	return f
}

// checkMounts checks whether backups can be mounted.
func checkMounts() finding {
	f := ok("mounting backups: FUSE is available")
	if missing, is := errors.AsType[*fusemount.Unsupported](backup.CanMount()); is {
		f = ok("mounting backups: %s", missing.Reason)
		f.grade, f.fix = "warn", missing.Fix
	}
	return f
}

// checkFolders checks whether the host can store its data in its folders.
func checkFolders(f config.Folders) (all []finding) {
	for _, one := range []struct{ name, path, lost string }{
		{"data", f.Data, "new keys are created at every start"},
		{"state", f.State, "jobs are lost at every start"},
		{"cache", f.Cache, "long output is kept in the system's temporary folder"},
		{"runtime", f.Runtime, "the Unix socket needs a path of its own"},
	} {
		all = append(all, checkFolder(one.name, one.path, one.lost))
	}
	return all
}

func checkFolder(name, path, lost string) finding {
	f := ok("%s folder: %s", name, path)
	if err := config.CheckFolder(path); name == "runtime" && err != nil {
		return ok("runtime folder: %v", err).but("fail", "set GATEHOUSE_RUNTIME_DIR to a folder of your own")
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return f.but(
			"warn",
			"export GATEHOUSE_%s_DIR=... to a folder of yours (%v); until then %s",
			strings.ToUpper(name),
			reason(err),
			lost,
		)
	}
	probe, err := os.CreateTemp(path, ".doctor-*")
	if err != nil {
		return f.but("warn", "chmod u+rwx %s (%v); until then %s", path, reason(err), lost)
	}
	probe.Close()
	os.Remove(probe.Name())
	if info, err := os.Stat(path); err == nil && runtime.GOOS != "windows" && info.Mode().Perm()&0o022 != 0 {
		return f.but("warn", "chmod go-w %s; others can write there", path)
	}
	return f
}

// reason returns an error without the path that the message already contains.
func reason(err error) error {
	if p, isPath := errors.AsType[*os.PathError](err); isPath {
		return p.Err
	}
	return err
}

// socketLimit is the shortest limit that a supported system has for the path of a Unix socket, in bytes.
const socketLimit = 103

func checkSocket(f config.Folders) finding {
	path := f.Socket()
	if len(path) > socketLimit {
		return ok("unix socket: %s has %d bytes, at most %d work", path, len(path), socketLimit).
			but("warn", "export GATEHOUSE_RUNTIME_DIR=/tmp/gatehouse-%d", os.Getuid())
	}
	return ok("unix socket: %s", path)
}

// checkHere checks whether the default folder can be served.
func checkHere() finding {
	dir, err := os.Getwd()
	if err != nil {
		return ok("current folder: %v", err).but("fail", "cd to a folder that exists")
	}
	f := ok("current folder: %s", dir)
	if _, err := os.ReadDir(dir); err != nil {
		return f.but("fail", "cd to a folder you can read, or name one with -d (%v)", reason(err))
	}
	return f
}

func checkPort(h config.HTTP) finding {
	addr := net.JoinHostPort(h.Host, strconv.Itoa(h.Port))
	f := ok("http listener: %s is free", addr)
	l, err := net.Listen("tcp", addr)
	switch {
	case err == nil:
		l.Close()
		return f
	case errors.Is(err, syscall.EADDRINUSE):
		return ok("http listener: %s is in use", addr).but("warn", "gatehouse serve --http --port %d", h.Port+1)
	}
	return ok("http listener: %v", err).but("warn", "gatehouse serve --http --host 127.0.0.1 --port 3000")
}

// manyFiles is a limit of open files that is enough for a few thousand clients.
const manyFiles = 4096

// checkDescriptors reads the limit if the system reports it in a file. The program has already raised it as far as
// it may.
func checkDescriptors() finding {
	f, err := os.Open("/proc/self/limits")
	if err != nil {
		return ok("open files: this system does not report its limit")
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		rest, found := strings.CutPrefix(lines.Text(), "Max open files")
		if fields := strings.Fields(rest); found && len(fields) > 0 {
			return gradeDescriptors(fields[0])
		}
	}
	return ok("open files: this system does not report its limit")
}

func gradeDescriptors(limit string) finding {
	n, err := strconv.Atoi(limit)
	if err != nil || n >= manyFiles {
		return ok("open files: %s at once", limit)
	}
	return ok(
		"open files: only %d at once",
		n,
	).but("warn", "ulimit -n %d, before the start; each client uses one", manyFiles)
}

// checkChildren reports whether child processes are denied access to the host's own files.
func checkChildren(c config.Children) finding {
	how := shield.Possible()
	f := ok("child processes: denied access to this host's own files by %s", how)
	switch {
	case c.HostFiles:
		return ok(
			"child processes: they may read this host's own files, secrets included",
		).but("warn", "set children.host_files to false")
	case how == shield.None:
		return ok("child processes: nothing denies them access to this host's own files, because the kernel has no Landlock").
			but("warn", "use Linux 5.19 or newer with Landlock (lsm=...,landlock), or run code in sandboxes: modules.shell.confine")
	case how == shield.Landlock:
		f.what += "; sudo does not work in them, and they create nothing in the folders above those, which needs CAP_SYS_ADMIN"
	}
	return f
}

// checkShares reports whether the programs of a principal can take the processors from others.
func checkShares() finding {
	switch how := proc.SharesProcessors(); {
	case how != "":
		return ok("processors: the programs of each principal together get the same part, by %s", how)
	case runtime.GOOS != "linux":
		return ok("processors: programs have the priority that the system gives them")
	}
	return ok(
		"processors: programs have a lower priority than the host, but a principal who runs many gets more than others",
	).but("warn", "let the host make control groups with the controller cpu; in a unit of systemd 254 or newer: "+
		"Delegate=yes and DelegateSubgroup=host, and ProtectControlGroups=no")
}

// checkLists reports what decides about the commands of a host with allow or deny lists; nil without such lists.
func checkLists(ctx context.Context, s shell.Settings) []finding {
	if len(s.Allow)+len(s.Deny) == 0 {
		return nil
	}
	err := supervisor.Available(ctx)
	if err == nil {
		return []finding{ok("lists of commands: each program of a line is judged when the kernel has loaded it; " +
			"sudo does not work in lines")}
	}
	return []finding{ok("lists of commands are hints: a line is judged by its text alone (%v)", err).
		but("warn", "use Linux 5.19 or newer on the machine itself, with kernel.yama.ptrace_scope of at most 1")}
}

// checkApprovals reports what an approval proves.
func checkApprovals(c config.Config) finding {
	f := ok("approvals: an approval requires the passphrase")
	_, err := approvals.LoadProof(app.ProofFile(c.Folders))
	switch {
	case c.Approvals.Proof == "passkey":
		f = ok("approvals: an approval requires a passkey that was registered before the host started")
	case c.Approvals.Proof != "passphrase":
		f = ok("approvals: same account; any program of this user that no host has started can approve").
			but("warn", "set approvals.proof to passphrase, and run gatehouse approvals passphrase at a terminal; or to passkey")
	case err != nil:
		return f.but("fail", "%v", err)
	}
	if c.Approvals.CallersWord {
		f.what += "; callers whose client cannot ask its user state themselves that the user agreed (approvals.callers_word)"
	}
	return f
}

// checkPackages reports tools of packages that wait for an approval.
func checkPackages(c *cobra.Command, w Environment) finding {
	var flags packageFlags
	flags.t.keeps, flags.t.host.context = true, contextstore.Admin
	quiet := w
	quiet.Err = io.Discard
	a, err := flags.connect(c, quiet)
	if err != nil {
		return ok("packages: not looked at: %v", err)
	}
	defer a.close()
	var out struct{ Packages []packageEntry }
	if err := a.callTool(c.Context(), quiet, "package_list", struct{}{}, &out); err != nil {
		return ok("packages: not looked at: %v", err)
	}
	var waiting []string
	for _, e := range out.Packages {
		if e.Quarantined > 0 {
			waiting = append(waiting, fmt.Sprintf("%s (%d)", e.ID, e.Quarantined))
		}
	}
	free := unconfinedPackages(out.Packages)
	f := ok("packages: %d, with all their tools approved", len(out.Packages))
	if len(waiting) > 0 {
		f = ok("packages: %d; tools wait for an approval in %s", len(out.Packages), strings.Join(waiting, ", ")).
			but("warn", "gatehouse package changes NAME shows them, package approve NAME offers them")
	}
	if len(free) > 0 {
		f.what += "; with the rights of your user, in no sandbox: " + strings.Join(free, ", ")
		if len(waiting) == 0 {
			f = f.but("warn", "gatehouse package grant NAME --confine runs one in a sandbox")
		}
	}
	return f
}

// unconfinedPackages are the packages that run as the host's user, each with the reason.
func unconfinedPackages(all []packageEntry) (free []string) {
	for _, e := range all {
		switch e.Confinement {
		case "trusted":
			free = append(free, e.ID+" (trusted)")
		case "unconfined":
			free = append(free, e.ID+" (installed before packages were confined)")
		}
	}
	return free
}

// checkCall builds a complete host and lists its tools.
func checkCall(c *cobra.Command, w Environment) finding {
	cl, end, err := new(target).connectTarget(c, w)
	if err != nil {
		return ok("a host in this process: %v", err).but("fail", "run gatehouse tools -v for details")
	}
	defer end()
	all, err := cl.Tools(c.Context())
	if err != nil || len(all) == 0 {
		return ok(
			"a host in this process: %d tools, %v",
			len(all),
			err,
		).but("fail", "run gatehouse tools -v for details")
	}
	return ok("a host in this process: %d tools answer, protocol %s", len(all), cl.Version())
}
