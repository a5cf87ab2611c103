package telemetry

import (
	"context"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"gatehouse/internal/access/limit"
	"gatehouse/internal/dispatch"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/packages"
)

// These are the limits of Metrics.
const (
	waitingFacts = 8192 // events that are not counted yet; more are lost, and the loss is counted
	maxSeries    = 2000 // names of a metric; further ones are counted as other
	scrapes      = 4    // at once
	scrapeTime   = 10 * time.Second
)

// Sources are called at each scrape. A nil source has no metrics.
type Sources struct {
	Version  string
	Sessions func() int                      // open ones
	Streams  func() int                      // open event streams over HTTP
	Requests func() int                      // HTTP requests being served
	Jobs     func() int                      // unfinished jobs
	Overdue  func() int                      // calls that ignore their deadline
	Limits   func() limit.Stats              // of calls and rates
	Traces   *Tracer                         // sent and dropped spans
	Packages func() []packages.PackageHealth // of third-party servers
	Log      *slog.Logger                    // logs scrapes that fail; nil means none
	Extra    prometheus.Collector            // further metrics
}

// Metrics counts events of a host. It is safe for concurrent use.
type Metrics struct {
	registry *prometheus.Registry
	calls    *prometheus.HistogramVec
	events   *prometheus.CounterVec
	lost     prometheus.Counter
	log      *slog.Logger

	names map[string]bool // of the series of calls and events; only Follow's goroutine uses it
}

// NewMetrics returns Metrics without counts; see Follow.
func NewMetrics(s Sources) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(), log: s.Log, names: map[string]bool{},
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "gatehouse_call_duration_seconds", Help: "Time that calls took, by what was called and how it ended.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, []string{"method", "module", "name", "outcome"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gatehouse_events_total",
			Help: "What has happened, by kind: sessions that began and ended, logins, changes.",
		}, []string{"event"}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "gatehouse_facts_lost_total",
			Help: "Calls and events that were too many to count; the other metrics miss them.",
		}),
	}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "gatehouse_build_info", Help: "Which Gatehouse runs here; always 1.",
		ConstLabels: prometheus.Labels{"version": s.Version, "goversion": runtime.Version()},
	})
	build.Set(1)
	m.registry.MustRegister(m.calls, m.events, m.lost, build, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), moment{s})
	if s.Packages != nil {
		m.registry.MustRegister(packageMetrics{s.Packages})
	}
	if s.Extra != nil {
		m.registry.MustRegister(s.Extra)
	}
	return m
}

// Handler serves the metrics in the format of Prometheus.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(
			m.log.Handler(),
			slog.LevelWarn,
		), MaxRequestsInFlight: scrapes, Timeout: scrapeTime, EnableOpenMetrics: true,
	})
}

// Follow counts the events of a bus until ctx is done. It subscribes when it is called, and counts in the returned
// function.
func (m *Metrics) Follow(ctx context.Context, b bus.Bus) func() error {
	facts := b.Follow(ctx, ">", waitingFacts)
	return func() error {
		for f := range facts {
			m.countEvent(f)
		}
		return nil
	}
}

func (m *Metrics) countEvent(f bus.Event) {
	m.lost.Add(float64(f.Lost))
	if f.Subject != string(dispatch.CallFinished) {
		m.events.WithLabelValues(m.known(f.Subject)).Inc()
		return
	}
	c, ok := dispatch.CallFinished.Decode(f)
	if !ok {
		return
	}
	name := ""
	if strings.HasPrefix(c.Method, "tools/") || strings.HasPrefix(c.Method, "prompts/") {
		name = m.known(c.Name) // the names of resources are unlimited
	}
	m.calls.WithLabelValues(c.Method, c.Module, name, c.Outcome).Observe(c.Millis / 1000)
}

// known returns a name that has a series or may still get one, and other for all further names.
func (m *Metrics) known(name string) string {
	if m.names[name] {
		return name
	}
	if len(m.names) >= maxSeries {
		return "other"
	}
	m.names[name] = true
	return name
}

// moment collects the values that are read at each scrape.
type moment struct{ Sources }

// reading is the value of one metric at a scrape.
type reading struct {
	name, help string
	kind       prometheus.ValueType
	value      float64
}

func (m moment) Describe(ch chan<- *prometheus.Desc) {
	for _, r := range m.readSources() {
		ch <- r.desc()
	}
}

func (m moment) Collect(ch chan<- prometheus.Metric) {
	for _, r := range m.readSources() {
		ch <- prometheus.MustNewConstMetric(r.desc(), r.kind, r.value)
	}
}

func (r reading) desc() *prometheus.Desc { return prometheus.NewDesc(r.name, r.help, nil, nil) }

// readSources reads every source.
func (m moment) readSources() (all []reading) {
	gauge := func(name, help string, ask func() int) {
		if ask != nil {
			all = append(all, reading{"gatehouse_" + name, help, prometheus.GaugeValue, float64(ask())})
		}
	}
	gauge("sessions", "Open sessions.", m.Sessions)
	gauge("streams", "Open event streams over HTTP.", m.Streams)
	gauge("http_requests_in_flight", "HTTP requests that are being served.", m.Requests)
	gauge("jobs_running", "Jobs that are not finished.", m.Jobs)
	gauge("calls_overdue", "Calls that ignore their deadline and still run.", m.Overdue)
	if m.Limits != nil {
		all = append(all, ofLimits(m.Limits())...)
	}
	if t := m.Traces; t != nil {
		all = append(
			all,
			reading{
				"gatehouse_spans_sent_total",
				"Spans that a collector has taken.",
				prometheus.CounterValue,
				float64(t.sent.Load()),
			},
			reading{
				"gatehouse_spans_dropped_total",
				"Spans that were not sent.",
				prometheus.CounterValue,
				float64(t.dropped.Load()),
			},
		)
	}
	return all
}

func ofLimits(s limit.Stats) (all []reading) {
	add := func(kind prometheus.ValueType, name, help string, value float64) {
		all = append(all, reading{"gatehouse_" + name, help, kind, value})
	}
	const gauge, counter = prometheus.GaugeValue, prometheus.CounterValue
	add(gauge, "calls_running", "Calls that run.", float64(s.Running))
	add(gauge, "calls_waiting", "Calls that wait for their turn.", float64(s.Waiting))
	add(counter, "calls_entered_total", "Calls that were let in.", float64(s.Entered))
	add(counter, "calls_queued_total", "Calls that had to wait before they were let in.", float64(s.Queued))
	add(counter, "calls_queued_seconds_total", "How long calls had to wait, all together.", s.Waited.Seconds())
	add(counter, "calls_refused_full_total", "Calls refused because too many waited.", float64(s.Full))
	add(counter, "calls_refused_late_total", "Calls that waited in vain.", float64(s.Late))
	add(gauge, "message_bytes", "Bytes of messages that are being read or have not been answered.", float64(s.Bytes))
	add(counter, "messages_refused_full_total", "Messages refused because their caller had its share of the bytes.",
		float64(s.NoBytes))
	add(counter, "streams_refused_full_total", "Event streams refused because their caller had its share of them.",
		float64(s.NoStreams))
	add(gauge, "rate_keys", "Principals and sessions whose rate is remembered.", float64(s.Keys))
	add(gauge, "rate_held", "Requests that wait because they came too soon.", float64(s.Held))
	add(counter, "rate_allowed_total", "Requests within their rate.", float64(s.Allowed))
	add(counter, "rate_refused_total", "Requests refused because they came too often.", float64(s.TooSoon))
	return all
}
