package webview

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"gatehouse/internal/modules/webview/chromium"
	"gatehouse/internal/modules/webview/page"
	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/namespaces"
)

// The settings of Settings.Confinement; every other one means that a browser is confined where it can be.
const (
	confineRequired = "required"
	confineOff      = "off"
)

// confinement knows how browsers are confined on this machine.
type confinement struct {
	mu     sync.Mutex
	asked  bool
	driver sandbox.Driver
	err    error // why there is no driver
	works  bool  // a browser has started in one
}

// get returns the driver of sandboxes, or why there is none. The machine is asked at the first call.
func (c *confinement) get(ctx context.Context, find func(context.Context) (sandbox.Driver, error)) (sandbox.Driver, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.asked {
		c.driver, c.err = find(ctx)
		c.asked = c.err == nil || ctx.Err() == nil // what failed for a call that was cancelled is tried again
	}
	return c.driver, c.err
}

// tried keeps what came of the first start in a sandbox, and reports whether browsers may run without one: that is so
// only if none ever started in one, because a caller could exhaust what sandboxes need.
func (c *confinement) tried(err error) (without bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.works = true
	}
	return !c.works
}

func (c *confinement) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = true // a browser that is being started finds no driver any more
	if c.driver == nil {
		c.err = sandbox.ErrDriverClosed
		return nil
	}
	return c.driver.Close()
}

// findDriver returns the driver that confines browsers. Only namespaces has folders of the host that a browser can
// write, for downloads. Whether it can make sandboxes is not tried here, because the first browser tries it.
func (m *manager) findDriver(context.Context) (sandbox.Driver, error) {
	return namespaces.New(namespaces.Options{Log: m.log, Proxy: m.cfg.Proxy})
}

// CanConfine returns why this machine can make no sandbox for a browser, or nil. It makes and removes one.
func CanConfine(ctx context.Context) error {
	d, err := namespaces.New(namespaces.Options{})
	if err != nil {
		return err
	}
	defer d.Close()
	for _, f := range d.Doctor(ctx) {
		if f.Needed && !f.OK {
			return errors.New(f.Detail)
		}
	}
	return nil
}

// start starts a browser, in a sandbox if the settings and the machine allow it, or attaches to one. loose says why it is
// in none. A browser of root starts in none only if the settings say so.
func (m *manager) start(ctx context.Context, o page.Options) (b *page.Browser, loose string, err error) {
	if o.DebugURL != "" {
		b, err = page.Open(ctx, o)
		return b, "", err
	}
	if m.cfg.Confinement == confineOff {
		b, err = page.Open(ctx, o)
		return b, "the settings of this host say so", err
	}
	find := m.cfg.Confining
	if find == nil {
		find = m.findDriver
	}
	driver, why := m.confine.get(ctx, find)
	if why == nil {
		confined := o
		confined.Chromium.Driver = driver
		b, why = page.Open(ctx, confined)
		without := m.confine.tried(why)
		if why == nil || !without || ctx.Err() != nil || errors.Is(why, chromium.ErrNotFound) {
			return b, "", why
		}
	}
	if m.cfg.Confinement == confineRequired {
		return nil, "", fmt.Errorf("the settings of this host require a sandbox, and in one it does not start: %w", why)
	}
	if o.Chromium.NoSandbox {
		// Neither a sandbox of this host nor Chromium's own would stand between a page and the machine.
		return nil, "", fmt.Errorf("as root it runs in a sandbox alone, and in one it does not start: %w; "+
			"run the host as another user, or set modules.webview.confinement to off", why)
	}
	if b, err = page.Open(ctx, o); err != nil {
		return nil, "", err
	}
	m.log.Warn("browsers run without a sandbox", "reason", why)
	return b, why.Error(), nil
}
