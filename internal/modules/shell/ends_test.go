package shell

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gatehouse/internal/exec/proc"
	"gatehouse/module/moduletest"
)

// leavers are ways to start what is to outlive a command. Each process writes
// its number to a file named pid.
var leavers = []struct {
	script string
	starts int
}{
	{`sh -c 'echo $$ >> pid; exec sleep 1000' &`, 1},
	{`(sh -c 'echo $$ >> pid; exec sleep 1000' &) &`, 1},
	{`setsid sh -c 'echo $$ >> pid; exec sleep 1000' &`, 1},
	{
		`(setsid sh -c 'echo $$ >> pid; trap "" TERM HUP; (sh -c "echo \$\$ >> pid; exec sleep 1000" &) ; sleep 1000' >/dev/null 2>&1 </dev/null &) &`,
		2,
	},
	{`nohup setsid sh -c 'echo $$ >> pid; exec sleep 1000' >/dev/null 2>&1 </dev/null &`, 1},
}

// gone fails for each process of the file that is alive.
func (d *fixture) gone(after string) {
	d.t.Helper()
	b, _ := os.ReadFile(d.path("pid"))
	for f := range strings.FieldsSeq(string(b)) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			d.t.Fatal(err)
		}
		if alive(pid) {
			d.t.Errorf("%s: process %d is still there", after, pid)
			if p, err := os.FindProcess(pid); err == nil {
				p.Kill()
			}
		}
	}
	os.Remove(d.path("pid"))
}

// alive tells whether a process is there and no zombie.
func alive(pid int) bool {
	if p, err := os.FindProcess(pid); err != nil || p.Signal(syscall.Signal(0)) != nil {
		return false
	}
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, after, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(after, "Z") && !strings.HasPrefix(after, "X")
}

// begun waits, in a shell, until so many processes have written their numbers.
const begun = ` until [ "$(cat pid 2>/dev/null | wc -l)" -ge %d ]; do sleep 0.01; done; `

func TestNothingOutlivesACommand(t *testing.T) {
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Skip(err)
	}
	for _, l := range leavers {
		t.Run(l.script, func(t *testing.T) {
			t.Parallel()
			d := open(t, "")
			start := l.script + fmt.Sprintf(begun, l.starts)
			if r := d.run(start+"exit 0", "timeout", 60); r.ExitCode != 0 || r.TimedOut {
				t.Errorf("%+v", r)
			}
			d.gone("at its end")

			patiently(t, func(seconds int) bool {
				r := d.run(start+"echo begun; sleep 1000", "timeout", seconds)
				if !r.TimedOut || r.ExitCode != -1 {
					t.Errorf("%+v", r)
				}
				d.gone("at the deadline")
				return r.Stdout == "begun\n"
			})

			_, _, err := d.call(
				d.whenReady(), "run", args{"command": start + "touch ready; sleep 1000", "timeout": 300},
			)
			if !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled, it ended with %v", err)
			}
			d.gone("when it is cancelled")
		})
	}
}

// whenReady is a context that ends as soon as there is a file named ready.
func (d *fixture) whenReady() context.Context {
	ctx, cancel := context.WithCancel(d.t.Context())
	go func() {
		defer cancel()
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if _, err := os.Stat(d.path("ready")); err == nil {
				return
			}
		}
	}()
	return ctx
}

// A flood fills neither memory nor the answer. 1 GB with GATEHOUSE_TEST_ALL,
// 100 MB without.
func TestAFloodLeavesMemoryFlat(t *testing.T) {
	size := int64(100_000_000)
	if os.Getenv("GATEHOUSE_TEST_ALL") != "" {
		size = 1_000_000_000
	}
	d := open(t, "")
	var most uint64
	done := make(chan struct{})
	watched := make(chan struct{})
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse
	}
	debug.FreeOSMemory()
	before := heap()
	go func() {
		defer close(watched)
		for {
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
				most = max(most, heap())
			}
		}
	}()
	res, peer, err := d.call(t.Context(), "run", args{"command": fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x; "+
		"echo; echo the end", size), "timeout": 300})
	close(done)
	<-watched
	if err != nil {
		t.Fatal(err)
	}
	r := res.Structured.(runOut)
	if !r.Truncated || r.TimedOut || len(r.Stdout) > 1<<20+200 || !strings.HasSuffix(r.Stdout, "\nthe end\n") ||
		peer.PrintedAll != size+9 {
		t.Errorf("%d bytes, %d in full, %+v", len(r.Stdout), peer.PrintedAll, r.ExitCode)
	}
	if grown := int64(most) - int64(before); grown > 24<<20 {
		t.Errorf("%d bytes more were held", grown)
	}
}

// What is kept of a stream are its ends, however it comes.
func TestCaptureKeepsTheEnds(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		all := make([]byte, random.IntN(300))
		for i := range all {
			all[i] = byte('a' + random.IntN(26))
		}
		c := newCapture(64)
		for rest := all; len(rest) > 0; {
			n := min(len(rest), 1+random.IntN(80))
			c.Write(rest[:n])
			rest = rest[n:]
		}
		text := c.captured()
		if len(all) <= 64 {
			if text != string(all) || c.cut() {
				t.Fatalf("of %s is left %s", all, text)
			}
			continue
		}
		begin, rest, _ := strings.Cut(text, "\n[")
		_, end, _ := strings.Cut(rest, "]\n")
		if !c.cut() || begin != string(all[:32]) || end != string(all[len(all)-32:]) {
			t.Fatalf("of %s is left %s", all, text)
		}
	}
}

func TestCaptureCutsBetweenCharacters(t *testing.T) {
	for most := 20; most < 30; most++ {
		c := newCapture(most)
		io.WriteString(c, strings.Repeat("€", 40))
		if text := c.captured(); strings.Contains(text, `\x`) || strings.Count(text, "€") < 4 {
			t.Errorf("%d: %q", most, text)
		}
	}
	c := newCapture(40)
	io.WriteString(c, "one\ntwo\nthree\n"+strings.Repeat("x\n", 100)+"end\n")
	if text := c.captured(); !strings.HasPrefix(text, "one\ntwo\nthree\nx\n") ||
		!strings.HasSuffix(text, "\nx\nend\n") ||
		!strings.Contains(text, "\n[") {
		t.Errorf("%q", text)
	}
}

// BenchmarkRun runs a line by turns with the tool, judged and not, and with
// os/exec, and tells how many times as long the median of ours takes. The bar is
// 1.3 times.
func BenchmarkRun(b *testing.B) {
	for name, config := range map[string]string{"shell": "", "judged": `{"allow":["echo","true"],"deny":["rm*"]}`} {
		b.Run(name, func(b *testing.B) {
			d := open(b, config)
			tl := moduletest.Tool(b, d.m, "shell_run")
			c := moduletest.NewCall(b)
			c.Roots, c.Args = d.dir, json.RawMessage(`{"command":"echo x | true","timeout":30}`)
			var ours, plain []time.Duration
			for b.Loop() {
				began := time.Now()
				if _, err := tl.Run(b.Context(), &c.Call); err != nil {
					b.Fatal(err)
				}
				ours, began = append(ours, time.Since(began)), time.Now()
				cmd := exec.Command("/bin/sh", "-c", "echo x | true")
				cmd.Env = proc.BaseEnv()
				cmd.Stdout, cmd.Stderr = struct{ io.Writer }{io.Discard}, struct{ io.Writer }{new(bytes.Buffer)}
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
