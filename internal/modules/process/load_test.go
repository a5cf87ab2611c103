package process

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/exec/proc"
	"gatehouse/internal/exec/terminal"
	"gatehouse/module/moduletest"
)

func itoa(n int) string { return strconv.Itoa(n) }

// all tells whether the tests are to take as long as they like.
func all() bool { return os.Getenv("GATEHOUSE_TEST_ALL") != "" }

// A flood neither holds up the program nor fills the memory. 1 GB with
// GATEHOUSE_TEST_ALL, 200 MB without.
func TestAFloodLeavesMemoryFlat(t *testing.T) {
	size := 200_000_000
	if all() {
		size = 1_000_000_000
	}
	d := open(t, "")
	heap := func() uint64 {
		debug.FreeOSMemory()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	id := d.sh("head -c " + itoa(size) + " /dev/zero | tr '\\0' x; echo; echo the end")
	for {
		if r := d.do("output", args{"id": id, "wait": "exit", "timeout": 45}); !r.TimedOut {
			break
		}
	}
	if grown := int64(heap()) - int64(before); grown > 8<<20 {
		t.Errorf("%d bytes more are held", grown)
	}
	r := d.do("output", args{"id": id, "tail": 1})
	if r.Output != "the end\n" || r.Next != int64(size+len("\nthe end\n")) {
		t.Errorf("%+v", r)
	}
	kept := d.do("output", args{"id": id, "since": 0})
	if kept.Lost != r.Next-1<<20 || len(kept.Output) != pageBytes || !kept.More {
		t.Errorf("lost %d of %d, a page of %d", kept.Lost, r.Next, len(kept.Output))
	}
}

func TestAnyOutputIsShown(t *testing.T) {
	d := open(t, "")
	for script, want := range map[string]string{
		`printf '\000\001\377\376a\303'`:               "\x00\x01\\xff\\xfea\\xc3",
		`exit 0`:                                       "",
		`exec <&- >&- 2>&-; exit 0`:                    "",
		`printf 'no newline'`:                          "no newline",
		`printf '\342\202'; sleep 0.01; printf '\254'`: "€",
	} {
		id := d.sh(script)
		if r := d.ended(id); r.Output != want || r.Status != "exited" || *r.ExitCode != 0 {
			t.Errorf("%s: %+v", script, r)
		}
	}
	id := d.sh("exec <&- >&- 2>&-; sleep 1000")
	if r := d.do("output", args{"id": id, "wait": "output", "timeout": 0}); !r.TimedOut || r.Status != "running" {
		t.Errorf("%+v", r)
	}
	if r := d.do("kill", args{"id": id}); !r.Success {
		t.Errorf("%+v", r)
	}
}

func TestZombiesAreNotOurs(t *testing.T) {
	need(t, "bash")
	d := open(t, "")
	id := d.do("start", args{"command": "bash", "args": []string{"-c", "for i in {1..50}; do (exit 0) & done; echo " +
		"made; exec sleep 1000"}}).ID
	d.reads(id, "made")
	if l := d.do("list", args{"usage": true}).Processes[0]; l.Processes > 51 {
		t.Errorf("%+v", l)
	}
	if r := d.do("kill", args{"id": id}); !r.Success {
		t.Errorf("%+v", r)
	}
}

func TestAForkBombIsBounded(t *testing.T) {
	need(t, "bash")
	d := open(t, `{"processes":40}`)
	id := d.do("start", args{"command": "bash", "args": []string{"-c", "b() { [ $1 -le 0 ] || { b $(($1-1)) & b " +
		"$(($1-1)) & }; sleep 20; }; echo begun; b 7 2>/dev/null; wait"}}).ID
	d.reads(id, "begun")
	rec := d.m.(*manager).records[id]
	_, limited := rec.child.(*proc.Process).Contained()
	for range 50 {
		u, err := rec.child.Usage()
		if err == nil && limited && u.Processes > 41 {
			t.Fatalf("%d processes", u.Processes)
		}
		time.Sleep(2 * time.Millisecond)
	}
	d.do("kill", args{"id": id})
	if u, err := rec.child.Usage(); err != nil || u.Processes != 0 {
		t.Errorf("left: %+v, %v", u, err)
	}
	t.Log("limited by the system:", limited)
}

func TestTwoHundredAtOnce(t *testing.T) {
	d := open(t, "")
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			r, code := d.try(
				"start", args{"command": "sh", "args": []string{"-c", "echo number " + itoa(i) + "; exec sleep 1000"}},
			)
			if code != "" {
				t.Errorf("%d: %s", i, code)
				return
			}
			if r, code := d.try("output",
				args{"id": r.ID, "wait": "text", "match": "number " + itoa(i) + "\n", "timeout": 45}); code != "" ||
				r.TimedOut {
				t.Errorf("%d: %s %+v", i, code, r)
			}
		})
	}
	wg.Wait()
	l := d.do("list", args{"running_only": true})
	if l.Total != 200 {
		t.Errorf("%d are running", l.Total)
	}
	for _, p := range l.Processes {
		wg.Go(func() {
			if _, code := d.try("kill", args{"id": p.ID}); code != "" {
				t.Errorf("%s: %s", p.ID, code)
			}
		})
	}
	wg.Wait()
	if l := d.do("list", args{"running_only": true}); l.Total != 0 {
		t.Errorf("%d are left", l.Total)
	}
}

