package telemetry

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/dispatch"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/telemetry/metrics"
	"gatehouse/tool"
)

const (
	recordInterval = 10 * time.Second // between two writes of the sums
	maxCallSeries  = 1000             // series between two writes; calls of more are not counted
	recordQueue    = 4096             // calls that may wait
)

type series struct{ scope, kind, agent string }

// callRecorder sums calls, so that a thousand calls of one tool are one event.
type callRecorder struct {
	store *metrics.Store
	log   *slog.Logger
	sums  map[series]*metrics.Event
}

// RecordCalls writes the calls that finish to a store until ctx is done, summed by tool, context and caller.
func RecordCalls(ctx context.Context, b bus.Bus, store *metrics.Store, log *slog.Logger) {
	newCallRecorder(store, log).follow(ctx, b)
}

func newCallRecorder(store *metrics.Store, log *slog.Logger) *callRecorder {
	return &callRecorder{store: store, log: log, sums: map[series]*metrics.Event{}}
}

func (m *callRecorder) follow(ctx context.Context, b bus.Bus) {
	calls := make(chan bus.Event)
	go func() {
		defer close(calls)
		for f := range b.Follow(ctx, string(dispatch.CallFinished), recordQueue) {
			calls <- f
		}
	}()
	tick := time.NewTicker(recordInterval)
	defer tick.Stop()
	for {
		select {
		case f, ok := <-calls:
			if !ok {
				m.writeLoop(context.WithoutCancel(ctx))
				return
			}
			m.addCall(f)
		case <-tick.C:
			m.writeLoop(ctx)
		}
	}
}

func (m *callRecorder) addCall(f bus.Event) {
	c, ok := dispatch.CallFinished.Decode(f)
	if !ok || c.Method != "tools/call" {
		return
	}
	principal, scope := f.Owner, ""
	if strings.Contains(f.Owner, "/") {
		principal, scope = tool.SplitOwner(f.Owner)
	}
	s := series{scope, "call." + c.Name, principal}
	if c.Outcome != "ok" && c.Outcome != "asked" {
		s.kind += ".failed"
	}
	e := m.sums[s]
	if e == nil {
		if len(m.sums) >= maxCallSeries {
			return
		}
		e = &metrics.Event{At: f.At, Type: s.kind, Agent: s.agent, Value: new(float64), Min: c.Millis, Max: c.Millis}
		m.sums[s] = e
	}
	e.Count++
	*e.Value += c.Millis
	e.Min, e.Max = min(e.Min, c.Millis), max(e.Max, c.Millis)
}

// writeLoop writes the sums to the store, those of each scope in one transaction.
func (m *callRecorder) writeLoop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	scopes := map[string][]metrics.Event{}
	for s, e := range m.sums {
		scopes[s.scope] = append(scopes[s.scope], *e)
	}
	clear(m.sums)
	for scope, events := range scopes {
		events = slices.DeleteFunc(
			events,
			func(e metrics.Event) bool { return len(e.Type) > metrics.MaxName || len(e.Agent) > metrics.MaxName },
		)
		if _, err := m.store.Record(ctx, scope, events...); err != nil {
			m.log.Warn("calls could not be measured", "err", err)
		}
	}
}
