// Package telemetry observes a running host: a log, metrics for Prometheus, and traces for OpenTelemetry. Its
// folder metrics stores measurements over time.
//
// App connects it once. Observed packages do not import it: it follows calls on the bus, and other values are
// published there or read at the time of a scrape. It sends nothing unless the settings name a collector. Only app
// imports telemetry. Begin with NewMetrics and NewTracer.
package telemetry
