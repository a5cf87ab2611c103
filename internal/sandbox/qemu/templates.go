//go:build linux && amd64

package qemu

import (
	"context"
	"fmt"
	"time"

	"gatehouse/internal/sandbox"
)

const (
	mostTemplates = 6           // open at once; each has the memory of a machine, which no limit of a sandbox counts
	failedFor     = time.Minute // delay before a failed template is tried again
)

var errTemplatesInUse = fmt.Errorf("all %d templates are in use", mostTemplates)

// template is a saved machine that others start from, or one that is being made.
type template struct {
	key    string
	ready  chan struct{} // closed when image, err and failed are set
	image  savedState
	err    error
	failed time.Time

	// Callers waiting for it, machines restored from it, and snapshots; guarded by the driver's mu, as used.
	users int
	used  time.Time // time of last use
}

// template returns the template of a kind, which the caller must release by releaseTemplate. It is made once for all
// callers, even if some of them give up.
func (d *Driver) template(ctx context.Context, k kind) (*template, error) {
	t, err := d.acquireTemplate(k.key(), func() (savedState, error) { return d.makeTemplate(d.alive, k) })
	if err != nil {
		return nil, err
	}
	select {
	case <-t.ready:
		err = t.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		d.releaseTemplate(t)
		return nil, err
	}
	return t, nil
}

// acquireTemplate returns a template that is not closed before it is released, or starts making it.
func (d *Driver) acquireTemplate(key string, freeze func() (savedState, error)) (*template, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.templates == nil || d.alive.Err() != nil {
		return nil, sandbox.ErrDriverClosed
	}
	t := d.templates[key]
	if t == nil || t.users == 0 && t.hasFailed() && time.Since(t.failed) >= failedFor {
		delete(d.templates, key)
		if !d.makeRoom() {
			return nil, errTemplatesInUse
		}
		t = &template{key: key, ready: make(chan struct{})}
		d.templates[key] = t
		d.work.Go(func() {
			defer close(t.ready)
			began := time.Now()
			t.image, t.err = freeze()
			t.image.template = t
			t.failed = time.Now()
			d.log.Info("made a template of a virtual machine", "kind", key, "took", time.Since(began), "error", t.err)
		})
	}
	t.users++
	t.used = time.Now()
	return t, nil
}

// holdTemplate claims the template of a running machine for a snapshot. It returns false if the template has been
// replaced.
func (d *Driver) holdTemplate(t *template) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	held := d.templates[t.key] == t
	if held {
		t.users++
	}
	return held
}

// releaseTemplate releases a template.
func (d *Driver) releaseTemplate(t *template) {
	d.mu.Lock()
	defer d.mu.Unlock()
	t.users--
	t.used = time.Now()
}

// makeRoom closes the least recently used templates until one more may be made, and reports whether that
// succeeded. The caller holds d.mu.
func (d *Driver) makeRoom() bool {
	for len(d.templates) >= mostTemplates {
		oldest := ""
		for key, t := range d.templates {
			if t.users == 0 && t.isDone() && (oldest == "" || t.used.Before(d.templates[oldest].used)) {
				oldest = key
			}
		}
		if oldest == "" {
			return false
		}
		d.templates[oldest].closeTemplate()
		delete(d.templates, oldest)
	}
	return true
}

// isDone reports whether the template is ready or has failed.
func (t *template) isDone() bool {
	select {
	case <-t.ready:
		return true
	default:
		return false
	}
}

func (t *template) hasFailed() bool { return t.isDone() && t.err != nil }

// closeTemplate closes a template without users.
func (t *template) closeTemplate() {
	if t.err == nil {
		t.image.closeState()
	}
}
