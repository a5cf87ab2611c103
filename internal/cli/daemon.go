package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gatehouse/internal/config"
	"gatehouse/internal/exec/procid"
	"gatehouse/internal/mcp/client"
	"gatehouse/internal/server/daemon"
)

const (
	startTime = time.Minute      // within which a daemon must have reported that it serves
	stopTime  = 30 * time.Second // after which a daemon that was asked to stop is killed
)

func daemonCommand(w Environment) *cobra.Command {
	c := &cobra.Command{
		Use:   "daemon",
		Short: "Run one host in the background, for all clients of this user",
		Long: `Run one host in the background, for all clients of this user. It always opens
a Unix socket in the runtime folder, for the command line and for gatehouse
stdio, and also what --mcp-transport names: socket (the default: nothing more),
tcp, http or all. All users of a machine can reach its loopback addresses.

Settings come from gatehouse.yaml, where they are under daemon, from the
environment and from flags: GATEHOUSE_MCP_TRANSPORT, GATEHOUSE_MCP_ADDR,
GATEHOUSE_HEALTH_ADDR (off) and GATEHOUSE_PID_FILE (gatehouse.pid in the runtime
folder, or off).`,
		Example: `  gatehouse daemon start -d ~/projects
  gatehouse daemon status
  gatehouse daemon logs --follow
  gatehouse daemon stop`,
		Args: knownCommand,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },

		SuggestionsMinimumDistance: 2,
	}
	c.AddCommand(daemonStart(w), daemonStop(w), daemonRestart(w), daemonStatus(w), daemonRun(w), daemonLogs(w))
	return c
}

// daemonFlags are the flags of a daemon.
type daemonFlags struct {
	host      hostFlags
	transport string
	addr      string
	health    string
	pidFile   string
}

func (f *daemonFlags) register(set *pflag.FlagSet) {
	set.SortFlags = false
	set.StringVarP(
		&f.transport,
		"mcp-transport",
		"t",
		"",
		"what to open beside the Unix socket: socket, tcp, http or all (default: socket, or tcp with --mcp-addr)",
	)
	set.StringVarP(
		&f.addr,
		"mcp-addr",
		"a",
		"",
		"`address` of tcp, or of http alone (default: "+config.DefaultTCP+
			", or any free port); with socket, the path of a second one",
	)
	f.addFound(set)
	f.host.register(set)
}

// addFound adds the flags that locate a running daemon.
func (f *daemonFlags) addFound(set *pflag.FlagSet) {
	set.StringVar(
		&f.health,
		"health-addr",
		"",
		"`address` of /health and /ready, such as 127.0.0.1:9101 (default: off)",
	)
	set.StringVar(
		&f.pidFile,
		"pid-file",
		"",
		"`file` for the process id; empty or off for none (default: gatehouse.pid in the runtime folder)",
	)
}

// config returns all settings of a daemon, checked.
func (f *daemonFlags) config(c *cobra.Command, w Environment, modules ...string) (*config.Loaded, error) {
	f.host.set = c.Flags()
	l, err := f.host.config(w.Getenv)
	if err != nil {
		return l, err
	}
	if err := nameModules(l, f.host, modules); err != nil {
		return l, err
	}
	f.applyTo(c, l)
	openListeners(l)
	if err := l.Validate(); err != nil {
		return l, &usageError{err}
	}
	return l, nil
}

// applyTo writes the given flags into the settings.
func (f *daemonFlags) applyTo(c *cobra.Command, l *config.Loaded) {
	flags{c.Flags(), l}.applyAll([]flagged{
		{"mcp-transport", "daemon.transport", func() { l.Daemon.Transport = f.transport }},
		{"mcp-addr", "daemon.addr", func() { l.Daemon.Addr = absoluteSocket(f.addr) }},
		{"health-addr", "daemon.health", func() { l.Daemon.Health = cmp.Or(f.health, config.Off) }},
		{"pid-file", "daemon.pid_file", func() { l.Daemon.PIDFile = cmp.Or(f.pidFile, config.Off) }},
	})
}

