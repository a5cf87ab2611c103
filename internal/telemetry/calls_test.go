package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/telemetry/metrics"
)

// A host that has the metrics module measures its own calls: many become one
// event, and the last are written when the host stops.
func TestCallsAreMeasured(t *testing.T) {
	b, store := bus.New(), metrics.Open("", metrics.Options{})
	defer store.Close()
	m := newCallRecorder(store, slog.New(slog.DiscardHandler))
	for i := range 100 {
		outcome := []string{"ok", "ok", "ok", "error"}[i%4]
		m.addCall(bus.Event{Subject: "call.finished", Owner: "ann/lab", At: time.Now(),
			Data: fmt.Appendf(nil, `{"method":"tools/call","name":"file_read","outcome":%q,"ms":%d}`, outcome, i)})
	}
	m.addCall(
		bus.Event{Owner: "ann/lab", Data: []byte(`{"method":"resources/read","name":"file:///x","outcome":"ok"}`)},
	)
	m.addCall(bus.Event{Owner: "ann/lab", Data: []byte(`[]`)})
	ctx, stop := context.WithCancel(t.Context())
	stop()
	m.follow(ctx, b)
	a, err := store.Query(
		t.Context(),
		metrics.Query{Scope: "lab", Since: time.Now().Add(-time.Hour), Group: "type", Last: 10},
	)
	if err != nil {
		t.Fatal(err)
	}
	want := []metrics.Named{
		{Name: "call.file_read", Sum: metrics.Sum{Count: 75, Valued: 75, Sum: 3675, Min: 0, Max: 98}},
		{Name: "call.file_read.failed", Sum: metrics.Sum{Count: 25, Valued: 25, Sum: 1275, Min: 3, Max: 99}},
	}
	if len(a.Groups) != 2 || a.Groups[0] != want[0] || a.Groups[1] != want[1] || len(a.Events) != 2 ||
		a.Agents[0].Name != "ann" {
		t.Errorf("got %+v", a)
	}
}
