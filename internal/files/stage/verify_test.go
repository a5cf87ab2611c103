package stage

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// long skips a test that takes minutes.
func long(t *testing.T) {
	t.Helper()
	if os.Getenv("GATEHOUSE_TEST_ALL") == "" {
		t.Skip("takes minutes: make verify-stage")
	}
}

// repository copies the tracked files of this repository.
func repositoryCopy(t *testing.T, to string) {
	t.Helper()
	line := "cd ../../.. && git ls-files -z | tar --null -T - -c | tar -x -C \"$0\""
	if out, err := exec.Command("/bin/sh", "-c", line, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// Five hundred calls on this repository, with shells, a build and tests among them, leave it as it was.
func TestFiveHundredCalls(t *testing.T) {
	long(t)
	m, real := open(t, Options{Scratch: []string{cacheDir(t)}})
	repositoryCopy(t, real)
	before := sum(t, real)
	w := begin(t, m, "ann", real)
	for i := range 500 {
		switch {
		case i%100 == 50:
			w.shell(
				"go build -o built ./internal/exec/procid && go test ./internal/exec/procid ./internal/mcp/rawjson " +
					">log 2>&1; git init -q 2>/dev/null; :",
			)
		case i%5 == 0:
			w.shell(
				fmt.Sprintf(
					"echo %d >>README.md; mkdir -p made/%d; cp tool/*.go made/%d; rm -f docs/%d*; chmod 600 go.sum",
					i,
					i,
					i,
					i%10,
				),
			)
		default:
			w.call(func(_ *View, root *os.Root) {
				name := fmt.Sprintf("f%d.txt", i)
				if err := root.WriteFile(name, []byte(name), 0o644); err != nil {
					t.Fatal(err)
				}
				if _, err := root.ReadFile("go.mod"); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
	if after := sum(t, real); after != before {
		t.Fatal("the folder changed")
	}
	began := time.Now()
	_, of, err := m.Changes(w.id, 0)
	all := of.First
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d names changed, listed in %v", len(all), time.Since(began))
	began = time.Now()
	if r := w.accept(); len(r.Conflict) > 0 {
		t.Errorf("conflicts: %v", r.Conflict)
	}
	t.Logf("accepted in %v", time.Since(began))
	began = time.Now()
	if r, err := m.Undo(w.id, "ann"); err != nil || len(r.Conflict) > 0 {
		t.Errorf("undo: %v, %v", r.Conflict, err)
	}
	t.Logf("undone in %v", time.Since(began))
}

// sum returns a digest of content, modes, times and links.
func sum(t *testing.T, dir string) string {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c",
		"find . -printf '%p %y %m %n %T@ %l\\n' | sort; find . -type f -print0 | sort -z | xargs -0 sha256sum")
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func cacheDir(t *testing.T) string {
	out, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		t.Skip(err)
	}
	return string(bytes.TrimSpace(out))
}

// What the view costs: the same lines in turn in the folder and in the view, each first as often as second. The ratio is
// the median of those of the pairs, because other work on the machine slows both halves of a pair down alike.
func TestWhatAViewCosts(t *testing.T) {
	long(t)
	m, real := open(t, Options{Scratch: []string{cacheDir(t)}})
	repositoryCopy(t, real)
	w := begin(t, m, "ann", real)
	w.shell("true")
	for _, c := range []struct {
		name, line string
		rounds     int
		most       float64 // 0 if there is no bar
	}{
		{"reads", "cat $(find . -name '*.go') >/dev/null", 60, 1.1},
		{"opens", "find . -name '*.go' | xargs -n 50 head -qc 1 >/dev/null", 20, 0},
		{"names", "find . -name '*.go' >/dev/null", 20, 0},
		{"writes", "rm -rf out; mkdir out; for d in internal/*; do cp -r $d out/; done", 15, 1.3},
		{"build", "go build -a -o /dev/null ./internal/mcp/rawjson ./internal/files/edit", 5, 1.15},
	} {
		t.Run(c.name, func(t *testing.T) { w.compare(t, c.line, c.rounds, c.most) })
	}
	began := time.Now()
	for range 20 {
		w.shell(":")
	}
	t.Logf("a line that does nothing: %v", time.Since(began)/20)
}

// compare runs a line in turn in the folder and in the view, and prints the ratios of the times and of the time of the
// processor, which other work on the machine changes less. most is what a ratio may be, 0 if there is no bar.
func (w *work) compare(t *testing.T, line string, rounds int, most float64) {
	t.Helper()
	// The line measures itself, so that the start of the view is told apart.
	line = "a=$(date +%s%N); " + line + "; b=$(date +%s%N); echo; echo $((b-a)); times"
	inFolder := func() string {
		cmd := exec.Command("/bin/sh", "-ec", line)
		cmd.Dir = w.real
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	var direct, view [2][]float64
	run := func(into *[2][]float64, how func() string) {
		lines := strings.Split(strings.TrimSpace(how()), "\n")
		if len(lines) < 3 {
			t.Fatalf("got %q", lines)
		}
		var cpu time.Duration
		for one := range strings.FieldsSeq(strings.Join(lines[len(lines)-2:], " ")) {
			d, err := time.ParseDuration(one)
			if err != nil {
				t.Fatal(err)
			}
			cpu += d
		}
		into[0] = append(into[0], number(t, lines[len(lines)-3])/1e9)
		into[1] = append(into[1], cpu.Seconds())
	}
	for n := range rounds {
		if n%2 == 1 {
			run(&view, func() string { return w.shell(line) })
		}
		run(&direct, inFolder)
		if n%2 == 0 {
			run(&view, func() string { return w.shell(line) })
		}
	}
	for i, what := range []string{"time", "processor"} {
		var ratios []float64
		for n := range rounds {
			ratios = append(ratios, view[i][n]/direct[i][n])
		}
		for _, all := range [][]float64{direct[i], view[i], ratios} {
			slices.Sort(all)
		}
		t.Logf("%s: ratio %.2f, of half of the %d pairs %.2f to %.2f (bar %.2f); %.3f s in the folder, %.3f s in the view",
			what, ratios[rounds/2], rounds, ratios[rounds/4], ratios[rounds*3/4], most, direct[i][rounds/2],
			view[i][rounds/2])
	}
}

// A build of the whole program, with nothing from the cache, takes as long in the view as in the folder.
func TestWhatAWholeBuildCosts(t *testing.T) {
	long(t)
	m, real := open(t, Options{Scratch: []string{cacheDir(t)}})
	repositoryCopy(t, real)
	w := begin(t, m, "ann", real)
	w.compare(t, "go build -a -o built ./cmd/gatehouse", 3, 1.15)
}

func number(t *testing.T, s string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(string(bytes.TrimSpace([]byte(s))), 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A file of 5 GB is staged and accepted.
func TestALargeFile(t *testing.T) {
	long(t)
	m, real := open(t, Options{})
	w := begin(t, m, "ann", real)
	w.shell("truncate -s 5G large; printf end >>large")
	began := time.Now()
	if r := w.accept(); len(r.Done) != 1 {
		t.Errorf("got %v", r.Conflict)
	}
	t.Logf("5 GB accepted in %v", time.Since(began))
	if info, err := os.Stat(filepath.Join(real, "large")); err != nil || info.Size() != 5<<30+3 {
		t.Errorf("got %v, %v", info, err)
	}
}

// A million files are staged, listed for a review, accepted and undone. It prints the time and the memory of each step.
func TestAMillionFiles(t *testing.T) {
	long(t)
	m, real := open(t, Options{})
	w := begin(t, m, "ann", real)
	const many = 1_000_000
	w.shell(fmt.Sprintf("mkdir many; cd many; seq 1 %d | split -l 1 -a 5 -", many))
	if names, _ := os.ReadDir(real); len(names) != 0 {
		t.Fatalf("the folder has %v", names)
	}
	began, used := time.Now(), time.Duration(0)
	step := func(what string) {
		var now syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &now); err != nil {
			t.Fatal(err)
		}
		cpu := time.Duration(now.Utime.Nano() + now.Stime.Nano())
		t.Logf("%d names %s in %v, of the processor %v; most memory %s", many+1, what, time.Since(began).Round(time.Second),
			(cpu - used).Round(time.Second), mostMemory(t))
		began, used = time.Now(), cpu
	}
	if _, of, err := m.Changes(w.id, 1000); err != nil || of.Total != many+1 {
		t.Fatalf("%d changes, %v", of.Total, err)
	}
	step("listed")
	if r := w.accept(); len(r.Done) != many+1 || len(r.Conflict) > 0 {
		t.Fatalf("%d of %d accepted, %d conflicts", len(r.Done), many+1, len(r.Conflict))
	}
	step("accepted")
	if names, err := os.ReadDir(filepath.Join(real, "many")); err != nil || len(names) != many {
		t.Errorf("the folder has %d names, %v", len(names), err)
	}
	began = time.Now()
	if r, err := m.Undo(w.id, "ann"); err != nil || len(r.Done) != many+1 || len(r.Conflict) > 0 {
		t.Fatalf("%d undone, %d conflicts, %v", len(r.Done), len(r.Conflict), err)
	}
	step("undone")
	if names, _ := os.ReadDir(real); len(names) != 0 {
		t.Errorf("the folder has %v", names)
	}
}

// mostMemory returns the largest memory that this process has had.
func mostMemory(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	line, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(line)
}

// Many small files are accepted and undone, all of them.
func TestManyFilesAreAccepted(t *testing.T) {
	long(t)
	m, real := open(t, Options{})
	w := begin(t, m, "ann", real)
	const many = 200_000
	w.shell(fmt.Sprintf("mkdir many; cd many; seq 1 %d | split -l 1 -a 4 -", many))
	began := time.Now()
	if r := w.accept(); len(r.Done) != many+1 || len(r.Conflict) > 0 {
		t.Fatalf("%d of %d accepted, %d conflicts", len(r.Done), many+1, len(r.Conflict))
	}
	t.Logf("%d names accepted in %v", many+1, time.Since(began))
	if names, err := os.ReadDir(filepath.Join(real, "many")); err != nil || len(names) != many {
		t.Errorf("the folder has %d names, %v", len(names), err)
	}
	began = time.Now()
	if r, err := m.Undo(w.id, "ann"); err != nil || len(r.Done) != many+1 || len(r.Conflict) > 0 {
		t.Fatalf("%d undone, %d conflicts, %v", len(r.Done), len(r.Conflict), err)
	}
	t.Logf("undone in %v", time.Since(began))
	if names, _ := os.ReadDir(real); len(names) != 0 {
		t.Errorf("the folder has %v", names)
	}
}
