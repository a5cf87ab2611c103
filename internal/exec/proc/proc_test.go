//go:build unix

package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func start(t *testing.T, ctx context.Context, spec Spec) *Process {
	t.Helper()
	p, err := Start(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop(context.Background()) })
	return p
}

func shell(script string) Spec { return Spec{Path: "/bin/sh", Args: []string{"-c", script}} }

func wait(t *testing.T, p *Process) State {
	t.Helper()
	s, err := p.Wait()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// lineWriter passes on the first line that it receives.
type lineWriter struct {
	mu    sync.Mutex
	buf   bytes.Buffer
	lines chan string
}

func newLineWriter() *lineWriter { return &lineWriter{lines: make(chan string, 100)} }

func (w *lineWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf.Write(b)
	for bytes.IndexByte(w.buf.Bytes(), '\n') >= 0 {
		line, _ := w.buf.ReadString('\n')
		w.lines <- strings.TrimSpace(line)
	}
	return len(b), nil
}

func (w *lineWriter) pid(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(<-w.lines)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// eventually polls, because the kernel does not report the end of an orphan.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not so after a minute: " + what)
		}
	}
}

func TestRunsAProgram(t *testing.T) {
	dir := t.TempDir()
	var out, err bytes.Buffer
	spec := shell(`cat; pwd; echo "$A$HOME"; echo oops >&2; exit 3`)
	spec.Dir, spec.Env = dir, []string{"A=x"}
	spec.Stdin, spec.Stdout, spec.Stderr = strings.NewReader("in\n"), &out, &err
	s := wait(t, start(t, t.Context(), spec))
	if s.Code != 3 || s.Signal != "" || s.Stopped != nil || s.Cut || s.Took <= 0 {
		t.Errorf("%+v", s)
	}
	if real, _ := filepath.EvalSymlinks(dir); out.String() != "in\n"+real+"\nx\n" || err.String() != "oops\n" {
		t.Errorf("out %q, err %q", out.String(), err.String())
	}
}

func TestOneWriterForBothKeepsTheOrder(t *testing.T) {
	var out bytes.Buffer
	spec := shell("for i in 1 2 3 4 5; do echo $i; echo $i >&2; done")
	spec.Stdout, spec.Stderr = &out, &out
	wait(t, start(t, t.Context(), spec))
	if out.String() != "1\n1\n2\n2\n3\n3\n4\n4\n5\n5\n" {
		t.Errorf("%q", out.String())
	}
}

func TestFilesAreHandedOverAsTheyAre(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	spec := shell("echo direct")
	spec.Stdout = f
	wait(t, start(t, t.Context(), spec))
	if b, _ := os.ReadFile(f.Name()); string(b) != "direct\n" {
		t.Errorf("%q", b)
	}
}

func TestSaysWhatCannotStart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	os.WriteFile(file, nil, 0o600)
	before := openFiles(t)
	for want, spec := range map[string]Spec{
		"executable file not found": {Path: "no-such-program"},
		"permission denied":         {Path: file},
		"working directory: stat":   {Path: "/bin/sh", Dir: "/no/such/dir"},
		"is not a directory":        {Path: "/bin/sh", Dir: file},
		"no command":                {},
	} {
		spec.Stdin, spec.Stdout = strings.NewReader(""), io.Discard
		if _, err := Start(t.Context(), spec); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if after := openFiles(t); after > before {
		t.Errorf("%d files were open, now %d", before, after)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if _, err := Start(ctx, shell("exit 0")); err == nil || err.Error() != "enough" {
		t.Errorf("after its context: %v", err)
	}
}

func TestStopEndsTheWholeGroup(t *testing.T) {
	for name, script := range map[string]string{
		"child":         "sleep 1000 & echo $!; wait",
		"double fork":   "(sleep 1000 & echo $!) & wait; sleep 1000",
		"deaf child":    "(trap '' TERM; sh -c 'echo $$; while :; do sleep 1; done') & wait",
		"suspended":     "sleep 1000 & echo $!; kill -STOP $$; wait",
		"deaf and dumb": "trap '' TERM; (trap '' TERM; exec sleep 1000) & echo $!; while :; do sleep 1; done",
	} {
		t.Run(name, func(t *testing.T) {
			out := newLineWriter()
			spec := shell(script)
			spec.Stdout, spec.Grace = out, 200*time.Millisecond
			p := start(t, t.Context(), spec)
			grandchild := out.pid(t)
			if err := p.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			if s := wait(t, p); s.Stopped != ErrStopped || s.Code != -1 && s.Code < 128 || s.Cut {
				t.Errorf("%+v", s)
			}
			eventually(t, "the grandchild is gone", func() bool { return !alive(grandchild) })
			eventually(t, "the group is empty", func() bool { return len(members(p.Pid())) == 0 })
		})
	}
}

func TestStopAsksFirst(t *testing.T) {
	out := newLineWriter()
	spec := shell(`trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.01; done`)
	spec.Stdout, spec.Grace = out, time.Minute
	p := start(t, t.Context(), spec)
	<-out.lines
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { p.Stop(t.Context()) })
	}
	wg.Wait()
	if s := wait(t, p); s.Code != 7 || s.Signal != "" || s.Stopped != ErrStopped {
		t.Errorf("%+v", s)
	}
	if bye := <-out.lines; bye != "bye" {
		t.Errorf("its last words were %q", bye)
	}
}

