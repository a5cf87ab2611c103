package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/internal/server/daemon"
	"gatehouse/internal/server/socket"
)

func daemonRun(w Environment) *cobra.Command {
	var f daemonFlags
	var background bool
	c := &cobra.Command{
		Use:   "run [module...]",
		Short: "Run the daemon in the foreground",
		Long: `Run the daemon in the foreground and log to standard error: for systemd,
containers, and debugging. The first SIGTERM or Ctrl-C stops it gracefully, a
second one at once; SIGHUP reads the settings again.

Under systemd it reports when it is ready (Type=notify), answers the watchdog, and
uses sockets that systemd has opened: a Unix socket becomes its own, and the
others are known by FileDescriptorName=, which is tcp, http or health.`,
		Example: `  gatehouse daemon run -d ~/projects
  gatehouse daemon run -t tcp --health-addr 127.0.0.1:9101`,
		RunE: func(c *cobra.Command, words []string) error {
			load := func() (*config.Loaded, error) { return f.config(c, w, words...) }
			args := slices.Concat(given(c.Flags(), "background"), modulesFlag(words))
			if background {
				return inBackground(c.Context(), load, w, args)
			}
			return runDaemon(c.Context(), load, w, args, func(daemon.About) error { return nil })
		},
	}
	f.register(c.Flags())
	c.Flags().BoolVar(&background, "background", false,
		"report to the parent process on standard output that it serves")
	c.Flags().MarkHidden("background")
	return c
}

// inBackground runs the daemon for gatehouse daemon start: its output goes to its log, and it reports to its
// parent whether it serves.
func inBackground(ctx context.Context, load func() (*config.Loaded, error), w Environment, args []string) error {
	out, ok := w.Out.(*os.File)
	if !ok {
		return errors.New("--background needs a standard output that is a file")
	}
	proved := false
	err := func() error {
		l, err := load()
		if err != nil {
			return err
		}
		log, err := daemon.OpenLog(logFolder(l.Config))
		if err != nil {
			return err
		}
		defer log.Close()
		w.In, w.Out, w.Err = strings.NewReader(""), log, log
		err = runDaemon(ctx, load, w, args, func(a daemon.About) error {
			proved = true
			return daemon.Prove(out, a)
		})
		if proved && err != nil {
			fmt.Fprintln(log, "gatehouse:", err)
		}
		return err
	}()
	if err != nil && !proved {
		_, usage := errors.AsType[*usageError](err)
		return errors.Join(err, daemon.GiveUp(out, err, usage))
	}
	return err
}

// runningDaemon is a daemon from its claim to its end.
type runningDaemon struct {
	editor *settingsEditor
	w      Environment
	l      *config.Loaded
	args   []string
	dir    string // where it was started, which may be gone by now
	build  daemon.Build
	log    *slog.Logger
	level  *slog.LevelVar
	ready  atomic.Bool
	prove  func(daemon.About) error
	start  time.Time
	health daemon.Health

	pid      *daemon.PIDFile // nil where there is none
	link     *daemon.Listener
	healthLn net.Listener // nil where none is shown
	host     *app.App
}

// runDaemon is the daemon, until it ends or takes its own place. prove is
// called once, when it serves.
func runDaemon(
	ctx context.Context,
	load func() (*config.Loaded, error),
	w Environment,
	args []string,
	prove func(daemon.About) error,
) error {
	more, err := runOnce(ctx, load, w, args, prove)
	if err == nil && more {
		return again()
	}
	return err
}

// runOnce is a daemon from its claim to its end, and reports whether it ended
// to be started again.
func runOnce(
	ctx context.Context,
	load func() (*config.Loaded, error),
	w Environment,
	args []string,
	prove func(daemon.About) error,
) (again bool, err error) {
	r := &runningDaemon{w: w, args: args, prove: prove, start: time.Now(), level: new(slog.LevelVar)}
	r.editor = &settingsEditor{getenv: w.Getenv, load: load}
	r.dir, _ = os.Getwd() // "" if the folder is gone already
	if r.l, err = load(); err != nil {
		return false, err
	}
	warn(w.Err, r.l.Config)
	warnForeign(w.Err, w.Getenv, r.l)
	r.log = logger(w.Err, r.l.Config, r.level)
	defer r.letGo()
	if err := r.openListeners(ctx); err != nil {
		return false, err
	}
	r.announce()
	if err := pair(ctx, w, r.host); err != nil {
		r.log.Warn("there is no pairing code", "err", err)
	}
	re := reloader{load: load, host: r.host, log: r.log, level: r.level}
	r.editor.apply, r.editor.force = re.applySettings, r.host.SettingsInForce
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer re.listen(ctx, stop)()
	err = r.serveUntilDone(ctx)
	return r.host.Again(), err
}

