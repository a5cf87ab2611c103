package backend

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/access/secret"
)

// Options configure a Pool.
type Options struct {
	Servers []Settings // in the order of preference
	// Fill replaces references to secrets; nil means that there are no secrets.
	Fill func(map[string]string) (map[string]secret.Text, error)
	Now  func() time.Time // nil means time.Now
}

// Pool is the servers of a host. It is safe for concurrent use and starts no goroutines of its own.
type Pool struct {
	members []*member
	cache   cache
	now     func() time.Time
}

const (
	attempts    = 3 // at one server, in a request
	firstWait   = 100 * time.Millisecond
	healthAge   = 15 * time.Second
	healthLimit = 3 * time.Second
	keyAge      = 10 * time.Second
)

// member is one server of a Pool.
type member struct {
	Settings
	server server
	gate   gate
	rec    record

	mu     sync.Mutex // of what follows
	list   []Model
	listed time.Time
	err    error
	asking chan struct{} // closed when the listing that is under way has ended
}

// New returns a Pool. The settings have been validated.
func New(o Options) *Pool {
	p := &Pool{now: o.Now}
	if p.now == nil {
		p.now = time.Now
	}
	p.cache.now = p.now
	for _, s := range o.Servers {
		m := &member{Settings: s, server: newServer(s, p.key(s, o.Fill))}
		if m.Concurrency == 0 {
			m.Concurrency = 4
		}
		if m.Timeout == 0 {
			m.Timeout = 5 * time.Minute
		}
		m.gate.free, m.rec.now = m.Concurrency, p.now
		p.members = append(p.members, m)
	}
	return p
}

// key returns how the key of a server is read: at most every keyAge, because secrets are decrypted at each reading.
func (p *Pool) key(
	s Settings,
	fill func(map[string]string) (map[string]secret.Text, error),
) func() (secret.Text, error) {
	if s.Key == "" {
		return nil
	}
	var mu sync.Mutex
	var text secret.Text
	var at time.Time
	return func() (secret.Text, error) {
		mu.Lock()
		defer mu.Unlock()
		if !at.IsZero() && p.now().Sub(at) < keyAge {
			return text, nil
		}
		if fill == nil {
			if names, err := secret.Names(s.Key); err != nil || len(names) > 0 {
				return secret.Text{}, errors.New("this host has no store of secrets")
			}
			return secret.New(s.Key), nil
		}
		filled, err := fill(map[string]string{"key": s.Key})
		if err != nil {
			return secret.Text{}, err
		}
		text, at = filled["key"], p.now()
		return text, nil
	}
}

// Names lists the servers.
func (p *Pool) Names() (all []string) {
	for _, m := range p.members {
		all = append(all, m.Name)
	}
	return all
}

// Unknown means that no server has a name, or none the model.
type Unknown struct{ What, Name string }

func (u *Unknown) Error() string { return fmt.Sprintf("there is no %s %q", u.What, u.Name) }

// Ask is one request to a Pool.
type Ask struct {
	Request
	Owner   string
	Backend string       // "" lets the Pool choose, and try another one where one fails
	Cache   bool         // an answer that is kept will do
	Keep    bool         // the answer is kept
	Text    func(string) // is called with each piece of the answer; nil for none
	Note    func(string) // is told when another server is tried; nil for none
}

// Generate asks a server for an answer. The error is an *Unknown, ErrQueue, a *Failure of the last server that was
// asked, ErrNone if none could be, or that of ctx.
func (p *Pool) Generate(ctx context.Context, a Ask) (Response, error) {
	members, err := p.route(ctx, a.Backend, a.Model)
	if err != nil {
		return Response{}, err
	}
	err = ErrNone
	for i, m := range members {
		r := a.Request
		if r.Model == "" {
			r.Model = m.Model
		}
		key := keyOf(a.Owner, m.Name, &r)
		if a.Cache {
			if res, ok := p.cache.get(key); ok {
				return res, nil
			}
		}
		res, failed := m.generate(ctx, a, &r)
		if failed == nil {
			if a.Keep {
				p.cache.put(key, a.Owner, res)
			}
			return res, nil
		}
		if !errors.Is(failed, ErrNone) || errors.Is(err, ErrNone) {
			err = failed
		}
		f, isFailure := errors.AsType[*Failure](failed)
		if isFailure && f.Request || !isFailure && !errors.Is(failed, ErrNone) && !errors.Is(failed, ErrQueue) {
			return Response{}, failed
		}
		if i+1 < len(members) && a.Note != nil {
			a.Note(fmt.Sprintf("%v; trying %s", failed, members[i+1].Name))
		}
	}
	return Response{}, err
}

// ErrNone means that no server can be asked now.
var ErrNone = errors.New("no backend is available")

