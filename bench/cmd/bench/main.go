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
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
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
	only     []string // parts; nil means those that run unasked

	began     time.Time
	loadBegan string

	asides map[string]func(io.Writer) // sections of their own that were measured
}

// parts in the order they run.
var parts = []struct {
	name    string
	title   string
	run     func(*bench) error
	unasked bool // part of a run that names none
}{
	{"call", "One call", (*bench).calls, true},
	{"gc", "One call, garbage collected at the pace of the gatehouse command", (*bench).callsTuned, true},
	{"list", "Lists of tools", (*bench).lists, true},
	{"idle", "Sessions", (*bench).idle, true},
	{"streams", "Many streams at once", (*bench).streams, true},
	{"lines", "Standard input and output, and a Unix socket", (*bench).lines, true},
	{"start", "Starting, and size", (*bench).starts, true},
	{"growth", "Growth", (*bench).growth, true},
	{"flood", "Streaming 100 MB", (*bench).flood, true},
	{"soak", "After a million calls", (*bench).soak, false},
	{"neighbours", "", (*bench).neighbours, true}, // this and the next ones have a section of their own
	{"files", "", (*bench).files, true},
	{"relay", "", (*bench).relays, true},
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	b := &bench{lab: &lab{}, sheet: newSheet(), asides: map[string]func(io.Writer){}}
	var only, subjects, out string
	flag.StringVar(&only, "only", "", "which parts, by comma: "+partNames())
	flag.StringVar(&subjects, "subjects", strings.Join(everyone, ","), "which subjects, by comma")
	flag.IntVar(&b.reps, "reps", 5, "repetitions")
	flag.DurationVar(&b.slice, "slice", 1500*time.Millisecond, "length of one measurement under load")
	flag.BoolVar(&b.quick, "quick", false, "a fifth of the time and a tenth of the numbers")
	flag.StringVar(
		&b.pprof,
		"pprof",
		"",
		"store profiles of the subjects under load in this folder: NAME.cpu, and NAME.allocs to be read with -base NAME.base",
	)
	flag.StringVar(&b.lab.gogc, "gogc", "100", "GOGC of every subject")
	flag.StringVar(&out, "o", "", "write the report to this file too")
	flag.Parse()
	if err := b.choose(only, subjects); err != nil {
		return err
	}
	if b.quick {
		b.slice /= 5
	}
	if b.pprof != "" {
		if b.pprof, err = filepath.Abs(b.pprof); err == nil {
			err = os.MkdirAll(b.pprof, 0o755)
		}
		if err != nil {
			return err
		}
	}
	debug.SetGCPercent(400)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if b.lab.dir, err = os.MkdirTemp("", "bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.lab.dir)
	if err := b.lab.build(ctx); err != nil {
		return err
	}
	var failed []error
	b.began, b.loadBegan = time.Now(), loadAverage()
	for _, p := range parts {
		if !b.wants(p.name, p.unasked) {
			continue
		}
		if p.title != "" {
			b.sheet.begin(p.title)
		}
		begin := time.Now()
		if err := p.run(b); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", p.name, err)) // the others are still worth having
			fmt.Fprintln(os.Stderr, "bench:", failed[len(failed)-1])
		}
		fmt.Fprintf(os.Stderr, "%s: %v\n", p.name, time.Since(begin).Round(time.Second))
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if len(failed) > 0 {
		out = "" // a page with holes does not replace a whole one
	}
	os.Stdout.WriteString(b.page(""))
	if out != "" {
		return b.write(out)
	}
	return errors.Join(failed...)
}

func partNames() string {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	return strings.Join(names, ", ")
}

// choose reads which parts and subjects are wanted.
func (b *bench) choose(only, subjects string) error {
	b.subjects = strings.Split(subjects, ",")
	for _, name := range b.subjects {
		if folders[name] == "" {
			return fmt.Errorf("there is no subject %q; expected some of %s", name, strings.Join(everyone, ", "))
		}
	}
	if only == "" {
		return nil
	}
	b.only = strings.Split(only, ",")
	for _, name := range b.only {
		if !slices.Contains(strings.Split(partNames(), ", "), name) {
			return fmt.Errorf("there is no part %q; expected some of %s", name, partNames())
		}
	}
	return nil
}

func (b *bench) wants(part string, unasked bool) bool {
	if b.only == nil {
		return unasked
	}
	return slices.Contains(b.only, part)
}
