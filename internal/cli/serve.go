package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"gatehouse/internal/app"
	"gatehouse/internal/config"
)

func serve(w World) *cobra.Command {
	var host hostFlags
	var doors doorFlags
	c := &cobra.Command{
		Use:   "serve [module...]",
		Short: "Serve tools to MCP clients",
		Long: `Serve tools to MCP clients.

Without a door, it serves standard input and output: a client starts the
command itself. --http, --tcp and --unix open doors that clients connect to;
--stdio serves standard input and output as well, and when the client there
has gone, the other doors stay open.

Naming modules offers those alone. Without a name, all that only touch the
folders are offered: file, dir and lang.

From the environment: GATEHOUSE_TRANSPORT (stdio, http, both, tcp or unix),
GATEHOUSE_HTTP_HOST, GATEHOUSE_HTTP_PORT, GATEHOUSE_LOG (debug, info, warn or
error), and MCP_ADDR=host:port, which serves TCP there. Flags go first.`,
		Example: `  gatehouse serve -d ~/projects                  # stdio, for MCP clients
  gatehouse serve --http                         # HTTP on 127.0.0.1:3000
  gatehouse serve file dir --http -p 8080        # two modules on another port
  gatehouse serve --http --read-only             # nothing can be changed
  gatehouse serve --tools 'file_*,!file_delete'  # some of the tools
  gatehouse serve --stdio --http                 # both at once
  gatehouse serve --unix ~/.gatehouse.sock       # this user only`,
		RunE: func(c *cobra.Command, args []string) error {
			cfg, err := serveConfig(c, w, &host, &doors, args)
			if err != nil {
				return err
			}
			return runServer(c.Context(), cfg, w)
		},
	}
	c.Flags().SortFlags = false
	doors.add(c.Flags())
	host.add(c.Flags())
	return c
}

// serveConfig is everything serve was told, checked.
func serveConfig(c *cobra.Command, w World, host *hostFlags, doors *doorFlags, args []string) (config.Config, error) {
	cfg, err := host.config(w.Getenv)
	if err != nil {
		return cfg, err
	}
	if len(args) > 0 && len(host.modules) > 0 {
		return cfg, usagef("name the modules as arguments or with --modules, not both")
	}
	cfg.View.Modules = append(slices.Clone(args), host.modules...)
	if err := doors.apply(c, &cfg); err != nil {
		return cfg, err
	}
	if err := cfg.Validate(); err != nil {
		return cfg, &usageError{err}
	}
	return cfg, nil
}

// runServer builds the host, says where it is, and runs it until ctx is done
// or its last door has closed.
func runServer(ctx context.Context, cfg config.Config, w World) error {
	warn(w.Err, cfg)
	log := logger(w.Err, cfg)
	host, err := app.New(ctx, cfg, app.Options{Log: log, In: w.In, Out: w.Out})
	if err != nil {
		return advise(asUsage(err))
	}
	announce(w, cfg, host)
	err = host.Run(ctx)
	log.Debug("stopped", "err", err)
	return err
}

// asUsage marks the errors of building a host that the command line caused.
func asUsage(err error) error {
	if _, ok := errors.AsType[*app.SettingError](err); ok {
		return &usageError{err}
	}
	return err
}

// advise adds what to do about an address that is taken.
func advise(err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w; end who listens there, or choose another address (--port 0 takes any free one)", err)
	}
	return err
}

// logger logs to stderr at the level that was asked for.
func logger(stderr io.Writer, cfg config.Config) *slog.Logger {
	return slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: cfg.Log.Level}))
}

// isTerminal reports whether a person sits at the other end.
func isTerminal(r io.Reader) bool {
	f, ok := r.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
