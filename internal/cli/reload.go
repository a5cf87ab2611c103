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

// reloader reads the settings again on SIGHUP.
type reloader struct {
	load func() (*config.Loaded, error)
	host interface {
		Reload(config.Config) (live, restart []string, err error)
	}
	log   *slog.Logger
	level *slog.LevelVar
}

// errHangup is the reason a server ends if its terminal was closed.
var errHangup = errors.New("the terminal was closed")

// listen handles the signal until the returned function is called. A server that was started at a terminal ends on
// SIGHUP, because the signal then means that the terminal was closed.
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

// terminal reports whether this process has a controlling terminal.
func terminal() bool {
	f, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	f.Close()
	return true
}

// reload applies the current settings. If they contain a mistake, nothing changes.
func (r *reloader) reload() {
	if _, _, err := r.applySettings(); err != nil {
		r.log.Error("the settings were not reloaded", "err", err)
	}
}

// applySettings applies the current settings, and returns which apply now and which after a restart. After an error nothing
// has changed.
func (r *reloader) applySettings() (live, restart []string, err error) {
	l, err := r.load()
	if err != nil {
		return nil, nil, err
	}
	if live, restart, err = r.host.Reload(l.Config); err != nil {
		return nil, nil, l.Explain(err)
	}
	r.level.Set(l.Log.Level)
	r.log.Info("settings read again", "file", l.File, "changed", strings.Join(live, " "))
	if len(restart) > 0 {
		r.log.Warn("some settings need a restart", "settings", strings.Join(restart, " "))
	}
	return live, restart, nil
}
