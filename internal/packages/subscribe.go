package packages

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/mcp/client"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/tool"
)

const (
	subscribeTime = 10 * time.Second      // for a server to answer a subscription
	updatePause   = 20 * time.Millisecond // between two notifications about one resource
)

// subscriptions are the resources of one package that clients watch: one subscription at
// its server for each, shared by all who watch it. While there are any, one goroutine keeps
// the server running and the subscriptions open. It is safe for concurrent use.
type subscriptions struct {
	pkg    *managedPackage
	change chan struct{} // holds a token when all has changed

	mu      sync.Mutex
	all     map[string]*subscription // by the server's own URI
	keeping bool                     // the goroutine runs
}

// subscription is one resource that clients watch. The lock of its subscriptions guards it.
type subscription struct {
	watchers map[*func(json.RawMessage)]struct{}
	settled  chan struct{} // closed when the server has answered for the first time
	err      error         // the server's refusal

	paused bool // an update was sent less than updatePause ago
	dirty  bool // another came since
	meta   json.RawMessage
}

func (s *subscriptions) init(p *managedPackage) {
	s.pkg, s.change, s.all = p, make(chan struct{}, 1), map[string]*subscription{}
}

// Watch has changed called when a resource of a package changes, until stop is called. uri is
// the address on this host. The server is started and asked for the subscription, unless
// there is one already; the error is its refusal. changed must not block; its meta may be
// nil. After a time in which updates may have been lost, it is called once.
func (h *Manager) Watch(
	c tool.Caller, id, uri string, changed func(meta json.RawMessage),
) (stop func(), err error) {
	own, ok := strings.CutPrefix(uri, h.Address(id))
	if !ok {
		return nil, tool.Refuse(tool.CodeNotFound, "resource %s is not one of package %s", uri, id)
	}
	p, err := h.findPackage(id)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	each := p.rec.Login == PrincipalLogin
	p.mu.Unlock()
	if node, err := h.watchedAt(id); err != nil {
		return nil, err
	} else if node != "" {
		return h.watchElsewhere(node, c, id, uri, changed)
	}
	if each { // one subscription is shared by all who watch
		return nil, tool.Refuse(tool.CodeUnsupported,
			"resources of package %s cannot be watched: each caller has its own login", id)
	}
	release, err := h.opts.Watches(c)
	if err != nil {
		return nil, &tool.Refusal{Code: tool.CodeBusy, Message: err.Error()}
	}
	one, end, err := p.watched.subscribeTo(own, &changed)
	if err != nil {
		release()
		return nil, err
	}
	stop = sync.OnceFunc(func() {
		end()
		release()
	})
	if err := p.watched.waitForSubscription(one); err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

// waitForSubscription waits until a server has answered a subscription.
func (s *subscriptions) waitForSubscription(one *subscription) error {
	late := time.NewTimer(subscribeTime)
	defer late.Stop()
	select {
	case <-one.settled:
		s.mu.Lock()
		defer s.mu.Unlock()
		return one.err
	case <-late.C:
		return tool.Refuse(tool.CodeUnavailable, "package %s did not answer the subscription within %v", s.pkg.id,
			subscribeTime)
	}
}

// subscribeTo adds a watcher of a resource.
func (s *subscriptions) subscribeTo(uri string, w *func(json.RawMessage)) (one *subscription, end func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.keeping {
		leave, err := s.pkg.manager.addWork()
		if err != nil {
			return nil, nil, err
		}
		s.keeping = true
		go func() {
			defer leave()
			s.resubscribe(s.pkg.manager.ctx)
		}()
	}
	one = s.all[uri]
	if one == nil {
		one = &subscription{watchers: map[*func(json.RawMessage)]struct{}{}, settled: make(chan struct{})}
		s.all[uri] = one
		s.notifyChange()
	}
	one.watchers[w] = struct{}{}
	return one, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if delete(one.watchers, w); len(one.watchers) == 0 && s.all[uri] == one {
			delete(s.all, uri)
			s.notifyChange()
		}
	}, nil
}

func (s *subscriptions) notifyChange() {
	select {
	case s.change <- struct{}{}:
	default:
	}
}

// uris returns what is watched, sorted.
func (s *subscriptions) uris() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.all))
}

