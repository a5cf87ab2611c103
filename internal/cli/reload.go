package cli

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"gatehouse/internal/config"
)

// reloader reads the settings again when SIGHUP asks for it.
type reloader struct {
	load func() (*config.Loaded, error)
	host interface {
		Reload(config.Config) (live, restart []string, err error)
	}
	log   *slog.Logger
	level *slog.LevelVar
}

// errHangup is why a server ends whose terminal has gone.
var errHangup = errors.New("the terminal has gone")

// listen follows the signal until the returned function has been called. A
// server that was started at a terminal ends when that goes: the signal then
// means so.
func (r *reloader) listen(ctx context.Context, stop context.CancelCauseFunc) (end func()) {
	attached := terminal()
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-hup:
			}
			if attached && !terminal() {
				stop(errHangup)
				return
			}
			r.reload()
		}
	})
	return func() {
		signal.Stop(hup)
		cancel()
		running.Wait()
	}
}

// terminal reports whether this process has a terminal that controls it.
func terminal() bool {
	f, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	f.Close()
	return true
}

// reload puts the settings in force as they are now. With a mistake in them
// everything stays as it was.
func (r *reloader) reload() {
	l, err := r.load()
	var live, restart []string
	if err == nil {
		live, restart, err = r.host.Reload(l.Config)
		err = l.Explain(err)
	}
	if err != nil {
		r.log.Error("the settings stay as they were", "err", err)
		return
	}
	r.level.Set(l.Log.Level)
	r.log.Info("settings read again", "file", l.File, "changed", strings.Join(live, " "))
	if len(restart) > 0 {
		r.log.Warn("some settings need a new start", "settings", strings.Join(restart, " "))
	}
}
