package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/internal/dispatch/bus"
	"gatehouse/tool"
)

// collector takes what a tracer sends.
type collector struct {
	mu     sync.Mutex
	bodies []otlpRequest
	header http.Header
	status []int // of the next answers; then 200
	asked  int
}

func (c *collector) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	c.header = r.Header
	w := httptest.NewRecorder()
	if len(c.status) > 0 {
		w.WriteHeader(c.status[0])
		c.status = c.status[1:]
		return w.Result(), nil
	}
	var body otlpRequest
	b, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(b, &body)
	}
	c.bodies = append(c.bodies, body)
	return w.Result(), err
}

func (c *collector) spans() (all []otlpSpan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range c.bodies {
		all = append(all, b.ResourceSpans[0].ScopeSpans[0].Spans...)
	}
	return all
}

// traced runs do with a bus that is traced, and gives what was sent.
func traced(t *testing.T, o TraceOptions, c *collector, do func(b bus.Bus)) []otlpSpan {
	t.Helper()
	o.Endpoint, o.Client = "http://collector/v1/traces", &http.Client{Transport: c}
	tracer := NewTracer(o)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- tracer.Run(ctx) }()
	do(WatchBus(bus.New(), tracer))
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	return c.spans()
}

func serve(t *testing.T, b bus.Bus, f bus.Handler) {
	t.Helper()
	if _, err := b.Serve("m", f); err != nil {
		t.Fatal(err)
	}
}

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func request(trace string) *bus.Request {
	return &bus.Request{
		Call:   "c1",
		Module: "m",
		Method: "tools/call",
		Name:   "m_do",
		Caller: &tool.Caller{Trace: trace, Context: "x"},
	}
}

// A call is a span below its caller's, and what it calls is below it.
func TestCallsAreSpans(t *testing.T) {
	var seen string
	c := &collector{}
	spans := traced(
		t,
		TraceOptions{
			Sample:     1,
			Version:    "1",
			Headers:    map[string]string{"Authorization": "Bearer x"},
			Attributes: map[string]string{"k": "v"},
		},
		c,
		func(b bus.Bus) {
			serve(t, b, func(ctx context.Context, r *bus.Request, n bus.Notes) (bus.Outcome, error) {
				if r.Name == "inner" {
					return bus.Outcome{}, errors.New("no")
				}
				seen = r.Caller.Trace
				b.Do(ctx, &bus.Request{Module: "m", Method: "tools/call", Name: "inner", Caller: r.Caller}, n)
				return bus.Outcome{}, nil
			})
			asked := request(parent)
			if _, err := b.Do(t.Context(), asked, nil); err != nil {
				t.Fatal(err)
			}
			if asked.Caller.Trace != parent {
				t.Error("the caller's own request was changed")
			}
		},
	)
	if len(spans) != 2 {
		t.Fatalf("got %d spans, want 2", len(spans))
	}
	inner, outer := spans[0], spans[1]
	if outer.TraceID != "0af7651916cd43dd8448eb211c80319c" || outer.ParentID != "b7ad6b7169203331" ||
		outer.Name != "tools/call m_do" ||
		outer.Status.Code != 0 {
		t.Errorf("the outer span is %+v", outer)
	}
	if inner.TraceID != outer.TraceID || inner.ParentID != outer.SpanID || inner.Status.Code != statusError {
		t.Errorf("the inner span is %+v", inner)
	}
	if want := "00-" + outer.TraceID + "-" + outer.SpanID + "-01"; seen != want {
		t.Errorf("the module was given %s, want %s", seen, want)
	}
	if outer.Begin > inner.Begin || outer.End < inner.End {
		t.Error("the outer span does not hold the inner one")
	}
	attrs, _ := json.Marshal(c.bodies[0].ResourceSpans[0].Resource.Attributes)
	if got := string(attrs); !strings.Contains(got, `"service.name","value":{"stringValue":"gatehouse"}`) ||
		!strings.Contains(got, `"k","value":{"stringValue":"v"}`) {
		t.Errorf("the host is %s", got)
	}
	if c.header.Get("Authorization") != "Bearer x" || c.header.Get("Content-Type") != "application/json" {
		t.Errorf("headers %v", c.header)
	}
}

