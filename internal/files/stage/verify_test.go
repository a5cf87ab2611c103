package stage

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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

// What the calls cost of which reading a file consists: in the folder, in the view, and, for root, in an overlay that
// is mounted by hand as a view has it, without namespaces, a root of its own and Landlock. The view is entered by this
// process, so what programs have besides the overlay is not in it.
func TestWhatReadingAFileCosts(t *testing.T) {
	long(t)
	m, real := open(t, Options{})
	repositoryCopy(t, real)
	var names []string
	out, err := exec.Command("find", real, "-name", "*.go", "-printf", "%P\\0").Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		names = append(names, name)
	}
	places := map[string]*os.Root{}
	add := func(place, dir string) {
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { root.Close() })
		places[place] = root
	}
	add("folder", real)
	if os.Geteuid() == 0 {
		add("overlay", bareOverlay(t, real))
	}
	w := begin(t, m, "ann", real)
	w.call(func(_ *View, root *os.Root) {
		places["view"] = root
		took := map[string][][]float64{}
		for range 30 {
			for place, dir := range places {
				took[place] = append(took[place], readAll(t, dir, names))
			}
		}
		for _, place := range slices.Sorted(maps.Keys(took)) {
			line := []string{fmt.Sprintf("%-8s", place)}
			for i, call := range []string{"open", "fstat", "read", "read at the end", "close"} {
				var all []float64
				for _, one := range took[place] {
					all = append(all, one[i])
				}
				slices.Sort(all)
				line = append(line, fmt.Sprintf("%s %.2f us", call, all[len(all)/4]))
			}
			t.Log(strings.Join(line, ", "))
		}
	})
}

// bareOverlay mounts an overlay of a folder.
func bareOverlay(t *testing.T, lower string) string {
	t.Helper()
	base := t.TempDir()
	for _, name := range []string{"upper", "work", "at"} {
		if err := os.Mkdir(filepath.Join(base, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	at := filepath.Join(base, "at")
	options := fmt.Sprintf("userxattr,lowerdir=%s,upperdir=%s/upper,workdir=%[2]s/work", lower, base)
	if out, err := exec.Command("mount", "-t", "overlay", "-o", options, "overlay", at).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", at).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	return at
}

// readAll reads files from a folder, and returns how many microseconds each of its system calls took on average.
func readAll(t *testing.T, from *os.Root, names []string) []float64 {
	t.Helper()
	dir, err := from.Open(".")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	at := int(dir.Fd())
	sum, last, buf := make([]float64, 5), time.Time{}, make([]byte, 128<<10)
	next := func(i int) {
		now := time.Now()
		sum[i] += float64(now.Sub(last).Nanoseconds()) / 1000 / float64(len(names))
		last = now
	}
	for _, name := range names {
		var st unix.Stat_t
		last = time.Now()
		fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if next(0); err != nil {
			t.Fatal(err)
		}
		unix.Fstat(fd, &st)
		next(1)
		for i := range 2 {
			unix.Read(fd, buf)
			next(2 + i)
		}
		unix.Close(fd)
		next(4)
	}
	return sum
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
		bare       bool    // compare with an overlay that is mounted by hand as well
	}{
		{"reads", "cat $(find . -name '*.go') >/dev/null", 60, 1.1, true},
		{"opens", "find . -name '*.go' | xargs -n 50 head -qc 1 >/dev/null", 20, 0, true},
		{"names", "find . -name '*.go' >/dev/null", 20, 0, true},
		{"writes", "rm -rf out; mkdir out; for d in internal/*; do cp -r $d out/; done", 15, 1.3, false},
		{"build", "go build -a -o /dev/null ./internal/mcp/rawjson ./internal/files/edit", 5, 1.15, false},
	} {
		t.Run(c.name, func(t *testing.T) { w.compare(t, c.line, c.rounds, c.most, c.bare && os.Geteuid() == 0) })
	}
	began := time.Now()
	for range 20 {
		w.shell(":")
	}
	t.Logf("a line that does nothing: %v", time.Since(began)/20)
}

// compare runs a line in turn in the folder, in the view and, if bare is set, in an overlay that is mounted by hand, and
// prints the ratios to the folder of the times and of the time of the processor, which other work on the machine changes less.
// most is what the ratio of the view may be, 0 if there is no bar.
func (w *work) compare(t *testing.T, line string, rounds int, most float64, bare bool) {
	t.Helper()
	// The line measures itself, so that the start of the view is told apart.
	line = "a=$(date +%s%N); " + line + "; b=$(date +%s%N); echo; echo $((b-a)); times"
	in := func(dir string) func() string {
		return func() string {
			cmd := exec.Command("/bin/sh", "-ec", line)
			cmd.Dir = dir
			out, err := cmd.Output()
			if err != nil {
				t.Fatal(err)
			}
			return string(out)
		}
	}
	places := []string{"folder", "view"}
	runs := []func() string{in(w.real), func() string { return w.shell(line) }}
	if bare {
		places, runs = append(places, "overlay"), append(runs, in(bareOverlay(t, w.real)))
	}
	took := make([][2][]float64, len(places)) // by place: time, processor
	for n := range rounds {
		for i := range places {
			if n%2 == 1 {
				i = len(places) - 1 - i
			}
			elapsed, cpu := measured(t, runs[i]())
			took[i][0], took[i][1] = append(took[i][0], elapsed), append(took[i][1], cpu)
		}
	}
	for kind, what := range []string{"time", "processor"} {
		folder := took[0][kind]
		if median(folder) == 0 {
			continue // it is less than the unit
		}
		for i, place := range places[1:] {
			of := took[1+i][kind]
			ratios := make([]float64, rounds)
			for n := range ratios {
				ratios[n] = of[n] / folder[n]
			}
			slices.Sort(ratios)
			t.Logf("%s in the %s: ratio %.2f, of half of the %d pairs %.2f to %.2f (bar of the view %.2f); %.3f s, and %.3f s "+
				"in the folder", what, place, ratios[rounds/2], rounds, ratios[rounds/4], ratios[rounds*3/4], most,
				median(of), median(folder))
		}
	}
}

func median(of []float64) float64 {
	of = slices.Sorted(slices.Values(of))
	return of[len(of)/2]
}

// measured returns the seconds that a line of compare took, and those of the processor.
func measured(t *testing.T, out string) (elapsed, cpu float64) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) < 3 {
		t.Fatalf("got %q", lines)
	}
	for one := range strings.FieldsSeq(strings.Join(lines[len(lines)-2:], " ")) {
		d, err := time.ParseDuration(one)
		if err != nil {
			t.Fatal(err)
		}
		cpu += d.Seconds()
	}
	return number(t, lines[len(lines)-3]) / 1e9, cpu
}

// A build of the whole program, with nothing from the cache, takes as long in the view as in the folder.
func TestWhatAWholeBuildCosts(t *testing.T) {
	long(t)
	m, real := open(t, Options{Scratch: []string{cacheDir(t)}})
	repositoryCopy(t, real)
	w := begin(t, m, "ann", real)
	w.compare(t, "go build -a -o built ./cmd/gatehouse", 3, 1.15, false)
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
