package telemetry

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"gatehouse/internal/access/limit"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/packages"
)

func scrape(t *testing.T, m *Metrics) string {
	t.Helper()
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	b, err := io.ReadAll(w.Result().Body)
	if err != nil || w.Code != 200 {
		t.Fatalf("%d, %v: %s", w.Code, err, b)
	}
	return string(b)
}

func finished(method, module, name, outcome string, ms float64) bus.Event {
	data, _ := json.Marshal(
		map[string]any{"call": "c", "method": method, "module": module, "name": name, "outcome": outcome, "ms": ms},
	)
	return bus.Event{Subject: "call.finished", Data: data}
}

// counted has the facts counted by metrics that follow a bus.
func counted(t *testing.T, m *Metrics, facts ...bus.Event) {
	t.Helper()
	b := bus.New()
	ctx, stop := context.WithCancel(t.Context())
	follow := m.Follow(ctx, b)
	for _, f := range append(facts, bus.Event{Subject: "the.last"}) {
		b.Publish(f)
	}
	done := make(chan error, 1)
	go func() { done <- follow() }()
	for end := time.Now().Add(time.Minute); !strings.Contains(scrape(t, m),
		`event="the.last"`); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the last fact is not counted")
		}
	}
	stop()
	<-done
}

func full() Sources {
	n := func(i int) func() int { return func() int { return i } }
	return Sources{
		Version: "0.1.0", Sessions: n(3), Streams: n(2), Requests: n(1), Jobs: n(4), Overdue: n(0),
		Traces: NewTracer(TraceOptions{}),
		Packages: func() []packages.PackageHealth {
			h := packages.Health{Circuit: "open", Calls: 5, Running: 1, Restarts: 2,
				Errors: map[string]uint64{"timeout": 3}}
			h.Latency.Counts[3], h.Latency.Sum = 2, .008
			return []packages.PackageHealth{{ID: "up", Status: "running", Health: h}}
		},
		Limits: func() limit.Stats { return limit.Stats{Running: 7, Waited: 1500 * time.Millisecond, TooSoon: 9} },
	}
}

func TestMetricsSayWhatHappened(t *testing.T) {
	m := NewMetrics(full())
	counted(
		t,
		m,
		finished(
			"tools/call",
			"file",
			"file_read",
			"ok",
			3,
		),
		finished("tools/call", "file", "file_read", "ok", 400),
		finished("tools/call", "file", "file_read", "refused", 1),
		finished(
			"resources/read",
			"file",
			"file:///a",
			"ok",
			1,
		),
		finished("resources/read", "file", "file:///b", "ok", 1),
		bus.Event{
			Subject: "session.created",
		},
		bus.Event{Subject: "session.created", Lost: 5},
		bus.Event{Subject: "call.finished", Data: []byte("nonsense")},
	)
	got := scrape(t, m)
	for _, want := range []string{
		`gatehouse_call_duration_seconds_count{method="tools/call",module="file",name="file_read",outcome="ok"} 2`,
		`gatehouse_call_duration_seconds_bucket{method="tools/call",module="file",name="file_read",outcome="ok",le="0.005"} 1`,
		`gatehouse_call_duration_seconds_count{method="tools/call",module="file",name="file_read",outcome="refused"} 1`,
		`gatehouse_call_duration_seconds_count{method="resources/read",module="file",name="",outcome="ok"} 2`,
		`gatehouse_events_total{event="session.created"} 2`, "gatehouse_facts_lost_total 5", `version="0.1.0"} 1`,
		"gatehouse_sessions 3", "gatehouse_streams 2", "gatehouse_jobs_running 4", "gatehouse_calls_running 7",
		"gatehouse_calls_queued_seconds_total 1.5", "gatehouse_rate_refused_total 9", "gatehouse_spans_sent_total 0",
		`gatehouse_package_calls_total{package="up"} 5`,
		`gatehouse_package_errors_total{kind="timeout",package="up"} 3`,
		`gatehouse_package_answer_seconds_bucket{package="up",le="0.0025"} 0`,
		`gatehouse_package_answer_seconds_bucket{package="up",le="0.005"} 2`,
		`gatehouse_package_answer_seconds_count{package="up"} 2`, `gatehouse_package_restarts_total{package="up"} 2`,
		`gatehouse_package_state{circuit="open",package="up",status="running"} 1`,
		`gatehouse_package_calls_running{package="up"} 1`,
		"go_goroutines", "process_",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing from\n%s", want, got)
		}
	}
}

// A stranger's names do not fill the memory.
func TestSeriesAreBounded(t *testing.T) {
	m := NewMetrics(Sources{})
	for i := range maxSeries + 100 {
		m.countEvent(finished("tools/call", "relay", fmt.Sprint("tool", i), "ok", 1))
	}
	got := scrape(t, m)
	if n := strings.Count(got, "gatehouse_call_duration_seconds_count{"); n != maxSeries+1 {
		t.Errorf("%d series, want %d and one for the rest", n, maxSeries)
	}
	if !strings.Contains(got, `name="other",outcome="ok"} 100`) {
		t.Error("the rest is not counted")
	}
}

func TestNamesFollowTheConventions(t *testing.T) {
	m := NewMetrics(full())
	m.countEvent(finished("tools/call", "file", "file_read", "ok", 3))
	m.countEvent(bus.Event{Subject: "session.created"})
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "gatehouse_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	if err != nil {
		t.Error(err)
	}
}
