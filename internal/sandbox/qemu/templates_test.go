//go:build linux && amd64

package qemu

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/internal/sandbox"
)

// keeper is a driver that only keeps templates.
func keeper(t *testing.T) *Driver {
	d := &Driver{log: slog.New(slog.DiscardHandler), templates: map[string]*template{}}
	d.alive, d.end = context.WithCancel(t.Context())
	t.Cleanup(func() {
		d.end()
		d.work.Wait()
		for _, one := range d.templates {
			one.closeTemplate()
		}
	})
	return d
}

// still is something that was kept, and its file.
func still(t *testing.T) (savedState, *os.File) {
	t.Helper()
	f, err := memoryFile("state", 0)
	if err != nil {
		t.Fatal(err)
	}
	return savedState{state: f}, f
}

func isClosed(f *os.File) bool {
	_, err := f.Stat()
	return errors.Is(err, os.ErrClosed)
}

func TestOnlyTheTemplatesUsedLastAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := keeper(t)
		var files []*os.File
		use := func(i int) *template {
			t.Helper()
			time.Sleep(time.Second) // the order of use is by the clock
			one, err := d.acquireTemplate(fmt.Sprint(i), func() (savedState, error) {
				image, f := still(t)
				files = append(files, f)
				return image, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			<-one.ready
			return one
		}
		first := use(0) // it is in use all the time
		for i := range mostTemplates - 1 {
			d.releaseTemplate(use(i + 1))
		}
		d.releaseTemplate(use(1)) // so that the second is the oldest that is unused
		for range 3 {
			d.releaseTemplate(use(mostTemplates))
		}
		for i, f := range files {
			if isClosed(f) != (i == 2) {
				t.Errorf("template %d is closed: %v", i, isClosed(f))
			}
		}
		if len(d.templates) != mostTemplates || len(files) != mostTemplates+1 {
			t.Errorf("%d are kept of %d", len(d.templates), len(files))
		}
		held := []*template{first}
		for i := range mostTemplates - 1 {
			held = append(held, use(100+i))
		}
		if _, err := d.acquireTemplate("one more", nil); err != errTemplatesInUse || isClosed(files[0]) {
			t.Errorf("%v; that in use is closed: %v", err, isClosed(files[0]))
		}
		for _, one := range held {
			d.releaseTemplate(one)
			time.Sleep(time.Second)
		}
		d.releaseTemplate(use(200))
		if len(d.templates) != mostTemplates || !isClosed(files[0]) {
			t.Errorf("%d are kept", len(d.templates))
		}
	})
}

func TestATemplateThatFailedIsTriedAgainLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := keeper(t)
		failure, tries := errors.New("no memory"), 0
		try := func() error {
			one, err := d.acquireTemplate("a", func() (savedState, error) {
				if tries++; tries == 1 {
					return savedState{}, failure
				}
				image, _ := still(t)
				return image, nil
			})
			if err != nil {
				return err
			}
			defer d.releaseTemplate(one)
			<-one.ready
			return one.err
		}
		for _, want := range []struct {
			err   error
			tries int
		}{{failure, 1}, {failure, 1}, {nil, 2}, {nil, 2}} {
			if err := try(); err != want.err || tries != want.tries {
				t.Errorf("%v after %d tries, want %v after %d", err, tries, want.err, want.tries)
			}
			time.Sleep(failedFor * 2 / 3)
		}
		d.end()
		if err := try(); err != sandbox.ErrDriverClosed {
			t.Errorf("after the end: %v", err)
		}
	})
}
