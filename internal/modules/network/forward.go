package network

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/internal/access/operator"
	"gatehouse/module"
	"gatehouse/tool"
)

const (
	mostOfOwner     = 20
	mostForwards    = 200
	mostConnections = 256 // of one forward
	forwardDial     = 10 * time.Second
	forwardIdle     = 10 * time.Minute
)

// forwards are those that are open, of all owners. Safe for concurrent use.
type forwards struct {
	// life ends with the module. Forwards outlive the calls that opened them.
	life context.Context
	end  context.CancelFunc
	work sync.WaitGroup

	mu   sync.Mutex
	open map[string]*forward
	shut bool
}

func (s *forwards) init() {
	s.life, s.end = context.WithCancel(context.Background())
	s.open = map[string]*forward{}
}

// forward is one port that is passed on.
type forward struct {
	id       string
	owner    string // guarded by forwards.mu
	listener net.Listener
	target   string
	since    time.Time
	until    time.Time // zero: until it is stopped
	// ctx ends when the forward is stopped, which another call does, or when its time is over.
	ctx  context.Context
	stop context.CancelFunc

	connections atomic.Int64 // open now
	served      atomic.Int64
	sent        atomic.Int64 // bytes to the target
	received    atomic.Int64
}

type startForwardIn struct {
	Listen  string `json:"listen,omitempty" doc:"address and port of this machine" default:"127.0.0.1:0" max:"100"`
	Target  string `json:"target" doc:"host:port" min:"3" max:"300"`
	Seconds int    `json:"seconds,omitempty" doc:"it ends by itself after them; 0 means it does not" min:"0" max:"604800"`
}

type forwardOut struct {
	ID          string `json:"id"`
	Owner       string `json:"owner,omitempty" doc:"with all"`
	Listen      string `json:"listen"`
	Target      string `json:"target"`
	Since       string `json:"since"`
	Until       string `json:"until,omitempty"`
	Connections int64  `json:"connections" doc:"open now"`
	Served      int64  `json:"served" doc:"in all"`
	Sent        int64  `json:"sent" doc:"bytes to the target"`
	Received    int64  `json:"received" doc:"bytes from it"`
}

func (f *forward) out() forwardOut {
	o := forwardOut{
		ID: f.id, Listen: f.listener.Addr().String(), Target: f.target, Since: f.since.UTC().Format(time.RFC3339),
		Connections: f.connections.Load(), Served: f.served.Load(), Sent: f.sent.Load(), Received: f.received.Load(),
	}
	if !f.until.IsZero() {
		o.Until = f.until.UTC().Format(time.RFC3339)
	}
	return o
}

func (n *network) startForward(ctx context.Context, c *tool.Call, in startForwardIn) (forwardOut, error) {
	listen, err := netip.ParseAddrPort(strings.Replace(in.Listen, "localhost:", "127.0.0.1:", 1))
	if err != nil {
		return forwardOut{}, &tool.Refusal{Code: "invalid_arguments", Message: fmt.Sprintf("listen is %q", in.Listen), Next: "Give an address of this machine with a port, such as 127.0.0.1:0 for a free one."}
	}
	if !listen.Addr().Unmap().IsLoopback() && (!n.cfg.Rules.By(c.Caller)) {
		return forwardOut{}, operator.Denied("open a port that other machines reach", "Listen on 127.0.0.1.")
	}
	host, port, err := net.SplitHostPort(in.Target)
	if number, e := strconv.ParseUint(port, 10, 16); err != nil || e != nil || number == 0 || host == "" || strings.ContainsAny(host, "/ @") {
		return forwardOut{}, &tool.Refusal{Code: "invalid_arguments", Message: fmt.Sprintf("target is %q", in.Target), Next: "Give host:port, such as 192.0.2.7:5432."}
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", listen.String())
	if err != nil {
		return forwardOut{}, tool.Refuse("unsupported", "%v", err)
	}
	f := &forward{id: n.newID(), owner: c.Caller.Owner, listener: l, target: in.Target, since: time.Now()}
	if in.Seconds > 0 {
		f.until = f.since.Add(time.Duration(in.Seconds) * time.Second)
	}
	if err := n.forwards.add(f); err != nil {
		return forwardOut{}, errors.Join(err, l.Close())
	}
	return f.out(), nil
}

func (n *network) newID() string {
	if n.deps.NewID == nil {
		return fmt.Sprintf("forward_%d", time.Now().UnixNano())
	}
	return n.deps.NewID("forward")
}

// add serves a forward until it ends.
func (s *forwards) add(f *forward) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	own := 0
	for _, o := range s.open {
		if o.owner == f.owner {
			own++
		}
	}
	switch {
	case s.shut:
		return tool.Refuse("busy", "the host is stopping")
	case own >= mostOfOwner || len(s.open) >= mostForwards:
		return &tool.Refusal{Code: "busy", Message: fmt.Sprintf("there are %d forwards of yours, and %d in all", own, len(s.open)), Next: "End one with net_forward_stop."}
	}
	f.ctx, f.stop = context.WithCancel(s.life)
	if !f.until.IsZero() {
		f.ctx, f.stop = context.WithDeadline(s.life, f.until)
	}
	s.open[f.id] = f
	s.work.Go(func() {
		f.serve()
		s.mu.Lock()
		delete(s.open, f.id)
		s.mu.Unlock()
	})
	return nil
}

