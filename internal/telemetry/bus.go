package telemetry

import (
	"context"
	"strings"
	"time"

	"gatehouse/internal/dispatch/bus"
)

// watched is a bus whose requests are marked for the log, and traced.
type watched struct {
	bus.Bus
	tracer *Tracer // nil traces nothing
}

// WatchBus returns a bus that adds the call to the context of its requests, for the log, and traces them if t is not
// nil.
func WatchBus(b bus.Bus, t *Tracer) bus.Bus { return watched{b, t} }

// Followed reports whether an event has a follower.
func (w watched) Followed(subject string) bool {
	f, ok := w.Bus.(interface{ Followed(string) bool })
	return !ok || f.Followed(subject)
}

func (w watched) Do(ctx context.Context, r *bus.Request, n bus.Notes) (bus.Outcome, error) {
	mark := &marked{Context: ctx, id: r.Call}
	if w.tracer == nil || r.Caller == nil {
		return w.Bus.Do(mark, r, n)
	}
	s := w.tracer.startSpan(r.Caller.Trace)
	if s == nil {
		return w.Bus.Do(mark, r, n)
	}
	// What the call starts belongs below its span. The request is the caller's, so the change is made to a copy.
	mark.trace = s.traceID()
	inner, who := *r, *r.Caller
	who.Trace = s.traceparent()
	inner.Caller = &who
	out, err := w.Bus.Do(mark, &inner, n)
	s.name, s.failed = spanName(r), err != nil || out.Result.IsError
	s.attrs = []attribute{
		{"mcp.method.name", r.Method},
		{"gatehouse.module", r.Module},
		{"gatehouse.context", who.Context},
		{"gatehouse.request", r.Call},
	}
	if r.Method == "tools/call" {
		s.attrs = append(s.attrs, attribute{"gen_ai.tool.name", r.Name})
	}
	w.tracer.endSpan(s, time.Now())
	return out, err
}

// spanName returns the method with its tool or prompt. It leaves out URIs, because there are many of them and they
// may reveal too much.
func spanName(r *bus.Request) string {
	if strings.HasPrefix(r.Method, "tools/") || strings.HasPrefix(r.Method, "prompts/") {
		return r.Method + " " + r.Name
	}
	return r.Method
}
