package relaytest

import (
	"sync/atomic"
	"testing"
)

// BenchmarkRelay is one call of a read-only tool, by 16 callers at once: of a child, and of a server over HTTP.
func BenchmarkRelay(b *testing.B) {
	for name, r := range upstreams(b) {
		b.Run(name, func(b *testing.B) {
			m, _ := install(b, r, nil)
			var failed atomic.Pointer[error]
			b.SetParallelism(8)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := m.Call(b.Context(), "up", "test_simple_text", nil, nil, nil); err != nil {
						failed.Store(&err)
					}
				}
			})
			if err := failed.Load(); err != nil {
				b.Fatal(*err)
			}
		})
	}
}
