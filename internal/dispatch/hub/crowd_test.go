package hub

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// One client of many does not read. The others receive all messages in order while it is stuck, and it is
// disconnected. GATEHOUSE_TEST_ALL=1 tests 2,000 clients; the test prints the latencies either way.
//
//redteam:attack No principal takes the host from the others: a WebSocket client that does not read
func TestOneThatDoesNotReadHoldsUpNobody(t *testing.T) {
	clients, rounds := 200, 20
	if os.Getenv("GATEHOUSE_TEST_ALL") != "" {
		clients, rounds = 2000, 100
	}
	h := open(t, Options{Queue: rounds + 100, Write: time.Minute})
	crowd := h.crowd(clients)
	without := h.speak(crowd, rounds, "before")

	stuck := h.as("ann").joins("chat:all").joins("chat:more") // and reads nothing more
	h.fill(func(i Info) bool { return i.Queued > 10 })
	with := h.speak(crowd, rounds, "during")
	if n := len(h.hub.Clients("ann/default")); n != clients+1 {
		t.Fatalf("%d clients, want %d and the stuck one", n, clients)
	}
	h.fill(func(i Info) bool { return i.Queued == 0 }) // queued messages are not sent any more
	t.Logf("%d clients: p99 %v without and %v with a stuck one", clients, p99(without), p99(with))
	h.speak(crowd, 1, "after")
	stuck.conn.CloseNow()
}

// fill sends messages to the stuck client alone until a condition holds.
func (h *testHub) fill(until func(Info) bool) {
	h.t.Helper()
	long := said(strings.Repeat(".", 64<<10))
	for end := time.Now().Add(patience); ; {
		all := h.hub.Clients("ann/default")
		i := slices.IndexFunc(all, func(i Info) bool { return slices.Contains(i.Channels, "chat:more") })
		if i < 0 || until(all[i]) {
			return
		}
		if time.Now().After(end) {
			h.t.Fatalf("the stuck client stays as it is: %+v", all[i])
		}
		h.hub.Send("ann/default", "chat:more", long)
	}
}

// crowd returns many clients that listen to one channel.
func (h *testHub) crowd(n int) []*ear {
	h.t.Helper()
	all := make([]*ear, n)
	var wg sync.WaitGroup
	room := make(chan struct{}, 50)
	for i := range all {
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			e, err := h.dial("ann")
			if err != nil {
				h.t.Error(err)
				return
			}
			all[i] = e.joins("chat:all")
		})
	}
	wg.Wait()
	if h.t.Failed() {
		h.t.FailNow()
	}
	return all
}

// speak sends messages and returns how long each took to reach each client.
func (h *testHub) speak(crowd []*ear, rounds int, what string) []time.Duration {
	h.t.Helper()
	took := make([][]time.Duration, len(crowd))
	for round := range rounds {
		text := fmt.Sprintf("%s %d", what, round)
		begin := time.Now()
		if n, err := h.hub.Send("ann/default", "chat:all", said(text)); n < len(crowd) || err != nil {
			h.t.Fatalf("%s: on its way to %d of %d, %v", text, n, len(crowd), err)
		}
		var wg sync.WaitGroup
		for i, e := range crowd {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				_, b, err := e.conn.Read(ctx)
				took[i] = append(took[i], time.Since(begin))
				if err != nil || !bytes.Contains(b, []byte(text)) {
					h.t.Errorf("client %d, %s: got %.80q, %v", i, text, b, err)
				}
			})
		}
		wg.Wait()
		if h.t.Failed() {
			h.t.FailNow()
		}
	}
	return slices.Concat(took...)
}

func p99(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)*99/100].Round(10 * time.Microsecond)
}
