package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"gatehouse/tool"
)

// client is one WebSocket. One goroutine reads from it and one writes to it; both end with the connection.
type client struct {
	hub   *Hub
	conn  *websocket.Conn
	who   Caller
	id    string
	since time.Time
	// when it last sent something, in nanoseconds after since, because the time of day can be set
	lastReceived atomic.Int64
	asked        atomic.Bool   // a ping was sent and is not answered yet
	wake         chan struct{} // holds a token while there is something for the writer
	cut          func()        // closes the connection at once
	// claimed releases its place among those of its principal.
	claimed func()

	channels map[string]*channel // guarded by hub.mu
	left     bool                // likewise

	mu      sync.Mutex
	queue   [][]byte
	waiting int // bytes in the queue
	sent    int64
	over    *websocket.CloseError // why it is disconnected; nil while it is not
}

// enqueue queues a message, or disconnects a client with too many queued messages. It never blocks.
func (c *client) enqueue(b []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over != nil {
		return false
	}
	if o := c.hub.o; len(c.queue) >= o.Queue || len(c.queue) > 0 && c.waiting+len(b) > o.Waiting {
		c.finishWriting(
			websocket.StatusTryAgainLater,
			fmt.Sprintf("too slow: %d messages were waiting; reconnect and read faster", len(c.queue)),
		)
		return false
	}
	c.queue = append(c.queue, b)
	c.waiting += len(b)
	c.wakeWriter()
	return true
}

// closeWith disconnects the client, unless that has begun already. The reason has at most 120 bytes.
func (c *client) closeWith(code websocket.StatusCode, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over == nil {
		c.finishWriting(code, reason)
	}
}

// finishWriting is closeWith with c.mu held. Queued messages are not sent any more, because a client that is
// disconnected has to read the current state again anyway.
func (c *client) finishWriting(code websocket.StatusCode, reason string) {
	c.over = &websocket.CloseError{Code: code, Reason: reason}
	c.queue, c.waiting = nil, 0
	c.wakeWriter()
}

func (c *client) wakeWriter() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// nextMessage returns the next message to write; neither a message nor a close error means to wait.
func (c *client) nextMessage() (b []byte, over *websocket.CloseError) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over != nil || len(c.queue) == 0 {
		return nil, c.over
	}
	b = c.queue[0]
	c.queue[0] = nil
	if c.queue = c.queue[1:]; len(c.queue) == 0 {
		c.queue = nil // its array may have grown
	}
	c.waiting -= len(b)
	c.sent++
	return b, nil
}

// writeLoop writes queued messages until the connection or the client has ended. A client that does not accept a
// message in time is disconnected without a close message.
func (c *client) writeLoop(ctx context.Context) {
	defer c.cut()
	for {
		b, over := c.nextMessage()
		switch {
		case over != nil:
			c.writeClose(over)
			return
		case b == nil:
			select {
			case <-c.wake:
			case <-ctx.Done():
				return
			}
		case !c.sendMessage(ctx, b):
			return
		}
	}
}

// writeClose sends a close message, and waits for the client's for a limited time.
func (c *client) writeClose(over *websocket.CloseError) {
	c.hub.log.Debug("WebSocket client is disconnected", "client", c.id, "owner", c.who.Owner, "why", over.Reason)
	late := time.AfterFunc(goodbye, c.cut)
	defer late.Stop()
	c.conn.Close(over.Code, over.Reason)
}

// goodbye is how long a client may take to answer the close message.
const goodbye = 5 * time.Second

func (c *client) sendMessage(ctx context.Context, b []byte) bool {
	ctx, cancel := context.WithTimeout(ctx, c.hub.o.Write)
	defer cancel()
	return c.conn.Write(ctx, websocket.MessageText, b) == nil
}

// ping sends a ping, and ends the client if it has not answered the last one.
func (c *client) ping() {
	ctx, cancel := context.WithTimeout(context.Background(), c.hub.o.Pong-c.hub.o.Ping)
	defer cancel()
	if c.conn.Ping(ctx) == nil {
		c.lastReceived.Store(int64(time.Since(c.since)))
		c.asked.Store(false)
		return
	}
	c.cut()
}

