//go:build linux && (amd64 || arm64)

package pool

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/namespaces"
)

// running is a pool of real sandboxes that is full.
func running(t testing.TB, ready int) *Pool {
	t.Helper()
	d, err := namespaces.New(namespaces.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range d.Doctor(t.Context()) {
		if f.Needed && !f.OK {
			d.Close()
			t.Skipf("%s: %s; %s", f.Name, f.Detail, f.Remedy)
		}
	}
	p := &Pool{Driver: d, Ready: ready}
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { p.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		run.Wait()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	full(t, p)
	return p
}

func full(t testing.TB, p *Pool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); p.Stats().Waiting < p.Ready; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the pool is not filled: %+v", p.Stats())
		}
	}
}

func TestRealSandboxesComeFromThePool(t *testing.T) {
	p := running(t, 2)
	for _, spec := range []sandbox.Spec{{}, {
		Limits: sandbox.Limits{MemoryMiB: 64, Descriptors: 77},
		Env:    []string{"A=b"},
	}} {
		s, warm, err := p.Claim(t.Context(), spec)
		if err != nil || !warm {
			t.Fatal(warm, err)
		}
		var out bytes.Buffer
		c, err := s.Exec(t.Context(), sandbox.Command{Argv: []string{"sh", "-c", "ulimit -n; echo $A"}, Stdout: &out})
		if err != nil {
			t.Fatal(err)
		}
		if r, err := c.Wait(); err != nil || r.Outcome != sandbox.OK {
			t.Error(r, err)
		}
		want := "1024\n\n"
		if len(spec.Env) > 0 {
			want = "77\nb\n"
		}
		if out.String() != want {
			t.Errorf("%q, want %q", out.String(), want)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		full(t, p)
	}
}

// A claim, and the first result, while the pool is full.
func BenchmarkClaim(b *testing.B) {
	p := running(b, 4)
	var claims, firsts, adjusted []time.Duration
	run := func(s sandbox.Sandbox, argv ...string) {
		c, err := s.Exec(b.Context(), sandbox.Command{Argv: argv})
		if err != nil {
			b.Fatal(err)
		}
		if r, err := c.Wait(); err != nil || r.Outcome != sandbox.OK {
			b.Fatal(r, err)
		}
	}
	for b.Loop() {
		full(b, p)
		began := time.Now()
		s, warm, err := p.Claim(b.Context(), sandbox.Spec{})
		claims = append(claims, time.Since(began))
		if err != nil || !warm {
			b.Fatal(warm, err)
		}
		run(s, "python3", "-c", "print(1)")
		firsts = append(firsts, time.Since(began))
		s.Close()
		full(b, p)
		began = time.Now()
		s, _, err = p.Claim(b.Context(), sandbox.Spec{Limits: sandbox.Limits{MemoryMiB: 512}})
		adjusted = append(adjusted, time.Since(began))
		if err != nil {
			b.Fatal(err)
		}
		s.Close()
	}
	for what, took := range map[string][]time.Duration{
		"claim":             claims,
		"claim-with-limits": adjusted,
		"claim-and-python":  firsts,
	} {
		slices.Sort(took)
		ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
		b.ReportMetric(ms(took[len(took)/2]), what+"-p50-ms")
		b.ReportMetric(ms(took[len(took)*95/100]), what+"-p95-ms")
	}
	b.ReportMetric(0, "ns/op")
}
