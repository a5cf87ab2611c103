package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
)

// callChecks are the checks that share one sandbox.
type callChecks struct {
	suite
	b sandbox.Sandbox
}

// calls checks how programs are started, and their input, output, environment and folder.
func (s suite) calls(t *testing.T) {
	b := s.box(t, sandbox.Spec{Env: []string{"OF_THE_SANDBOX=1", "OVERRIDDEN=no"}})
	c := callChecks{s, b}
	t.Run("standard streams", c.streams)
	t.Run("much input and output", c.largeStreams)
	t.Run("input nobody reads", c.unreadInput)
	t.Run("environment", c.environment)
	t.Run("folder", c.folder)
	t.Run("what cannot be started", c.startErrors)
	t.Run("many at once", c.concurrent)
	t.Run("background", c.background)
	t.Run("in the background, as many as may be", s.manyInBackground)
	t.Run("ping", c.ping)
}

func (s callChecks) streams(t *testing.T) {
	b := s.b
	r := run(t, b, sandbox.Command{
		Argv:  []string{"sh", "-c", "cat; echo to stderr >&2"},
		Stdin: strings.NewReader("to stdout\n"),
	})
	if r.Outcome != sandbox.OK || r.stdout != "to stdout\n" || r.stderr != "to stderr\n" ||
		r.StdoutSize != 10 || r.StderrSize != 10 {
		t.Errorf("%+v, %v: %q %q", r.Result, r.err, r.stdout, r.stderr)
	}
}

func (s callChecks) largeStreams(t *testing.T) {
	b := s.b
	in := bytes.Repeat([]byte("0123456789abcdef"), 1<<17) // 2 MiB, several windows
	var out bytes.Buffer
	r := run(t, b, sandbox.Command{
		Argv:        []string{"cat"},
		Stdin:       bytes.NewReader(in),
		Stdout:      &out,
		OutputBytes: -1,
	})
	if r.Outcome != sandbox.OK || !bytes.Equal(out.Bytes(), in) {
		t.Errorf("%+v, %v: %d bytes came back of %d", r.Result, r.err, out.Len(), len(in))
	}
}

func (s callChecks) unreadInput(t *testing.T) {
	b := s.b
	r := run(t, b, sandbox.Command{Argv: []string{"true"}, Stdin: bytes.NewReader(make([]byte, 4<<20))})
	if r.Outcome != sandbox.OK {
		t.Errorf("%+v, %v", r.Result, r.err)
	}
}

func (s callChecks) environment(t *testing.T) {
	b := s.b
	t.Setenv("SECRET_OF_THE_HOST", "leaked")
	r := run(t, b, sandbox.Command{Argv: []string{"env"}, Env: []string{"OF_THE_CALL=2", "OVERRIDDEN=yes"}})
	for _, want := range []string{"OF_THE_SANDBOX=1\n", "OF_THE_CALL=2\n", "OVERRIDDEN=yes\n",
		"HOME=" + home(t, b) + "\n"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("%q is missing in %q", want, r.stdout)
		}
	}
	if strings.Contains(r.stdout, "SECRET_OF_THE_HOST") || strings.Contains(r.stdout, "=no") {
		t.Errorf("the environment is %q", r.stdout)
	}
}

func (s callChecks) folder(t *testing.T) {
	b := s.b
	for dir, want := range map[string]string{"": home(t, b) + "\n", "/tmp": "/tmp\n", ".": home(t, b) + "\n"} {
		if r := run(t, b, sandbox.Command{Argv: []string{"pwd"}, Dir: dir}); r.stdout != want {
			t.Errorf("in %q: %q, want %q", dir, r.stdout, want)
		}
	}
}

