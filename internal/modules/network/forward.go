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

// MaxForwards is how many forwards one host has.
const MaxForwards = 200

const (
	maxConnections = 256 // open connections of one forward
	forwardDial    = 10 * time.Second
	forwardIdle    = 10 * time.Minute
)

// forwards are the open forwards of all owners. It is safe for concurrent use.
type forwards struct {
	// ctx ends with the module. Forwards outlive the calls that started them.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	open   map[string]*forward
	closed bool
}

func (s *forwards) init() {
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.open = map[string]*forward{}
}

// forward is one listening port whose connections are relayed to a target.
type forward struct {
	id       string
	owner    string // guarded by forwards.mu
	listener net.Listener
	target   string
	since    time.Time
	until    time.Time // zero means until it is stopped
	// ctx ends when another call stops the forward, or at until.
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
	Seconds int    `json:"seconds,omitempty" doc:"stops after this time; 0 means never" min:"0" max:"604800"`
}

type forwardOut struct {
	ID          string `json:"id"`
	Owner       string `json:"owner,omitempty" doc:"with all"`
	Listen      string `json:"listen"`
	Target      string `json:"target"`
	Since       string `json:"since"`
	Until       string `json:"until,omitempty"`
	Connections int64  `json:"connections" doc:"open connections"`
	Served      int64  `json:"served" doc:"connections since the start"`
	Sent        int64  `json:"sent" doc:"bytes to the target"`
	Received    int64  `json:"received" doc:"bytes from it"`
	module.OnNode
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
		return forwardOut{}, &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: fmt.Sprintf("listen is %q; expected address:port", in.Listen),
			Next:    "Give an address of this machine and a port, such as 127.0.0.1:0 for a free port.",
		}
	}
	if !listen.Addr().Unmap().IsLoopback() && (!n.cfg.Rules.By(c.Caller)) {
		return forwardOut{}, operator.Denied("open a port that other machines reach", "Listen on 127.0.0.1.")
	}
	host, port, err := net.SplitHostPort(in.Target)
	if number, e := strconv.ParseUint(port, 10, 16); err != nil || e != nil || number == 0 || host == "" ||
		strings.ContainsAny(host, "/ @") {
		return forwardOut{}, &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: fmt.Sprintf("target is %q; expected host:port", in.Target),
			Next:    "Give a target such as 192.0.2.7:5432.",
		}
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", listen.String())
	if err != nil {
		return forwardOut{}, tool.Refuse(tool.CodeUnsupported, "%v", err)
	}
	release, err := n.claimForward(c)
	if err != nil {
		return forwardOut{}, errors.Join(err, l.Close())
	}
	f := &forward{id: n.newID(), owner: c.Caller.Owner, listener: l, target: in.Target, since: time.Now()}
	if in.Seconds > 0 {
		f.until = f.since.Add(time.Duration(in.Seconds) * time.Second)
	}
	if err := n.forwards.addForward(f, release); err != nil {
		release()
		return forwardOut{}, errors.Join(err, l.Close())
	}
	return f.out(), nil
}

// claimForward takes one of the forwards of the host for a caller.
func (n *network) claimForward(c *tool.Call) (release func(), err error) {
	if n.cfg.Claim == nil {
		return func() {}, nil
	}
	if release, err = n.cfg.Claim(c.Caller.Principal, n.cfg.Rules.By(c.Caller)); err != nil {
		return nil, &tool.Refusal{Code: tool.CodeBusy, Message: err.Error(), Next: "Stop one with net_forward_stop."}
	}
	return release, nil
}

func (n *network) newID() string {
	if n.deps.NewID == nil {
		return fmt.Sprintf("forward_%d", time.Now().UnixNano())
	}
	return n.deps.NewID("forward")
}