// findDaemon returns enough of the settings to find the running daemon, even if other settings are invalid.
func (f *daemonFlags) findDaemon(c *cobra.Command, w Environment) (*config.Loaded, error) {
	l, err := readSettings(w)
	if err != nil {
		return l, err
	}
	f.applyTo(c, l)
	openListeners(l)
	return l, nil
}

// openListeners sets the listeners of a daemon: its own socket, and those that its transport names. If no
// transport is set, the listeners that listen names stay.
func openListeners(l *config.Loaded) {
	d := &l.Listen
	d.Stdio, d.Unix = false, socketPath(l.Config)
	addr := cmp.Or(l.Daemon.Addr, config.DefaultTCP)
	if a, err := config.ParseTCP(addr); err == nil {
		addr = a
	}
	switch t := l.Daemon.Transport; {
	case t == "" && l.Daemon.Addr == "": // the listeners that listen names, if any
	case t == "socket":
		d.TCP, d.HTTP.Open = "", false
	case t == "http":
		d.TCP, d.HTTP.Open = "", true
		if host, port, err := net.SplitHostPort(addr); err == nil {
			d.HTTP.Host = host
			d.HTTP.Port, _ = strconv.Atoi(port)
		}
	default:
		d.TCP, d.HTTP.Open = addr, t == "all"
	}
}

// absoluteSocket makes the path of a socket absolute, because the daemon does not run in the current folder; an
// address of another kind is returned unchanged.
func absoluteSocket(addr string) string {
	if strings.ContainsRune(addr, filepath.Separator) || addr != "" && !strings.Contains(addr, ":") {
		if abs, err := filepath.Abs(addr); err == nil {
			return abs
		}
	}
	return addr
}

// socketPath returns the path of the daemon's own socket.
func socketPath(cfg config.Config) string { return cmp.Or(cfg.Listen.Unix, cfg.Folders.Socket()) }

func logFolder(cfg config.Config) string { return filepath.Join(cfg.Folders.State, "daemon") }

func turnFile(cfg config.Config) string { return filepath.Join(cfg.Folders.Runtime, "daemon.start") }

// given returns the arguments that repeat the flags of this command line, except some.
func given(set *pflag.FlagSet, except ...string) (args []string) {
	set.Visit(func(f *pflag.Flag) {
		if slices.Contains(except, f.Name) {
			return
		}
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, v := range values {
			if abs, err := filepath.Abs(v); err == nil && inFolder(f.Name, v) {
				v = abs // the daemon may run in another folder
			}
			if f.Name == "mcp-addr" {
				v = absoluteSocket(v)
			}
			args = append(args, "--"+f.Name+"="+v)
		}
	})
	return args
}

// inFolder reports whether a flag's value is a path relative to the current folder.
func inFolder(flag, value string) bool {
	return value != "" && (flag == "directory" || flag == "config" || flag == "pid-file" && value != config.Off)
}

// daemonInfo is what is known about the daemon of this user.
type daemonInfo struct {
	pid    int // 0 if none runs, or it has not reported its id yet
	runs   bool
	stale  int // process of a daemon that ended unexpectedly; 0 for none
	about  daemon.About
	silent error // why its socket does not answer; nil if it does

	claimed bool // a daemon holds the lock of the PID file
}

// findDaemon looks for the daemon: first at its socket, then at its PID file.
func findDaemon(ctx context.Context, cfg config.Config) (f daemonInfo, err error) {
	if err := config.CheckFolder(cfg.Folders.Runtime); err != nil {
		return f, err
	}
	f.about, f.silent = daemon.Ask(ctx, socketPath(cfg))
	if f.silent == nil {
		f.pid, f.runs = f.about.PID, true
	}
	path := cfg.Daemon.PID(cfg.Folders)
	if path == "" {
		return f, nil
	}
	switch pid, running, err := daemon.FindPID(path); {
	case err != nil:
		return f, err
	case running && !f.runs:
		f.pid, f.runs, f.claimed = pid, true, true
	case running:
		f.claimed = pid == f.pid
	default:
		f.stale = pid
	}
	return f, nil
}

// errNoDaemon ends a command that needs one.
func errNoDaemon() error {
	return &client.ConnectError{To: "the daemon", Err: errors.New("none runs; start it with gatehouse daemon start")}
}

