package httpserver

import (
	"bytes"
	"context"
	"io"
	nethttp "net/http"
	"testing"
	"time"

	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/mcp/session"
	"gatehouse/tool"
)

// sinkhole is a response that discards everything.
type sinkhole struct{ h nethttp.Header }

func (s *sinkhole) Header() nethttp.Header           { return s.h }
func (s *sinkhole) Write(p []byte) (int, error)      { return len(p), nil }
func (s *sinkhole) WriteHeader(int)                  {}
func (s *sinkhole) SetReadDeadline(time.Time) error  { return nil }
func (s *sinkhole) SetWriteDeadline(time.Time) error { return nil }
func (s *sinkhole) Flush()                           {}

// BenchmarkServer measures the cost of a call in this package, without net/http below it and the engine
// above it.
func BenchmarkServer(b *testing.B) {
	answer := []byte(`{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"hello"}]}}`)
	e := &script{
		table:  session.NewTable(session.Options{}),
		legacy: func(_ *protocol.Message, s protocol.Sink) { s.Answer(200, answer) },
		modern: func(_ context.Context, s protocol.Sink) { s.Answer(200, answer) },
	}
	sess, _ := e.table.Open(session.Facts{Caller: tool.Caller{Principal: "anonymous"}, Revision: mcpversion.V20251125})
	d, err := newServer(e, Options{})
	if err != nil {
		b.Fatal(err)
	}
	body := []byte(call(1, "t_echo", `{"text":"hello"}`))
	for name, headers := range map[string][]string{
		"legacy": {"Mcp-Session-Id", sess.ID, "Mcp-Protocol-Version", "2025-11-25"},
		"modern": {"Mcp-Method", "tools/call", "Mcp-Protocol-Version", "2026-07-28"},
	} {
		b.Run(name, func(b *testing.B) {
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			r, _ := nethttp.NewRequestWithContext(ctx, "POST", "/mcp", nil)
			r.Host = "localhost:3000"
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("Accept", "application/json, text/event-stream")
			for i := 0; i < len(headers); i += 2 {
				r.Header.Set(headers[i], headers[i+1])
			}
			r.ContentLength = int64(len(body))
			in, w := bytes.NewReader(body), &sinkhole{nethttp.Header{}}
			r.Body = io.NopCloser(in)
			b.ReportAllocs()
			for b.Loop() {
				in.Reset(body)
				clear(w.h)
				d.ServeHTTP(w, r)
			}
		})
	}
}