func (s callChecks) startErrors(t *testing.T) {
	b := s.b
	for name, c := range map[string]sandbox.Command{
		"no program": {}, "a program that is not there": {Argv: []string{"no-such-program"}},
		"a folder that is not there": {Argv: []string{"true"}, Dir: "/nowhere"},
		"a file that is no program":  {Argv: []string{"/etc/passwd"}},
		"arguments too long":         {Argv: []string{"echo", strings.Repeat("x", 1<<20)}},
	} {
		p, err := b.Exec(t.Context(), c)
		if err == nil {
			r, _ := p.Wait()
			t.Errorf("%s: started, and ended %+v", name, r)
		}
	}
	if _, err := b.Exec(t.Context(), sandbox.Command{Argv: []string{"no-such-program"}}); !errors.Is(err,
		fs.ErrNotExist) {
		t.Errorf("a missing program: %v, want one that is fs.ErrNotExist", err)
	}
}

func (s callChecks) concurrent(t *testing.T) {
	b := s.b
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			r := shell(t, b, fmt.Sprintf("echo %d; exit %d", i, i))
			if r.stdout != fmt.Sprintln(i) || r.Code != i {
				t.Errorf("call %d: %+v, %v: %q", i, r.Result, r.err, r.stdout)
			}
		})
	}
	all.Wait()
}

func (s callChecks) background(t *testing.T) {
	b := s.b
	in, type_ := io.Pipe()
	out, say := io.Pipe()
	p, err := b.Exec(t.Context(), sandbox.Command{
		Argv:    []string{"sh", "-c", "while read l; do echo got $l; done"},
		Stdin:   in,
		Stdout:  say,
		Timeout: -1,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"one", "two"} {
		fmt.Fprintln(type_, word)
		line := make([]byte, len("got ")+len(word)+1)
		if _, err := io.ReadFull(out, line); err != nil || string(line) != "got "+word+"\n" {
			t.Errorf("%q, %v", line, err)
		}
	}
	type_.Close()
	if r, err := p.Wait(); err != nil || r.Outcome != sandbox.OK {
		t.Errorf("%+v, %v", r, err)
	}
}

func (s callChecks) ping(t *testing.T) {
	b := s.b
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := b.Ping(ctx); err != nil {
		t.Error(err)
	}
}

// manyInBackground starts nearly as many calls as the sandbox may have processes. The processes of the sandbox
// itself, which start and watch the calls, must not count.
func (s suite) manyInBackground(t *testing.T) {
	if !s.noWall() && !s.driver.Capabilities().OwnUsers {
		t.Skip("the code and what watches it are one user here, and counted together")
	}
	const most = 32
	b := s.box(t, sandbox.Spec{Limits: sandbox.Limits{Processes: most}})
	var all []sandbox.Process
	for i := range most - 4 {
		p, err := b.Exec(t.Context(), sandbox.Command{Argv: []string{"sleep", "1000"}, Timeout: -1})
		if err != nil {
			t.Fatalf("the %dth: %v", i+1, err)
		}
		all = append(all, p)
	}
	if r := shell(t, b, "echo here"); r.stdout != "here\n" {
		t.Errorf("beside them: %+v, %v: %q", r.Result, r.err, r.stdout)
	}
	for _, p := range all {
		p.Signal(9)
	}
	for _, p := range all {
		if r, _ := p.Wait(); r.Outcome != sandbox.Signalled {
			t.Errorf("%+v", r)
		}
	}
}

// daemon is a script that starts a process in a session of its own, which continues after the script, and prints
// "started" when that process runs.
const daemon = `(setsid sh -c 'while :; do date +%s%N >beat; sleep 0.02; done' >/dev/null 2>&1 &)
while [ ! -s beat ]; do sleep 0.01; done; echo started; `

// beats reports whether the process that daemon started is alive.
func beats(t *testing.T, b sandbox.Sandbox) bool {
	t.Helper()
	r := shell(t, b,
		`a=$(cat beat); for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.05; [ "$a" = "$(cat beat)" ] || exit 1; done`)
	return r.Code != 0
}

// toBegin is how long a shell may take to reach the first line of its script on a busy machine.
const toBegin = 5 * time.Second

// ends checks how calls end: on their own, by a signal, at the deadline, and with all their descendants.
func (s suite) ends(t *testing.T) {
	for _, c := range []struct {
		name, script string
		timeout      time.Duration
		want         sandbox.Outcome
		code, signal int
	}{
		{"by itself", "exit 0", 0, sandbox.OK, 0, 0},
		{"with a code", "exit 255", 0, sandbox.Failed, 255, 0},
		{"by its own signal", "kill -SEGV $$", 0, sandbox.Signalled, 0, 11},
		{"by killing itself", "kill -KILL $$", 0, sandbox.Signalled, 0, 9},
		{"asleep at the deadline", "sleep 1000", 300 * time.Millisecond, sandbox.TimedOut, 0, 15},
		{"busy at the deadline", "while :; do :; done", 300 * time.Millisecond, sandbox.TimedOut, 0, 15},
		{"stopped at the deadline", "kill -STOP $$", 300 * time.Millisecond, sandbox.TimedOut, 0, 9},
		{"ignoring to be asked", "trap '' TERM; while :; do sleep 1; done", toBegin, sandbox.TimedOut, 0, 9},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := s.box(t, sandbox.Spec{})
			if s.driver.Capabilities().Tier == sandbox.Machine {
				c.timeout *= 10 // its processor may be emulated, and the script has to have begun
			}
			r := run(t, b, sandbox.Command{Argv: []string{"sh", "-c", c.script}, Timeout: c.timeout})
			// A driver may make what is stopped go on before it asks it to end,
			// and on a busy machine what was asked may be killed before it heard.
			asked := strings.HasPrefix(c.name, "stopped") && r.Signal == 15 || c.signal == 15 && r.Signal == 9
			if r.Outcome != c.want || r.Code != c.code || r.Signal != c.signal && !asked {
				t.Errorf("%+v, %v, want %s, code %d, signal %d", r.Result, r.err, c.want, c.code, c.signal)
			}
			alive(t, b)
		})
	}
	t.Run("with all its descendants", s.endsWithDescendants)
	t.Run("a thousand orphans", s.reapsOrphans)
}