func TestWhoIsTraced(t *testing.T) {
	for _, one := range []struct {
		trace  string
		sample float64
		want   int
	}{
		{"", 1, 1}, {"", 0, 0}, {parent, 0, 1}, {strings.TrimSuffix(parent, "1") + "0", 1, 0}, {"nonsense", 1, 1},
		{"nonsense", 0, 0},
	} {
		spans := traced(t, TraceOptions{Sample: one.sample}, &collector{}, func(b bus.Bus) {
			serve(t, b, func(_ context.Context, r *bus.Request, _ bus.Notes) (bus.Outcome, error) {
				if one.want == 0 && r.Caller.Trace != one.trace {
					t.Errorf("%q became %q", one.trace, r.Caller.Trace)
				}
				return bus.Outcome{}, nil
			})
			b.Do(t.Context(), request(one.trace), nil)
		})
		if len(spans) != one.want {
			t.Errorf("%q with %v: %d spans, want %d", one.trace, one.sample, len(spans), one.want)
		}
	}
}

func TestNamesOfSpansAreFew(t *testing.T) {
	for want, r := range map[string]*bus.Request{
		"resources/read": {Method: "resources/read", Name: "file:///secret"},
		"prompts/get p":  {Method: "prompts/get", Name: "p"},
	} {
		if got := spanName(r); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// A collector that is busy is asked once more; one that refuses is not, and
// the log says so once.
func TestACollectorThatDoesNotTakeSpans(t *testing.T) {
	for name, c := range map[string]struct {
		status      []int
		asked, sent int
	}{
		"busy once": {[]int{503}, 2, 1}, "busy": {[]int{429, 429}, 2, 0}, "refuses": {[]int{400}, 1, 0},
		"redirects": {[]int{302}, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var said strings.Builder
				to := &collector{status: c.status}
				tr := NewTracer(
					TraceOptions{
						Endpoint: "http://collector",
						Client:   &http.Client{Transport: to},
						Sample:   1,
						Log:      slog.New(slog.NewTextHandler(&said, nil)),
					},
				)
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- tr.Run(ctx) }()
				tr.endSpan(tr.startSpan(""), time.Now())
				time.Sleep(time.Minute)
				stop()
				<-done
				if to.asked != c.asked || int(tr.sent.Load()) != c.sent || int(tr.dropped.Load()) != 1-c.sent {
					t.Errorf("asked %d times, %d sent, %d dropped", to.asked, tr.sent.Load(), tr.dropped.Load())
				}
				if n := strings.Count(said.String(), "traces cannot be sent"); n != 1-c.sent {
					t.Errorf("the log says so %d times:\n%s", n, said.String())
				}
			})
		})
	}
}

func TestCallsDoNotWaitForTheCollector(t *testing.T) {
	tr := NewTracer(TraceOptions{Sample: 1})
	for range waitingSpans + 10 {
		tr.endSpan(tr.startSpan(""), time.Now())
	}
	if tr.dropped.Load() != 10 {
		t.Errorf("%d spans dropped, want 10", tr.dropped.Load())
	}
}

func TestTraceparents(t *testing.T) {
	for s, want := range map[string]bool{
		parent: true, "01" + parent[2:]: true, "01" + parent[2:] + "-more": true, parent + "-more": false,
		"ff" + parent[2:]:       false,
		strings.ToUpper(parent): false, parent[:54]: false, "": false, strings.Replace(parent, "-b7", "_b7", 1): false,
		"00-00000000000000000000000000000000-b7ad6b7169203331-01": false,
		"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01": false,
	} {
		if _, _, _, ok := parseTraceparent(s); ok != want {
			t.Errorf("%q: %v, want %v", s, ok, want)
		}
	}
}

// What is read as a traceparent is written again as one.
func FuzzTraceparent(f *testing.F) {
	f.Add(parent)
	f.Add("00-" + strings.Repeat("0", 51))
	f.Fuzz(func(t *testing.T, s string) {
		trace, id, _, ok := parseTraceparent(s)
		if !ok {
			return
		}
		again, id2, sampled, ok := parseTraceparent((&span{trace: trace, id: id}).traceparent())
		if !ok || !sampled || again != trace || id2 != id {
			t.Errorf("%q does not come back", s)
		}
	})
}

func BenchmarkWatchedBus(b *testing.B) {
	for name, tracer := range map[string]*Tracer{"log": nil, "traces": NewTracer(TraceOptions{Sample: 1})} {
		b.Run(name, func(b *testing.B) {
			w := WatchBus(bus.New(), tracer)
			if _, err := w.Serve("m",
				func(context.Context,
					*bus.Request, bus.Notes) (bus.Outcome, error) {
					return bus.Outcome{}, nil
				}); err != nil {
				b.Fatal(err)
			}
			r := request("")
			b.ReportAllocs()
			for b.Loop() {
				w.Do(b.Context(), r, nil)
			}
		})
	}
}