// dialDaemon connects a command to the running daemon. The client works in the named folders, or else in the
// current one if the daemon's tools may access that.
func dialDaemon(ctx context.Context, w Environment, named []string, o client.Options) (*client.Client, error) {
	l, err := readSettings(w)
	if err != nil {
		return nil, err
	}
	work, err := workOf(l.Config, named)
	if err != nil {
		return nil, &usageError{err}
	}
	if err := config.OwnFolder(l.Folders.Runtime); err != nil {
		return nil, err
	}
	path := socketPath(l.Config)
	about, err := daemon.Ask(ctx, path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, errNoDaemon()
	}
	if err := allowed(about, work); err != nil && work.Named {
		return nil, &usageError{err}
	} else if err != nil {
		work = daemon.Work{} // the daemon's own folders, because the command names none
	}
	c, _, err := daemon.DialPlain(ctx, path, work)
	if errors.Is(err, daemon.ErrRefused) {
		return client.DialUnix(ctx, path, o) // it is older than this program, or just starting
	}
	if err != nil {
		return nil, &client.ConnectError{To: "the daemon", Err: err}
	}
	return client.Over(ctx, "the daemon", c, o)
}

func daemonStart(w Environment) *cobra.Command {
	var f daemonFlags
	c := &cobra.Command{
		Use:   "start [module...]",
		Short: "Start the daemon and wait until it serves",
		Long: `Start the daemon and wait until it reports that it serves. It detaches from this
terminal and logs to a file; see gatehouse daemon logs. Its tools may access the
folders that settings or -d name. If none is named, each client of gatehouse
stdio works in its own folder, and all other callers in the one the daemon is
started in.`,
		Example: `  gatehouse daemon start                        # each client in its own folders
  gatehouse daemon start -d ~/projects -t tcp   # TCP on 127.0.0.1:9100
  gatehouse daemon start file process -t http -a 127.0.0.1:8080
  gatehouse daemon start -t socket -a ~/.gatehouse.sock`,
		RunE: func(c *cobra.Command, args []string) error {
			l, err := f.config(c, w, args...)
			if err != nil {
				return err
			}
			warnForeign(w.Err, w.Getenv, l) // the daemon's own warnings go to its log
			return startDaemon(c.Context(), w, l.Config, "", slices.Concat(given(c.Flags()), modulesFlag(args)))
		},
		ValidArgsFunction: moduleNames,
	}
	f.register(c.Flags())
	completeContext(c, w)
	return c
}

// A daemon that was just killed does not answer, but holds the lock of its PID file until its last thread has
// ended. A start waits up to dyingTime for that and checks at intervals of dyingLook.
const (
	dyingTime = 2 * time.Second
	dyingLook = 20 * time.Millisecond
)

// startDaemon starts a daemon in a folder and prints where it serves.
func startDaemon(ctx context.Context, w Environment, cfg config.Config, dir string, args []string) error {
	if err := config.OwnFolder(cfg.Folders.Runtime); err != nil {
		return err
	}
	done, err := daemon.Turn(ctx, turnFile(cfg))
	if err != nil {
		return err
	}
	defer done()
	f, err := findDaemon(ctx, cfg)
	for end := time.Now().Add(dyingTime); err == nil && f.runs && f.silent != nil && time.Now().Before(end); {
		time.Sleep(dyingLook)
		f, err = findDaemon(ctx, cfg)
	}
	switch {
	case err != nil:
		return err
	case f.runs:
		return fmt.Errorf("%w; gatehouse daemon status shows it", &daemon.Running{PID: f.pid})
	case f.stale != 0:
		fmt.Fprintf(w.Err, "[gatehouse] The previous daemon, process %d, ended unexpectedly\n", f.stale)
	}
	about, err := spawnDaemon(ctx, cfg, dir, args)
	if err != nil {
		return err
	}
	fmt.Fprintf(w.Err, "[gatehouse] The daemon runs as process %d\n", about.PID)
	for _, address := range about.Listeners {
		fmt.Fprintf(w.Err, "[gatehouse] Listening on %s\n", address)
	}
	return nil
}