func (s suite) endsWithDescendants(t *testing.T) {
	for name, end := range map[string]func(context.Context, context.CancelFunc, sandbox.Process) string{
		"by itself": func(context.Context, context.CancelFunc, sandbox.Process) string { return "" },
		"killed": func(_ context.Context, _ context.CancelFunc, p sandbox.Process) string {
			p.Signal(9)
			return "sleep 1000"
		},
		"cancelled": func(_ context.Context, cancel context.CancelFunc, _ sandbox.Process) string {
			cancel()
			return "sleep 1000"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := s.box(t, sandbox.Spec{})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			out, say := io.Pipe()
			after := ""
			if name != "by itself" {
				after = "sleep 1000"
			}
			p, err := b.Exec(ctx, sandbox.Command{
				Argv:    []string{"sh", "-c", daemon + after},
				Stdout:  say,
				Timeout: patience,
			})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(out, make([]byte, len("started\n"))); err != nil {
				t.Fatal(err)
			}
			end(ctx, cancel, p)
			if r, err := p.Wait(); name == "cancelled" && !errors.Is(err, context.Canceled) {
				t.Errorf("%+v, %v, want the cancellation as the error", r, err)
			}
			if beats(t, b) {
				t.Error("something lives on")
			}
		})
	}
	t.Run("at the deadline", func(t *testing.T) {
		t.Parallel()
		b := s.box(t, sandbox.Spec{})
		if r := run(t, b, sandbox.Command{
			Argv:    []string{"sh", "-c", daemon + "sleep 1000"},
			Timeout: 2 * time.Second,
		}); r.Outcome != sandbox.TimedOut {
			t.Errorf("%+v, %v", r.Result, r.err)
		}
		if beats(t, b) {
			t.Error("something lives on")
		}
	})
}

func (s suite) reapsOrphans(t *testing.T) {
	b := s.box(t, sandbox.Spec{})
	if r := shell(t, b,
		`i=0; while [ $i -lt 1000 ]; do (true &); i=$((i+1)); done; echo done`); r.stdout != "done\n" {
		t.Errorf("%+v, %v: %s", r.Result, r.err, r.stderr)
	}
}

