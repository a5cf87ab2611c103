package nodebus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/internal/cluster"
	"gatehouse/internal/cluster/nodetest"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/tool"
)

// faulty carries the connections between hosts, and delays, cuts or ends them. The engines are not affected.
type faulty struct {
	mu      sync.Mutex
	cut     [2]bool // nothing arrives, from the end that connected and from the other one
	delay   time.Duration
	changed chan struct{} // closed and replaced when the above changes
	conns   map[net.Conn]bool
}

func (f *faulty) set(out, in bool, delay time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut, f.delay = [2]bool{out, in}, delay
	close(f.changed)
	f.changed = make(chan struct{})
}

// reset ends all connections.
func (f *faulty) reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		c.Close()
	}
}

// dial is the Dial of cluster.Options.
func (f *faulty) dial(ctx context.Context, network, address string) (net.Conn, error) {
	far, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	near, end := net.Pipe()
	f.mu.Lock()
	f.conns[far], f.conns[end] = true, true
	f.mu.Unlock()
	go f.pump(far, end, 0)
	go f.pump(end, far, 1)
	return near, nil
}

// pump carries one direction until the connection ends.
func (f *faulty) pump(to, from net.Conn, way int) {
	defer func() {
		to.Close()
		from.Close()
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.conns, to)
		delete(f.conns, from)
	}()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		for {
			f.mu.Lock()
			cut, delay, changed, open := f.cut[way], f.delay, f.changed, f.conns[to]
			f.mu.Unlock()
			if !open {
				return
			}
			if !cut {
				time.Sleep(delay)
				break
			}
			select { // what is under way arrives later, as TCP sends it again
			case <-changed:
			case <-time.After(time.Minute):
				return
			}
		}
		if _, failed := to.Write(buffer[:n]); err != nil || failed != nil {
			return
		}
	}
}

// TestCallsWhileLinksFail calls from one node to another while the connection between their hosts is cut, in one
// direction or in both, delayed and ended. A call runs once at most, and not at all if its error says so; a call that
// is slow delays no other one; and in the end calls go over a new link.
func TestCallsWhileLinksFail(t *testing.T) {
	f := &faulty{changed: make(chan struct{}), conns: map[net.Conn]bool{}}
	nodes := nodetest.Start(t, func(o *cluster.Options) { o.Dial, o.Lease = f.dial, 2*time.Second })
	a, b := nodes[0], nodes[1]
	await(t, "two hosts are connected", func() bool { return linked(a, b) && linked(b, a) })

	var mu sync.Mutex
	ran := map[string]int{}
	far := bus.New()
	slow := make(chan struct{})
	if _, err := far.Serve("m", func(ctx context.Context, r *bus.Request, _ bus.Notes) (bus.Outcome, error) {
		if r.Call == "slow" {
			select {
			case <-slow:
			case <-ctx.Done():
			}
		}
		mu.Lock()
		ran[r.Call]++
		mu.Unlock()
		return bus.Outcome{Result: tool.Result{Structured: json.RawMessage(`{}`)}}, nil
	}); err != nil {
		t.Fatal(err)
	}
	ln, err := b.Listen(Service)
	if err != nil {
		t.Fatal(err)
	}
	frames, err := b.Listen(FrameService)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: Handler(far)}
	var running sync.WaitGroup
	serve, stop := context.WithCancel(context.Background())
	running.Go(func() { ServeFrames(serve, frames, far, time.Second, slog.New(slog.DiscardHandler)) })
	running.Go(func() { server.Serve(ln) })
	near := &Bus{
		Bus: bus.New(), Self: a.ID(), Transport: &Client{Service: Service, Dial: a.Dial}, Streams: &Streams{Dial: a.DialOwn},
		Node: func(id string) (known, alive bool) { return cluster.ValidID(id), a.Alive(id) },
	}
	call := func(id string, limit time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		r := request(b.ID())
		r.Call = id
		_, err := near.Do(ctx, r, nil)
		return err
	}
	running.Go(func() { call("slow", 5*time.Minute) })
	if err := call("quick", time.Minute); err != nil {
		t.Errorf("a call beside a slow one: %v", err)
	}
	var done atomic.Bool
	var succeeded, absent, lost atomic.Int64
	var notRun sync.Map
	for w := range 4 {
		running.Go(func() {
			for i := 0; !done.Load(); i++ {
				id := fmt.Sprint("c", w, "-", i)
				err := call(id, 3*time.Second)
				mu.Lock()
				times := ran[id]
				mu.Unlock()
				switch {
				case err == nil:
					succeeded.Add(1)
					if times != 1 {
						t.Errorf("an answered call ran %d times", times)
					}
				case errors.Is(err, bus.ErrAbsent):
					absent.Add(1)
					notRun.Store(id, err)
				default:
					lost.Add(1)
				}
			}
		})
	}
	for range 3 {
		for _, fault := range []func(){
			func() { f.set(true, false, 0) }, func() { f.set(false, true, 0) }, func() { f.set(true, true, 0) },
			func() { f.set(false, false, 20*time.Millisecond) }, f.reset,
		} {
			fault()
			time.Sleep(time.Duration(rand.IntN(500)) * time.Millisecond)
			f.set(false, false, 0)
			time.Sleep(100 * time.Millisecond)
		}
	}
	f.set(true, true, 0)
	await(t, "the end of a link is noticed", func() bool { return !linked(a, b) && !linked(b, a) })
	if err := call("without", time.Minute); err != nil {
		t.Errorf("a call without a link: %v", err)
	}
	f.set(false, false, 0)
	f.reset() // what was held back
	await(t, "two hosts are connected again", func() bool { return linked(a, b) && linked(b, a) })
	if err := call("after", time.Minute); err != nil {
		t.Errorf("a call over a new link: %v", err)
	}
	done.Store(true)
	close(slow)
	stop()
	running.Go(func() { server.Close() })
	running.Wait()
	for id, n := range ran {
		if n > 1 {
			t.Errorf("call %s ran %d times", id, n)
		}
		if err, said := notRun.Load(id); said {
			t.Errorf("a call ran that says that it did not: %v", err)
		}
	}
	t.Logf("%d calls were answered, %d were not run, %d may have run", succeeded.Load(), absent.Load(), lost.Load())
	if succeeded.Load() == 0 {
		t.Error("no call was answered")
	}
}
