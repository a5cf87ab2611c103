package ide

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/dispatch/hub"
	"gatehouse/internal/exec/rpc"
	"gatehouse/tool"
)

const (
	backendWait  = 10 * time.Second // for the handshake, and for the answer to session_create
	backendPing  = 30 * time.Second
	firstRetry   = 2 * time.Second
	longestRetry = 30 * time.Second
	mostWaiting  = 256 // translated messages that are not read yet
)

// backend is an agent behind a WebSocket that speaks the protocol of design C: messages {type, channel, sessionId, data,
// timestamp}. It translates them to those of the Agent Client Protocol, and implements rpc.Stream with them. Each
// request has an id, which a back end that knows it repeats in its answer; from others, the next message of the session is
// the answer. The connection is made again when it is lost.
type backend struct {
	url   string
	token secret.Text
	name  string                                           // of the session
	event func(channel, kind string, data json.RawMessage) // gets what is no answer

	ctx    context.Context // of the connection, which outlives the call that makes it
	cancel context.CancelFunc
	inbox  chan []byte // messages of the Agent Client Protocol
	wg     sync.WaitGroup

	mu      sync.Mutex
	conn    *websocket.Conn // nil while it is made again
	session string
	made    chan string     // gets the id of the session while session_create waits
	prompt  json.RawMessage // id of the open session/prompt
	asked   string          // id of the open chat_send
	last    int
}

// wireMessage is a message of design C, with the id that ours have.
type wireMessage struct {
	Type      string          `json:"type"`
	Channel   string          `json:"channel,omitempty"`
	SessionID string          `json:"sessionId,omitempty"`
	ID        string          `json:"id,omitempty"`
	Data      json.RawMessage `json:"data,omitempty"`
	Timestamp time.Time       `json:"timestamp"`
}

// checkBackend returns what is wrong with the address of a back end. A token and chats pass in the clear over ws, which is
// therefore for this machine alone.
func checkBackend(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil {
		return fmt.Errorf("%q is not an address such as ws://localhost:9876/ws", address)
	}
	ip, err := netip.ParseAddr(u.Hostname())
	if here := u.Hostname() == "localhost" || err == nil && ip.IsLoopback(); u.Scheme == "ws" && !here {
		return fmt.Errorf("%q: ws is for addresses of this machine; use wss", address)
	}
	return nil
}

func isBackend(command string) bool {
	return strings.HasPrefix(command, "ws://") || strings.HasPrefix(command, "wss://")
}

// dialBackend connects to a back end. The caller must call Close.
func dialBackend(ctx context.Context, b *backend) (*backend, error) {
	b.ctx, b.cancel = context.WithCancel(context.WithoutCancel(ctx))
	b.inbox = make(chan []byte, mostWaiting)
	conn, err := b.dial(ctx)
	if err != nil {
		b.cancel()
		return nil, err
	}
	b.conn = conn
	b.wg.Go(func() { b.run(conn) })
	return b, nil
}

func (b *backend) dial(ctx context.Context) (*websocket.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, backendWait)
	defer cancel()
	o := &websocket.DialOptions{HTTPHeader: http.Header{}}
	if !b.token.Empty() {
		o.HTTPHeader.Set("Authorization", "Bearer "+b.token.Reveal())
	}
	conn, resp, err := websocket.Dial(ctx, b.url, o)
	if err != nil {
		if resp != nil && resp.StatusCode != http.StatusSwitchingProtocols {
			return nil, fmt.Errorf("%s answers %s", b.url, resp.Status)
		}
		return nil, fmt.Errorf("connect to %s: %w", b.url, err)
	}
	conn.SetReadLimit(maxMessage)
	return conn, nil
}

// run reads from the connection, and makes it again when it is lost, until Close.
func (b *backend) run(conn *websocket.Conn) {
	pause := firstRetry
	for b.ctx.Err() == nil {
		if conn != nil {
			pause = firstRetry
			b.setConn(conn)
			b.read(conn)
			b.setConn(nil)
			b.lost()
		}
		select {
		case <-time.After(pause):
		case <-b.ctx.Done():
			return
		}
		pause = min(2*pause, longestRetry)
		conn, _ = b.dial(b.ctx) // it is tried again
	}
}