// stopKeeping reports whether nothing is watched any more; then another goroutine keeps what
// is watched next.
func (s *subscriptions) stopKeeping() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keeping = len(s.all) > 0
	return !s.keeping
}

// settle records the answer of the server to the subscriptions of some resources.
func (s *subscriptions) settle(err error, uris ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, uri := range uris {
		one := s.all[uri]
		if one == nil {
			continue
		}
		one.err = err
		select {
		case <-one.settled:
		default:
			close(one.settled)
		}
	}
}

// updated notifies the watchers of a resource, or of one that it is a part of.
func (s *subscriptions) updated(uri string, meta json.RawMessage) {
	s.mu.Lock()
	var found []*subscription
	if one := s.all[uri]; one != nil {
		found = append(found, one)
	} else {
		for of, one := range s.all {
			if strings.HasPrefix(uri, strings.TrimSuffix(of, "/")+"/") {
				found = append(found, one)
			}
		}
	}
	s.mu.Unlock()
	for _, one := range found {
		s.notifyWatchers(one, meta)
	}
}

// missed notifies all watchers that they may have missed updates.
func (s *subscriptions) missed() {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.all))
	s.mu.Unlock()
	for _, one := range all {
		s.notifyWatchers(one, nil)
	}
}

// notifyWatchers notifies the watchers of one resource: at once or, soon after the last time,
// at the end of the pause with the newest update.
func (s *subscriptions) notifyWatchers(one *subscription, meta json.RawMessage) {
	s.mu.Lock()
	one.meta, one.dirty = meta, one.paused
	var watchers []*func(json.RawMessage)
	if !one.paused {
		one.paused = true
		watchers = slices.Collect(maps.Keys(one.watchers))
		time.AfterFunc(updatePause, func() { s.endPause(one) })
	}
	s.mu.Unlock()
	for _, w := range watchers {
		(*w)(meta)
	}
}

// endPause sends the newest update that came during the pause.
func (s *subscriptions) endPause(one *subscription) {
	s.mu.Lock()
	one.paused = false
	dirty, meta := one.dirty, one.meta
	s.mu.Unlock()
	if dirty {
		s.notifyWatchers(one, meta)
	}
}

// resubscribe keeps the subscriptions open until nothing is watched, or ctx is done.
func (s *subscriptions) resubscribe(ctx context.Context) {
	pace, again := listDelay, false
	for !s.stopKeeping() {
		begun := time.Now()
		err := s.serveSubscriptions(ctx, again)
		if ctx.Err() != nil {
			s.settle(tool.Refuse(tool.CodeUnavailable, "%v", errClosing), s.uris()...)
			return
		}
		if err == nil {
			continue
		}
		s.settle(err, s.uris()...)
		again = true
		if time.Since(begun) > time.Minute {
			pace = listDelay
		}
		s.pause(ctx, pace)
		pace = min(2*pace, time.Minute)
	}
}

// pause waits before the subscriptions are opened again. It ends early if nothing is watched.
func (s *subscriptions) pause(ctx context.Context, d time.Duration) {
	late := time.NewTimer(d)
	defer late.Stop()
	for len(s.uris()) > 0 {
		select {
		case <-late.C:
			return
		case <-ctx.Done():
			return
		case <-s.change:
		}
	}
}

// serveSubscriptions opens the subscriptions at the server, and follows what is watched until nothing is,
// or until the server has gone. again says that updates may have been missed.
func (s *subscriptions) serveSubscriptions(ctx context.Context, again bool) error {
	u, err := s.pkg.shared.ready(ctx)
	if err != nil {
		return err
	}
	defer u.releaseUpstream()
	if can, _ := rawjson.Get(u.capabilities["resources"], "subscribe"); string(can) != "true" {
		return &tool.WireError{
			Code:    -32601,
			Message: fmt.Sprintf("the server of package %s does not notify of updates of its resources", s.pkg.id),
		}
	}
	if u.conn.IsModern() {
		return s.serveModern(ctx, u, again)
	}
	return s.serveLegacy(ctx, u, again)
}