// openListeners claims the PID file and opens everything.
func (r *runningDaemon) openListeners(ctx context.Context) (err error) {
	cfg := r.l.Config
	if r.build, err = daemon.Self(app.Version); err != nil {
		return err
	}
	if err := config.OwnFolder(cfg.Folders.Runtime); err != nil {
		return err
	}
	passed, err := daemon.Passed(r.w.Getenv)
	if err != nil {
		return err
	}
	how := restarts(cfg)
	if len(passed) > 0 {
		how = "" // who opened the sockets starts who takes them
	}
	defer func() {
		for _, ln := range passed { // the unused ones
			ln.Close()
		}
	}()
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		os.Unsetenv(name)
	}
	take := func(kind string) net.Listener {
		ln := passed[kind]
		delete(passed, kind)
		return ln
	}
	if path := cfg.Daemon.PID(cfg.Folders); path != "" {
		if r.pid, err = daemon.ClaimPID(path); err != nil {
			return err
		}
	}
	own := take(daemon.ListenerSocket)
	if own == nil {
		if own, err = socket.ListenUnix(cfg.Listen.Unix); err != nil {
			return err
		}
	}
	r.link = daemon.Link(own, r.about)
	if r.healthLn, err = openHealth(take(daemon.ListenerHealth), cfg.Daemon.HealthAddr()); err != nil {
		return err
	}
	listeners := map[string]net.Listener{app.Unix: r.link}
	if ln := take(daemon.ListenerTCP); ln != nil {
		cfg.Listen.TCP, listeners[app.TCP] = ln.Addr().String(), ln
	} else if cfg.Listen.TCP == config.DefaultTCP && cfg.Daemon.Addr == "" && r.l.Config.Listen.TCP == cfg.Listen.TCP {
		if ln := anyPort(cfg.Listen.TCP); ln != nil {
			cfg.Listen.TCP, listeners[app.TCP] = ln.Addr().String(), ln
		}
	}
	if ln := take(daemon.ListenerHTTP); ln != nil {
		at := ln.Addr().(*net.TCPAddr)
		cfg.Listen.HTTP.Open, cfg.Listen.HTTP.Host, cfg.Listen.HTTP.Port = true, at.IP.String(), at.Port
		listeners[app.HTTP] = ln
	} else if h := &cfg.Listen.HTTP; h.Open && cfg.Daemon.Transport == "http" && cfg.Daemon.Addr == "" {
		if ln := anyPort(net.JoinHostPort(h.Host, strconv.Itoa(h.Port))); ln != nil {
			h.Port, listeners[app.HTTP] = ln.Addr().(*net.TCPAddr).Port, ln
		}
	}
	r.host, err = app.New(ctx, cfg, app.Options{
		Log: r.log, Listeners: listeners, Again: how, AnyFolder: !limited(cfg), Socket: cfg.Daemon.SecondSocket(),
		Settings: r.l.File, Editor: r.editor, Doctor: doctorOf(r.w),
	})
	if err != nil {
		for _, ln := range listeners {
			ln.Close()
		}
		return adviseDaemon(asUsage(r.l, err), "another address with --mcp-addr, or --mcp-transport socket to have none")
	}
	return nil
}

// anyPort listens on a free port if another program has the port of an address
// that nothing names; nil leaves the address to the host.
func anyPort(addr string) net.Listener {
	ln, err := socket.ListenTCP(addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		host, _, _ := net.SplitHostPort(addr)
		ln, err = socket.ListenTCP(net.JoinHostPort(host, "0"))
	}
	if err != nil {
		return nil
	}
	return ln
}

// limited reports whether the settings of a daemon limit the folders in which
// its clients may work.
func limited(cfg config.Config) bool { return len(cfg.Roots.Folders) > 0 || cfg.Roots.Unrestricted }

func openHealth(passed net.Listener, addr string) (net.Listener, error) {
	if passed != nil || addr == "" {
		return passed, nil
	}
	addr, err := config.ParseTCP(addr)
	if err != nil {
		return nil, err
	}
	ln, err := socket.ListenTCP(addr)
	if err != nil {
		return nil, adviseDaemon(
			fmt.Errorf("show health: %w", err),
			"another address with --health-addr, or off to show none",
		)
	}
	return ln, nil
}

// adviseDaemon adds what to do about an address that is taken.
func adviseDaemon(err error, instead string) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w; stop the program that listens there, or choose %s", err, instead)
	}
	return err
}

