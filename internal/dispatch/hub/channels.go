package hub

import (
	"encoding/json"
	"fmt"
	"strings"

	"gatehouse/tool"
)

// These are the kinds of channels, with which their names begin.
const (
	Process = "process" // the output and state of a process; fed by the module that runs it
	Chat    = "chat"    // a conversation
	IDE     = "ide"     // messages for editors, by type
	Event   = "event"   // events of the host, by subject; * is all of them
)

const mostName = 200 // bytes of a channel's name

// Public reports whether a tool's caller may send messages on channels of this kind. On the others only the host
// sends, so that their messages can be trusted.
func Public(kind string) bool { return kind == Chat || kind == IDE }

// kindOf checks a channel's name and returns its kind.
func kindOf(name string) (kind string, err error) {
	kind, id, ok := strings.Cut(name, ":")
	switch kind {
	case Process, Chat, IDE, Event:
	default:
		ok = false
	}
	if !ok {
		return "", &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: fmt.Sprintf("there is no channel %.60q", name),
			Next:    "Channels are process:<id>, chat:<id>, ide:<type> and event:<subject>.",
		}
	}
	if id == "" || len(name) > mostName || strings.ContainsFunc(id, isDisallowed) {
		return "", tool.Refuse(
			tool.CodeInvalidArguments,
			"a channel's name has at most %d bytes: after the colon letters, digits and any of -_.:/@+*",
			mostName,
		)
	}
	return kind, nil
}

// isDisallowed reports whether a character cannot be part of a channel's name.
func isDisallowed(r rune) bool {
	switch {
	case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
		return false
	}
	return !strings.ContainsRune("-_.:/@+*", r)
}

// KindOf checks the name of a channel and returns its kind. The error is a *tool.Refusal.
func KindOf(name string) (string, error) { return kindOf(name) }

// Feed sends on a channel that exists for as long as the feed is open. Its methods never block and do nothing once
// it is closed.
type Feed struct {
	hub *Hub
	at  address
}

// Open creates a feed for a channel of an owner. The name is of a kind that only the host sends on, and the
// channel has no feed yet.
func (h *Hub) Open(owner, name string) *Feed {
	f := &Feed{h, address{owner, name}}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.channel(f.at).feed = f
	return f
}

// channel returns a channel, and creates it if necessary. h.mu must be held.
func (h *Hub) channel(at address) *channel {
	ch := h.channels[at]
	if ch == nil {
		ch = &channel{members: map[*client]struct{}{}}
		h.channels[at] = ch
	}
	return ch
}

// HasListeners reports whether a client listens.
func (f *Feed) HasListeners() bool { return f.hub.HasListeners(f.at.owner, f.at.name) }

// Send sends a message to the clients that listen.
func (f *Feed) Send(m Message) { f.sendMessage(m, false) }

// State sends a message to the clients that listen, and to those that subscribe later.
func (f *Feed) State(m Message) { f.sendMessage(m, true) }

func (f *Feed) sendMessage(m Message, stays bool) {
	b, err := m.encodeFor(f.at.name)
	if err != nil {
		f.hub.log.Error("message cannot be encoded", "channel", f.at.name, "err", err)
		return
	}
	f.pass(b, stays)
}

// pass sends an encoded message.
func (f *Feed) pass(b []byte, stays bool) {
	f.hub.mu.Lock()
	defer f.hub.mu.Unlock()
	ch := f.hub.channels[f.at]
	if ch == nil || ch.feed != f {
		return
	}
	if stays {
		ch.state = b
	}
	ch.broadcast(b)
	ch.copyTo(Copy{b, stays})
}

// Close ends the channel. Its clients receive an unsubscribe message.
func (f *Feed) Close() {
	h := f.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	ch := h.channels[f.at]
	if ch == nil || ch.feed != f {
		return
	}
	b, _ := Message{Type: "unsubscribe"}.encodeFor(f.at.name) // strings and a time
	ch.broadcast(b)
	for c := range ch.members {
		delete(c.channels, f.at.name)
	}
	for l := range ch.listeners {
		ch.dropListener(l)
	}
	delete(h.channels, f.at)
}

// join subscribes a client and confirms it before any other message is sent to the client on the channel.
func (h *Hub) join(c *client, name, kind string) error {
	at := address{c.who.Owner, name}
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.dropUnused(at)
	ch := h.channels[at]
	switch _, member := c.channels[name]; {
	case member:
	case h.closed || c.left:
		return tool.Refuse(tool.CodeBusy, "the server is stopping")
	case kind == Process && ch == nil: // another owner's channel is answered as if it did not exist
		return notFound(name)
	case len(c.channels) >= h.o.Channels:
		return &tool.Refusal{
			Code:    tool.CodeTooMany,
			Message: fmt.Sprintf("a client listens to at most %d channels", h.o.Channels),
			Next:    "Unsubscribe from some.",
		}
	}
	ch = h.channel(at)
	ch.members[c], c.channels[name] = struct{}{}, ch
	b, _ := Message{Type: "subscribe"}.encodeFor(name) // strings and a time
	c.enqueue(b)
	if ch.state != nil {
		c.enqueue(ch.state)
	}
	return nil
}

// part ends a subscription.
func (h *Hub) part(c *client, name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dropChannel(c, name)
	b, _ := Message{Type: "unsubscribe"}.encodeFor(name) // strings and a time
	c.enqueue(b)
}

// dropChannel removes a client from a channel, and the channel if it was the last client. h.mu must be held.
func (h *Hub) dropChannel(c *client, name string) {
	ch := c.channels[name]
	if ch == nil {
		return
	}
	delete(c.channels, name)
	delete(ch.members, c)
	if len(ch.members) == 0 && ch.feed == nil {
		delete(h.channels, address{c.who.Owner, name})
	}
	h.dropUnused(address{c.who.Owner, name})
}

// leave removes a client from all channels.
func (h *Hub) leave(c *client) {
	h.mu.Lock()
	for name := range c.channels {
		h.dropChannel(c, name)
	}
	c.left = true
	delete(h.clients, c)
	h.mu.Unlock()
	h.releasePlace(c.claimed)
}

// problem returns the data of an error message.
func problem(r *tool.Refusal) json.RawMessage {
	b, _ := json.Marshal(struct { // strings
		Code    tool.Code `json:"code"`
		Message string    `json:"message"`
		Next    string    `json:"next,omitempty"`
	}{r.Code, r.Message, r.Next})
	return b
}