// serve takes connections until the forward ends, and returns when all of them
// have.
func (f *forward) serve() {
	defer f.stop()
	defer context.AfterFunc(f.ctx, func() { f.listener.Close() })()
	defer f.listener.Close()
	var all sync.WaitGroup
	defer all.Wait()
	for {
		c, err := f.listener.Accept()
		if f.ctx.Err() != nil {
			if err == nil {
				c.Close()
			}
			return
		}
		if err != nil { // too many files are open, perhaps
			select {
			case <-time.After(100 * time.Millisecond):
				continue
			case <-f.ctx.Done():
				return
			}
		}
		if f.connections.Load() >= mostConnections {
			c.Close()
			continue
		}
		f.connections.Add(1)
		f.served.Add(1)
		all.Go(func() {
			defer f.connections.Add(-1)
			f.pass(c)
		})
	}
}

// pass carries bytes both ways until both are done, nothing moves, or the
// forward ends.
func (f *forward) pass(from net.Conn) {
	defer from.Close()
	to, err := (&net.Dialer{Timeout: forwardDial}).DialContext(f.ctx, "tcp", f.target)
	if err != nil {
		return
	}
	defer to.Close()
	defer context.AfterFunc(f.ctx, func() {
		from.Close()
		to.Close()
	})()
	idle := time.AfterFunc(forwardIdle, func() {
		from.Close()
		to.Close()
	})
	defer idle.Stop()
	var both sync.WaitGroup
	both.Go(func() { carry(to, from, &f.sent, idle) })
	carry(from, to, &f.received, idle)
	both.Wait()
}

// carry copies one direction and tells the other end where it ends.
func carry(to, from net.Conn, count *atomic.Int64, idle *time.Timer) {
	_, err := io.Copy(&moving{to, count, idle}, from)
	if half, ok := to.(*net.TCPConn); ok && err == nil {
		half.CloseWrite()
		return
	}
	to.Close()
	from.Close()
}

// moving counts what is written, and that something moves.
type moving struct {
	to    io.Writer
	count *atomic.Int64
	idle  *time.Timer
}

func (m *moving) Write(p []byte) (int, error) {
	m.idle.Reset(forwardIdle)
	n, err := m.to.Write(p)
	m.count.Add(int64(n))
	return n, err
}

type forwardsOut struct {
	Forwards []forwardOut `json:"forwards"`
}

type listForwardsIn struct {
	All bool `json:"all,omitempty" doc:"of all callers; administrators only"`
}

func (n *network) listForwards(_ context.Context, c *tool.Call, in listForwardsIn) (forwardsOut, error) {
	s, out := &n.forwards, forwardsOut{Forwards: []forwardOut{}}
	if in.All {
		if err := n.cfg.Rules.Check(c, "list the forwards of all callers"); err != nil {
			return out, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.open {
		if !in.All && f.owner != c.Caller.Owner {
			continue
		}
		o := f.out()
		if in.All {
			o.Owner = f.owner
		}
		out.Forwards = append(out.Forwards, o)
	}
	slices.SortFunc(out.Forwards, func(a, b forwardOut) int {
		return cmp.Or(cmp.Compare(a.Since, b.Since), cmp.Compare(a.ID, b.ID))
	})
	return out, nil
}

type stopForwardIn struct {
	ID string `json:"id" min:"1" max:"100"`
}

func (n *network) stopForward(_ context.Context, c *tool.Call, in stopForwardIn) (forwardOut, error) {
	s := &n.forwards
	s.mu.Lock()
	f := s.open[in.ID]
	mine := f != nil && (f.owner == c.Caller.Owner || n.cfg.Rules.By(c.Caller))
	if mine {
		delete(s.open, in.ID)
	}
	s.mu.Unlock()
	if !mine {
		return forwardOut{}, &tool.Refusal{Code: "not_found", Message: "there is no such forward", Next: "net_forward_list shows yours."}
	}
	f.stop()
	f.listener.Close() // at once: the port is free when the call returns
	return f.out(), nil
}

// endOwned ends the forwards for which match holds, and frees their ports.
func (s *forwards) endOwned(match func(owner string, made time.Time) bool) (ended []string) {
	s.mu.Lock()
	var all []*forward
	for id, f := range s.open {
		if match(f.owner, f.since) {
			all = append(all, f)
			delete(s.open, id)
		}
	}
	s.mu.Unlock()
	for _, f := range all {
		f.stop()
		f.listener.Close()
		ended = append(ended, fmt.Sprintf("forward %s: %s to %s", f.id, f.listener.Addr(), f.target))
	}
	slices.Sort(ended)
	return ended
}

// handOver gives the forwards for which heir names an owner to that owner.
func (s *forwards) handOver(heir module.Heir) (handed []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.open {
		if to := heir(f.owner, f.since); to != "" {
			f.owner = to
			handed = append(handed, fmt.Sprintf("forward %s: %s to %s", f.id, f.listener.Addr(), f.target))
		}
	}
	slices.Sort(handed)
	return handed
}

// close ends all forwards and waits for them.
func (s *forwards) close(ctx context.Context) error {
	s.mu.Lock()
	s.shut = true
	s.mu.Unlock()
	s.end()
	ended := make(chan struct{})
	go func() {
		s.work.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("forwards did not end: %w", context.Cause(ctx))
	}
}
