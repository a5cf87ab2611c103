package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"

	"gatehouse/internal/packages"
)

// The metrics of third-party servers, one series for each package.
var (
	packageCalls = prometheus.NewDesc("gatehouse_package_calls_total",
		"Requests of callers to the server of a package.", []string{"package"}, nil)
	packageErrors = prometheus.NewDesc("gatehouse_package_errors_total",
		"Requests to the server of a package that had no result, by kind.", []string{"package", "kind"}, nil)
	packageRunning = prometheus.NewDesc("gatehouse_package_calls_running",
		"Requests to the server of a package that have not ended.", []string{"package"}, nil)
	packageLatency = prometheus.NewDesc("gatehouse_package_answer_seconds",
		"Time from a request to the answer of the server of a package.", []string{"package"}, nil)
	packageRestarts = prometheus.NewDesc("gatehouse_package_restarts_total",
		"Starts of the server of a package after the first.", []string{"package"}, nil)
	packageState = prometheus.NewDesc("gatehouse_package_state",
		"The state of the server of a package and of its circuit; always 1.", []string{"package", "status",
			"circuit"}, nil)
)

// packageMetrics collects the health of packages at each scrape.
type packageMetrics struct {
	read func() []packages.PackageHealth
}

func (m packageMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		packageCalls, packageErrors, packageRunning, packageLatency, packageRestarts, packageState,
	} {
		ch <- d
	}
}

func (m packageMetrics) Collect(ch chan<- prometheus.Metric) {
	const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue
	for _, p := range m.read() {
		h := p.Health
		send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, more ...string) {
			ch <- prometheus.MustNewConstMetric(d, kind, v, append([]string{p.ID}, more...)...)
		}
		send(packageCalls, counter, float64(h.Calls))
		send(packageRunning, gauge, float64(h.Running))
		send(packageRestarts, counter, float64(h.Restarts))
		send(packageState, gauge, 1, p.Status, h.Circuit)
		for kind, n := range h.Errors {
			send(packageErrors, counter, float64(n), kind)
		}
		buckets, sum := map[float64]uint64{}, uint64(0)
		for i, bound := range packages.LatencyBounds {
			sum += h.Latency.Counts[i]
			buckets[bound] = sum
		}
		ch <- prometheus.MustNewConstHistogram(packageLatency, h.Latency.Count(), h.Latency.Sum, buckets, p.ID)
	}
}
