package app

import (
	"context"
	nethttp "net/http"
	"path/filepath"
	"sync"

	"gatehouse/internal/access/limit"
	"gatehouse/internal/dispatch/bus"
	metricsmodule "gatehouse/internal/modules/metrics"
	"gatehouse/internal/packages"
	"gatehouse/internal/server/httpserver"
	"gatehouse/internal/telemetry"
	"gatehouse/internal/telemetry/metrics"
)

// telemetrySources is what the host exposes for monitoring.
type telemetrySources struct {
	tracer  *telemetry.Tracer // nil: no traces
	handler nethttp.Handler   // of /metrics; nil: none

	mu    sync.Mutex
	doors []*httpserver.Server
}

// watched returns the bus with logging and tracing added.
func (a *App) watched(b bus.Bus) bus.Bus {
	if t := a.cfg.Observe.Traces; t.Endpoint != "" {
		a.observed.tracer = telemetry.NewTracer(telemetry.TraceOptions{
			Endpoint: t.Endpoint, Headers: t.Headers, Sample: t.Sample, Service: t.Service, Version: Version,
			Attributes: t.Attributes, Log: a.log,
		})
		a.addPart("traces", a.observed.tracer.Run) // stops after the parts whose calls it traces
	}
	return telemetry.WatchBus(b, a.observed.tracer)
}

// watchHost counts events from now on, if the settings ask for metrics.
func (a *App) watchHost() {
	if !a.cfg.Observe.Metrics {
		return
	}
	s := telemetry.Sources{
		Version: Version, Jobs: a.jobs.Live, Traces: a.observed.tracer, Log: a.log,
		Overdue:  func() int { return int(a.calls.Overdue()) },
		Limits:   func() limit.Stats { return a.limits.Stats() },
		Streams:  func() int { return a.observed.ofDoors((*httpserver.Server).Streams) },
		Requests: func() int { return a.observed.ofDoors((*httpserver.Server).Serving) },
	}
	s.Packages = func() []packages.PackageHealth {
		if a.manager == nil {
			return nil
		}
		return a.manager.Health()
	}
	if a.table != nil {
		s.Sessions = a.table.Len
	}
	m := telemetry.NewMetrics(s)
	a.observed.handler = m.Handler()
	ctx, stop := context.WithCancel(context.Background())
	follow := m.Follow(ctx, a.bus)
	a.addPart("metrics", func(end context.Context) error {
		defer context.AfterFunc(end, stop)()
		return follow()
	})
}

// metricsDeps opens the store of measurements, and records the calls of this host in it. A host without the module
// records none.
func (a *App) metricsDeps() (metricsmodule.Config, error) {
	store := a.openMetrics()
	a.addPart("measured calls", func(ctx context.Context) error {
		telemetry.RecordCalls(ctx, a.bus, store, a.log)
		return nil
	})
	return metricsmodule.Config{Store: store, Usage: a.usage, Rules: a.rules}, nil
}

// openMetrics opens the store of measurements, whose file the first one creates.
func (a *App) openMetrics() *metrics.Store {
	path := ""
	if !a.opts.Private {
		path = filepath.Join(a.cfg.Folders.State, "metrics.db")
	}
	store := metrics.Open(path, metrics.Options{})
	a.measurements.Store(store)
	a.closing("metrics", func(context.Context) error { return store.Close() })
	return store
}

// http adds the metrics of an HTTP server.
func (t *telemetrySources) http(d *httpserver.Server) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.doors = append(t.doors, d)
}

func (t *telemetrySources) ofDoors(count func(*httpserver.Server) int) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for _, d := range t.doors {
		n += count(d)
	}
	return n
}