// spawnDaemon starts a daemon and waits until it reports that it serves.
func spawnDaemon(ctx context.Context, cfg config.Config, dir string, args []string) (daemon.About, error) {
	program, err := os.Executable()
	if err != nil {
		return daemon.About{}, err
	}
	ctx, cancel := context.WithTimeoutCause(
		ctx,
		startTime,
		fmt.Errorf("it did not report within %v that it serves", startTime),
	)
	defer cancel()
	s := daemon.Spawn{
		Path: program,
		Args: append([]string{"daemon", "run", "--background"}, args...),
		Dir:  dir,
		Logs: logFolder(cfg),
	}
	about, err := s.Start(ctx)
	if e, ok := errors.AsType[*daemon.StartError](err); ok && e.Usage {
		return about, &usageError{err}
	}
	return about, err
}

func daemonStop(w Environment) *cobra.Command {
	var f daemonFlags
	patience := stopTime
	c := &cobra.Command{
		Use:   "stop",
		Short: "Stop the daemon",
		Long: `Stop the daemon. It accepts no more calls, waits for the running calls until
their deadlines, and closes everything. A daemon that has not stopped in time is
killed. If none runs, the command does nothing.`,
		Example: `  gatehouse daemon stop
  gatehouse daemon stop --timeout 5s`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := f.findDaemon(c, w)
			if err != nil {
				return err
			}
			_, err = stopDaemon(c.Context(), w, l.Config, patience)
			return err
		},
	}
	c.Flags().DurationVar(&patience, "timeout", stopTime, "how long it may take before it is killed")
	f.addFound(c.Flags())
	return c
}

// stopDaemon stops the daemon and returns the information it found about it.
func stopDaemon(ctx context.Context, w Environment, cfg config.Config, patience time.Duration) (daemonInfo, error) {
	f, err := findDaemon(ctx, cfg)
	if err != nil {
		return f, err
	}
	path := cfg.Daemon.PID(cfg.Folders)
	switch {
	case f.runs && f.pid == 0:
		return f, errors.New("the daemon is just starting; try again in a moment")
	case !f.runs && f.stale != 0:
		fmt.Fprintf(w.Err, "[gatehouse] No daemon runs; the previous one, process %d, ended unexpectedly\n", f.stale)
		return f, daemon.RemoveStale(path)
	case !f.runs:
		fmt.Fprintln(w.Err, "[gatehouse] No daemon runs")
		return f, nil
	}
	killed, err := daemon.Stop(ctx, f.pid, patience, f.gone(path))
	if err != nil {
		return f, err
	}
	if !killed {
		fmt.Fprintf(w.Err, "[gatehouse] The daemon, process %d, has stopped\n", f.pid)
		return f, nil
	}
	fmt.Fprintf(
		w.Err,
		"[gatehouse] The daemon, process %d, had not stopped within %v and was killed\n",
		f.pid,
		patience,
	)
	if f.claimed {
		return f, daemon.RemoveStale(path)
	}
	return f, nil
}

// gone returns a function that reports whether the daemon has ended. The daemon holds the lock of its PID file
// until then.
func (d daemonInfo) gone(path string) func() (bool, error) {
	if !d.claimed {
		ended := procid.Watch(d.pid)
		return func() (bool, error) { return ended(), nil }
	}
	return func() (bool, error) {
		pid, running, err := daemon.FindPID(path)
		return !running || pid != 0 && pid != d.pid, err
	}
}

func daemonRestart(w Environment) *cobra.Command {
	var f daemonFlags
	c := &cobra.Command{
		Use:   "restart",
		Short: "Restart the daemon with the same flags, for instance after an upgrade",
		Long: `Stop the daemon and start it again with the flags and in the folder it was
started with. Clients of gatehouse stdio do not notice. If the settings have a
mistake, the running daemon keeps running.`,
		Example: "  gatehouse daemon restart",
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := f.config(c, w)
			if err != nil {
				return err
			}
			if err := checked(l); err != nil {
				return &usageError{err}
			}
			now, err := findDaemon(c.Context(), l.Config)
			if err != nil {
				return err
			}
			if now.silent == nil {
				if _, err := startedIn(now.about); err != nil {
					return err // before the old one stops
				}
			}
			was, err := stopDaemon(c.Context(), w, l.Config, stopTime)
			if err != nil {
				return err
			}
			if was.silent != nil {
				return errNoDaemon()
			}
			dir, err := startedIn(was.about)
			if err != nil {
				return err
			}
			return startDaemon(c.Context(), w, l.Config, dir, was.about.Args)
		},
	}
	f.addFound(c.Flags())
	return c
}