// route returns the servers to ask, the best first: those that do not rest, in their order.
func (p *Pool) route(ctx context.Context, name, model string) (all []*member, err error) {
	if name != "" {
		for _, m := range p.members {
			if m.Name == name {
				return []*member{m}, nil
			}
		}
		return nil, &Unknown{"backend", name}
	}
	for _, m := range p.members {
		if model == "" || m.hasModel(ctx, model, p.now()) {
			all = append(all, m)
		}
	}
	if len(all) == 0 && len(p.members) > 0 {
		return nil, &Unknown{"backend with the model", model}
	}
	slices.SortStableFunc(all, func(a, b *member) int {
		return int(min(a.rec.resting(), 1)) - int(min(b.rec.resting(), 1))
	})
	return all, nil
}

// hasModel reports whether a server has a model: by its patterns, or by what it lists. A server that does not answer is
// asked nevertheless if it has no patterns and is the only way to find out.
func (m *member) hasModel(ctx context.Context, model string, now time.Time) bool {
	if model == m.Model {
		return true
	}
	for _, pattern := range m.Models {
		if ok, _ := path.Match(pattern, model); ok {
			return true
		}
	}
	if len(m.Models) > 0 {
		return false
	}
	list, err := m.health(ctx, now)
	return err == nil && slices.ContainsFunc(list, func(l Model) bool {
		return l.Name == model || strings.TrimSuffix(l.Name, ":latest") == model
	})
}

// generate asks one server, several times if that may help.
func (m *member) generate(ctx context.Context, a Ask, r *Request) (res Response, err error) {
	if err := m.gate.waitForPlace(ctx, a.Owner); err != nil {
		return res, err
	}
	defer m.gate.leave()
	if !m.rec.beginRequest() {
		return res, fmt.Errorf("%w: %s is left alone for %v after failures", ErrNone, m.Name,
			m.rec.resting().Round(time.Second))
	}
	wait := firstWait
	for try := 1; ; try++ {
		res, err = m.once(ctx, r, a.Text)
		f, isFailure := errors.AsType[*Failure](err)
		if err == nil || !isFailure || !f.Again || f.After > 0 || try == attempts || res.First > 0 {
			break // an answer that had begun is not repeated: it may have taken minutes
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		wait *= 2
	}
	f, isFailure := errors.AsType[*Failure](err)
	m.rec.endRequest(res, err, err == nil || isFailure && !f.Request)
	if isFailure {
		f.Backend = m.Name
	}
	res.Backend = m.Name
	if res.Model == "" {
		res.Model = r.Model
	}
	return res, err
}

// once asks a server once, within its time limit.
func (m *member) once(ctx context.Context, r *Request, text func(string)) (Response, error) {
	if err := context.Cause(ctx); err != nil {
		return Response{}, err
	}
	limited, cancel := context.WithTimeoutCause(ctx, m.Timeout, errTimeout)
	defer cancel()
	res, err := m.server.generate(limited, r, text)
	if errors.Is(err, errTimeout) {
		err = &Failure{Reason: fmt.Sprintf("the answer took longer than %v", m.Timeout)}
	}
	return res, err
}

var errTimeout = errors.New("the time limit of the backend has passed")

// health lists the models of a server. What was listed a short time ago will do.
func (m *member) health(ctx context.Context, now time.Time) ([]Model, error) {
	m.mu.Lock()
	if !m.listed.IsZero() && now.Sub(m.listed) < healthAge {
		defer m.mu.Unlock()
		return m.list, m.err
	}
	if asking := m.asking; asking != nil {
		m.mu.Unlock()
		select {
		case <-asking:
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.list, m.err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	asking := make(chan struct{})
	m.asking = asking
	m.mu.Unlock()
	// It is asked for all who wait, so that it does not end with the call of one of them.
	limited, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), healthLimit, errTimeout)
	defer cancel()
	list, err := m.server.models(limited)
	if errors.Is(err, errTimeout) {
		err = &Failure{Reason: fmt.Sprintf("it did not list its models within %v", healthLimit)}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.list, m.err, m.listed, m.asking = list[:min(len(list), 1000)], err, now, nil
	close(asking)
	return m.list, m.err
}

// Status is a server with what was measured of it.
type Status struct {
	Settings
	Available bool
	Models    []Model
	Reason    string // why it is not available
	Stats
}

// Status asks each server for its models and returns what is known of all.
func (p *Pool) Status(ctx context.Context) []Status {
	all := make([]Status, len(p.members))
	var wait sync.WaitGroup
	for i, m := range p.members {
		wait.Go(func() {
			s := Status{Settings: m.Settings, Stats: m.rec.stats()}
			s.Waiting = m.gate.waitingRequests()
			var err error
			s.Models, err = m.health(ctx, p.now())
			if err != nil {
				s.Reason = err.Error()
			}
			if s.Available = err == nil && s.Resting == 0; s.Reason == "" && !s.Available {
				s.Reason = s.Error
			}
			all[i] = s
		})
	}
	wait.Wait()
	return all
}
