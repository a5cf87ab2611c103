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

// One client of many reads nothing. It is let go, and the others hear all that
// is said, in order and without delay. GATEHOUSE_TEST_ALL=1 makes it 2,000
// clients and prints how long messages take.
func TestOneThatDoesNotReadHoldsUpNobody(t *testing.T) {
	clients, rounds := 200, 10
	if os.Getenv("GATEHOUSE_TEST_ALL") != "" {
		clients = 2000
	}
	h := open(t, Options{Queue: 64, Waiting: 1 << 20, Write: 2 * time.Second})
	crowd := h.crowd(clients)
	took := h.speak(crowd, rounds, "before")

	stuck := h.as("ann").joins("chat:all") // and reads no more
	begin := time.Now()
	during := h.speak(crowd, rounds, "during")
	for end := time.Now().Add(patience); len(h.hub.Clients("ann/default")) > clients; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the stuck client is still there")
		}
		during = append(during, h.speak(crowd, 1, "more")...)
	}
	t.Logf("%d clients: p99 %v without and %v with a stuck one, which was let go after %v", clients, p99(took), p99(during), time.Since(begin).Round(time.Millisecond))
	for err := error(nil); err == nil; { // what was on the line when it was let go
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, _, err = stuck.conn.Read(ctx)
		if ctx.Err() != nil {
			t.Error("the stuck client is still connected")
		}
		cancel()
	}
}

// crowd is many clients that listen to one channel.
func (h *house) crowd(n int) []*ear {
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

// speak says something of many bytes so often, and gives how long each message took
// to be heard by each.
func (h *house) speak(crowd []*ear, rounds int, what string) []time.Duration {
	h.t.Helper()
	took := make([][]time.Duration, len(crowd))
	pad := strings.Repeat(".", 32<<10)
	for round := range rounds {
		text := fmt.Sprintf("%s %d", what, round)
		begin := time.Now()
		if n, err := h.hub.Send("ann/default", "chat:all", said(text+pad)); n < len(crowd) || err != nil {
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
