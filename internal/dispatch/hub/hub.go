// Package hub serves WebSocket clients and delivers messages on channels.
//
// A channel belongs to an owner, a principal in a context: a message reaches only clients of that owner, even if
// another owner has a channel of the same name. Sending never waits for the receivers. A client that does not keep
// up is disconnected with a reason, without effect on the others. The caller of a request and the origin of its
// page are checked before the request arrives here.
package hub

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"gatehouse/tool"
)

// Options configures a Hub. The zero value is usable: each zero stands for the default.
type Options struct {
	Message int64 // bytes of one message from a client; 0 means 64 KiB
	Clients int   // at once; 0 means 4096
	// Claim reserves one of the clients for a caller, or returns why the caller gets none; nil means that the first
	// caller that asks gets one. release is called when the client has disconnected.
	Claim    func(tool.Caller) (release func(), err error)
	Channels int           // of one client; 0 means 100
	Queue    int           // messages that wait for one client; 0 means 256
	Waiting  int           // bytes that wait for one client; 0 means 4 MiB
	Ping     time.Duration // of silence, after which a client is sent a ping; 0 means 30 s
	Pong     time.Duration // of silence, after which it is disconnected; more than Ping; 0 means 60 s
	Write    time.Duration // for a client to accept one message; 0 means 10 s

	// May returns an error, which is sent to the caller, if the caller may not listen to channels of a kind. nil
	// lets every caller listen to its own channels.
	May func(ctx context.Context, c tool.Caller, kind string) error
	// Elsewhere has the channels of processes on other hosts; nil means that there are none.
	Elsewhere Elsewhere
	Log       *slog.Logger // nil: nothing is logged
}

// Caller is the caller of a client.
type Caller struct {
	tool.Caller
	Until time.Time                   // when the credential ends, and the client with it; zero means never
	Pace  func(context.Context) error // delays messages that arrive too fast; nil means no limit
}

// Hub is safe for concurrent use.
type Hub struct {
	o    Options
	log  *slog.Logger
	work sync.WaitGroup // goroutines of the clients

	mu       sync.Mutex // taken before a client's
	closed   bool
	clients  map[*client]struct{}
	all      int // clients, including those that are connecting
	channels map[address]*channel
}

// address identifies a channel; channels of different owners are different channels.
type address struct{ owner, name string }

// channel is a channel with clients or a feed.
type channel struct {
	members map[*client]struct{}
	feed    *Feed  // nil if it is not fed
	state   []byte // sent to clients that subscribe; nil means nothing

	listeners map[*Listener]struct{}
	end       context.CancelFunc // of a channel that is on another host; nil for others
}

// New returns a hub without clients. Serve adds clients; Run must run to ping them and to disconnect them at the
// end.
func New(o Options) *Hub {
	o.Message = cmp.Or(o.Message, 64<<10)
	o.Clients = cmp.Or(o.Clients, 4096)
	o.Channels = cmp.Or(o.Channels, 100)
	o.Queue = cmp.Or(o.Queue, 256)
	o.Waiting = cmp.Or(o.Waiting, 4<<20)
	o.Ping = cmp.Or(o.Ping, 30*time.Second)
	o.Pong = cmp.Or(o.Pong, time.Minute)
	o.Write = cmp.Or(o.Write, 10*time.Second)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Hub{
		o:        o,
		log:      o.Log,
		clients:  map[*client]struct{}{},
		channels: map[address]*channel{},
	}
}

// Serve turns a request for a WebSocket into a client, and answers any other request. It returns when that is
// done; the client is served by goroutines of the hub.
func (h *Hub) Serve(w http.ResponseWriter, r *http.Request, who Caller) {
	claimed, full := h.reserve(who.Caller)
	if full != "" {
		w.Header().Set("Retry-After", "5")
		http.Error(w, full, http.StatusServiceUnavailable)
		return
	}
	g := &hijackOnce{ResponseWriter: w}
	conn, err := websocket.Accept(
		g,
		r,
		&websocket.AcceptOptions{InsecureSkipVerify: true},
	) // the HTTP listener has checked Origin
	if err != nil {
		h.log.DebugContext(r.Context(), "no WebSocket", "from", r.RemoteAddr, "err", err)
		h.releasePlace(claimed)
		return
	}
	conn.SetReadLimit(-1) // the client limits it itself
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	cut := func() {
		cancel()
		g.conn.SetDeadline(time.Unix(1, 0))
	}
	c := &client{
		hub: h, conn: conn, who: who, id: "client_" + strings.ToLower(rand.Text()), since: time.Now(), cut: cut,
		wake: make(chan struct{}, 1), channels: map[string]*channel{}, claimed: claimed,
	}
	if !h.admit(ctx, c) {
		cut()
		conn.CloseNow()
		h.releasePlace(claimed)
	}
}