// letGo lets go of what open took, the claim last: when another daemon can
// claim it, nothing of this one is left.
func (r *runningDaemon) letGo() {
	if r.link != nil {
		r.link.Close()
	}
	if r.healthLn != nil {
		r.healthLn.Close()
	}
	if r.pid != nil {
		if err := r.pid.Release(); err != nil {
			r.log.Warn("the PID file stays", "err", err)
		}
	}
}

// about is how this daemon describes itself.
func (r *runningDaemon) about() daemon.About {
	a := daemon.About{
		PID: os.Getpid(), Version: r.build.Version, Build: r.build.ID, Executable: r.build.Path,
		Replaced: r.build.Replaced(),
		Started:  r.start, Ready: r.ready.Load(), Args: r.args, Dir: r.dir,
	}
	if r.healthLn != nil {
		a.Health = "http://" + r.healthLn.Addr().String()
	}
	if r.host != nil {
		a.Folders, a.Limited = r.host.Folders(), limited(r.l.Config)
		for _, d := range r.host.Listeners() {
			a.Listeners = append(a.Listeners, d.Address)
		}
	}
	return a
}

// announce prints what is served, and where.
func (r *runningDaemon) announce() {
	say := func(format string, args ...any) { fmt.Fprintf(r.w.Err, "[gatehouse] "+format+"\n", args...) }
	say("%s daemon %s, process %d", strings.Join(r.host.Modules(), ", "), r.build.Version, os.Getpid())
	if r.l.Roots.Unrestricted {
		say("Allowed directories: all")
	} else {
		say("Allowed directories: %s", strings.Join(r.host.Folders(), ", "))
	}
	for _, d := range r.host.Listeners() {
		for _, line := range d.Notes {
			say("%s", line)
		}
		say("Listening on %s", d.Address)
		if d.Kind == app.TCP {
			lineSnippet(r.w.Err, d, r.host.Example(), !r.l.Auth.Insecure)
		}
	}
	if r.healthLn != nil {
		say("Health at http://%s/health", r.healthLn.Addr())
	}
}

// errStopped is why the host ends whose daemon was asked to.
var errStopped = errors.New("the daemon was stopped")

// serveUntilDone runs the host until ctx is done. Then readiness fails and linked
// clients are notified before the first listener closes; health is shown to
// the end.
func (r *runningDaemon) serveUntilDone(ctx context.Context) error {
	host, stopHost := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stopHost(nil)
	last, stopLast := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLast()
	var beside sync.WaitGroup
	if r.healthLn != nil {
		r.health.Check, r.health.Log, r.health.Degraded = r.checkStart, r.log, r.host.Degraded
		beside.Go(func() {
			if err := r.health.Serve(last, r.healthLn); err != nil {
				stopHost(fmt.Errorf("show health: %w", err))
			}
		})
	}
	over := context.AfterFunc(ctx, func() {
		r.stopping()
		stopHost(errStopped)
	})
	beside.Go(func() {
		if err := r.awaitReady(host); err != nil && host.Err() == nil {
			stopHost(err)
		}
		daemon.Watchdog(host, r.w.Getenv, r.checkStart)
	})
	err := r.host.Run(host)
	over()
	r.ready.Store(false)
	if why := context.Cause(host); why != nil && !errors.Is(why, errStopped) {
		err = errors.Join(why, err)
	}
	stopHost(errStopped)
	stopLast()
	beside.Wait()
	r.log.Info("stopped", "err", err)
	return err
}

// awaitReady waits until the host answers at its own socket, and notifies every goroutine
// who waits for that.
func (r *runningDaemon) awaitReady(ctx context.Context) error {
	if err := r.checkStart(ctx); err != nil {
		return fmt.Errorf("the daemon does not answer at its own socket: %w", err)
	}
	r.ready.Store(true)
	r.health.Ready(true)
	if err := daemon.Notify(r.w.Getenv, "READY=1\nSTATUS=Serving "+strings.Join(r.about().Listeners, " ")); err != nil {
		r.log.Warn("the system's manager does not know that the daemon is ready", "err", err)
	}
	if err := r.prove(r.about()); err != nil {
		return err
	}
	r.log.Info("ready", "pid", os.Getpid(), "version", r.build.Version)
	return nil
}

// checkStart asks at the daemon's own socket.
func (r *runningDaemon) checkStart(ctx context.Context) error {
	_, err := daemon.Ask(ctx, r.link.Addr().String())
	return err
}

// stopping announces that no more calls are accepted.
func (r *runningDaemon) stopping() {
	r.ready.Store(false)
	r.health.Ready(false)
	r.log.Info("stopping")
	daemon.Notify(r.w.Getenv, "STOPPING=1")
	r.link.Stopping()
}
