package hub

import (
	"context"
	"encoding/json"
	"iter"
	"time"

	"gatehouse/tool"
)

// A channel of a process is fed by the host of the process. The other hosts of a cluster have a feed of their own for
// it while a client of theirs listens, which gets the messages from that host by Listen.

// Copy is a message of a channel, for another host.
type Copy struct {
	Message json.RawMessage `json:"message"`         // as clients get it
	State   bool            `json:"state,omitempty"` // clients that subscribe later get it, too
}

// Elsewhere yields the messages of an owner's channel that is on another host, until ctx is done or the channel ends.
// It returns nil without an error if the name does not lead to another host.
type Elsewhere func(ctx context.Context, owner, name string) (iter.Seq[Copy], error)

// openTime is how long another host may take to open a channel.
const openTime = 5 * time.Second

// Listener receives the messages of a channel for another host.
type Listener struct {
	// Messages is closed when the channel has ended, and when too many messages wait.
	Messages <-chan Copy
	c        chan Copy
	hub      *Hub
	at       address
}

// Listen returns a listener to an owner's channel that is fed on this host. Close must be called.
func (h *Hub) Listen(owner, name string) (*Listener, error) {
	at := address{owner, name}
	h.mu.Lock()
	defer h.mu.Unlock()
	ch := h.channels[at]
	if h.closed || ch == nil || ch.feed == nil || ch.end != nil {
		return nil, notFound(name)
	}
	l := &Listener{c: make(chan Copy, h.o.Queue+1), hub: h, at: at}
	l.Messages = l.c
	if ch.state != nil {
		l.c <- Copy{ch.state, true}
	}
	if ch.listeners == nil {
		ch.listeners = map[*Listener]struct{}{}
	}
	ch.listeners[l] = struct{}{}
	return l, nil
}

// Close ends the listener. It may be called again.
func (l *Listener) Close() {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	if ch := l.hub.channels[l.at]; ch != nil {
		ch.dropListener(l)
	}
}

// dropListener ends a listener of the channel. The hub's mu must be held.
func (ch *channel) dropListener(l *Listener) {
	if _, is := ch.listeners[l]; is {
		delete(ch.listeners, l)
		close(l.c)
	}
}

// copyTo sends a message to the listeners of the channel. The hub's mu must be held.
func (ch *channel) copyTo(m Copy) {
	for l := range ch.listeners {
		select {
		case l.c <- m:
		default:
			ch.dropListener(l)
		}
	}
}

func notFound(name string) *tool.Refusal {
	return &tool.Refusal{
		Code:    tool.CodeNotFound,
		Message: "there is no " + name,
		Next:    "process_list shows your processes.",
	}
}

// follow makes this host have a channel that is on another one, for a client that subscribes to it.
func (h *Hub) follow(ctx context.Context, at address) error {
	h.mu.Lock()
	known := h.closed || h.channels[at] != nil
	h.mu.Unlock()
	if known || h.o.Elsewhere == nil {
		return nil
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	late := time.AfterFunc(openTime, end)
	defer context.AfterFunc(ctx, end)()
	messages, err := h.o.Elsewhere(life, at.owner, at.name)
	if err != nil || messages == nil {
		end()
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !late.Stop() || h.closed || h.channels[at] != nil { // another client was first
		end()
		h.work.Go(func() {
			for range messages {
				break
			}
		})
		return nil
	}
	f := &Feed{h, at}
	ch := h.channel(at)
	ch.feed, ch.end = f, end
	h.work.Go(func() {
		for m := range messages {
			f.pass(m.Message, m.State)
		}
		f.Close()
		end()
	})
	return nil
}

// dropUnused ends a channel of another host that no client listens to. h.mu must be held.
func (h *Hub) dropUnused(at address) {
	if ch := h.channels[at]; ch != nil && ch.end != nil && len(ch.members) == 0 {
		ch.end()
		delete(h.channels, at)
	}
}
