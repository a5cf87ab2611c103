// Command sandbox measures sandboxes, and beside them what else this machine
// has that shuts a program in: bwrap, crun, runc and runsc.
//
//	sandbox              100 rounds of everything
//	sandbox -n 20        a first look
//	sandbox -o file.md   the table into a file too
//
// All rows of one round follow each other, so that what disturbs the machine
// disturbs all of them. A row that could not be measured says why.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/manager"
	"gatehouse/internal/sandbox/namespaces"
)

// row is one line of the table.
type row struct {
	name, bar string
	took      []time.Duration
	note      string // instead of numbers
}

// sheet is the table.
type sheet struct{ rows []*row }

func (s *sheet) row(name, bar string) *row {
	for _, r := range s.rows {
		if r.name == name {
			return r
		}
	}
	r := &row{name: name, bar: bar}
	s.rows = append(s.rows, r)
	return r
}

// timed adds how long f takes.
func (r *row) timed(f func() error) error {
	began := time.Now()
	err := f()
	if err == nil {
		r.took = append(r.took, time.Since(began))
	}
	return err
}

func (s *sheet) print(w io.Writer, about string) {
	fmt.Fprintf(w, "%s\n\n| what | bar | median ms | p95 ms | n |\n|---|---|---|---|---|\n", about)
	for _, r := range s.rows {
		if len(r.took) == 0 {
			fmt.Fprintf(w, "| %s | %s | %s | | |\n", r.name, r.bar, r.note)
			continue
		}
		slices.Sort(r.took)
		fmt.Fprintf(
			w,
			"| %s | %s | %s | %s | %d |\n",
			r.name,
			r.bar,
			ms(r.took[len(r.took)/2]),
			ms(r.took[len(r.took)*95/100]),
			len(r.took),
		)
	}
}

func ms(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d.Microseconds())/1000) }

func main() {
	n := flag.Int("n", 100, "rounds")
	many := flag.Int("many", 200, "sandboxes alive at once, in the row on that")
	out := flag.String("o", "", "write the table to this file too")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *n, *many, *out); err != nil {
		fmt.Fprintln(os.Stderr, "sandbox:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, n, many int, out string) error {
	d, err := namespaces.New(namespaces.Options{})
	if err != nil {
		return err
	}
	for _, f := range d.Doctor(ctx) {
		if f.Needed && !f.OK {
			return fmt.Errorf("%s: %s; %s", f.Name, f.Detail, f.Remedy)
		}
	}
	held := d.Capabilities()
	s := &sheet{}
	load := loadNow()
	if err := ours(ctx, s, n); err != nil {
		return err
	}
	if err := overHTTP(ctx, s, n); err != nil {
		return err
	}
	if err := scripts(ctx, s, min(n, 40)); err != nil {
		return err
	}
	if err := drivers(ctx, s, min(n, 20)); err != nil {
		return err
	}
	beside(ctx, s, min(n, 40))
	crowd, err := crowded(ctx, d, many)
	if err != nil {
		return err
	}
	if err := d.Close(); err != nil {
		return err
	}
	about := fmt.Sprintf("%d processors, %s, load %s before and %s after; isolation: %s, memory by %s, Landlock %d. %s",
		runtime.NumCPU(), system(), load, loadNow(), held.Tier, held.Memory, held.Landlock, crowd)
	s.print(os.Stdout, about)
	if out == "" {
		return nil
	}
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	s.print(f, about)
	return f.Close()
}

func loadNow() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(b), " ")
	return first
}

func system() string {
	b, _ := exec.Command("uname", "-sr").Output() // the line then has no kernel
	return strings.TrimSpace(string(b))
}

// newManager is one as a host has it.
func newManager(pool int) *manager.Manager {
	ids := 0
	return manager.New(manager.Options{
		Ladder: []manager.LadderEntry{
			{
				Name: namespaces.Name,
				Open: func() (sandbox.Driver, error) { return namespaces.New(namespaces.Options{}) },
			},
		},
		NewID:  func(kind string) string { ids++; return fmt.Sprint(kind, "_", ids) },
		NoPool: pool == 0, Ready: pool, Sandboxes: 1000,
	})
}