// 10,000 starts with GATEHOUSE_TEST_ALL, 1,000 without.
func TestManyStartsLeakNothing(t *testing.T) {
	starts := 1000
	if all() {
		starts = 10_000
	}
	d := open(t, "")
	count := func() (files, goroutines int) {
		list, _ := os.ReadDir("/proc/self/fd")
		return len(list), runtime.NumGoroutine()
	}
	tl, c := moduletest.Tool(t, d.m, "process_run"), moduletest.NewCall(t)
	c.Args = json.RawMessage(`{"command":"true","timeout":60}`)
	run := func() {
		if r, err := tl.Run(t.Context(), &c.Call); err != nil || r.Structured.(runOut).ExitCode != 0 {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	run()
	files, goroutines := count()
	for range starts {
		run()
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		f, g := count()
		if f <= files && g <= goroutines {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d files and %d goroutines before, %d and %d after", files, goroutines, f, g)
		}
	}
	if l := d.do("list", args{}); l.Total > 51 {
		t.Errorf("%d are remembered", l.Total)
	}
}

// A log gives the same bytes, however they came and are read.
func TestALogKeepsTheNewest(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		most := 1 + r.IntN(200)
		l := newLog(most, nil)
		var both []byte
		var of []int
		for range r.IntN(60) {
			b, s := make([]byte, 1+r.IntN(most*2)), r.IntN(2)
			for i := range b {
				b[i] = byte('a' + r.IntN(26))
				of = append(of, s)
			}
			both = append(both, b...)
			stream{l, s}.Write(b)
		}
		for _, which := range [][]int{{stdout}, {stderr}, {stdout, stderr}} {
			var want []byte
			kept := map[int]int{}
			for i := len(both) - 1; i >= 0; i-- {
				if kept[of[i]]++; kept[of[i]] <= most && (len(which) == 2 || which[0] == of[i]) {
					want = append(want, both[i])
				}
			}
			reverse(want)
			var got []byte
			page := 1 + r.IntN(50)
			for at := int64(0); ; {
				p := l.readSince(at, which, page, false)
				got = append(got, p.text...)
				if at = p.end; at == l.total {
					break
				}
			}
			if !bytes.Equal(got, want) {
				t.Fatalf("seed %d, %v: got %q, want %q", seed, which, got, want)
			}
			last := l.readSince(0, which, page, true)
			if n := min(page, len(want)); !bytes.Equal(last.text, want[len(want)-n:]) {
				t.Fatalf("seed %d, %v: the last are %q", seed, which, last.text)
			}
		}
	}
}

func reverse(b []byte) {
	for i, j := 0, len(b)-1; i < j; i, j = i+1, j-1 {
		b[i], b[j] = b[j], b[i]
	}
}

func TestALogOfTurnsIsBounded(t *testing.T) {
	l := newLog(1<<20, nil)
	for i := range 100_000 {
		stream{l, i % 2}.Write([]byte("x"))
	}
	if n := len(l.rings[0].pieces); n > maxPieces {
		t.Errorf("%d pieces", n)
	}
	if p := l.readSince(0, streams("both"), 1<<20, false); p.lost+int64(len(p.text)) != l.total || len(p.text) == 0 {
		t.Errorf("%d lost, %d there, of %d", p.lost, len(p.text), l.total)
	}
}

func FuzzText(f *testing.F) {
	f.Add([]byte("a\x1b[1;3mb\x1b]0;t\ac\r\n\xff\xe2\x82"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if !utf8.ValidString(visible(b)) {
			t.Errorf("%q is not text", visible(b))
		}
		if p := terminal.Plain(b); bytes.ContainsAny(p, "\x1b\a") || len(p) > len(b) {
			t.Errorf("%q", p)
		}
		if n := len(b) - displaytext.Whole(b); n < 0 || n > 3 || n > len(b) {
			t.Errorf("%d of %q", n, b)
		}
		if lastLines(b, 2); strings.Count(string(lastLines(b, 2)), "\n") > 2 {
			t.Errorf("%q", lastLines(b, 2))
		}
	})
}

func FuzzKey(f *testing.F) {
	f.Add("C-c", false)
	f.Add("M-Up", true)
	f.Fuzz(func(t *testing.T, name string, app bool) { keySequence(name, app) })
}

// BenchmarkStart runs a program by turns with the tool and with os/exec, and
// tells how many times as long the median of ours takes. The bar is 1.3 times.
func BenchmarkStart(b *testing.B) {
	d := open(b, "")
	tl := moduletest.Tool(b, d.m, "process_run")
	c := moduletest.NewCall(b)
	c.Args = json.RawMessage(`{"command":"true","timeout":60}`)
	var ours, plain []time.Duration
	for b.Loop() {
		began := time.Now()
		if _, err := tl.Run(b.Context(), &c.Call); err != nil {
			b.Fatal(err)
		}
		ours, began = append(ours, time.Since(began)), time.Now()
		cmd := exec.Command("true")
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
}