// output checks programs that print more than the limit, or print in unusual ways.
func (s suite) output(t *testing.T) {
	b := s.box(t, sandbox.Spec{Limits: sandbox.Limits{OutputBytes: 10_000}})
	for stream, redirect := range map[string]string{"stdout": "", "stderr": " >&2"} {
		t.Run("a flood on "+stream, func(t *testing.T) {
			r := run(t, b, sandbox.Command{Argv: []string{"sh", "-c", "yes" + redirect}})
			if r.Outcome != sandbox.OutputLimit || len(r.stdout)+len(r.stderr) != 10_000 {
				t.Errorf("%+v, %v with %d bytes, want output-limit after 10,000", r.Result, r.err,
					len(r.stdout)+len(r.stderr))
			}
			alive(t, b)
		})
	}
	t.Run("up to the limit", func(t *testing.T) {
		if r := shell(t, b, "head -c 10000 /dev/zero"); r.Outcome != sandbox.OK || len(r.stdout) != 10_000 {
			t.Errorf("%+v, %v: %d bytes", r.Result, r.err, len(r.stdout))
		}
	})
	t.Run("a Writer that fails", func(t *testing.T) {
		full := errors.New("no room")
		r := run(t, b, sandbox.Command{Argv: []string{"echo", "x"}, Stdout: failing{full}})
		if !errors.Is(r.err, full) {
			t.Errorf("%+v, %v, want %v", r.Result, r.err, full)
		}
	})
	t.Run("a Writer that blocks holds up nobody else", func(t *testing.T) {
		r, w := io.Pipe()
		p, err := b.Exec(t.Context(), sandbox.Command{Argv: []string{"yes"}, Stdout: w, OutputBytes: -1, Timeout: -1})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			alive(t, b)
		}
		p.Signal(9)
		go io.Copy(io.Discard, r)
		if res, _ := p.Wait(); res.Outcome != sandbox.Signalled {
			t.Errorf("%+v", res)
		}
	})
	t.Run("closed streams", func(t *testing.T) {
		if r := shell(t, b, "exec >&- 2>&-; sleep 0.05; exit 7"); r.Code != 7 {
			t.Errorf("%+v, %v", r.Result, r.err)
		}
	})
	t.Run("frames made up by the program", func(t *testing.T) {
		const exit = `\015\000\000\000\001\000\000\000\002\000\000`
		// What the tests were started with may be open where nothing is held
		// back, and no goroutine may read it any more.
		r := run(t, b,
			sandbox.Command{Argv: []string{"sh", "-c",
				`trap '' PIPE; printf '` + exit + `'; for f in /proc/self/fd/*; do printf '` +
					exit + `' >$f; done 2>/dev/null; exit 3`}})
		if r.Code != 3 {
			t.Errorf("%+v, %v", r.Result, r.err)
		}
		alive(t, b)
	})
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// terminals checks programs that want to talk to a person at a terminal.
func (s suite) terminals(t *testing.T) {
	if !s.driver.Capabilities().Terminals {
		t.Skip("the driver has no terminals")
	}
	b := s.box(t, sandbox.Spec{})
	in, keyboard := io.Pipe()
	var out bytes.Buffer
	p, err := b.Exec(t.Context(), sandbox.Command{
		Argv:  []string{"sh", "-c", "tty; stty size; read l; echo got $l; stty size; exit 4"},
		Stdin: in, Stdout: &out, Terminal: &sandbox.Size{Cols: 100, Rows: 30}, Timeout: patience,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Resize(sandbox.Size{Cols: 50, Rows: 10}); err != nil {
		t.Error(err)
	}
	fmt.Fprint(keyboard, "hello\r")
	r, err := p.Wait()
	if err != nil || r.Code != 4 {
		t.Errorf("%+v, %v: %q", r, err, out.String())
	}
	for _, want := range []string{"/dev/pts/", "got hello", "10 50"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in %q", want, out.String())
		}
	}
}
