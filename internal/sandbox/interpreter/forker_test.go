//go:build linux && (amd64 || arm64)

package interpreter

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/namespaces"
)

// box is a sandbox that is closed with the test. Where none can be made the
// test is skipped, with what the driver says of it.
func box(t testing.TB, spec sandbox.Spec) sandbox.Sandbox {
	t.Helper()
	d, err := namespaces.New(namespaces.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	s, err := d.Create(t.Context(), spec)
	if err != nil {
		for _, f := range d.Doctor(t.Context()) {
			if f.Needed && !f.OK {
				t.Skipf("no sandboxes here: %s; %s", f.Detail, f.Remedy)
			}
		}
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// needs skips a test of an interpreter that sandboxes do not see here.
func needs(t testing.TB, program string) {
	t.Helper()
	for _, dir := range []string{"/usr/local/bin/", "/usr/bin/", "/bin/"} {
		if _, err := os.Stat(dir + program); err == nil {
			return
		}
	}
	t.Skipf("this machine has no %s where sandboxes look for it", program)
}

// ran is what came of a piece of code.
type ran struct {
	Result
	err            error
	stdout, stderr string
	parts          []Part
}

// do runs a piece with the given runner.
func do(t testing.TB, run func(context.Context, Code) (Result, error), c Code) ran {
	t.Helper()
	var out, errs bytes.Buffer
	var r ran
	c.Stdout, c.Stderr, c.Show = &out, &errs, func(p Part) { r.parts = append(r.parts, p) }
	if c.Timeout == 0 {
		c.Timeout = time.Minute
	}
	r.Result, r.err = run(t.Context(), c)
	r.stdout, r.stderr = out.String(), errs.String()
	return r
}

func forker(t testing.TB, spec sandbox.Spec) (*Forker, sandbox.Sandbox) {
	t.Helper()
	needs(t, "python3")
	b := box(t, spec)
	f, err := StartForker(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f, b
}

func TestEachPieceOfCodeIsAProgramOfItsOwn(t *testing.T) {
	f, _ := forker(t, sandbox.Spec{})
	for _, c := range []struct {
		name, code     string
		outcome        sandbox.Outcome
		exit, signal   int
		stdout, stderr string
	}{
		{"prints", "print('hello')", sandbox.OK, 0, 0, "hello\n", ""},
		{"sets something", "x = 1", sandbox.OK, 0, 0, "", ""},
		{"does not find it again", "print('x' in globals())", sandbox.OK, 0, 0, "False\n", ""},
		{"is the main module", "import sys; print(__name__, sys.argv)", sandbox.OK, 0, 0, "__main__ ['<code>']\n", ""},
		{"leaves with a code", "import sys; sys.exit(7)", sandbox.Failed, 7, 0, "", ""},
		{"leaves with a word", "raise SystemExit('no')", sandbox.Failed, 1, 0, "", "no\n"},
		{"says what it left to do", "import atexit; atexit.register(print, 'bye')", sandbox.OK, 0, 0, "bye\n", ""},
		{"waits for its threads",
			"import threading, time; threading.Thread(target=lambda: (time.sleep(.05), print('late'))).start()",
			sandbox.OK, 0, 0, "late\n", ""},
		{"kills itself", "import os; os.kill(os.getpid(), 9)", sandbox.Signalled, 0, 9, "", ""},
		{"writes past Python", "import os; os.write(1, b'raw\\n'); os.write(2, b'err\\n')", sandbox.OK, 0, 0,
			"raw\n", "err\n"},
		{"has children", "import subprocess; subprocess.run(['echo', 'child'])", sandbox.OK, 0, 0, "child\n", ""},
	} {
		r := do(t, f.Run, Code{Source: c.code})
		if r.Outcome != c.outcome || r.Code != c.exit || r.Signal != c.signal || r.stdout != c.stdout ||
			r.stderr != c.stderr || r.err != nil {
			t.Errorf("code that %s: %+v, %v, %q, %q", c.name, r.Result, r.err, r.stdout, r.stderr)
		}
	}
	if !f.Alive() {
		t.Error("the interpreter is gone")
	}
}

// What code prints is there when it does, and not only if it ends by itself.
func TestWhatIsPrintedIsThereWhileTheCodeRuns(t *testing.T) {
	f, _ := forker(t, sandbox.Spec{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var got []byte
	c := Code{Source: "print('here')\nimport time; time.sleep(1000)", Timeout: time.Minute,
		Stdout: writer(func(b []byte) error {
			got = append(got, b...)
			cancel()
			return nil
		})}
	if _, err := f.Run(ctx, c); !errors.Is(err, context.Canceled) || string(got) != "here\n" {
		t.Errorf("%v, %q", err, got)
	}
}

func TestAnErrorComesWithItsTraceback(t *testing.T) {
	f, _ := forker(t, sandbox.Spec{})
	r := do(t, f.Run, Code{Source: "def f():\n    return 1/0\nf()\n"})
	if r.Outcome != sandbox.Failed || r.Code != 1 || r.Error == nil || r.Error.Name != "ZeroDivisionError" ||
		r.Error.Message != "division by zero" {
		t.Fatalf("%+v, %+v", r.Result, r.Error)
	}
	for _, want := range []string{"Traceback", `File "<code>", line 2, in f`, "return 1/0"} {
		if !strings.Contains(r.Error.Traceback, want) || !strings.Contains(r.stderr, want) {
			t.Errorf("%q is missing in %q or %q", want, r.Error.Traceback, r.stderr)
		}
	}
	if strings.Contains(r.stderr, "exec(") {
		t.Errorf("the traceback shows the interpreter's own lines: %q", r.stderr)
	}
	if r := do(t, f.Run, Code{Source: "x = ("}); r.Error == nil || r.Error.Name != "SyntaxError" {
		t.Errorf("%+v, %+v", r.Result, r.Error)
	}
}

func TestCodeIsGivenWhatItNeeds(t *testing.T) {
	f, _ := forker(t, sandbox.Spec{Env: []string{"A=of the sandbox"}})
	r := do(t, f.Run, Code{
		Source: "import os, sys; print(os.environ['A'], os.environ['B'], os.getcwd(), sys.stdin.read())",
		Env:    []string{"B=of the call"}, Dir: "/tmp", Stdin: []byte("typed"),
	})
	if want := "of the sandbox of the call /tmp typed\n"; r.stdout != want {
		t.Errorf("%q, want %q: %s", r.stdout, want, r.stderr)
	}
	if r := do(t, f.Run,
		Code{Source: "import os; print('B' in os.environ, os.getcwd())"}); r.stdout != "False /home/user\n" {
		t.Errorf("the next one is told of it: %q", r.stdout)
	}
}

func TestWhatIsShownComesAsParts(t *testing.T) {
	f, _ := forker(t, sandbox.Spec{})
	r := do(t, f.Run, Code{Source: `
class Picture:
    def _repr_png_(self): return b'\x89PNG'
display(Picture(), {'a': [1, 2]}, 'text')
`})
	var got []string
	for _, p := range r.parts {
		got = append(got, p.MIME+" "+string(p.Data))
	}
	if want := "image/png \x89PNG|application/json {\"a\": [1, 2]}|text/plain 'text'"; strings.Join(got, "|") != want {
		t.Errorf("%q, want %q: %s", got, want, r.stderr)
	}
}

func TestCodeThatHasToEndTakesTheInterpreterAlong(t *testing.T) {
	for _, c := range []struct {
		name string
		code Code
		want sandbox.Outcome
	}{
		{"at its deadline", Code{Source: "while True: pass", Timeout: 300 * time.Millisecond}, sandbox.TimedOut},
		{"for its output", Code{Source: "while True: print('x' * 1000)", OutputBytes: 5000}, sandbox.OutputLimit},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, b := forker(t, sandbox.Spec{})
			r := do(t, f.Run, c.code)
			if r.Outcome != c.want || c.code.OutputBytes > 0 && len(r.stdout) != c.code.OutputBytes {
				t.Errorf("%+v, %v with %d bytes", r.Result, r.err, len(r.stdout))
			}
			if f.Alive() {
				t.Error("the interpreter lives on, and what the code started perhaps too")
			}
			if err := b.Ping(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("when nobody wants it any more", func(t *testing.T) {
		f, _ := forker(t, sandbox.Spec{})
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		if r, err := f.Run(ctx, Code{Source: "import time; time.sleep(1000)"}); !errors.Is(err, context.Canceled) {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

func TestWhatCodeLeftBehindEnds(t *testing.T) {
	f, b := forker(t, sandbox.Spec{})
	r := do(t, f.Run, Code{Source: `
import subprocess, os, time
subprocess.Popen(['sh', '-c', 'while :; do date +%s%N >/tmp/beat; sleep 0.02; done'], start_new_session=True)
while not os.path.exists('/tmp/beat') or not os.path.getsize('/tmp/beat'): time.sleep(0.01)
print('left')
`})
	if r.Outcome != sandbox.OK || r.stdout != "left\n" {
		t.Fatalf("%+v, %q", r.Result, r.stderr)
	}
	var out bytes.Buffer
	p, err := b.Exec(t.Context(), sandbox.Command{
		Argv:   []string{"sh", "-c", "a=$(cat /tmp/beat); sleep 0.5; [ \"$a\" = \"$(cat /tmp/beat)\" ] && echo ended"},
		Stdout: &out,
	})
	if err != nil {
		t.Fatal(err)
	}
	p.Wait()
	if out.String() != "ended\n" || f.Alive() {
		t.Errorf("it lives on: %q, %v", out.String(), f.Alive())
	}
}

func TestOnlyOnePieceRunsAtATime(t *testing.T) {
	f, _ := forker(t, sandbox.Spec{})
	begun, done := make(chan struct{}), make(chan Result)
	go func() {
		r, _ := f.Run(t.Context(), Code{
			Source: "print('begun', flush=True)\nimport os, time\nwhile not os.path.exists('/tmp/go'): " +
				"time.sleep(0.01)",
			Stdout: writer(func([]byte) error { close(begun); return nil }),
		})
		done <- r
	}()
	<-begun
	if _, err := f.Run(t.Context(), Code{Source: "1"}); !errors.Is(err, ErrBusy) {
		t.Errorf("%v, want ErrBusy", err)
	}
	if _, err := f.t.box.(sandbox.Files).WriteFile(t.Context(), "/tmp/go", strings.NewReader(""),
		sandbox.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if r := <-done; r.Outcome != sandbox.OK {
		t.Errorf("%+v", r)
	}
}

// What an interpreter says is not believed.
func TestFramesThatAreNone(t *testing.T) {
	for name, b := range map[string]string{
		"a lying length":   "o\xff\xff\xff\xff",
		"an unknown kind":  "?\x00\x00\x00\x00",
		"no JSON":          "x\x00\x00\x00\x01{",
		"a code of 1000":   "x\x00\x00\x00\x0d{\"code\":1000}",
		"a negative size":  "x\x00\x00\x00\x0a{\"rss\":-1}",
		"a signal of 9000": "x\x00\x00\x00\x0f{\"signal\":9000}",
	} {
		k := quiet()
		k.now = &piece{ended: make(chan ended, 1), full: make(chan struct{})}
		if err := k.receive([]byte(b)); !errors.Is(err, errFrame) {
			t.Errorf("%s: %v, want it to be refused", name, err)
		}
	}
}

// quiet is a connection without a peer.
func quiet() *connection {
	return &connection{p: nobody{}, ready: make(chan struct{}), over: func() {}}
}

type nobody struct{ sandbox.Process }

func (nobody) Signal(int) error { return nil }

func FuzzFrames(f *testing.F) {
	f.Add([]byte("r\x00\x00\x00\x00o\x00\x00\x00\x02hi"))
	f.Add(
		[]byte(
			"d\x00\x00\x00\x33{\"what\":\"show\",\"mime\":\"text/plain\",\"data\":\"aGk=\"}x\x00\x00\x00\x0a{\"code\":0}",
		),
	)
	f.Fuzz(func(t *testing.T, b []byte) {
		k := quiet()
		var out bytes.Buffer
		p := &piece{
			code:  Code{Stdout: &out, Stderr: &out, Show: func(Part) {}},
			most:  100,
			ended: make(chan ended, 1),
			full:  make(chan struct{}),
		}
		k.now = p
		half := len(b) / 2
		if k.receive(b[:half]) == nil {
			k.receive(b[half:])
		}
		if p.out > 100 || p.err > 100 || p.parts > len(b) {
			t.Errorf("%+v", p)
		}
	})
}
