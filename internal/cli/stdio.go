package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/internal/exec/procid"
	"gatehouse/internal/files/roots"
	"gatehouse/internal/mcp/client"
	"gatehouse/internal/server/daemon"
)

func stdioCommand(w Environment) *cobra.Command {
	var host hostFlags
	c := &cobra.Command{
		Use:   "stdio",
		Short: "Connect a client's standard input and output to the daemon",
		Long: `Connect a client's standard input and output to the daemon of this user, which
is started if none runs. All clients share one host, which keeps running when
they disconnect. If the daemon ends, is restarted or upgraded, the command opens the
session at the next daemon and the client does not notice; a tool call that may
have run is not repeated, but answered with an error that states this.

Each client works in its own folders: those that -d names, or else the one it is
started in. If settings, or gatehouse daemon start -d, name folders, clients may
work in these and below them; with -d for another folder, the command fails.

A daemon that is started this way opens only its Unix socket, unless settings open
more. A running daemon has its own settings: if the flags name others, the command
fails.

To run a host in this process instead, without a daemon: gatehouse serve.`,
		Example: `  gatehouse stdio
  gatehouse stdio --context review
  {"mcpServers": {"gatehouse": {"command": "gatehouse", "args": ["stdio"]}}}`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			host.mistaken = goesOn(w) // a running daemon has read the settings already
			l, err := host.config(w.Getenv)
			if err != nil {
				return err
			}
			openListeners(l)
			cfg := l.Config
			if !host.verbose {
				cfg.Log.Level = max(cfg.Log.Level, slog.LevelWarn) // clients show users this output as an error
			}
			work, err := workOf(l.Config, host.folders)
			s := &forwarder{
				w:     w,
				l:     l,
				work:  work,
				wrong: err,
				args:  given(c.Flags(), "context", "verbose", "directory"),
				log:   logger(w.Err, cfg, new(slog.LevelVar)),
			}
			context := ""
			if c.Flags().Changed("context") {
				context = l.View.Context
			}
			return s.forwardStdio(c.Context(), context)
		},
	}
	host.register(c.Flags())
	completeContext(c, w)
	return c
}

// forwarder runs gatehouse stdio.
type forwarder struct {
	w     Environment
	l     *config.Loaded
	work  daemon.Work
	wrong error    // the reason why the client can work in none of its folders
	args  []string // for a daemon that is started here
	log   *slog.Logger
	build daemon.Build
}

func (s *forwarder) forwardStdio(ctx context.Context, view string) (err error) {
	if s.build, err = daemon.Self(app.Version); err != nil {
		return err
	}
	state, err := daemon.Resumed(s.w.Getenv)
	if err != nil {
		return err
	}
	if err := config.OwnFolder(s.l.Folders.Runtime); err != nil {
		return s.helpless(err)
	}
	f := &daemon.Forwarder{
		In: s.w.In, Out: s.w.Out, Log: s.log, Limit: s.l.Limits.Message, Context: view,
		Dial: s.dial, Start: s.startDaemon, Retire: s.retire, Takeover: s.takeover,
		Reads: func(ctx context.Context) (map[string]bool, error) { return s.reads(ctx, view) },
	}
	return f.Run(ctx, state)
}

// dial connects to the daemon, if it has the settings that the command line names.
func (s *forwarder) dial(ctx context.Context) (net.Conn, daemon.About, error) {
	if s.wrong != nil {
		return nil, daemon.About{}, &usageError{fmt.Errorf("%w: %w", daemon.ErrUnfit, s.wrong)}
	}
	c, about, err := daemon.Dial(ctx, socketPath(s.l.Config), s.build.ID, s.work)
	if err != nil {
		return nil, about, err
	}
	for _, flag := range s.args {
		if !slices.Contains(about.Args, flag) {
			c.Close()
			return nil, about, fmt.Errorf(
				"%w: the daemon, process %d, was started without %s, with %s; leave the flag out, stop the daemon, "+
					"or use gatehouse serve",
				daemon.ErrUnfit,
				about.PID,
				flag,
				cmp.Or(strings.Join(about.Args, " "), "no flags"),
			)
		}
	}
	if err := allowed(about, s.work); err != nil {
		c.Close()
		return nil, about, err
	}
	return c, about, nil
}

// workOf returns the folders in which a client with these settings works: those named on the command line, or else
// the current folder.
func workOf(cfg config.Config, named []string) (daemon.Work, error) {
	if len(named) == 0 {
		here, err := os.Getwd()
		if err != nil {
			return daemon.Work{}, fmt.Errorf("find the current folder: %w", err)
		}
		if dirs := cfg.Roots.Folders; len(dirs) > 0 && !roots.Meet(here, dirs) {
			return daemon.Work{Folders: absolute(dirs)}, nil // the same as gatehouse serve
		}
		return daemon.Work{Folders: []string{here}}, nil
	}
	work := daemon.Work{Folders: absolute(named), Named: true}
	for i, dir := range work.Folders {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return work, fmt.Errorf("-d %s: the folder does not exist", named[i])
		}
	}
	return work, nil
}