// readLoop handles the client's messages until the connection has ended.
func (c *client) readLoop(ctx context.Context) {
	defer c.hub.leave(c)
	defer c.cut()
	defer c.conn.CloseNow()
	for {
		kind, from, err := c.conn.Reader(ctx)
		if err != nil {
			return
		}
		b, err := io.ReadAll(io.LimitReader(from, c.hub.o.Message+1))
		if err != nil {
			return
		}
		c.lastReceived.Store(int64(time.Since(c.since)))
		switch {
		case int64(len(b)) > c.hub.o.Message:
			c.closeWith(websocket.StatusMessageTooBig, fmt.Sprintf("a message has at most %d bytes", c.hub.o.Message))
			<-ctx.Done() // the writer discards the rest of it
			return
		case kind != websocket.MessageText:
			c.closeWith(websocket.StatusUnsupportedData, "messages are JSON, as text")
		default:
			c.handleMessage(ctx, b)
		}
	}
}

// handleMessage handles one message.
func (c *client) handleMessage(ctx context.Context, b []byte) {
	if c.who.Pace != nil {
		if err := c.who.Pace(ctx); err != nil {
			c.sendError("", tool.Refuse(tool.CodeBusy, "%v", err))
			return
		}
	}
	m, err := decodeRequest(b)
	if err == nil {
		err = c.handleRequest(ctx, m)
	}
	if err != nil {
		c.sendError(m.channel, err)
	}
}

func (c *client) handleRequest(ctx context.Context, m request) error {
	switch m.kind {
	case ping:
		b, _ := Message{Type: "pong"}.encodeFor("") // strings and a time
		c.enqueue(b)
	case unsubscribe:
		c.hub.part(c, m.channel)
	case subscribe:
		kind, _ := kindOf(m.channel) // decodeRequest has checked it
		if may := c.hub.o.May; may != nil {
			if err := may(ctx, c.who.Caller, kind); err != nil {
				return err
			}
		}
		if kind == Process {
			if err := c.hub.follow(ctx, address{c.who.Owner, m.channel}); err != nil {
				return err
			}
		}
		return c.hub.join(c, m.channel, kind)
	}
	return nil
}

// sendError answers with an error.
func (c *client) sendError(channel string, err error) {
	r, ok := errors.AsType[*tool.Refusal](err)
	if !ok {
		c.hub.log.Error("WebSocket message failed", "client", c.id, "err", err)
		r = tool.Refuse(tool.CodeInternal, "this failed; the log of the host has the reason")
	}
	b, _ := Message{Type: "error", Data: problem(r)}.encodeFor(channel) // strings and a time
	c.enqueue(b)
}

// These are the messages that a client may send.
const (
	ping        = "ping"
	subscribe   = "subscribe"
	unsubscribe = "unsubscribe"
)

// request is a message from a client.
type request struct{ kind, channel string }

// decodeRequest decodes a message. The channel is in data or in channel.
func decodeRequest(b []byte) (request, error) {
	var in struct {
		Type    string          `json:"type"`
		Channel string          `json:"channel"`
		Data    json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(b, &in); err != nil {
		return request{}, &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: "this is not a message",
			Next:    `Send {"type":"subscribe","data":"process:<id>"}, one in each frame.`,
		}
	}
	switch in.Type {
	case ping:
		return request{kind: ping}, nil
	case subscribe, unsubscribe:
	default:
		return request{}, tool.Refuse(tool.CodeUnsupported, "clients send subscribe, unsubscribe and ping, not %.60q",
			in.Type)
	}
	var named string
	if json.Unmarshal(in.Data, &named) != nil || named == "" {
		named = in.Channel
	}
	if _, err := kindOf(named); err != nil {
		return request{}, err
	}
	return request{in.Type, named}, nil
}

// Info describes a client.
type Info struct {
	ID       string    `json:"id"`
	Since    time.Time `json:"since"`
	Channels []string  `json:"channels"`
	Sent     int64     `json:"sent" doc:"messages"`
	Queued   int       `json:"queued" doc:"messages that wait for it"`
}

// Clients returns the clients of an owner, oldest first.
func (h *Hub) Clients(owner string) []Info {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := []Info{}
	for c := range h.clients {
		if c.who.Owner == owner {
			all = append(all, c.clientInfo())
		}
	}
	slices.SortFunc(all, func(a, b Info) int {
		if d := a.Since.Compare(b.Since); d != 0 {
			return d
		}
		return strings.Compare(a.ID, b.ID)
	})
	return all
}

// clientInfo describes the client. The hub's mu must be held.
func (c *client) clientInfo() Info {
	i := Info{ID: c.id, Since: c.since, Channels: []string{}}
	for name := range c.channels {
		i.Channels = append(i.Channels, name)
	}
	slices.Sort(i.Channels)
	c.mu.Lock()
	defer c.mu.Unlock()
	i.Sent, i.Queued = c.sent, len(c.queue)
	return i
}
