//go:build linux && (amd64 || arm64)

package kernel

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
)

func starter(t testing.TB, spec sandbox.Spec) (*Starter, sandbox.Sandbox) {
	t.Helper()
	needs(t, "node")
	b := box(t, spec)
	s, err := StartNode(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, b
}

// soon runs code once a Node waits.
func (s *Starter) soon(ctx context.Context, c Code) (Result, error) {
	for {
		r, err := s.Run(ctx, c)
		if !errors.Is(err, ErrBusy) || ctx.Err() != nil {
			return r, err
		}
		time.Sleep(time.Millisecond)
	}
}

func TestEachPieceForNodeIsAProgramOfItsOwn(t *testing.T) {
	s, b := starter(t, sandbox.Spec{})
	if r := do(t, func(ctx context.Context, c Code) (Result, error) { return RunFile(ctx, b, Shell, c) }, Code{Source: "mkdir folder; echo 'exports.found = 5' >folder/mine.js"}); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	for _, c := range []struct {
		name           string
		code           Code
		outcome        sandbox.Outcome
		exit, signal   int
		stdout, stderr string
	}{
		{"prints", Code{Source: "console.log('hello'); console.error('err')"}, sandbox.OK, 0, 0, "hello\n", "err\n"},
		{"sets something", Code{Source: "globalThis.x = 1; var y = 2"}, sandbox.OK, 0, 0, "", ""},
		{"does not find it again", Code{Source: "console.log(typeof x, typeof y)"}, sandbox.OK, 0, 0, "undefined undefined\n", ""},
		{"is the main module", Code{Source: "console.log(require.main === module, __filename, process.argv.length)"}, sandbox.OK, 0, 0, "true /home/user/code.js 2\n", ""},
		{"leaves with a code", Code{Source: "process.exit(7)"}, sandbox.Failed, 7, 0, "", ""},
		{"says what it left to do", Code{Source: "process.on('exit', () => console.log('bye')); setTimeout(() => console.log('late'), 20)"}, sandbox.OK, 0, 0, "late\nbye\n", ""},
		{"kills itself", Code{Source: "process.kill(process.pid, 9)"}, sandbox.Signalled, 0, 9, "", ""},
		{"has children", Code{Source: "require('child_process').execSync('echo child', {stdio: 'inherit'})"}, sandbox.OK, 0, 0, "child\n", ""},
		{"reads", Code{Source: "process.stdin.on('data', (b) => console.log(b.toString().length))", Stdin: []byte(strings.Repeat("x", 5000))}, sandbox.OK, 0, 0, "5000\n", ""},
		{"reads at once", Code{Source: "console.log(require('fs').readFileSync(0, 'utf8'))", Stdin: []byte("typed")}, sandbox.OK, 0, 0, "typed\n", ""},
		{"has nothing to read", Code{Source: "process.stdin.on('end', () => console.log('end')).resume()"}, sandbox.OK, 0, 0, "end\n", ""},
		{"is somewhere else", Code{Source: "console.log(process.cwd(), process.env.A, require('./mine').found)", Dir: "folder", Env: []string{"A=b=c"}}, sandbox.OK, 0, 0, "/home/user/folder b=c 5\n", ""},
		{"is a new module", Code{Source: "import { basename } from 'node:path'; console.log(await Promise.resolve(basename('/a/b')))"}, sandbox.OK, 0, 0, "b\n", ""},
		{"is large", Code{Source: "/*" + strings.Repeat("x", 1<<20) + "*/ console.log('large')"}, sandbox.OK, 0, 0, "large\n", ""},
	} {
		r := do(t, s.soon, c.code)
		if r.Outcome != c.outcome || r.Code != c.exit || r.Signal != c.signal || r.stdout != c.stdout || r.stderr != c.stderr || r.err != nil {
			t.Errorf("code that %s: %+v, %v, %q, %q", c.name, r.Result, r.err, r.stdout, r.stderr)
		}
	}
	for name, code := range map[string]string{"throws": "throw new TypeError('no')", "is no code": "this is no code", "rejects": "Promise.reject(new TypeError('no'))"} {
		if r := do(t, s.soon, Code{Source: code}); r.Outcome != sandbox.Failed || r.Code != 1 || !strings.Contains(r.stderr, "Error") {
			t.Errorf("code that %s: %+v, %v, %q", name, r.Result, r.err, r.stderr)
		}
	}
}

func TestCodeForNodeIsEndedFromOutside(t *testing.T) {
	s, _ := starter(t, sandbox.Spec{})
	if r := do(t, s.soon, Code{Source: "for (;;);", Timeout: 200 * time.Millisecond}); r.Outcome != sandbox.TimedOut {
		t.Errorf("%+v, %v", r.Result, r.err)
	}
	if r := do(t, s.soon, Code{Source: "process.on('SIGTERM', () => {}); setInterval(() => {}, 1000)", Timeout: 200 * time.Millisecond}); r.Outcome != sandbox.TimedOut {
		t.Errorf("one that does not want to end: %+v, %v", r.Result, r.err)
	}
	if r := do(t, s.soon, Code{Source: "for (;;) console.log('flood')", OutputBytes: 1000}); r.Outcome != sandbox.OutputLimit || len(r.stdout) != 1000 {
		t.Errorf("%+v, %v, %d bytes", r.Result, r.err, len(r.stdout))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	r := do(t, func(_ context.Context, c Code) (Result, error) {
		for {
			r, err := s.Run(ctx, c)
			if !errors.Is(err, ErrBusy) {
				return r, err
			}
			time.Sleep(time.Millisecond)
		}
	}, Code{Source: "setInterval(() => {}, 1000)"})
	if !errors.Is(r.err, context.DeadlineExceeded) || r.Signal == 0 && r.Outcome != sandbox.Lost {
		t.Errorf("%+v, %v", r.Result, r.err)
	}
	if r := do(t, s.soon, Code{Source: "console.log('lives')"}); r.stdout != "lives\n" || r.err != nil {
		t.Errorf("afterwards: %+v, %v", r.Result, r.err)
	}
}

func TestPiecesForNodeRunBesideEachOther(t *testing.T) {
	s, _ := starter(t, sandbox.Spec{})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			if r := do(t, s.soon, Code{Source: "console.log(6 * 7)"}); r.stdout != "42\n" || r.err != nil {
				t.Errorf("%+v, %v, %q %q", r.Result, r.err, r.stdout, r.stderr)
			}
		})
	}
	all.Wait()
}

