package hub

import (
	"context"
	"iter"
	"testing"
	"time"
)

// from returns the Elsewhere of a host beside one that has a hub.
func from(h *Hub) Elsewhere {
	return func(ctx context.Context, owner, name string) (iter.Seq[Copy], error) {
		l, err := h.Listen(owner, name)
		if err != nil {
			return nil, err
		}
		return func(yield func(Copy) bool) {
			defer l.Close()
			for {
				select {
				case m, ok := <-l.Messages:
					if !ok || !yield(m) {
						return
					}
				case <-ctx.Done():
					return
				}
			}
		}, nil
	}
}

// Clients of one host hear a channel that another one feeds: its state, its messages and its end. The other host feeds
// it only while a client listens.
func TestAChannelOfAnotherHost(t *testing.T) {
	there := open(t, Options{})
	here := open(t, Options{Elsewhere: from(there.hub)})
	f := there.hub.Open("ann/default", "process:p1")
	f.State(said("running"))
	here.as("ann").refused(`{"type":"subscribe","data":"process:p2"}`, "not_found")
	here.as("bob").refused(`{"type":"subscribe","data":"process:p1"}`, "not_found")
	first := here.as("ann").joins("process:p1")
	second := here.as("ann").joins("process:p1")
	for _, e := range []*ear{first, second} {
		if m := e.hear(); m.text() != "running" || m.Channel != "process:p1" {
			t.Errorf("the state: %+v", m)
		}
	}
	if !f.HasListeners() {
		t.Error("clients of another host listen, but the feed does not report it")
	}
	f.Send(said("line"))
	for _, e := range []*ear{first, second} {
		if m := e.hear(); m.text() != "line" {
			t.Errorf("a message: %+v", m)
		}
	}
	for _, e := range []*ear{first, second} {
		e.say(`{"type":"unsubscribe","data":"process:p1"}`)
		if m := e.hear(); m.Type != "unsubscribe" {
			t.Errorf("got %+v", m)
		}
	}
	for end := time.Now().Add(patience); f.HasListeners(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no client listens, but the feed reports one")
		}
	}
	third := here.as("ann").joins("process:p1")
	if m := third.hear(); m.text() != "running" {
		t.Errorf("the state: %+v", m)
	}
	f.Close()
	if m := third.hear(); m.Type != "unsubscribe" {
		t.Errorf("the end: %+v", m)
	}
	third.refused(`{"type":"subscribe","data":"process:p1"}`, "not_found")
	here.hub.mu.Lock()
	defer here.hub.mu.Unlock()
	if len(here.hub.channels) != 0 {
		t.Errorf("%d channels are left", len(here.hub.channels))
	}
}

// A host that does not read what another one sends it is left, and its clients are told that the channel ends there.
func TestAHostThatReadsTooSlowly(t *testing.T) {
	h := open(t, Options{Queue: 4})
	f := h.hub.Open("ann/default", "process:p1")
	l, err := h.hub.Listen("ann/default", "process:p1")
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		f.Send(said("line"))
	}
	n := 0
	for range l.Messages {
		n++
	}
	if n != 5 || f.HasListeners() {
		t.Errorf("%d messages were kept, and listeners are %v", n, f.HasListeners())
	}
	l.Close()
}