func absolute(paths []string) []string {
	var all []string
	for _, p := range paths {
		if abs, err := filepath.Abs(roots.Expand(p)); err == nil {
			all = append(all, abs)
		}
	}
	return all
}

// allowed returns an error if a daemon does not open the folders in which a client works. The daemon itself
// refuses all others in any case.
func allowed(about daemon.About, work daemon.Work) error {
	if !about.Limited {
		return nil
	}
	limits := strings.Join(about.Folders, ", ")
	for _, dir := range work.Folders {
		switch {
		case work.Named && !roots.Inside(dir, about.Folders):
			return fmt.Errorf(
				"%w: the daemon, process %d, may access %s, and %s is outside of it; stop the daemon and start it "+
					"with -d for both, or use gatehouse serve",
				daemon.ErrUnfit,
				about.PID,
				limits,
				dir,
			)
		case !work.Named && roots.Meet(dir, about.Folders):
			return nil
		}
	}
	if work.Named {
		return nil
	}
	return fmt.Errorf(
		"%w: the daemon, process %d, may access %s, and this client works in %s; name one of the daemon's folders "+
			"with -d, stop the daemon and start it without -d or with one more, or use gatehouse serve",
		daemon.ErrUnfit,
		about.PID,
		limits,
		strings.Join(work.Folders, ", "),
	)
}

// reads returns the tools of a context that are declared read-only.
func (s *forwarder) reads(ctx context.Context, view string) (map[string]bool, error) {
	c, _, err := daemon.DialPlain(ctx, socketPath(s.l.Config), s.work)
	if err != nil {
		return nil, err
	}
	cl, err := client.Over(
		ctx,
		"the daemon",
		c,
		client.Options{Name: "gatehouse-stdio", Version: app.Version, Context: view},
	)
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	all, err := cl.Tools(ctx)
	reads := map[string]bool{}
	for _, t := range all {
		reads[t.Name] = t.Annotations.ReadOnly != nil && *t.Annotations.ReadOnly
	}
	return reads, err
}

// startDaemon starts a daemon, unless another process has done so meanwhile, with the flags and in the folder of
// the last one that the client was connected to, if there was one.
func (s *forwarder) startDaemon(ctx context.Context, last daemon.About) error {
	cfg := s.l.Config
	done, err := daemon.Turn(ctx, turnFile(cfg))
	if err != nil {
		return s.helpless(err)
	}
	defer done()
	if about, err := daemon.Ask(ctx, socketPath(cfg)); err == nil && about.PID != 0 {
		return nil // the next connection checks whether it has the right settings
	}
	args, dir := s.args, s.work.Folders[0]
	if last.PID != 0 {
		args = last.Args
		if dir, err = startedIn(last); err != nil {
			return s.helpless(err)
		}
	}
	about, err := spawnDaemon(ctx, cfg, dir, args)
	if err != nil {
		return s.helpless(err)
	}
	s.log.Info("the daemon was started", "pid", about.PID)
	return nil
}

// helpless adds advice to an error if no daemon can be started.
func (s *forwarder) helpless(err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	fmt.Fprintln(
		s.w.Err,
		"[gatehouse] No daemon could be started. gatehouse daemon logs may show the reason; "+
			"gatehouse serve needs no daemon and runs the host in the client's own process",
	)
	if _, usage := errors.AsType[*usageError](err); usage {
		return err
	}
	return &client.ConnectError{To: "the daemon", Err: err}
}

// retire ends a daemon whose program file was replaced, and starts the new program if it is this one.
func (s *forwarder) retire(ctx context.Context, about daemon.About) (retired bool, err error) {
	if !about.Replaced || s.build.Replaced() {
		return false, nil
	}
	cfg := s.l.Config
	done, err := daemon.Turn(ctx, turnFile(cfg))
	if err != nil {
		return false, err
	}
	defer done()
	if now, err := daemon.Ask(ctx, socketPath(cfg)); err != nil || now.PID != about.PID {
		return true, nil // another process has done so
	}
	dir, err := startedIn(about)
	if err != nil {
		return false, err
	}
	ended := procid.Watch(about.PID)
	gone := func() (bool, error) { return ended(), nil }
	if _, err := daemon.Stop(ctx, about.PID, stopTime, gone); err != nil {
		return false, err
	}
	_, err = spawnDaemon(ctx, cfg, dir, about.Args)
	return err == nil, err
}

// takeover handles a daemon that runs another program than this one: if this program's file was replaced, it
// continues in the replacement.
func (s *forwarder) takeover(about daemon.About, state []byte) error {
	if s.build.Replaced() {
		return daemon.Replace(s.build.Path, s.l.Folders.Runtime, state)
	}
	return fmt.Errorf(
		"a daemon of another version runs, %s (%s) from %s as process %d, and versions do not mix: "+
			"stop it with gatehouse daemon stop, or use the program it was started from",
		about.Version,
		about.Build,
		about.Executable,
		about.PID,
	)
}