// admit adds a client, unless the hub has closed meanwhile.
func (h *Hub) admit(ctx context.Context, c *client) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.clients[c] = struct{}{}
	h.work.Go(func() { c.writeLoop(ctx) })
	h.work.Go(func() { c.readLoop(ctx) })
	return true
}

// hijackOnce keeps the connection below a WebSocket, because the WebSocket's own ways to close it may wait for the
// peer.
type hijackOnce struct {
	http.ResponseWriter
	conn net.Conn
}

func (h *hijackOnce) Hijack() (_ net.Conn, _ *bufio.ReadWriter, err error) {
	conn, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	h.conn = conn
	return conn, rw, err
}

// reserve reserves a place for a client, or returns the reason why there is none.
func (h *Hub) reserve(c tool.Caller) (release func(), full string) {
	claimed := func() {}
	if h.o.Claim != nil {
		var err error
		if claimed, err = h.o.Claim(c); err != nil {
			return nil, err.Error()
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		full = "the server is stopping; try again later"
	case h.all >= h.o.Clients:
		full = "there are as many WebSocket clients as there may be; try again later"
	default:
		h.all++
		return claimed, ""
	}
	claimed()
	return nil, full
}

// releasePlace releases a place that reserve has reserved.
func (h *Hub) releasePlace(claimed func()) {
	h.mu.Lock()
	h.all--
	h.mu.Unlock()
	claimed()
}

// Run pings the clients until ctx is done. Then it sends them a close message, and returns when they and their
// goroutines have ended.
func (h *Hub) Run(ctx context.Context) error {
	tick := time.NewTicker(max(h.o.Ping/8, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			h.pingIdle(now)
		case <-ctx.Done():
			h.disconnectAll()
			return nil
		}
	}
}

// pingIdle pings clients that have been silent.
func (h *Hub) pingIdle(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.clients {
		switch silent := now.Sub(c.since) - time.Duration(c.lastReceived.Load()); {
		case !c.who.Until.IsZero() && now.After(c.who.Until):
			c.closeWith(websocket.StatusPolicyViolation, "the credential has expired: reconnect with a new one")
		case silent > h.o.Ping && c.asked.CompareAndSwap(false, true):
			h.work.Go(c.ping)
		}
	}
}

// farewell is how long clients have to receive the close message when the server stops.
const farewell = time.Second

func (h *Hub) disconnectAll() {
	each := func(f func(*client)) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.closed = true
		for c := range h.clients {
			f(c)
		}
	}
	each(func(c *client) { c.closeWith(websocket.StatusGoingAway, "the server is stopping") })
	late := time.AfterFunc(farewell, func() { each(func(c *client) { c.cut() }) })
	defer late.Stop()
	h.work.Wait()
}

// Send sends a message on an owner's channel and returns the number of clients it was queued for. It must not be
// used on channels with a feed.
func (h *Hub) Send(owner, name string, m Message) (int, error) {
	if _, err := kindOf(name); err != nil {
		return 0, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	ch := h.channels[address{owner, name}]
	if ch == nil {
		return 0, nil
	}
	b, err := m.encodeFor(name)
	if err != nil {
		return 0, err
	}
	return ch.broadcast(b), nil
}

// HasListeners reports whether a client listens to an owner's channel.
func (h *Hub) HasListeners(owner, name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	ch := h.channels[address{owner, name}]
	return ch != nil && len(ch.members)+len(ch.listeners) > 0
}

// broadcast queues a message for every client of the channel. The hub's mu must be held.
func (ch *channel) broadcast(b []byte) (n int) {
	for c := range ch.members {
		if c.enqueue(b) {
			n++
		}
	}
	return n
}

// Drop disconnects all clients whose callers match named, with a reason of at most 120 bytes, because their
// credential is no longer valid.
func (h *Hub) Drop(named func(tool.Caller) bool, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.clients {
		if named(c.who.Caller) {
			c.closeWith(websocket.StatusPolicyViolation, reason)
		}
	}
}

// Message is a message on the wire, in both directions, one in each frame.
type Message struct {
	// process_output, process_status, event, error, ping, pong, subscribe, unsubscribe
	Type      string          `json:"type"`
	Channel   string          `json:"channel,omitempty"`
	ProcessID string          `json:"processId,omitempty"`
	Data      json.RawMessage `json:"data,omitempty"`
	Timestamp time.Time       `json:"timestamp,omitzero"` // when it was sent; zero means now
}

func (m Message) encodeFor(channel string) ([]byte, error) {
	m.Channel = channel
	if m.Timestamp.IsZero() {
		m.Timestamp = time.Now()
	}
	m.Timestamp = m.Timestamp.UTC()
	return json.Marshal(m)
}
