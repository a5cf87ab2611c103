package nodebus

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"gatehouse/internal/cluster"
	"gatehouse/internal/cluster/nodetest"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/server/httpserver/h1"
	"gatehouse/tool"
)

// BenchmarkACallToAnotherNode sends a small call over the link of two nodes in one process.
func BenchmarkACallToAnotherNode(b *testing.B) {
	nodes := nodetest.Start(b)
	x, y := nodes[0], nodes[1]
	for !linked(x, y) || !linked(y, x) {
		time.Sleep(10 * time.Millisecond)
	}
	far := bus.New()
	if _, err := far.Serve("m", func(context.Context, *bus.Request, bus.Notes) (bus.Outcome, error) {
		return bus.Outcome{Result: tool.Result{Structured: json.RawMessage(`{"n":1}`)}}, nil
	}); err != nil {
		b.Fatal(err)
	}
	ln, err := y.Listen(Service)
	if err != nil {
		b.Fatal(err)
	}
	h := Handler(far)
	server := &h1.Server{Handler: h, Log: slog.Default(), Rest: &http.Server{
		Handler: h, IdleTimeout: time.Minute, WriteTimeout: time.Minute,
	}}
	go server.Serve(ln)
	defer server.Close()
	frames, err := y.Listen(FrameService)
	if err != nil {
		b.Fatal(err)
	}
	go ServeFrames(b.Context(), frames, far, time.Minute, slog.Default())
	near := &Bus{
		Bus: bus.New(), Self: x.ID(), Transport: &Client{Service: Service, Dial: x.Dial},
		Streams: &Streams{Dial: x.DialOwn},
		Node:    func(id string) (known, alive bool) { return cluster.ValidID(id), x.Alive(id) },
	}
	for b.Loop() {
		if _, err := near.Do(context.Background(), request(y.ID()), nil); err != nil {
			b.Fatal(err)
		}
	}
}