func (b *backend) setConn(conn *websocket.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conn = conn
}

// lost ends the open turn, because its answer can have been sent over the connection that ended.
func (b *backend) lost() {
	b.mu.Lock()
	prompt := b.prompt
	b.prompt = nil
	b.mu.Unlock()
	if prompt != nil && b.ctx.Err() == nil {
		b.fail(prompt, "the connection to "+b.url+" was lost; it may have taken the message")
	}
}

// read takes messages until the connection ends. A peer that answers no ping has vanished.
func (b *backend) read(conn *websocket.Conn) {
	defer conn.CloseNow()
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	b.wg.Go(func() {
		for {
			select {
			case <-time.After(backendPing):
			case <-ctx.Done():
				return
			}
			late, stop := context.WithTimeout(ctx, backendWait)
			if conn.Ping(late) != nil {
				conn.CloseNow()
			}
			stop()
		}
	})
	for {
		_, raw, err := conn.Read(ctx)
		if err != nil {
			return
		}
		var w wireMessage
		if json.Unmarshal(raw, &w) == nil {
			b.take(w)
		}
	}
}

// take translates a message of the back end.
func (b *backend) take(w wireMessage) {
	b.mu.Lock()
	ours := w.SessionID == "" || w.SessionID == b.session
	made, prompt := b.made, json.RawMessage(nil)
	if strings.HasPrefix(w.Type, "chat") && ours && b.prompt != nil && (w.ID == "" || w.ID == b.asked) {
		prompt, b.prompt = b.prompt, nil
	}
	b.mu.Unlock()
	switch {
	case w.Type == "session_create" || w.Type == "session_created":
		if made != nil {
			select {
			case made <- sessionOf(w):
			default:
			}
			return
		}
	case prompt != nil:
		b.update(map[string]any{"sessionUpdate": "agent_message_chunk", "content": map[string]string{"type": "text", "text": textOf(w.Data)}})
		b.answer(prompt, map[string]string{"stopReason": "end_turn"})
		return
	case w.Type == "plan_status" && ours:
		var plan struct {
			Steps []struct{ Name, Status string }
		}
		if json.Unmarshal(w.Data, &plan) == nil {
			var entries []map[string]string
			for _, s := range plan.Steps {
				entries = append(entries, map[string]string{"content": s.Name, "status": s.Status})
			}
			b.update(map[string]any{"sessionUpdate": "plan", "entries": entries})
		}
		return
	}
	channel := w.Channel
	if kind, _, _ := strings.Cut(channel, ":"); !hub.Public(kind) {
		channel = hub.IDE + ":" + w.Type
	}
	b.event(channel, w.Type, w.Data)
}

// sessionOf returns the id of the session that a back end made, or "".
func sessionOf(w wireMessage) string {
	var data struct {
		ID, SessionID string
		Session       struct{ ID string }
	}
	_ = json.Unmarshal(w.Data, &data) // data of another form has no id
	for _, id := range []string{w.SessionID, data.Session.ID, data.SessionID, data.ID} {
		if id != "" {
			return id
		}
	}
	return ""
}

// textOf returns the text of an answer: a string, or an object with content or message.
func textOf(data json.RawMessage) string {
	var text string
	if json.Unmarshal(data, &text) == nil {
		return text
	}
	var o struct{ Content, Message, Text string }
	if json.Unmarshal(data, &o) == nil && o.Content+o.Message+o.Text != "" {
		return o.Content + o.Message + o.Text
	}
	return string(data)
}

