package sandboxtest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
)

// resources checks that each limit holds when code tries to exceed it.
func (s suite) resources(t *testing.T) {
	t.Run("memory", s.limitsMemory)
	t.Run("memory by way of files", s.limitsMemoryOfFiles)
	t.Run("disk", s.limitsDisk)
	t.Run("files", s.limitsFiles)
	t.Run("descriptors", s.limitsDescriptors)
	t.Run("processes", s.limitsProcesses)
	t.Run("processors", s.limitsProcessors)
}

func (s suite) limitsMemory(t *testing.T) {
	t.Parallel()
	can := s.driver.Capabilities()
	if can.Memory == sandbox.NotEnforced {
		t.Skip("the driver holds no limit of memory here")
	}
	b := s.probed(t, sandbox.Spec{Limits: sandbox.Limits{MemoryMiB: 96}})
	for range 2 {
		r := run(t, b, sandbox.Command{Argv: []string{probePath, "hog", "400"}})
		together := can.Memory == sandbox.ByCgroup1 || can.Memory == sandbox.ByCgroup2
		if together && r.Outcome != sandbox.OutOfMemory || !together && !strings.Contains(r.stdout, "ENOMEM") {
			t.Errorf("%+v, %v: %q %.300q", r.Result, r.err, r.stdout, r.stderr)
		}
		// A caller that runs code in a lasting program has to ask.
		if counts, ok := b.(interface{ OOMKills() int }); together && (!ok || counts.OOMKills() == 0) {
			t.Error("the sandbox does not count how often memory ran out")
		}
		b = s.after(t, b, r)
	}
}

func (s suite) limitsMemoryOfFiles(t *testing.T) {
	t.Parallel()
	b := s.probed(t, sandbox.Spec{Limits: sandbox.Limits{MemoryMiB: 96}})
	got := answers(t, b, "fill", "/dev/shm", "400")
	if n, _ := strconv.Atoi(got["MiB"]); got["error"] != "ENOSPC" || n > 96 {
		t.Errorf("%v", got)
	}
	alive(t, b)
}

func (s suite) limitsDisk(t *testing.T) {
	t.Parallel()
	b := s.probed(t, sandbox.Spec{Limits: sandbox.Limits{DiskMiB: 24}})
	if got := b.Limits().DiskMiB; got != 24 {
		t.Errorf("the limit that holds is %d", got)
	}
	total := 0
	for _, dir := range []string{"/tmp", "/home/user", "/var/tmp", "/dev/shm"} {
		got := answers(t, b, "fill", dir, "100")
		n, _ := strconv.Atoi(got["MiB"])
		if total += n; got["error"] != "ENOSPC" {
			t.Errorf("%s: %v", dir, got)
		}
	}
	if total > 24 || total < 12 {
		t.Errorf("%d MiB were written to 24", total)
	}
	shell(t, b, "rm -f /tmp/fill*")
	alive(t, b)
}

func (s suite) limitsFiles(t *testing.T) {
	t.Parallel()
	b := s.probed(t, sandbox.Spec{Limits: sandbox.Limits{DiskMiB: 8}})
	if got := answers(t, b, "inodes", "/tmp", "100000"); got["error"] != "ENOSPC" {
		t.Errorf("%v", got)
	}
	alive(t, b)
}

func (s suite) limitsDescriptors(t *testing.T) {
	t.Parallel()
	b := s.probed(t, sandbox.Spec{Limits: sandbox.Limits{Descriptors: 100}})
	got := answers(t, b, "open", "1000")
	if n, _ := strconv.Atoi(got["files"]); got["error"] != "EMFILE" || n > 100 {
		t.Errorf("%v", got)
	}
}

