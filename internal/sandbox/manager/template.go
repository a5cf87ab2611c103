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

// DefaultTemplate is the template used if none is requested. It may be among Options.Templates; otherwise it
// means the host's own programs.
const DefaultTemplate = "default"

// Template describes sandboxes. The zero value means the host's own programs.
type Template struct {
	Image  string // see Options.Image; "" means the host's own programs
	Driver string // "" means any
	Strict bool   // see sandbox.Spec
	Env    []string
	Limits sandbox.Limits // zero fields take the manager's
	Ready  int            // how many are kept ready; 0 means Options.Ready, less than 0 none
}

// kind is a template with its driver and image. Sandboxes of kinds with the same key share a pool.
type kind struct {
	key
	Template
	rung  *ladderDriver
	lease *imageRef // nil means the host's own programs
	waits bool      // a pool may be used

	scripts *atomic.Bool // whether sandboxes of its pool have run JavaScript; nil without a pool
}

// scripted records that a sandbox of this kind runs JavaScript, so that new sandboxes of its pool get a
// waiting Node.
func (k *kind) scripted() {
	if k.scripts != nil {
		k.scripts.Store(true)
	}
}

type key struct {
	driver, image string
	strict        bool
	env           string // of the template, with which waiting interpreters were started
}

// Templates returns the names of the templates in order.
func (m *Manager) Templates() []string { return slices.Sorted(maps.Keys(m.o.Templates)) }

// kind resolves the requested template, image and driver. The caller must drop the lease.
func (m *Manager) kind(ctx context.Context, a Spec) (k kind, err error) {
	t, there := m.o.Templates[cmp.Or(a.Template, DefaultTemplate)]
	if !there && a.Template != "" && a.Template != DefaultTemplate {
		return k, fmt.Errorf("template %q: %w; the templates are: %v", a.Template, ErrNotOffered, m.Templates())
	}
	k.Template, k.waits = t, t.Ready >= 0
	if a.Image != "" {
		if m.o.MayImage == nil {
			return k, fmt.Errorf("naming an image: %w; the templates are: %v", ErrNotOffered, m.Templates())
		}
		if err := m.o.MayImage(a.Image); err != nil {
			return k, fmt.Errorf("image %s: %w: %w", a.Image, ErrNotOffered, err)
		}
		k.Image, k.waits = a.Image, false
	}
	if t.Driver != "" && a.Driver != "" && t.Driver != a.Driver {
		return k, fmt.Errorf("driver %q: %w for the template %q, which uses %s", a.Driver, ErrNotOffered,
			a.Template, t.Driver)
	}
	if k.rung, err = m.pick(cmp.Or(a.Driver, t.Driver), a.Least); err != nil {
		return k, err
	}
	if k.Image != "" {
		if k.lease, err = m.imageOf(ctx, k.Image, a); err != nil {
			return k, fmt.Errorf("image %s: %w", k.Image, err)
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

// spec returns the spec for the driver.
func (k *kind) spec(l sandbox.Limits, env []string) sandbox.Spec {
	spec := sandbox.Spec{Limits: l, Env: slices.Concat(k.Env, env), Strict: k.strict}
	if k.lease != nil {
		spec.Image = k.lease.image
	}
	return spec
}

// pool returns the pool for a key, or nil.
func (m *Manager) pool(k key) *pool.Pool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pools[k]
}

// keepTemplate starts a pool for a kind, if pools are enabled for it.
func (m *Manager) keepTemplate(k *kind) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || !m.served || !k.waits || m.pools[k.key] != nil {
		return
	}
	p := &pool.Pool{
		Driver: priming{m, k.rung.driver, k.scripts}, Spec: k.spec(fillLimits(k.Limits, m.o.Limits), nil),
		Log: m.o.Log, Ready: cmp.Or(max(k.Ready, 0), m.o.Ready), Boots: m.o.Boots,
	}
	m.pools[k.key] = p
	m.runs.Go(func() {
		if err := p.Run(m.life); err != nil {
			m.o.Log.Warn("the pool of sandboxes failed", "driver", k.key.driver, "image", k.key.image, "error", err)
		}
	})
}

// Serve enables pools: that of the default template is started now, others when their template is first
// requested. It does not block.
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
		k, err := m.kind(m.life, Spec{})
		if err != nil {
			if m.life.Err() == nil {
				m.o.Log.Warn("no sandboxes can be made in advance", "error", err)
			}
			return
		}
		defer k.lease.drop()
		m.mu.Lock()
		m.first = k.key
		m.mu.Unlock()
		m.keepTemplate(&k)
	})
}

// Pool returns the counters of the default template's pool; ok is false if there is none.
func (m *Manager) Pool() (s pool.Stats, ok bool) {
	m.mu.Lock()
	p := m.pools[m.first]
	m.mu.Unlock()
	if p == nil {
		return s, false
	}
	return p.Stats(), true
}

// PoolStats are the counters of one pool.
type PoolStats struct {
	pool.Stats
	Driver, Image string // the image's ID; "" for the host's own programs
	Strict        bool
}

// Pools returns the counters of all pools, ordered by driver and image.
func (m *Manager) Pools() (all []PoolStats) {
	m.mu.Lock()
	pools := maps.Clone(m.pools)
	m.mu.Unlock()
	for k, p := range pools {
		all = append(all, PoolStats{p.Stats(), k.driver, k.image, k.strict})
	}
	slices.SortFunc(all, func(a, b PoolStats) int {
		return slices.Compare([]string{a.Driver, a.Image, fmt.Sprint(a.Strict)},
			[]string{b.Driver, b.Image, fmt.Sprint(b.Strict)})
	})
	return all
}
