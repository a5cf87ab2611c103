//go:build linux && (amd64 || arm64)

package namespaces

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
)

// spread reports the median and the 95th of 100 of what was measured.
func spread(b *testing.B, what string, took []time.Duration) {
	if len(took) == 0 {
		return
	}
	slices.Sort(took)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	b.ReportMetric(ms(took[len(took)/2]), what+"-p50-ms")
	b.ReportMetric(ms(took[len(took)*95/100]), what+"-p95-ms")
}

// One sandbox after the other: made, used by the first programs, ended.
func BenchmarkColdCreate(b *testing.B) {
	d, err := New(Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	var create, first, second, python, end []time.Duration
	timed := func(to *[]time.Duration, f func()) {
		began := time.Now()
		f()
		*to = append(*to, time.Since(began))
	}
	run := func(s sandbox.Sandbox, argv ...string) {
		var errs bytes.Buffer
		p, err := s.Exec(b.Context(), sandbox.Command{Argv: argv, Stderr: &errs})
		if err != nil {
			b.Fatal(err)
		}
		if r, err := p.Wait(); err != nil || r.Outcome != sandbox.OK {
			b.Fatal(r, err, errs.String())
		}
	}
	for b.Loop() {
		var s sandbox.Sandbox
		timed(&create, func() { s, err = d.Create(b.Context(), sandbox.Spec{}) })
		if err != nil {
			b.Fatal(err)
		}
		timed(&first, func() { run(s, "true") })
		timed(&second, func() { run(s, "true") })
		timed(&python, func() { run(s, "python3", "-c", "print(1)") })
		timed(&end, func() { err = s.Close() })
		if err != nil {
			b.Fatal(err)
		}
	}
	spread(b, "create", create)
	spread(b, "first", first)
	spread(b, "next", second)
	spread(b, "python", python)
	spread(b, "close", end)
	b.ReportMetric(0, "ns/op")
}