func (s suite) limitsProcesses(t *testing.T) {
	t.Parallel()
	can := s.driver.Capabilities()
	if can.Processes == sandbox.NotEnforced {
		t.Skip("the driver holds no limit of processes here")
	}
	const most = 40
	b := s.box(t, sandbox.Spec{Limits: sandbox.Limits{Processes: most}})
	r := shell(t, b, `i=0; while [ $i -lt 1000 ]; do i=$((i+1)); sleep 1000 & echo $i; done`)
	lines := strings.Fields(r.stdout)
	if n := len(lines); r.Outcome == sandbox.OK || n > most || n < most/2 {
		t.Errorf("%d processes of %d: %+v, %v: %.200s", n, most, r.Result, r.err, r.stderr)
	}
	alive(t, b)
	bomb, err := b.Exec(t.Context(), sandbox.Command{
		Argv:    []string{"sh", "-c", `b() { b | b & }; b; sleep 1000`},
		Timeout: -1,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := b.Ping(ctx); err != nil {
		t.Errorf("beside a fork bomb: %v", err)
	}
	bomb.Signal(9)
	if r, err := bomb.Wait(); err != nil {
		t.Errorf("%+v, %v", r, err)
	}
	alive(t, b)
}

func (s suite) limitsProcessors(t *testing.T) {
	t.Parallel()
	can := s.driver.Capabilities()
	if can.CPU == sandbox.NotEnforced {
		t.Skip("the driver holds no limit of processors here")
	}
	b := s.box(t, sandbox.Spec{Limits: sandbox.Limits{VCPUs: 1}})
	for _, owner := range []string{"", "ann", "bob"} { // the limit stays when a principal is given the sandbox, once
		owned := make(chan error, 1)
		if a, ok := b.(interface{ Assign(string) error }); ok && owner != "" {
			go func() { owned <- a.Assign(owner) }()
		} else {
			owned <- nil
		}
		r := run(t, b, sandbox.Command{
			Argv:    []string{"sh", "-c", "for i in 1 2 3 4; do (while :; do :; done) & done; sleep 1000"},
			Timeout: 2 * time.Second,
		})
		if r.CPU > 3*time.Second {
			t.Errorf("%v of processor time in %v with one processor", r.CPU, r.Took)
		}
		if err := <-owned; err != nil {
			t.Error(err)
		}
	}
	alive(t, b)
}

// lifecycle checks how sandboxes are made, changed and closed.
func (s suite) lifecycle(t *testing.T) {
	t.Run("limits too high", s.refusesLimits)
	t.Run("closed during a call", s.closesDuringCall)
	t.Run("made another one", s.adjusts)
	t.Run("made for nobody", s.createsCancelled)
	t.Run("a busy one holds up no other", s.busyBesideOther)
}

func (s suite) refusesLimits(t *testing.T) {
	if b, err := s.driver.Create(t.Context(), sandbox.Spec{Limits: sandbox.Limits{MemoryMiB: -1}}); err == nil {
		b.Close()
		t.Error("a sandbox with less than no memory was made")
	}
}

func (s suite) closesDuringCall(t *testing.T) {
	b := s.box(t, sandbox.Spec{})
	p, err := b.Exec(t.Context(), sandbox.Command{Argv: []string{"sleep", "1000"}, Timeout: -1})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if r, err := p.Wait(); r.Outcome != sandbox.Lost || err == nil {
		t.Errorf("%+v, %v, want lost", r, err)
	}
	select {
	case <-b.Done():
	case <-time.After(patience):
		t.Error("it is not done")
	}
	if err := b.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
	if _, err := b.Exec(t.Context(), sandbox.Command{Argv: []string{"true"}}); err == nil {
		t.Error("it still ran a program")
	}
	if err := b.Ping(t.Context()); err == nil {
		t.Error("it still answered")
	}
}

func (s suite) adjusts(t *testing.T) {
	b := s.probed(t, sandbox.Spec{Limits: sandbox.Limits{MemoryMiB: 64}, Env: []string{"WHICH=first"}})
	a, ok := b.(sandbox.Adjustable)
	if !ok {
		t.Skip("the driver's sandboxes stay as they are made")
	}
	for _, want := range []sandbox.Limits{
		{MemoryMiB: 200, DiskMiB: 40, Descriptors: 50, OutputBytes: 100, Processes: 100},
		{MemoryMiB: 80, DiskMiB: 30, Descriptors: 60, OutputBytes: 1000, Processes: 80},
	} {
		if err := a.Adjust(t.Context(), want, []string{"WHICH=second"}); err != nil {
			t.Fatal(err)
		}
		got := b.Limits()
		if got.MemoryMiB != want.MemoryMiB || got.DiskMiB != want.DiskMiB || got.Descriptors != want.Descriptors {
			t.Errorf("the limits are %+v, want %+v", got, want)
		}
		if r := shell(t, b,
			"ulimit -n; echo $WHICH; df -m /tmp | tail -1 | tr -s ' ' | cut -d' ' -f2"); r.stdout != fmt.Sprintf("%d\nsecond\n%d\n", want.Descriptors, want.DiskMiB) {
			t.Errorf("%q, %v: %s", r.stdout, r.err, r.stderr)
		}
		if r := shell(t, b, "yes"); r.Outcome != sandbox.OutputLimit || len(r.stdout) != want.OutputBytes {
			t.Errorf("%+v with %d bytes", r.Result, len(r.stdout))
		}
	}
	if err := a.Adjust(t.Context(), sandbox.Limits{MemoryMiB: -1}, nil); err == nil {
		t.Error("less than no memory was allowed")
	}
}

func (s suite) createsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if b, err := s.driver.Create(ctx, sandbox.Spec{}); err == nil {
		b.Close() // it was quicker
	}
}

func (s suite) busyBesideOther(t *testing.T) {
	busy := s.box(t, sandbox.Spec{})
	p, err := busy.Exec(t.Context(), sandbox.Command{Argv: []string{"sleep", "1000"}, Timeout: -1})
	if err != nil {
		t.Fatal(err)
	}
	other := s.box(t, sandbox.Spec{})
	alive(t, other)
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	p.Signal(15)
	if r, err := p.Wait(); r.Signal != 15 {
		t.Errorf("%+v, %v", r, err)
	}
}