// serveLegacy keeps a subscription for each resource.
func (s *subscriptions) serveLegacy(ctx context.Context, u *upstream, again bool) error {
	open := map[string]bool{}
	for {
		wanted := s.uris()
		for uri := range open {
			if _, found := slices.BinarySearch(wanted, uri); !found {
				delete(open, uri)
				s.requestSubscription(ctx, u, "resources/unsubscribe", uri) // the server may refuse
			}
		}
		for _, uri := range wanted {
			if open[uri] {
				continue
			}
			err := s.requestSubscription(ctx, u, "resources/subscribe", uri)
			if no, ok := errors.AsType[*client.NoAnswerError](err); ok {
				return no.Why
			}
			open[uri] = true // a refusal stands as long as the session
			s.settle(err, uri)
		}
		if again {
			again = false
			s.missed()
		}
		if len(wanted) == 0 {
			return nil
		}
		select {
		case <-s.change:
		case <-u.gone:
			return u.conn.Err()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (s *subscriptions) requestSubscription(ctx context.Context, u *upstream, method, uri string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, subscribeTime, errors.New("the server did not answer "+method))
	defer cancel()
	_, err := u.conn.Do(ctx,
		client.Request{Method: method, Params: append(appendMember([]byte{'{'}, "uri", quote(uri)), '}')})
	return wireError(err)
}

// serveModern keeps one subscriptions/listen for all resources. When others are watched, it
// opens another, and closes the earlier after that, so that no update is missed.
func (s *subscriptions) serveModern(ctx context.Context, u *upstream, again bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var now *listening
	for {
		wanted := s.uris()
		if len(wanted) == 0 {
			return nil
		}
		if now == nil || !slices.Equal(now.uris, wanted) {
			next := listenTo(ctx, u, wanted)
			err := s.settleGranted(next, wanted)
			if refused, ok := errors.AsType[*tool.WireError](err); ok && now != nil {
				s.settle(
					refused,
					slices.DeleteFunc(wanted, func(uri string) bool { return slices.Contains(now.uris, uri) })...)
			} else if err != nil {
				return err
			} else {
				if now != nil {
					now.end()
				}
				now = next
			}
		}
		if again {
			again = false
			s.missed()
		}
		select {
		case <-s.change:
		case err := <-now.ended:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// settleGranted waits until the server has acknowledged which resources it notifies of.
func (s *subscriptions) settleGranted(l *listening, wanted []string) error {
	late := time.NewTimer(subscribeTime)
	defer late.Stop()
	select {
	case granted := <-l.granted:
		for _, uri := range wanted {
			var err error
			if !slices.Contains(granted, uri) {
				err = &tool.WireError{
					Code: -32602,
					Message: fmt.Sprintf("the server of package %s does not notify of updates of %s", s.pkg.id,
						shorten(uri, 200)),
				}
			}
			s.settle(err, uri)
		}
		return nil
	case err := <-l.ended:
		return err
	case <-late.C:
		return fmt.Errorf("the server did not acknowledge the subscription within %v", subscribeTime)
	}
}

// listening is one open subscriptions/listen.
type listening struct {
	uris    []string
	granted chan []string // the resources that the server acknowledged; holds one
	ended   chan error    // why it ended; holds one
	end     context.CancelFunc
}

// listenTo subscribes to resources until end is called or ctx is done.
func listenTo(ctx context.Context, u *upstream, uris []string) *listening {
	ctx, cancel := context.WithCancel(ctx)
	l := &listening{uris: slices.Clone(uris), granted: make(chan []string, 1), ended: make(chan error, 1), end: cancel}
	list, _ := json.Marshal(uris) // strings can be encoded
	r := client.Request{
		Method: "subscriptions/listen",
		Params: fmt.Appendf(nil, `{"notifications":{"resourceSubscriptions":%s}}`, list),
		Notified: func(method string, params json.RawMessage) bool {
			if method != "notifications/subscriptions/acknowledged" {
				return false
			}
			var ack struct {
				Notifications struct {
					Resources []string `json:"resourceSubscriptions"`
				} `json:"notifications"`
			}
			json.Unmarshal(params, &ack) // what cannot be decoded grants nothing
			select {
			case l.granted <- ack.Notifications.Resources:
			default:
			}
			return true
		},
	}
	go func() { // it ends with ctx, which ends with serveModern
		defer cancel()
		_, err := u.conn.Do(ctx, r)
		if err == nil {
			err = errors.New("the server has ended the subscription")
		}
		l.ended <- wireError(err)
	}()
	return l
}
