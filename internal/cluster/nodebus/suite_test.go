package nodebus

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/cluster"
	"gatehouse/internal/cluster/nodetest"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/dispatch/bus/bustest"
)

// wire carries messages between the ends of a test as their bytes alone.
type wire struct {
	mu    sync.Mutex
	reads []func(from, topic string, data []byte)
}

// wireEnd is one node at a wire.
type wireEnd struct {
	*wire
	id string
}

func (e wireEnd) ID() string { return e.id }

func (e wireEnd) Publish(topic string, data []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, f := range e.reads {
		f(e.id, topic, append([]byte(nil), data...))
	}
	return nil
}

func (e wireEnd) Follow(_ string, f func(from, topic string, data []byte)) (func(), func() int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reads = append(e.reads, f)
	return func() {}, func() int { return 0 }, nil
}

// carry carries the events of a bus until the test ends.
func carry(t *testing.T, local bus.Bus, c Carrier) {
	t.Helper()
	run, err := CarryEvents(local, c, []string{"thing.>"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
}

// TestSuiteAsJSON runs the suite of the bus with two ends that share bytes alone.
func TestSuiteAsJSON(t *testing.T) {
	bustest.Run(t, func(t *testing.T) bustest.Pair {
		near, far, w := bus.New(), bus.New(), &wire{}
		carry(t, near, wireEnd{w, here})
		carry(t, far, wireEnd{w, there})
		server := httptest.NewServer(Handler(far))
		t.Cleanup(server.Close)
		return bustest.Pair{Near: &Bus{
			Bus: near, Self: here, Transport: toServer{server.Listener.Addr().String()},
			Node: func(id string) (known, alive bool) { return true, true },
		}, Far: far, Node: there, Name: here}
	})
}

// reaches returns once the events of one bus reach the other: the engines need a moment to hear of a new reader.
func reaches(t *testing.T, from, to bus.Bus) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	events := to.FollowAll(ctx, "thing.probe.*", 1)
	var asking sync.WaitGroup
	defer asking.Wait()
	probing, stop := context.WithCancel(ctx)
	defer stop()
	asking.Go(func() {
		for probing.Err() == nil {
			from.Publish(bus.Event{Subject: "thing.probe.sent"})
			time.Sleep(10 * time.Millisecond)
		}
	})
	for range events {
		return
	}
	t.Fatal("the events of one node do not reach the other")
}

// await waits until a condition holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("after a minute: " + what)
		}
	}
}

// linked reports whether the hosts of two nodes are connected, as one of them sees it.
func linked(from, to *cluster.Node) bool {
	return slices.ContainsFunc(from.Nodes(), func(p cluster.Peer) bool { return p.ID == to.ID() && p.Linked })
}

// TestSuiteOverNATS runs the suite of the bus between two nodes of a cluster whose streams go over NATS.
func TestSuiteOverNATS(t *testing.T) {
	nodes := nodetest.Start(t, func(o *cluster.Options) { o.Direct = "none" })
	a, b := nodes[0], nodes[1]
	await(t, "two nodes hear each other", func() bool { return a.Alive(b.ID()) && b.Alive(a.ID()) })
	runSuite(t, a, b)
	if linked(a, b) {
		t.Error("two hosts are connected that were told not to be")
	}
}

// TestSuiteOverALink runs the suite of the bus between two nodes whose hosts are connected.
func TestSuiteOverALink(t *testing.T) {
	nodes := nodetest.Start(t)
	a, b := nodes[0], nodes[1]
	await(t, "two hosts are connected", func() bool { return linked(a, b) && linked(b, a) })
	runSuite(t, a, b)
	if !linked(a, b) {
		t.Error("two hosts are no longer connected")
	}
}

func runSuite(t *testing.T, a, b *cluster.Node) {
	bustest.Run(t, func(t *testing.T) bustest.Pair {
		near, far := bus.New(), bus.New()
		carry(t, near, a)
		carry(t, far, b)
		reaches(t, near, far)
		reaches(t, far, near)
		ln, err := b.Listen(Service)
		if err != nil {
			t.Fatal(err)
		}
		frames, err := b.Listen(FrameService)
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: Handler(far)}
		var serving sync.WaitGroup
		ctx, stop := context.WithCancel(context.Background())
		serving.Go(func() { ServeFrames(ctx, frames, far, time.Second, slog.New(slog.DiscardHandler)) })
		serving.Go(func() {
			if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
				t.Error(err)
			}
		})
		transport, streams := &Client{Service: Service, Dial: a.Dial}, &Streams{Dial: a.DialOwn}
		t.Cleanup(func() {
			streams.Close()
			stop()
			transport.CloseIdleConnections()
			server.Close()
			serving.Wait()
		})
		return bustest.Pair{Near: &Bus{
			Bus: near, Self: a.ID(), Transport: transport, Streams: streams,
			Node: func(id string) (known, alive bool) { return cluster.ValidID(id), a.Alive(id) },
		}, Far: far, Node: b.ID(), Name: a.ID()}
	})
}