func TestStopHurriesWhenItsContextEnds(t *testing.T) {
	out := newLineWriter()
	spec := shell(`trap '' TERM; echo ready; while :; do sleep 0.01; done`)
	spec.Stdout, spec.Grace = out, time.Hour
	p := start(t, t.Context(), spec)
	<-out.lines
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Stop(ctx); err != nil {
		t.Error(err)
	}
	if s := wait(t, p); s.Signal != "killed" {
		t.Errorf("%+v", s)
	}
}

func TestTheEndOfTheContextEndsTheChild(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	out := newLineWriter()
	spec := shell("sleep 1000 & echo $!; wait")
	spec.Stdout = out
	p := start(t, ctx, spec)
	grandchild := out.pid(t)
	why := errors.New("the call was cancelled")
	cancel(why)
	if s := wait(t, p); s.Stopped != why || s.Signal != "terminated" {
		t.Errorf("%+v", s)
	}
	eventually(t, "the grandchild is gone", func() bool { return !alive(grandchild) })
}

func TestWhatAChildLeavesBehindEndsWithIt(t *testing.T) {
	var out bytes.Buffer
	spec := shell("sleep 1000 & echo $!; (sleep 0.02; echo late) & exit 0")
	spec.Stdout = &out
	s := wait(t, start(t, t.Context(), spec))
	pid, late, _ := strings.Cut(out.String(), "\n")
	n, _ := strconv.Atoi(pid)
	if s.Code != 0 || s.Cut || s.Stopped != nil || n == 0 {
		t.Errorf("%+v, %q", s, out.String())
	}
	if late != "" && late != "late\n" { // it has a quarter of a second to print it
		t.Errorf("%q", late)
	}
	eventually(t, "the background child is gone", func() bool { return !alive(n) })
}

func TestNoZombieStays(t *testing.T) {
	for range 20 {
		p := start(t, t.Context(), shell("exit 0"))
		wait(t, p)
		if err := syscall.Kill(p.Pid(), 0); err != syscall.ESRCH {
			t.Fatalf("%d is still there: %v", p.Pid(), err)
		}
	}
}

func TestManyAtOnceLeaveNothingOpen(t *testing.T) {
	before := openFiles(t)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			var out bytes.Buffer
			spec := shell("cat")
			spec.Stdin, spec.Stdout, spec.Stderr = strings.NewReader(fmt.Sprint(i)), &out, io.Discard
			p, err := Start(t.Context(), spec)
			if err != nil {
				t.Error(err)
				return
			}
			if s, err := p.Wait(); err != nil || s.Code != 0 || out.String() != fmt.Sprint(i) {
				t.Errorf("%+v, %v, %q", s, err, out.String())
			}
		})
	}
	wg.Wait()
	if after := openFiles(t); after > before {
		t.Errorf("%d files were open, now %d", before, after)
	}
}

func TestAFailedWriterIsReported(t *testing.T) {
	full := errors.New("disk full")
	spec := shell("while echo x; do :; done")
	spec.Stdout = writerFunc(func([]byte) (int, error) { return 0, full })
	if s, err := start(t, t.Context(), spec).Wait(); !errors.Is(err, full) || s.Code == 0 && s.Signal == "" {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestAChildNeedNotReadItsInput(t *testing.T) {
	spec := shell("exit 0")
	spec.Stdin = endless{}
	if s := wait(t, start(t, t.Context(), spec)); s.Code != 0 {
		t.Errorf("%+v", s)
	}
}

func TestTheEnvironmentIsMinimal(t *testing.T) {
	t.Setenv("GATEHOUSE_TOKEN", "secret")
	t.Setenv("LC_TIME", "C")
	var out bytes.Buffer
	spec := Spec{Path: "env", Stdout: &out}
	wait(t, start(t, t.Context(), spec))
	if s := out.String(); strings.Contains(s, "secret") || !strings.Contains(s, "LC_TIME=C") ||
		!strings.Contains(s, "PATH=") {
		t.Errorf("%s", s)
	}
	out.Reset()
	spec.Path, spec.Env = "/usr/bin/env", []string{}
	wait(t, start(t, t.Context(), spec))
	if strings.Contains(out.String(), "=") {
		t.Errorf("an empty one is not empty: %s", out.String())
	}
	got := filterEnv([]string{"Path=a", "SystemRoot=b", "SECRET=c", "odd"}, true)
	if !slices.Equal(got, []string{"Path=a", "SystemRoot=b"}) {
		t.Errorf("%v", got)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// BenchmarkStart starts children alternately with this package and with os/exec, and reports the ratio
// of the medians. The limit is 1.3.
func BenchmarkStart(b *testing.B) {
	for name, whole := range map[string]bool{"group": false, "whole": true} {
		b.Run(name, func(b *testing.B) {
			var ours, plain []time.Duration
			for b.Loop() {
				began := time.Now()
				p, err := Start(b.Context(), Spec{Path: "/bin/true", Stdout: io.Discard, Whole: whole})
				if err != nil {
					b.Fatal(err)
				}
				p.Wait()
				ours, began = append(ours, time.Since(began)), time.Now()
				cmd := exec.CommandContext(b.Context(), "/bin/true")
				cmd.Stdout, cmd.Env = struct{ io.Writer }{io.Discard}, BaseEnv()
				if err := cmd.Run(); err != nil {
					b.Fatal(err)
				}
				plain = append(plain, time.Since(began))
			}
			slices.Sort(ours)
			slices.Sort(plain)
			b.ReportMetric(float64(ours[len(ours)/2])/float64(plain[len(plain)/2]), "times-os-exec")
		})
	}
}
