package state_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/state"
)

const victimFile = "GATEHOUSE_TEST_STATE_VICTIM" // the file of the process that will be killed

// ledger is a value that follows from the number of changes made to it, so
// that any lost, doubled or mixed-up one shows.
type ledger struct {
	N     uint64            `json:"n"`
	Sum   uint64            `json:"sum"`
	Slots map[string]uint64 `json:"slots"`
	Tail  []uint64          `json:"tail"`
}

func (l *ledger) advance() {
	l.N++
	l.Sum = (l.Sum*31 + l.N) % 1_000_003
	if l.Slots == nil {
		l.Slots = map[string]uint64{}
	}
	delete(l.Slots, fmt.Sprint("s", (l.N+3)%7))
	l.Slots[fmt.Sprint("s", l.N%7)] = l.N
	l.Tail = append(l.Tail, l.Sum)
	l.Tail = l.Tail[max(0, len(l.Tail)-10):]
}

// fewKept makes compaction happen all the time.
var fewKept = state.FileOptions{Compact: 20}

const victims = 3 // mounts, each with a writer

// A process is killed without a word while it writes. What it was told is
// kept is there afterwards, and nothing but whole changes is.
func TestKilledInTheMiddle(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs a further pipe to a child process")
	}
	rounds := 20
	if os.Getenv("GATEHOUSE_TEST_ALL") != "" {
		rounds = 200
	}
	path := filepath.Join(t.TempDir(), "state.db")
	models := make([]ledger, victims)
	var slowest time.Duration
	for round := range rounds {
		acknowledged := runVictim(t, path)
		began := time.Now()
		log := openFile(t, path, fewKept)
		tree := state.New(state.Options{Log: log})
		for i := range models {
			v, revision, err := attach[ledger](t, tree, victimMount(i), state.Durable).Get()
			if err != nil {
				t.Fatal(err)
			}
			if promised := acknowledged[victimMount(i)]; revision < promised {
				t.Fatalf("round %d: %s is at %d, %d was promised", round, victimMount(i), revision, promised)
			}
			for models[i].N < revision {
				models[i].advance()
			}
			if !reflect.DeepEqual(v, models[i]) {
				t.Fatalf("round %d: %s at %d is %+v, want %+v", round, victimMount(i), revision, v, models[i])
			}
		}
		slowest = max(slowest, time.Since(began))
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d rounds, revisions %d %d %d, slowest start %v", rounds, models[0].N, models[1].N, models[2].N, slowest)
	if models[0].N < uint64(rounds) {
		t.Error("the process was killed before it did anything")
	}
}

func victimMount(i int) string { return fmt.Sprint("/private/m", i) }

// runVictim runs a process that writes, kills it at a random moment, and gives
// the revisions it was promised until then.
func runVictim(t *testing.T, path string) map[string]uint64 {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^$", "-test.bench=^BenchmarkVictim$", "-test.benchtime=1x")
	cmd.Env = append(os.Environ(), victimFile+"="+path)
	cmd.ExtraFiles = []*os.File{out}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out.Close()
	promised := map[string]uint64{}
	after, lines := 1+rand.IntN(300), 0
	pause := time.Duration(rand.IntN(3000)) * time.Microsecond // into the next change, or the one after
	for s := bufio.NewScanner(in); s.Scan(); lines++ {
		var mount string
		var revision uint64
		if n, _ := fmt.Sscan(s.Text(), &mount, &revision); n == 2 {
			promised[mount] = revision
		}
		if lines == after {
			time.AfterFunc(pause, func() { cmd.Process.Kill() })
		}
	}
	cmd.Wait()
	if lines <= after {
		t.Fatalf("the process ended by itself after %d changes", lines)
	}
	return promised
}

// BenchmarkVictim is the process that is killed; it does nothing unless
// TestKilledInTheMiddle runs it. It is a benchmark to be one with few words.
func BenchmarkVictim(b *testing.B) {
	path := os.Getenv(victimFile)
	if path == "" {
		b.Skip("run by TestKilledInTheMiddle")
	}
	tree := state.New(state.Options{Log: openFile(b, path, fewKept)})
	var mu sync.Mutex
	out := os.NewFile(3, "promised")
	var all sync.WaitGroup
	for i := range victims {
		m := attach[ledger](b, tree, victimMount(i), state.Durable)
		all.Go(func() {
			for {
				r, err := m.Update(context.Background(), state.Any, func(l *ledger) error { l.advance(); return nil })
				if err != nil {
					fmt.Fprintln(os.Stderr, err)
					return
				}
				mu.Lock()
				fmt.Fprintln(out, victimMount(i), r)
				mu.Unlock()
			}
		})
	}
	all.Wait()
}

// BenchmarkStart opens a file to which 100,000 changes were made.
func BenchmarkStart(b *testing.B) {
	path := filepath.Join(b.TempDir(), "state.db")
	l := openFile(b, path, state.FileOptions{})
	for i := range uint64(100_000) {
		key := fmt.Sprint("key", i%1000)
		p := state.Patch{{Kind: state.Add, Path: state.Pointer{key}, Value: fmt.Sprint("value ", i)}}
		if i == 0 {
			p = state.Patch{{Kind: state.Replace, Value: map[string]any{}}}
		}
		if _, err := l.Append(b.Context(), "/private/m", i, p); err != nil {
			b.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		l := openFile(b, path, state.FileOptions{})
		m := attach[map[string]string](b, state.New(state.Options{Log: l}), "/private/m", state.Durable)
		if v, r, err := m.Get(); err != nil || r != 100_000 || len(v) != 1000 {
			b.Fatal(len(v), r, err)
		}
		l.Close()
	}
}

func BenchmarkAppend(b *testing.B) {
	tree := state.New(state.Options{Log: openFile(b, filepath.Join(b.TempDir(), "state.db"), state.FileOptions{})})
	m := attach[map[string]int](b, tree, "/private/m", state.Durable)
	i := 0
	for b.Loop() {
		if err := state.Put(b.Context(), m, fmt.Sprint("key", i%1000), i); err != nil {
			b.Fatal(err)
		}
		i++
	}
}

func BenchmarkPutLive(b *testing.B) {
	tree := state.New(state.Options{})
	m := attach[map[string]int](b, tree, "/public/m", state.Live)
	for i := range 10_000 {
		if err := state.Put(b.Context(), m, fmt.Sprint("key", i), i); err != nil {
			b.Fatal(err)
		}
	}
	i := 0
	for b.Loop() {
		if err := state.Put(b.Context(), m, fmt.Sprint("key", i%10_000), -i); err != nil {
			b.Fatal(err)
		}
		i++
	}
}
