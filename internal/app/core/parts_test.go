package core

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// diary records the stops of a test's parts, in order.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) write(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line)
}

// part records when it stops, after a delay.
func (d *diary) part(name string, takes time.Duration, err error) Part {
	return Part{name, func(ctx context.Context) error {
		<-ctx.Done()
		time.Sleep(takes)
		d.write(name)
		return err
	}}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// Each part stops only after the part that was started after it has ended.
func TestStopsInReverse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begin := time.Now()
		err := Run(
			ctx,
			quiet(),
			10*time.Second,
			d.part("store", 0, nil),
			d.part("modules", time.Second, nil),
			d.part("listener", 2*time.Second, nil),
		)
		if err != nil {
			t.Fatal(err)
		}
		if want := []string{"listener", "modules", "store"}; !slices.Equal(d.lines, want) {
			t.Errorf("stopped %v, want %v", d.lines, want)
		}
		if took := time.Since(begin) - time.Minute; took != 3*time.Second {
			t.Errorf("stopping took %v, want 3s: one after the other", took)
		}
	})
}

func TestTheFirstFailureStopsTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		broken := errors.New("address already in use")
		err := Run(t.Context(), quiet(), time.Second, d.part("store", 0, errors.New("disk full")),
			Part{"listener", func(context.Context) error { return broken }})
		if !errors.Is(err, broken) || !strings.Contains(err.Error(), "listener: address already in use") ||
			!strings.Contains(err.Error(), "store: disk full") {
			t.Errorf("got %v, want both errors with their parts' names", err)
		}
	})
}

func TestAPartThatEndsWellStopsTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		err := Run(
			t.Context(),
			quiet(),
			time.Second,
			d.part("store", 0, nil),
			Part{"listener", func(context.Context) error { return nil }},
		)
		if err != nil || !slices.Equal(d.lines, []string{"store"}) {
			t.Errorf("got %v and stopped %v, want the store stopped without an error", err, d.lines)
		}
	})
}

func TestPatienceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		free := make(chan struct{})
		defer close(free)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err := Run(
			ctx,
			quiet(),
			5*time.Second,
			d.part("store", 0, nil),
			Part{"listener", func(context.Context) error { <-free; return nil }},
		)
		if err == nil || err.Error() != "listener did not stop within 5s" {
			t.Errorf("got %v, want the listener named", err)
		}
		if !slices.Equal(d.lines, []string{"store"}) {
			t.Errorf("stopped %v, want the store stopped nevertheless", d.lines)
		}
	})
}

func TestListenersStayOpenUntilTheLastHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		begin := time.Now()
		listeners := Together(
			"listeners",
			Part{"stdio", func(context.Context) error { d.write("stdio"); return nil }},
			d.part("http", 0, nil),
		)
		if err := Run(ctx, quiet(), time.Second, listeners); err != nil {
			t.Fatal(err)
		}
		if time.Since(begin) != time.Hour || !slices.Equal(d.lines, []string{"stdio", "http"}) {
			t.Errorf("ended after %v with %v, want HTTP to serve on for the hour", time.Since(begin), d.lines)
		}
	})
}

func TestAListenerThatFailsClosesTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		listeners := Together(
			"listeners",
			d.part("http", 0, nil),
			Part{"tcp", func(context.Context) error { return errors.New("no") }},
		)
		err := Run(t.Context(), quiet(), time.Second, listeners)
		if err == nil || err.Error() != "listeners: tcp: no" || !slices.Equal(d.lines, []string{"http"}) {
			t.Errorf("got %v and stopped %v, want tcp's error and http stopped", err, d.lines)
		}
	})
}

func TestClosingWaitsForItsTurnAndHasADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var left time.Duration
		p := Closing("spool", 3*time.Second, func(ctx context.Context) error {
			if ctx.Err() != nil {
				t.Error("the context has already ended")
			}
			end, _ := ctx.Deadline()
			left = time.Until(end)
			return nil
		})
		if err := Run(ctx, quiet(), 10*time.Second, p); err != nil || left != 3*time.Second {
			t.Errorf("got %v with %v left, want 3s", err, left)
		}
	})
}
