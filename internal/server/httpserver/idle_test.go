package httpserver

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/tests/hosttest"
)

// BenchmarkIdleStream measures the cost of an idle open stream: resident bytes and goroutines of the
// serving side for each of 5,000 sessions with their GET streams on cleartext HTTP/1.1. The clients are
// bare sockets of the same process, which cost about 0.4 KiB each.
func BenchmarkIdleStream(b *testing.B) {
	for _, withStream := range []bool{false, true} {
		b.Run(fmt.Sprintf("stream=%t", withStream), func(b *testing.B) {
			for b.Loop() {
				measureIdle(b, 5000, withStream)
			}
		})
	}
}

func measureIdle(b *testing.B, n int, withStream bool) {
	h := newTestHost(b, Options{KeepAlive: time.Hour}, hosttest.Options{})
	open := func(n int) {
		for range n {
			id := h.openSession(b)
			if withStream {
				h.openStream(b, id)
			}
		}
	}
	open(100) // allocates what is made only once
	before, goroutines := resident(), runtime.NumGoroutine()
	open(n)
	b.ReportMetric(float64(resident()-before)/float64(n), "B/session")
	b.ReportMetric(float64(runtime.NumGoroutine()-goroutines)/float64(n), "goroutines/session")
}

// openSession initializes a session without net/http's client.
func (h *testHost) openSession(b *testing.B) string {
	conn, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(
		conn,
		"POST /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s",
		len(initialize),
		initialize,
	)
	for in := bufio.NewScanner(conn); in.Scan(); {
		if k, v, _ := strings.Cut(in.Text(), ": "); k == "Mcp-Session-Id" {
			return v
		}
	}
	b.Fatal("no session")
	return ""
}

func (h *testHost) openStream(b *testing.B, id string) {
	conn, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close() })
	fmt.Fprintf(
		conn,
		"GET /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nMcp-Session-Id: %s\r\n\r\n",
		id,
	)
	var buf [1024]byte
	for seen := 0; !bytes.Contains(buf[:seen], []byte("data:\n\n")); {
		n, err := conn.Read(buf[seen:])
		if err != nil {
			b.Fatal(err)
		}
		seen += n
	}
}

// resident returns the memory of this process after a garbage collection.
func resident() int {
	for range 3 {
		runtime.GC()
		time.Sleep(50 * time.Millisecond) // finalizes sockets that were closed
	}
	debug.FreeOSMemory()
	status, err := os.ReadFile("/proc/self/statm")
	if err != nil { // on other systems, the memory that Go has obtained
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.Sys - m.HeapReleased)
	}
	pages, _ := strconv.Atoi(strings.Fields(string(status))[1])
	return pages * os.Getpagesize()
}