// startedIn returns the folder in which the daemon is restarted: the one it was started in or, if that no longer
// exists, one that its tools may access anyway. It is never the current folder of the user, because the tools
// would gain access to it.
func startedIn(a daemon.About) (dir string, err error) {
	for _, dir := range append([]string{a.Dir}, a.Folders...) {
		if info, err := os.Stat(dir); err == nil && info.IsDir() && filepath.IsAbs(dir) {
			return dir, nil
		}
	}
	return "", fmt.Errorf(
		"the folder the daemon was started in no longer exists: %s; create it, or stop the daemon and start it in another",
		cmp.Or(a.Dir, strings.Join(a.Folders, ", ")),
	)
}

func daemonStatus(w Environment) *cobra.Command {
	var f daemonFlags
	var asJSON bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Report whether the daemon runs and serves",
		Long: `Report whether the daemon runs and serves.

Exit codes: 0 it runs and is ready, 1 it runs and does not serve as it should,
3 none runs.`,
		Example: `  gatehouse daemon status
  gatehouse daemon status --json | jq .about.pid`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := f.findDaemon(c, w)
			if err != nil {
				return err
			}
			s, err := statusOf(c.Context(), l.Config)
			if err != nil {
				return err
			}
			if asJSON {
				err = showJSON(w.Out, s)
			} else {
				s.print(w)
			}
			return errors.Join(err, s.verdict())
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	f.addFound(c.Flags())
	return c
}

// daemonState is what status prints.
type daemonState struct {
	Running bool          `json:"running"`
	Stale   int           `json:"stale_pid,omitempty"`
	PID     int           `json:"pid,omitempty"`
	Silent  string        `json:"silent,omitempty"` // why its socket does not answer
	About   *daemon.About `json:"about,omitempty"`
	Health  string        `json:"health,omitempty"` // "" if none is served
}

func statusOf(ctx context.Context, cfg config.Config) (daemonState, error) {
	f, err := findDaemon(ctx, cfg)
	if err != nil {
		return daemonState{}, err
	}
	s := daemonState{Running: f.runs, Stale: f.stale, PID: f.pid}
	switch {
	case f.runs && f.silent != nil:
		s.Silent = f.silent.Error()
	case f.runs:
		s.About = &f.about
		if f.about.Health != "" {
			s.Health = daemon.AskHealth(ctx, f.about.Health)
		}
	}
	return s, nil
}

func (s daemonState) print(w Environment) {
	say := func(format string, args ...any) { fmt.Fprintf(w.Out, format+"\n", args...) }
	switch {
	case !s.Running && s.Stale != 0:
		say("No daemon runs; the previous one, process %d, ended unexpectedly", s.Stale)
		return
	case !s.Running:
		say("No daemon runs")
		return
	case s.About == nil:
		say("The daemon runs as process %d and does not answer: %s", s.PID, s.Silent)
		return
	}
	a := s.About
	say("The daemon runs as process %d since %s", a.PID, a.Started.Local().Format(time.DateTime))
	say("Version: %s (%s)", a.Version, a.Build)
	if a.Replaced {
		say("Another version is installed at %s: run gatehouse daemon restart", a.Executable)
	}
	say("Ready: %s", map[bool]string{true: "yes", false: "no"}[a.Ready])
	if s.Health != "" {
		say("Health: %s (%s/health)", s.Health, a.Health)
	}
	for _, d := range a.Listeners {
		say("Listener: %s", d)
	}
	say("Allowed directories: %s", strings.Join(a.Folders, ", "))
}

// verdict returns nil if the daemon runs and serves.
func (s daemonState) verdict() error {
	switch {
	case !s.Running:
		return errNoDaemon()
	case s.About == nil || !s.About.Ready || s.Health != "" && s.Health != "healthy":
		return errors.New("the daemon does not serve as it should; see gatehouse daemon logs")
	}
	return nil
}