// addForward registers a forward and starts to serve it. It refuses it if the host
// has as many as it may. It calls release when the forward has ended.
func (s *forwards) addForward(f *forward, release func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return tool.Refuse(tool.CodeBusy, "the host is stopping")
	case len(s.open) >= MaxForwards:
		return &tool.Refusal{
			Code:    tool.CodeBusy,
			Message: fmt.Sprintf("the host has %d forwards, which is the limit", len(s.open)),
			Next:    "Stop one with net_forward_stop.",
		}
	}
	f.ctx, f.stop = context.WithCancel(s.ctx)
	if !f.until.IsZero() {
		f.ctx, f.stop = context.WithDeadline(s.ctx, f.until)
	}
	s.open[f.id] = f
	s.wg.Go(func() {
		f.acceptLoop()
		s.mu.Lock()
		delete(s.open, f.id)
		s.mu.Unlock()
		release()
	})
	return nil
}

// acceptLoop accepts connections until the forward ends, and returns when all of them
// have ended.
func (f *forward) acceptLoop() {
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
		if err != nil { // possibly too many open files
			select {
			case <-time.After(100 * time.Millisecond):
				continue
			case <-f.ctx.Done():
				return
			}
		}
		if f.connections.Load() >= maxConnections {
			c.Close()
			continue
		}
		f.connections.Add(1)
		f.served.Add(1)
		all.Go(func() {
			defer f.connections.Add(-1)
			f.relay(c)
		})
	}
}

// relay copies bytes in both directions until both are closed, the connection is
// idle for too long, or the forward ends.
func (f *forward) relay(from net.Conn) {
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
	both.Go(func() { copyHalf(to, from, &f.sent, idle) })
	copyHalf(from, to, &f.received, idle)
	both.Wait()
}

// copyHalf copies one direction and closes the write side of the other
// connection at its end.
func copyHalf(to, from net.Conn, count *atomic.Int64, idle *time.Timer) {
	_, err := io.Copy(&countingWriter{to, count, idle}, from)
	if half, ok := to.(*net.TCPConn); ok && err == nil {
		half.CloseWrite()
		return
	}
	to.Close()
	from.Close()
}

// countingWriter counts the bytes written to it, and resets the idle timer.
type countingWriter struct {
	to    io.Writer
	count *atomic.Int64
	idle  *time.Timer
}

func (m *countingWriter) Write(p []byte) (int, error) {
	m.idle.Reset(forwardIdle)
	n, err := m.to.Write(p)
	m.count.Add(int64(n))
	return n, err
}

type forwardsOut struct {
	Forwards []forwardOut `json:"forwards"`
	module.Unreached
}

type listForwardsIn struct {
	All bool `json:"all,omitempty" doc:"those of all callers; administrators only"`
}

func (n *network) listForwards(ctx context.Context, c *tool.Call, in listForwardsIn) (forwardsOut, error) {
	s, out := &n.forwards, forwardsOut{Forwards: []forwardOut{}}
	if in.All {
		if err := n.cfg.Rules.Check(c, "list the forwards of all callers"); err != nil {
			return out, err
		}
	}
	s.mu.Lock()
	for _, f := range s.open {
		if !in.All && f.owner != c.Caller.Owner {
			continue
		}
		o := f.out()
		o.Node = n.deps.Node
		if in.All {
			o.Owner = f.owner
		}
		out.Forwards = append(out.Forwards, o)
	}
	s.mu.Unlock()
	out.Unreached.Unreached = module.Gather(ctx, n.deps, c, func(_ string, there forwardsOut) {
		out.Forwards = append(out.Forwards, there.Forwards...)
	})
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
		return forwardOut{}, &tool.Refusal{
			Code:    tool.CodeNotFound,
			Message: "you have no forward with this id",
			Next:    "net_forward_list lists your forwards.",
		}
	}
	f.stop()
	f.listener.Close() // here, so that the port is free when the call returns
	return f.out(), nil
}

// endOwned stops the forwards for which match holds, and frees their ports.
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

// handOver changes the owner of the forwards for which heir names a new one.
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

// closeAll stops all forwards and waits for them until ctx is done.
func (s *forwards) closeAll(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	ended := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("forwards did not end: %w", context.Cause(ctx))
	}
}
