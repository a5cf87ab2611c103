package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/internal/telemetry"
)

func serveCommand(w Environment) *cobra.Command {
	var host hostFlags
	var listeners listenerFlags
	var shell shellFlags
	c := &cobra.Command{
		Use:     "serve [module...]",
		Aliases: []string{"server"},
		Short:   "Serve tools to MCP clients",
		Long: `Serve tools to MCP clients.

Without a listener, it serves standard input and output: a client starts the
command itself. --http, --tcp and --unix open listeners that clients connect to;
--stdio serves standard input and output as well, and when that client
disconnects, the other listeners stay open.

Named modules are offered alone. Without a name, the modules that only access the
folders are offered: file, dir and lang. filesystem and shell, named alone,
replace third-party servers, with only the tools of those servers under their
names.

Settings come from gatehouse.yaml (see gatehouse config), from the environment
and from flags; flags override the environment, which overrides the file:
GATEHOUSE_TRANSPORT (stdio, http, both, tcp or unix), GATEHOUSE_HTTP_HOST,
GATEHOUSE_HTTP_PORT, GATEHOUSE_LOG (debug, info, warn or error), and
MCP_ADDR=host:port, which serves TCP there. SIGHUP reads them again without
ending sessions.`,
		Example: `  gatehouse serve -d ~/projects                  # stdio, for MCP clients
  gatehouse serve --http                         # HTTP on 127.0.0.1:3000
  gatehouse serve file dir --http -p 8080        # two modules on another port
  gatehouse serve --http --read-only             # nothing can be changed
  gatehouse serve --tools 'file_*,!file_delete'  # some of the tools
  gatehouse serve --stdio --http                 # both at once
  gatehouse serve --unix ~/.gatehouse.sock       # this user only
  gatehouse serve shell --allow 'git*,ls,make'   # some command lines`,
		RunE: func(c *cobra.Command, args []string) error {
			return runServer(
				c.Context(),
				func() (*config.Loaded, error) { return serveConfig(c, w, &host, &listeners, &shell, args) },
				w,
				func(l *config.Loaded, folders []string) command { return sameOnStdio(c, w, args, l, folders) },
				nil,
			)
		},
	}
	c.Flags().SortFlags = false
	listeners.register(c.Flags())
	host.register(c.Flags())
	shell.register(c.Flags())
	c.ValidArgsFunction = moduleNames
	completeContext(c, w)
	completeModules(c)
	return c
}

// serveConfig returns all settings of serve, checked.
func serveConfig(
	c *cobra.Command,
	w Environment,
	host *hostFlags,
	listeners *listenerFlags,
	shell *shellFlags,
	args []string,
) (*config.Loaded, error) {
	l, err := host.config(w.Getenv)
	if err != nil {
		return l, err
	}
	if err := nameModules(l, *host, args); err != nil {
		return l, err
	}
	if err := originals(w, l); err != nil {
		return l, &usageError{err}
	}
	if err := listeners.applyFlags(c, l); err != nil {
		return l, err
	}
	if err := shell.applyShell(c, l); err != nil {
		return l, err
	}
	if err := l.Validate(); err != nil {
		return l, &usageError{err}
	}
	return l, nil
}

// nameModules applies the modules that a command line names as arguments.
func nameModules(l *config.Loaded, host hostFlags, names []string) error {
	if len(names) == 0 {
		return nil
	}
	if len(host.modules) > 0 {
		return usagef("name the modules as arguments or with --modules, not both")
	}
	l.View.Modules = slices.Clone(names)
	l.By("view.modules", "the command line")
	return nil
}

// modulesFlag returns the --modules flag that names the same modules.
func modulesFlag(names []string) []string {
	if len(names) == 0 {
		return nil
	}
	return []string{"--modules=" + strings.Join(names, ",")}
}

// originals sets the listeners of a host that only replaces another server from that server's variables.
func originals(w Environment, l *config.Loaded) error {
	name := l.View.Context
	if name == "" && len(l.View.Modules) == 1 {
		name = l.View.Modules[0]
	}
	switch name {
	case "sandbox":
		return l.Bouvet(w.Getenv)
	case "core":
		return l.Core(w.Getenv)
	}
	return nil
}

// runServer builds the host, prints its addresses, and runs it until ctx is done or its last listener has closed.
// load reads the settings, now and at each reload; same returns the command by which a client starts this server
// for itself. alone is the one server that is served; nil serves the modules of the settings.
func runServer(
	ctx context.Context,
	load func() (*config.Loaded, error),
	w Environment,
	same sameServer,
	alone *app.Alone,
) error {
	l, err := load()
	if err != nil {
		return err
	}
	warn(w.Err, l.Config)
	warnForeign(w.Err, w.Getenv, l)
	level := new(slog.LevelVar)
	log := logger(w.Err, l.Config, level)
	editor := &settingsEditor{getenv: w.Getenv, load: load}
	host, err := app.New(
		ctx,
		l.Config,
		app.Options{
			Log: log, In: w.In, Out: w.Out, Again: restarts(l.Config), Settings: l.File, Alone: alone,
			Editor: editor, Doctor: doctorOf(w),
		},
	)
	if err != nil {
		return advise(asUsage(l, err))
	}
	announce(w, l.Config, host, same(l, host.Folders()))
	if err := pair(ctx, w, host); err != nil {
		log.Warn("there is no pairing code", "err", err)
	}
	r := reloader{load: load, host: host, log: log, level: level}
	editor.apply, editor.force = r.applySettings, host.SettingsInForce
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer r.listen(ctx, stop)()
	err = host.Run(ctx)
	log.Debug("stopped", "err", err)
	if err == nil && host.Again() {
		return again()
	}
	return err
}

// asUsage marks errors of building a host that a setting caused, and adds the position of the setting.
func asUsage(l *config.Loaded, err error) error {
	if _, ok := errors.AsType[*app.SettingError](err); ok {
		return &usageError{l.Explain(err)}
	}
	return err
}

// advise adds what to do about an address that is in use.
func advise(err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf(
			"%w; stop the program that listens there, or choose another address (port 0 means any free one)",
			err,
		)
	}
	return err
}

// logger returns a logger to stderr with the format of the settings. level follows the settings later.
func logger(stderr io.Writer, cfg config.Config, level *slog.LevelVar) *slog.Logger {
	level.Set(cfg.Log.Level)
	return telemetry.Logger(stderr, cfg.Log.Format, level)
}

// isTerminal reports whether an input or an output is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
