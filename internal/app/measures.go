package app

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/dispatch"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/telemetry/metrics"
	"gatehouse/tool"
)

// measures opens the store of what is measured, and has the calls of this host
// measured too. Nobody follows them on a host without that module.
func (a *App) measures() *metrics.Store {
	path := ""
	if !a.opts.Private {
		path = filepath.Join(a.cfg.Folders.State, "metrics.db")
	}
	store := metrics.Open(path, metrics.Options{})
	a.closing("metrics", func(context.Context) error { return store.Close() })
	a.room(Part{"measured calls", func(ctx context.Context) error {
		m := measured{app: a, store: store, sums: map[series]*metrics.Event{}}
		m.follow(ctx)
		return nil
	}})
	return store
}

const (
	measureEvery = 10 * time.Second // sums of calls are written
	measureMost  = 1000             // series between two writes; what is more is not counted
	measureQueue = 4096             // facts that may wait
)

type series struct{ scope, kind, agent string }

// measured adds up calls, so that a thousand calls of one tool are one event.
type measured struct {
	app   *App
	store *metrics.Store
	sums  map[series]*metrics.Event
}

func (m *measured) follow(ctx context.Context) {
	facts := make(chan bus.Event)
	go func() {
		defer close(facts)
		for f := range m.app.bus.Follow(ctx, string(dispatch.CallFinished), measureQueue) {
			facts <- f
		}
	}()
	tick := time.NewTicker(measureEvery)
	defer tick.Stop()
	for {
		select {
		case f, ok := <-facts:
			if !ok {
				m.write(context.WithoutCancel(ctx))
				return
			}
			m.add(f)
		case <-tick.C:
			m.write(ctx)
		}
	}
}

func (m *measured) add(f bus.Event) {
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
		if len(m.sums) >= measureMost {
			return
		}
		e = &metrics.Event{At: f.At, Type: s.kind, Agent: s.agent, Value: new(float64), Min: c.Millis, Max: c.Millis}
		m.sums[s] = e
	}
	e.Count++
	*e.Value += c.Millis
	e.Min, e.Max = min(e.Min, c.Millis), max(e.Max, c.Millis)
}

// write keeps the sums, those of each scope in one transaction.
func (m *measured) write(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	scopes := map[string][]metrics.Event{}
	for s, e := range m.sums {
		scopes[s.scope] = append(scopes[s.scope], *e)
	}
	clear(m.sums)
	for scope, events := range scopes {
		events = slices.DeleteFunc(events, func(e metrics.Event) bool { return len(e.Type) > metrics.MaxName || len(e.Agent) > metrics.MaxName })
		if _, err := m.store.Record(ctx, scope, events...); err != nil {
			m.app.log.Warn("calls could not be measured", "err", err)
		}
	}
}
