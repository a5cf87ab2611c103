package manager

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/pool"
)

// DefaultTemplate is what a sandbox is made of when nobody asks otherwise. It
// may be among Options.Templates; else it is the host's own programs.
const DefaultTemplate = "default"

// Template is what sandboxes are made of. Its zero value is the host's own
// programs.
type Template struct {
	Image  string // see Options.Image; "" means the host's own programs
	Driver string // "" means any
	Strict bool   // see sandbox.Spec
	Env    []string
	Limits sandbox.Limits // zero members take the manager's
	Ready  int            // how many are kept ready; 0 means Options.Ready, less than 0 none
}

// kind is a template with all that follows from it. Sandboxes of kinds with one
// key wait in one pool.
type kind struct {
	key
	Template
	rung  *rung
	lease *lease // nil means the host's own programs
	waits bool   // some may be kept ready

	scripts *atomic.Bool // sandboxes of its pool have run JavaScript; nil when they wait in none
}

// scripted says that a sandbox of this kind runs JavaScript: from now on a Node
// waits in those that are made for its pool.
func (k *kind) scripted() {
	if k.scripts != nil {
		k.scripts.Store(true)
	}
}

type key struct {
	driver, image string
	strict        bool
	env           string // of the template, which what waits was started with
}

// Templates are the names of those there are, in order.
func (m *Manager) Templates() []string { return slices.Sorted(maps.Keys(m.o.Templates)) }

// kind finds what is asked for: a template, an image, a driver. The caller
// drops the lease.
func (m *Manager) kind(ctx context.Context, a Ask) (k kind, err error) {
	t, there := m.o.Templates[cmp.Or(a.Template, DefaultTemplate)]
	if !there && a.Template != "" && a.Template != DefaultTemplate {
		return k, fmt.Errorf("the template %q: %w; there are: %v", a.Template, ErrNotOffered, m.Templates())
	}
	k.Template, k.waits = t, t.Ready >= 0
	if a.Image != "" {
		if m.o.MayImage == nil {
			return k, fmt.Errorf("an image of your choice: %w; its templates are: %v", ErrNotOffered, m.Templates())
		}
		if err := m.o.MayImage(a.Image); err != nil {
			return k, fmt.Errorf("the image %s: %w: %w", a.Image, ErrNotOffered, err)
		}
		k.Image, k.waits = a.Image, false
	}
	if t.Driver != "" && a.Driver != "" && t.Driver != a.Driver {
		return k, fmt.Errorf("the driver %q: %w for the template %q, which is of %s", a.Driver, ErrNotOffered, a.Template, t.Driver)
	}
	if k.rung, err = m.pick(cmp.Or(a.Driver, t.Driver), a.Least); err != nil {
		return k, err
	}
	if k.Image != "" {
		if k.lease, err = m.imageOf(ctx, k.Image, a); err != nil {
			return k, fmt.Errorf("the image %s: %w", k.Image, err)
		}
		k.key.image = k.lease.image.ID
	}
	k.key.driver, k.strict, k.key.env = k.rung.Name, k.Strict, strings.Join(k.Env, "\x00")
	if k.waits {
		k.scripts = m.scriptsOf(k.key)
	}
	return k, nil
}

func (m *Manager) scriptsOf(k key) *atomic.Bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.scripts[k] == nil {
		m.scripts[k] = new(atomic.Bool)
	}
	return m.scripts[k]
}

// spec is what the driver is asked for.
func (k *kind) spec(l sandbox.Limits, env []string) sandbox.Spec {
	spec := sandbox.Spec{Limits: l, Env: slices.Concat(k.Env, env), Strict: k.strict}
	if k.lease != nil {
		spec.Image = k.lease.image
	}
	return spec
}

// pool is the one whose sandboxes are of a kind, or nil.
func (m *Manager) pool(k key) *pool.Pool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pools[k]
}

// keep has some of a kind ready from now on, if any are to be kept ready.
func (m *Manager) keep(k *kind) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || !m.served || !k.waits || m.pools[k.key] != nil {
		return
	}
	p := &pool.Pool{
		Driver: priming{m, k.rung.driver, k.scripts}, Spec: k.spec(fill(k.Limits, m.o.Limits), nil),
		Log: m.o.Log, Ready: cmp.Or(max(k.Ready, 0), m.o.Ready), Boots: m.o.Boots,
	}
	m.pools[k.key] = p
	m.runs.Go(func() {
		if err := p.Run(m.life); err != nil {
			m.o.Log.Warn("the pool of sandboxes", "driver", k.key.driver, "image", k.key.image, "error", err)
		}
	})
}

// Serve says that sandboxes are wanted, so that some of the default template
// are kept ready from now on; those of others when the first was asked for. It
// never waits.
func (m *Manager) Serve() {
	if m.o.NoPool {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || m.served {
		return
	}
	m.served = true
	m.runs.Go(func() {
		k, err := m.kind(m.life, Ask{})
		if err != nil {
			if m.life.Err() == nil {
				m.o.Log.Warn("no sandboxes can be made ready", "error", err)
			}
			return
		}
		defer k.lease.drop()
		m.mu.Lock()
		m.first = k.key
		m.mu.Unlock()
		m.keep(&k)
	})
}

// Pool tells how the pool of the default template does; ok is false while
// there is none.
func (m *Manager) Pool() (s pool.Stats, ok bool) {
	m.mu.Lock()
	p := m.pools[m.first]
	m.mu.Unlock()
	if p == nil {
		return s, false
	}
	return p.Stats(), true
}

// PoolStats are those of one pool.
type PoolStats struct {
	pool.Stats
	Driver, Image string // the image's ID; "" for the host's own programs
	Strict        bool
}

// Pools tells how each pool does, in order of drivers and images.
func (m *Manager) Pools() (all []PoolStats) {
	m.mu.Lock()
	pools := maps.Clone(m.pools)
	m.mu.Unlock()
	for k, p := range pools {
		all = append(all, PoolStats{p.Stats(), k.driver, k.image, k.strict})
	}
	slices.SortFunc(all, func(a, b PoolStats) int {
		return slices.Compare([]string{a.Driver, a.Image, fmt.Sprint(a.Strict)}, []string{b.Driver, b.Image, fmt.Sprint(b.Strict)})
	})
	return all
}
