package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"gatehouse/internal/config"
	"gatehouse/internal/server/daemon"
)

// followEvery is how often a followed log is read.
const followEvery = 200 * time.Millisecond

func daemonLogs(w Environment) *cobra.Command {
	var lines int
	var cursor int64
	var follow bool
	c := &cobra.Command{
		Use:   "logs",
		Short: "Show the log of the daemon",
		Long: `Show the logs of daemons in the background, the last one and earlier ones; about
16 MiB are kept. The cursor printed on standard error is the position from which
--cursor continues; it stays valid when a new file is begun or the daemon is
restarted. A daemon in the foreground or under systemd logs to its standard
error instead, and so to the journal.`,
		Example: `  gatehouse daemon logs -n 20
  gatehouse daemon logs --follow
  gatehouse daemon logs --cursor 41210`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if cursor >= 0 && c.Flags().Changed("lines") {
				return usagef("--lines and --cursor exclude each other")
			}
			cfg, err := config.FromEnv(w.Getenv)
			if err != nil {
				return &usageError{err}
			}
			return showLog(c.Context(), w, logFolder(cfg), lines, cursor, follow)
		},
	}
	c.Flags().IntVarP(&lines, "lines", "n", 100, "how many of the last lines")
	c.Flags().
		Int64Var(&cursor, "cursor", -1, "`position` from which the log is shown, as an earlier command printed it")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "continue with new lines until interrupted")
	return c
}

func showLog(ctx context.Context, w Environment, dir string, lines int, cursor int64, follow bool) error {
	read := func() (*daemon.LogReader, error) { return daemon.ReadLog(dir, cursor) }
	if cursor < 0 {
		read = func() (*daemon.LogReader, error) { return daemon.Tail(dir, lines) }
	}
	r, err := read()
	if err != nil {
		return err
	}
	if cursor >= 0 && r.Position() > cursor {
		fmt.Fprintf(w.Err, "[gatehouse] The log before %d is no longer kept\n", r.Position())
	}
	if follow {
		err = r.Follow(ctx, w.Out, followEvery)
	} else {
		err = r.Copy(w.Out)
	}
	fmt.Fprintf(w.Err, "[gatehouse] Cursor: %d\n", r.Position())
	return err
}
