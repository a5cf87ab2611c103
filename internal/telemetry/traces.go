package telemetry

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"
)

// These are the limits of a Tracer.
const (
	waitingSpans = 4096 // spans that are not sent yet; more are dropped and counted
	batchSpans   = 512
	batchTime    = 5 * time.Second
	sendTime     = 10 * time.Second
)

// TraceOptions configures where traces are sent.
type TraceOptions struct {
	Endpoint   string            // URL that accepts OTLP over HTTP, such as http://127.0.0.1:4318/v1/traces
	Headers    map[string]string // of each request there
	Sample     float64           // share of the calls that are traced if the caller does not decide
	Service    string            // "" means gatehouse
	Version    string
	Attributes map[string]string // of this host, in every batch
	Log        *slog.Logger      // nil discards the log
	Client     *http.Client      // nil creates one
}

// Tracer sends spans to a collector. It is safe for concurrent use; calls never wait for it.
type Tracer struct {
	o       TraceOptions
	spans   chan *span
	dropped atomic.Uint64
	sent    atomic.Uint64
}

// NewTracer returns a Tracer; Run sends the spans that it collects.
func NewTracer(o TraceOptions) *Tracer {
	if o.Service == "" {
		o.Service = "gatehouse"
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Client == nil {
		o.Client = &http.Client{
			// headers are for one host
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	return &Tracer{o: o, spans: make(chan *span, waitingSpans)}
}

// span is one operation in a trace.
type span struct {
	trace  [16]byte
	id     [8]byte
	parent [8]byte // zero for the first span of its trace
	name   string
	begin  time.Time
	end    time.Time
	attrs  []attribute
	failed bool
}

type attribute struct{ key, value string }

func (s *span) traceID() string     { return hex.EncodeToString(s.trace[:]) }
func (s *span) traceparent() string { return fmt.Sprintf("00-%x-%x-01", s.trace, s.id) }

// startSpan starts a span below the one that a traceparent names. It returns nil if the operation is not traced,
// because the caller or the sampling decided so.
func (t *Tracer) startSpan(traceparent string) *span {
	s := &span{begin: time.Now()}
	trace, parent, sampled, ok := parseTraceparent(traceparent)
	switch {
	case ok && !sampled, !ok && rand.Float64() >= t.o.Sample:
		return nil
	case ok:
		s.trace, s.parent = trace, parent
	default:
		random(s.trace[:])
	}
	random(s.id[:])
	return s
}

// random fills b with random bytes; all zero is not a valid id.
func random(b []byte) {
	for {
		zero := true
		for i := range b {
			b[i] = byte(rand.Uint32())
			zero = zero && b[i] == 0
		}
		if !zero {
			return
		}
	}
}

// parseTraceparent parses the header of W3C Trace Context.
func parseTraceparent(s string) (trace [16]byte, parent [8]byte, sampled, ok bool) {
	// 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
	if len(s) < 55 || s[2] != '-' || s[35] != '-' || s[52] != '-' || len(s) > 55 && (s[:2] == "00" || s[55] != '-') {
		return
	}
	var version, flags [1]byte
	for _, part := range []struct {
		into []byte
		from string
	}{{version[:], s[:2]}, {trace[:], s[3:35]}, {parent[:], s[36:52]}, {flags[:], s[53:55]}} {
		if !lowerHex(part.from) {
			return
		}
		hex.Decode(part.into, []byte(part.from)) // checked
	}
	if version[0] == 0xff || trace == [16]byte{} || parent == [8]byte{} {
		return
	}
	return trace, parent, flags[0]&1 != 0, true
}

func lowerHex(s string) bool {
	for _, c := range []byte(s) {
		if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f') {
			return false
		}
	}
	return true
}

// endSpan queues a span to be sent. If too many spans wait it is dropped.
func (t *Tracer) endSpan(s *span, at time.Time) {
	s.end = at
	select {
	case t.spans <- s:
	default:
		t.dropped.Add(1)
	}
}

// Run sends the collected spans until ctx is done, and then the rest, for at most 10 s. An unreachable collector
// is logged once, until it can be reached again.
func (t *Tracer) Run(ctx context.Context) error {
	tick := time.NewTicker(batchTime)
	defer tick.Stop()
	var batch []*span
	failing := false
	send := func(ctx context.Context) {
		if len(batch) == 0 {
			return
		}
		err := t.sendBatch(ctx, batch)
		if err != nil {
			t.dropped.Add(uint64(len(batch)))
		} else {
			t.sent.Add(uint64(len(batch)))
		}
		if err != nil && !failing {
			t.o.Log.Warn("traces cannot be sent", "endpoint", t.o.Endpoint, "err", err)
		}
		failing = err != nil
		batch = batch[:0]
	}
	for {
		select {
		case s := <-t.spans:
			if batch = append(batch, s); len(batch) >= batchSpans {
				send(ctx)
			}
		case <-tick.C:
			send(ctx)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), sendTime)
			defer cancel()
			for len(t.spans) > 0 && last.Err() == nil {
				if batch = append(batch, <-t.spans); len(batch) >= batchSpans {
					send(last)
				}
			}
			send(last)
			return nil
		}
	}
}

// errCollector is the error of a collector that refuses a request.
var errCollector = errors.New("the collector refused")