func TestAClosedStarterRunsNothing(t *testing.T) {
	s, _ := starter(t, sandbox.Spec{})
	if !s.Alive() {
		t.Error("it is not alive")
	}
	s.Close()
	s.Close()
	if _, err := s.Run(t.Context(), Code{Source: "1"}); s.Alive() || !errors.Is(err, ErrBusy) {
		t.Errorf("alive %v, %v", s.Alive(), err)
	}
}

func TestASandboxThatEndsTakesItsNodeAlong(t *testing.T) {
	s, b := starter(t, sandbox.Spec{})
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	<-s.waits.p.Done()
	r, err := s.Run(t.Context(), Code{Source: "1"})
	if !errors.Is(err, ErrBusy) {
		t.Errorf("%+v, %v", r, err)
	}
	if s.Alive() {
		t.Error("it is alive")
	}
}

func BenchmarkNodeThatWaits(b *testing.B) {
	s, _ := starter(b, sandbox.Spec{})
	for b.Loop() {
		b.StopTimer()
		time.Sleep(100 * time.Millisecond) // until the next has started
		b.StartTimer()
		if r := do(b, s.soon, Code{Source: "process.exit(0)"}); r.err != nil || r.Outcome != sandbox.OK {
			b.Fatalf("%+v, %v", r.Result, r.err)
		}
	}
}
