//go:build linux && (amd64 || arm64)

package interpreter

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
	if r := do(t, func(ctx context.Context, c Code) (Result, error) {
		return RunFile(ctx, b, Shell, c)
	}, Code{Source: "mkdir folder; echo 'exports.found = 5' >folder/mine.js"}); r.Code != 0 {
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
		{"does not find it again", Code{Source: "console.log(typeof x, typeof y)"}, sandbox.OK, 0, 0,
			"undefined undefined\n", ""},
		{"is the main module",
			Code{Source: "console.log(require.main === module, __filename, process.argv.length)"}, sandbox.OK, 0,
			0, "true /home/user/code.js 2\n", ""},
		{"leaves with a code", Code{Source: "process.exit(7)"}, sandbox.Failed, 7, 0, "", ""},
		{"says what it left to do",
			Code{Source: "process.on('exit', () => console.log('bye')); setTimeout(() => console.log('late'), 20)"},
			sandbox.OK, 0, 0, "late\nbye\n", ""},
		{"kills itself", Code{Source: "process.kill(process.pid, 9)"}, sandbox.Signalled, 0, 9, "", ""},
		{"has children", Code{Source: "require('child_process').execSync('echo child', {stdio: 'inherit'})"},
			sandbox.OK, 0, 0, "child\n", ""},
		{"reads", Code{
			Source: "process.stdin.on('data', (b) => console.log(b.toString().length))",
			Stdin:  []byte(strings.Repeat("x", 5000)),
		}, sandbox.OK, 0, 0, "5000\n", ""},
		{"reads at once", Code{
			Source: "console.log(require('fs').readFileSync(0, 'utf8'))",
			Stdin:  []byte("typed"),
		}, sandbox.OK, 0, 0, "typed\n", ""},
		{"has nothing to read", Code{Source: "process.stdin.on('end', () => console.log('end')).resume()"},
			sandbox.OK, 0, 0, "end\n", ""},
		{"is somewhere else", Code{
			Source: "console.log(process.cwd(), process.env.A, require('./mine').found)",
			Dir:    "folder",
			Env:    []string{"A=b=c"},
		}, sandbox.OK, 0, 0, "/home/user/folder b=c 5\n", ""},
		{"is a new module",
			Code{Source: "import { basename } from 'node:path'; console.log(await Promise.resolve(basename('/a/b')))"},
			sandbox.OK, 0, 0, "b\n", ""},
		{"is large", Code{Source: "/*" + strings.Repeat("x", 1<<20) + "*/ console.log('large')"}, sandbox.OK, 0,
			0, "large\n", ""},
	} {
		r := do(t, s.soon, c.code)
		if r.Outcome != c.outcome || r.Code != c.exit || r.Signal != c.signal || r.stdout != c.stdout ||
			r.stderr != c.stderr || r.err != nil {
			t.Errorf("code that %s: %+v, %v, %q, %q", c.name, r.Result, r.err, r.stdout, r.stderr)
		}
	}
	for name, code := range map[string]string{
		"throws":     "throw new TypeError('no')",
		"is no code": "this is no code",
		"rejects":    "Promise.reject(new TypeError('no'))",
	} {
		if r := do(t, s.soon, Code{Source: code}); r.Outcome != sandbox.Failed || r.Code != 1 ||
			!strings.Contains(r.stderr, "Error") {
			t.Errorf("code that %s: %+v, %v, %q", name, r.Result, r.err, r.stderr)
		}
	}
}

// What code shows and what goes wrong in it is told of a Node that waited and
// of one that was started for it, and no file of that is left.
func TestAPieceForNodeShows(t *testing.T) {
	s, b := starter(t, sandbox.Spec{})
	for name, run := range map[string]func(context.Context, Code) (Result, error){
		"one that waits": s.soon,
		"one of its own": func(ctx context.Context, c Code) (Result, error) { return RunOnce(ctx, b, Node, c) },
	} {
		for _, c := range []struct{ code, stdout, shown, failed string }{
			{`display({a: 1}, 'text', Buffer.from('\x89PNG', 'latin1')); console.log('out')`, "out\n",
				"application/json {\"a\":1};text/plain text;image/png \x89PNG;", ""},
			{"display(1); throw new TypeError('no')", "", "text/plain 1;", "TypeError no"},
			{"import 'fs'; display(2); throw new RangeError('far')", "", "text/plain 2;", "RangeError far"},
			{"Promise.reject(new TypeError('late'))", "", "", "TypeError late"},
			{"display(3); process.exit(0)", "", "text/plain 3;", ""},
			{"console.log('plain')", "plain\n", "", ""},
		} {
			r := do(t, run, Code{Source: c.code})
			shown, failed := "", ""
			for _, p := range r.parts {
				shown += p.MIME + " " + string(p.Data) + ";"
			}
			if r.Error != nil {
				failed = r.Error.Name + " " + r.Error.Message
			}
			if r.err != nil || r.stdout != c.stdout || shown != c.shown || failed != c.failed {
				t.Errorf("%s, %s: %+v, %v, %q, shows %q, fails with %q, %q", name, c.code, r.Result, r.err,
					r.stdout, shown, failed, r.stderr)
			}
		}
	}
	if all, _, err := b.(sandbox.Files).List(t.Context(), "/tmp", "", 0); err != nil || len(all) != 0 {
		t.Errorf("left: %v, %v", all, err)
	}
}

