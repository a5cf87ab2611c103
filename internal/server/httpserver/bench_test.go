package httpserver

import (
	"fmt"
	"net"
	nethttp "net/http"
	"strings"
	"testing"
	"time"
)

// nowhere is a connection, and a response, that discards everything.
type nowhere struct {
	net.Conn
	header nethttp.Header
	n      int
}

func (c *nowhere) Write(b []byte) (int, error)      { c.n += len(b); return len(b), nil }
func (c *nowhere) SetWriteDeadline(time.Time) error { return nil }
func (c *nowhere) Header() nethttp.Header           { return c.header }
func (c *nowhere) WriteHeader(int)                  {}
func (c *nowhere) FlushError() error                { return nil }

func BenchmarkEvent(b *testing.B) {
	taken := &nowhere{}
	given := &nowhere{header: nethttp.Header{}}
	for _, way := range []struct {
		name string
		conn *nowhere
		wire *wire
	}{
		{"taken over", taken, &wire{pulse: &keepAlive{}, conn: taken}},
		{"net-http", given, &wire{pulse: &keepAlive{}, rw: given, ctl: nethttp.NewResponseController(given)}},
	} {
		limit := deadliner(way.conn)
		way.wire.limit.Store(&limit)
		for _, size := range []int{100, 10_000, 1_000_000} {
			b.Run(fmt.Sprintf("%s, %d bytes", way.name, size), func(b *testing.B) {
				msg := []byte(
					`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"` + strings.Repeat(
						"x",
						size-70,
					) + `"}}`,
				)
				b.SetBytes(int64(len(msg)))
				b.ReportAllocs()
				before := way.conn.n
				n := 0
				for b.Loop() {
					n++
					if err := way.wire.WriteEvent("0-1a", msg); err != nil {
						b.Fatal(err)
					}
				}
				if way.conn.n-before < n*len(msg) {
					b.Errorf("%d events wrote only %d bytes", n, way.conn.n-before)
				}
			})
		}
	}
}
