package audit

import (
	"encoding/json"
	"fmt"
	"runtime"
	"testing"
	"time"

	"gatehouse/tool"
)

var usual = Entry{
	Kind: "call", Level: LevelOf("file_read", tool.Reads), Principal: "alice", Credential: "t_abcdefghijkl",
	Session: "0b6a3c9e-6b1f-4b3e-9a43-0f6f3c2b1a00",
	Context: "default", Client: "claude-code/2.0", Call: "call_abcdefghijklmnopqrstuvwx", Method: "tools/call",
	Module: "file", Tool: "file_read",
	Args: json.RawMessage(
		`{"path":"internal/access/audit/audit.go","offset":0,"limit":200}`,
	), Outcome: OK, Took: 1234 * time.Microsecond,
}

// BenchmarkNote measures what a call that reads pays itself: building its line and adding it to the
// batch. The writer is kept from running, so that it does not compete for the clock.
func BenchmarkNote(b *testing.B) {
	l := Open("", Options{Pending: 1 << 40})
	l.started = true
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		l.Note(usual)
		if i%10_000 == 9999 {
			l.batch.text, l.batch.ends = l.batch.text[:0], l.batch.ends[:0]
		}
	}
}

// BenchmarkKeep measures how long 16 callers that write wait for the disk together.
func BenchmarkKeep(b *testing.B) {
	l := ledger(b, fresh(b), Options{})
	b.SetParallelism((16 + runtime.GOMAXPROCS(0) - 1) / runtime.GOMAXPROCS(0))
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			if err := l.Keep(b.Context(), usual); err != nil {
				b.Error(err)
			}
		}
	})
}

// BenchmarkLine measures the whole cost of a line, including the writer's work.
func BenchmarkLine(b *testing.B) {
	l := ledger(b, fresh(b), Options{})
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		l.Note(usual)
		n++
	}
	l.Sync(b.Context())
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/line")
}

func BenchmarkVerify(b *testing.B) {
	l := ledger(b, fresh(b), Options{})
	const n = 100_000
	for i := range n {
		usual.Call = fmt.Sprint("call_", i)
		l.Note(usual)
	}
	if err := l.Sync(b.Context()); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if r, err := l.Verify(b.Context()); err != nil || !r.OK || r.Lines != n {
			b.Fatalf("%+v, %v", r, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/line")
}