// fetch goes out by the proxy, also of a Node that by itself would not, whichever
// way the code is run.
func TestFetchOfNodeUsesTheProxy(t *testing.T) {
	needs(t, "node")
	b := box(t, sandbox.Spec{})
	if err := b.(sandbox.Networked).SetNetwork(t.Context(),
		sandbox.Network{Allow: []string{"allowed.test"}}); err != nil {
		t.Fatal(err)
	}
	k, err := NewContext(t.Context(), b, Node, "fetching")
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	for name, run := range map[string]func(context.Context, Code) (Result, error){
		"one of its own":   func(ctx context.Context, c Code) (Result, error) { return RunOnce(ctx, b, Node, c) },
		"one that goes on": k.Run,
	} {
		for _, url := range []string{"http://other.test/", "https://other.test/"} {
			r := do(t, run,
				Code{Source: "fetch('" +
					url + "').then((r) => console.log(r.status), (e) => console.log(e.cause.message)).then(() => 0)"})
			if r.err != nil || !strings.Contains(r.stdout, "403 other.test:") {
				t.Errorf("%s, %s: %+v, %v, %q %q", name, url, r.Result, r.err, r.stdout, r.stderr)
			}
		}
	}
}

// What the code itself writes where that is kept is bounded, and believed no more
// than anything it prints.
func TestWhatIsShownCanBeAnything(t *testing.T) {
	s, _ := starter(t, sandbox.Spec{})
	const find = `const fs = require('fs'); display(1); const at = '/tmp/' + fs.readdirSync('/tmp').find((n) => n.startsWith('.shown')); `
	for name, code := range map[string]string{
		"no JSON":  `fs.writeFileSync(at, 'x\n{"what":"show","mime":5}\n')`,
		"a FIFO":   `fs.unlinkSync(at); require('child_process').execSync('mkfifo ' + at)`,
		"a folder": `fs.unlinkSync(at); fs.mkdirSync(at)`,
		"a link":   `fs.unlinkSync(at); fs.symlinkSync('/dev/zero', at)`,
		"large":    `fs.truncateSync(at, 60 << 20)`,
	} {
		if r := do(t, s.soon, Code{Source: find + code}); r.err != nil || r.Outcome != sandbox.OK ||
			r.Error != nil || len(r.parts) > 1 {
			t.Errorf("%s: %+v, %v, %d parts, %q", name, r.Result, r.err, len(r.parts), r.stderr)
		}
	}
}

// Python that is started for one piece of code is as the one that waits.
func TestAPieceForPythonShows(t *testing.T) {
	needs(t, "python3")
	b := box(t, sandbox.Spec{})
	r := do(t, func(ctx context.Context, c Code) (Result, error) {
		return RunOnce(ctx, b, Python, c)
	}, Code{Source: "display({'a': 1}); print('out'); 1/0"})
	if r.err != nil || r.stdout != "out\n" || len(r.parts) != 1 || r.Error == nil ||
		r.Error.Name != "ZeroDivisionError" || r.StateLost {
		t.Errorf("%+v, %v, %q, %v, %+v", r.Result, r.err, r.stdout, r.parts, r.Error)
	}
}

func TestCodeForNodeIsEndedFromOutside(t *testing.T) {
	s, _ := starter(t, sandbox.Spec{})
	if r := do(t, s.soon, Code{Source: "for (;;);", Timeout: 200 * time.Millisecond}); r.Outcome != sandbox.TimedOut {
		t.Errorf("%+v, %v", r.Result, r.err)
	}
	if r := do(t, s.soon, Code{
		Source:  "process.on('SIGTERM', () => {}); setInterval(() => {}, 1000)",
		Timeout: 200 * time.Millisecond,
	}); r.Outcome != sandbox.TimedOut {
		t.Errorf("one that does not want to end: %+v, %v", r.Result, r.err)
	}
	if r := do(t, s.soon,
		Code{Source: "for (;;) console.log('flood')", OutputBytes: 1000}); r.Outcome != sandbox.OutputLimit ||
		len(r.stdout) != 1000 {
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