// send sends a message to the back end and returns its id.
func (b *backend) send(ctx context.Context, kind string, data any) (id string, err error) {
	raw, err := json.Marshal(data)
	if err != nil {
		return "", err
	}
	b.mu.Lock()
	conn, session := b.conn, b.session
	b.last++
	id = fmt.Sprintf("gatehouse-%d", b.last)
	if kind == "chat_send" {
		b.asked = id
	}
	b.mu.Unlock()
	if conn == nil {
		return "", &tool.Refusal{
			Code: tool.CodeUnavailable, Message: "the connection to " + b.url + " is lost", Next: "It is made again; try later.",
		}
	}
	w := wireMessage{Type: kind, SessionID: session, ID: id, Data: raw, Timestamp: time.Now().UTC()}
	if session != "" {
		w.Channel = hub.Chat + ":" + session
	}
	message, err := json.Marshal(w)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, backendWait)
	defer cancel()
	return id, conn.Write(ctx, websocket.MessageText, message)
}

// Read implements rpc.Stream.
func (b *backend) Read() ([]byte, error) {
	select {
	case m := <-b.inbox:
		return m, nil
	case <-b.ctx.Done():
		return nil, io.EOF
	}
}

// Close implements rpc.Stream.
func (b *backend) Close() error {
	b.cancel()
	b.wg.Wait()
	return nil
}

// Write implements rpc.Stream: it translates a message of the Agent Client Protocol.
func (b *backend) Write(ctx context.Context, raw []byte) error {
	var m struct {
		ID     json.RawMessage
		Method string
		Params struct {
			SessionID string
			Prompt    []struct{ Text string }
		}
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		return err
	}
	switch m.Method {
	case "initialize":
		b.answer(m.ID, map[string]any{"protocolVersion": 1, "agentCapabilities": map[string]bool{"loadSession": true}})
	case "session/load":
		b.mu.Lock()
		b.session = m.Params.SessionID
		b.mu.Unlock()
		b.answer(m.ID, map[string]any{})
	case "session/new":
		return b.create(ctx, m.ID)
	case "session/prompt":
		var text strings.Builder
		for _, p := range m.Params.Prompt {
			text.WriteString(p.Text)
		}
		b.mu.Lock()
		b.prompt = m.ID
		b.mu.Unlock()
		if _, err := b.send(ctx, "chat_send", text.String()); err != nil {
			b.mu.Lock()
			b.prompt = nil
			b.mu.Unlock()
			b.fail(m.ID, err.Error())
			return nil
		}
		_, _ = b.send(ctx, "plan_status", nil) // if the connection is lost, the turn ends with it
	}
	return nil
}

// create asks for a session. A back end that does not answer is given an id of this host.
func (b *backend) create(ctx context.Context, request json.RawMessage) error {
	made := make(chan string, 1)
	b.mu.Lock()
	b.made = made
	b.mu.Unlock()
	id, err := b.send(ctx, "session_create", map[string]string{"name": b.name})
	if err != nil {
		b.fail(request, err.Error())
		return nil
	}
	b.wg.Go(func() {
		session := ""
		select {
		case session = <-made:
		case <-time.After(backendWait):
		case <-b.ctx.Done():
			return
		}
		if session == "" {
			session = id
		}
		b.mu.Lock()
		b.session, b.made = session, nil
		b.mu.Unlock()
		b.answer(request, map[string]string{"sessionId": session})
	})
	return nil
}

func (b *backend) answer(request json.RawMessage, result any) {
	b.put(map[string]any{"jsonrpc": "2.0", "id": request, "result": result})
}

// fail answers a request with an error, after which the conversation goes on.
func (b *backend) fail(request json.RawMessage, message string) {
	b.put(map[string]any{"jsonrpc": "2.0", "id": request, "error": rpc.Error{Code: rpc.CodeInternal, Message: message}})
}

func (b *backend) update(update any) {
	b.put(map[string]any{"jsonrpc": "2.0", "method": "session/update", "params": map[string]any{"update": update}})
}

func (b *backend) put(message any) {
	raw, err := json.Marshal(message)
	if err != nil {
		return // these are all made above
	}
	select {
	case b.inbox <- raw:
	case <-b.ctx.Done():
	}
}
