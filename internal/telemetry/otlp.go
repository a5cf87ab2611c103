package telemetry

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// These are the structures of OTLP in JSON, as far as they are used here. Times are nanoseconds as text, ids are
// hexadecimal.
type (
	otlpRequest struct {
		ResourceSpans []otlpResourceSpans `json:"resourceSpans"`
	}
	otlpResourceSpans struct {
		Resource   otlpResource     `json:"resource"`
		ScopeSpans []otlpScopeSpans `json:"scopeSpans"`
	}
	otlpResource struct {
		Attributes []otlpAttribute `json:"attributes"`
	}
	otlpScopeSpans struct {
		Scope otlpScope  `json:"scope"`
		Spans []otlpSpan `json:"spans"`
	}
	otlpScope struct {
		Name    string `json:"name"`
		Version string `json:"version,omitempty"`
	}
	otlpSpan struct {
		TraceID    string          `json:"traceId"`
		SpanID     string          `json:"spanId"`
		ParentID   string          `json:"parentSpanId,omitempty"`
		Name       string          `json:"name"`
		Kind       int             `json:"kind"`
		Begin      string          `json:"startTimeUnixNano"`
		End        string          `json:"endTimeUnixNano"`
		Attributes []otlpAttribute `json:"attributes"`
		Status     otlpStatus      `json:"status"`
	}
	otlpAttribute struct {
		Key   string    `json:"key"`
		Value otlpValue `json:"value"`
	}
	otlpValue struct {
		String string `json:"stringValue"`
	}
	otlpStatus struct {
		Code int `json:"code,omitempty"`
	}
)

const (
	kindServer  = 2
	statusError = 2
)

// encodeBatch encodes a batch for the collector.
func (t *Tracer) encodeBatch(batch []*span) ([]byte, error) {
	attrs := []attribute{{"service.name", t.o.Service}, {"service.version", t.o.Version}}
	for _, k := range slices.Sorted(maps.Keys(t.o.Attributes)) {
		attrs = append(attrs, attribute{k, t.o.Attributes[k]})
	}
	spans := make([]otlpSpan, 0, len(batch))
	for _, s := range batch {
		spans = append(spans, s.otlp())
	}
	return json.Marshal(otlpRequest{[]otlpResourceSpans{{
		Resource:   otlpResource{attributes(attrs)},
		ScopeSpans: []otlpScopeSpans{{otlpScope{"gatehouse", t.o.Version}, spans}},
	}}})
}

func (s *span) otlp() otlpSpan {
	o := otlpSpan{
		TraceID: s.traceID(), SpanID: hex.EncodeToString(s.id[:]), Name: s.name, Kind: kindServer,
		Begin: nanoseconds(s.begin), End: nanoseconds(s.end), Attributes: attributes(s.attrs),
	}
	if s.parent != [8]byte{} {
		o.ParentID = hex.EncodeToString(s.parent[:])
	}
	if s.failed {
		o.Status.Code = statusError
	}
	return o
}

func nanoseconds(t time.Time) string { return strconv.FormatInt(t.UnixNano(), 10) }

func attributes(from []attribute) []otlpAttribute {
	list := make([]otlpAttribute, 0, len(from))
	for _, a := range from {
		list = append(list, otlpAttribute{a.key, otlpValue{a.value}})
	}
	return list
}

// sendBatch sends a batch. If the collector is busy it tries once more.
func (t *Tracer) sendBatch(ctx context.Context, batch []*span) error {
	body, err := t.encodeBatch(batch)
	if err != nil {
		return err
	}
	for again := true; ; again = false {
		wait, err := t.post(ctx, body)
		if err == nil || wait == 0 || !again {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

// post sends one request. wait is how long to wait before another try, if that may help.
func (t *Tracer) post(ctx context.Context, body []byte) (wait time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, sendTime)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, t.o.Endpoint, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	r.Header.Set("Content-Type", "application/json")
	for k, v := range t.o.Headers {
		r.Header.Set(k, v)
	}
	resp, err := t.o.Client.Do(r)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // so that the connection can be used again
	switch {
	case resp.StatusCode < 300:
		return 0, nil
	case resp.StatusCode == http.StatusTooManyRequests, resp.StatusCode >= 502 && resp.StatusCode <= 504:
		wait = time.Second
		if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
			wait = min(time.Duration(s)*time.Second, batchTime)
		}
	}
	return wait, fmt.Errorf("%w: %s", errCollector, resp.Status)
}
