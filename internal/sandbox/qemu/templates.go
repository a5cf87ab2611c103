//go:build linux && amd64

package qemu

import (
	"context"
	"errors"
	"time"

	"gatehouse/internal/sandbox"
)

const (
	mostTemplates = 6           // kept at once: each has the memory of a machine, which no limit of a sandbox counts
	failedFor     = time.Minute // a template that could not be made is tried again after
)

var errTemplatesInUse = errors.New("as many templates as there may be are in use")

// template is a machine to go on from, being made or made.
type template struct {
	key    string
	ready  chan struct{} // closed when image, err and failed are set
	image  frozen
	err    error
	failed time.Time

	users int       // that wait for it or go on from it, and snapshots; under the driver's lock, as used
	used  time.Time // last
}

// template is the one of a kind, which the caller lets go of. It is made once,
// for all who want it, whoever of them gives up waiting.
func (d *Driver) template(ctx context.Context, k kind) (*template, error) {
	t, err := d.claim(k.key(), func() (frozen, error) { return d.freeze(d.alive, k) })
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
		d.letGo(t)
		return nil, err
	}
	return t, nil
}

// claim finds a template that nobody closes before it is let go of, or has it
// made.
func (d *Driver) claim(key string, freeze func() (frozen, error)) (*template, error) {
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
		d.works.Go(func() {
			defer close(t.ready)
			began := time.Now()
			t.image, t.err = freeze()
			t.image.of = t
			t.failed = time.Now()
			d.log.Info("a virtual machine to go on from", "kind", key, "took", time.Since(began), "error", t.err)
		})
	}
	t.users++
	t.used = time.Now()
	return t, nil
}

// hold claims a template that something goes on from already, for a snapshot of
// that. It fails where the template is kept for nothing else any more.
func (d *Driver) hold(t *template) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	held := d.templates[t.key] == t
	if held {
		t.users++
	}
	return held
}

// letGo is for who has claimed it.
func (d *Driver) letGo(t *template) {
	d.mu.Lock()
	defer d.mu.Unlock()
	t.users--
	t.used = time.Now()
}

// makeRoom closes the templates that were not used for longest until there is
// room for one more, and reports whether there is. d.mu is held.
func (d *Driver) makeRoom() bool {
	for len(d.templates) >= mostTemplates {
		oldest := ""
		for key, t := range d.templates {
			if t.users == 0 && t.made() && (oldest == "" || t.used.Before(d.templates[oldest].used)) {
				oldest = key
			}
		}
		if oldest == "" {
			return false
		}
		d.templates[oldest].close()
		delete(d.templates, oldest)
	}
	return true
}

// made reports whether it is there, or could not be made.
func (t *template) made() bool {
	select {
	case <-t.ready:
		return true
	default:
		return false
	}
}

func (t *template) hasFailed() bool { return t.made() && t.err != nil }

// close lets go of a template that nobody waits for any more.
func (t *template) close() {
	if t.err == nil {
		t.image.close()
	}
}
