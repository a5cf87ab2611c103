// Command bench starts the subjects, loads them in turn and prints what each
// has used.
//
//	bench                     everything, five times
//	bench -only call,list     two parts
//	bench -quick -reps 1      a first look
//	bench -only soak          a million calls
//
// Every answer is checked. Subjects account for themselves, so that a busy
// machine disturbs what is counted less than what is clocked.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"
)

// bench is one run.
type bench struct {
	lab      *lab
	sheet    *sheet
	subjects []string
	reps     int
	slice    time.Duration // of one measurement under load
	quick    bool
	pprof    string
}

// parts in the order they run.
var parts = []struct {
	name    string
	run     func(*bench) error
	unasked bool // part of a run that names none
}{
	{"call", (*bench).calls, true},
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	b := &bench{lab: &lab{}, sheet: newSheet()}
	var only, subjects, out string
	flag.StringVar(&only, "only", "", "which parts, by comma")
	flag.StringVar(&subjects, "subjects", strings.Join(everyone, ","), "which subjects, by comma")
	flag.IntVar(&b.reps, "reps", 5, "repetitions")
	flag.DurationVar(&b.slice, "slice", 1500*time.Millisecond, "length of one measurement under load")
	flag.BoolVar(&b.quick, "quick", false, "short measurements, small numbers")
	flag.StringVar(&b.pprof, "pprof", "", "store profiles of gatehouse in this folder")
	flag.StringVar(&b.lab.gogc, "gogc", "100", "GOGC of every subject")
	flag.StringVar(&out, "o", "", "write the report to this file too")
	flag.Parse()
	b.subjects = strings.Split(subjects, ",")
	if b.quick {
		b.slice /= 5
	}
	debug.SetGCPercent(400)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if b.lab.dir, err = os.MkdirTemp("", "bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.lab.dir)
	if err := b.lab.build(ctx); err != nil {
		return err
	}
	for _, p := range parts {
		if only == "" && !p.unasked || only != "" && !slices.Contains(strings.Split(only, ","), p.name) {
			continue
		}
		begin := time.Now()
		if err := p.run(b); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		fmt.Fprintf(os.Stderr, "%s: %v\n", p.name, time.Since(begin).Round(time.Second))
	}
	b.sheet.table(os.Stdout)
	return nil
}
