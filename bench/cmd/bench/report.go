package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// bars are what this project wants to hold.
func (b *bench) bars() []bar {
	legacy, modern := "call, legacy, 16 conn.: ", "call, modern, 16 conn.: "
	sessions := fmt.Sprintf("%d idle sessions", b.number(10_000))
	event := fmt.Sprintf("event to %d streams: ", b.number(15_000))
	return []bar{
		{figure: legacy + "server CPU", of: plain, limit: 1.25},
		{figure: "call, legacy, 1 conn.: server CPU", of: plain, limit: 1.25},
		{figure: modern + "server CPU", of: plain, limit: 1.5},
		{figure: "call, modern, 1 conn.: server CPU", of: plain, limit: 1.5},
		{figure: legacy + "allocated", limit: 8},
		{figure: modern + "allocated", limit: 8},
		{figure: legacy + "rate", of: plain, least: true, limit: 0.85},
		{figure: legacy + "rate", of: mcpgo, least: true, limit: 1.7},
		{figure: legacy + "rate", of: gosdk, least: true, limit: 4},
		{figure: modern + "rate", of: plain, least: true, limit: 0.85},
		{figure: modern + "rate", of: mcpgo, least: true, limit: 1.7},
		{figure: modern + "rate", of: gosdk, least: true, limit: 4},
		{figure: "list of 1000, legacy: server CPU", limit: 100},
		{figure: "list of 1000, modern: server CPU", limit: 100},
		{figure: sessions + " with their streams: resident", limit: 12},
		{figure: sessions + " with their streams: goroutines", limit: 0},
		{figure: sessions + ": resident", limit: 1},
		{figure: sessions + ": goroutines", limit: 0},
		{figure: sessions + " that have called once: resident", limit: 1},
		{figure: event + "delivered", least: true, limit: 100},
		{figure: event + "p99", limit: 1000},
		{figure: event + "kept after they closed", of: plain, limit: 1},
		{figure: "stdio, one at a time: round trip, mean", of: plain, limit: 1.3},
		{figure: "start to first answer", limit: 50},
		{figure: "start to first answer, " + product, limit: 50},
		{figure: fmt.Sprintf("call on a host of %d tools, of one of 10", b.number(5000)), limit: 1.1},
		{figure: fmt.Sprintf("call on a host of %d sessions, of one of 1", b.number(10_000)), limit: 1.1},
		{figure: "a call that streams 100 MB: resident at most, more than before", limit: 32},
		{figure: "the same, not read for 3s: resident at most, more than before", limit: 32},
		{figure: "after " + thousands(strconv.Itoa(b.soaked())) + " calls: server CPU, of the first ones", limit: 1.1},
	}
}

// report writes everything that was found as a page.
func (b *bench) report(w io.Writer) {
	fmt.Fprintf(w, "# Benchmarks\n\n")
	fmt.Fprintln(
		w,
		`The same work done by Gatehouse, by the official Go SDK 1.8.0, by mcp-go 1.2.1 and by plain net/http with
encoding/json, which checks nothing and is the limit. One program each, in `+"`bench/subjects`"+`; one driver starts them as
processes of their own, lets them take turns and checks every answer. CPU and memory are each process's own account of
itself. A cell is the median of the repetitions with the range in parentheses; a ratio is the median of the ratios
within each repetition, so that a busy moment weighs on both sides. Every subject has the same GOGC (`+b.lab.gogc+` where nothing
else is said).`,
	)
	b.circumstances(w)
	fmt.Fprintf(w, "\n## What is to hold\n\n")
	b.sheet.judge(w, b.bars())
	b.sheet.tables(w)
}

// circumstances say when, on what and how this was measured.
func (b *bench) circumstances(w io.Writer) {
	fmt.Fprintf(
		w,
		"\n- Date: %s\n- Machine: %s\n- Load average: %s at the start, %s at the end; driver and subject share the "+
			"cores\n- Command: `%s`, in `bench/`\n",
		b.began.Format(
			"2006-01-02",
		),
		machine(),
		b.loadBegan,
		loadAverage(),
		strings.Join(append([]string{"go run -mod=mod ./cmd/bench"}, os.Args[1:]...), " "),
	)
	fmt.Fprintf(
		w,
		"- Repetitions: %d; %v of load each; took %v\n",
		b.reps,
		b.slice,
		time.Since(b.began).Round(time.Second),
	)
}

// machine describes what this runs on.
func machine() string {
	return fmt.Sprintf("%d x %s, %s GiB, %s %s, %s", runtime.NumCPU(), field("/proc/cpuinfo", "model name"), memory(),
		runtime.GOOS, first("/proc/sys/kernel/osrelease"), runtime.Version())
}

func memory() string {
	kib, err := strconv.ParseFloat(strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB"), 64)
	if err != nil {
		return "?"
	}
	return fmt.Sprintf("%.0f", kib/(1<<20))
}

// field is the value of the first line "name: value" of a file.
func field(file, name string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return "?"
	}
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		if k, v, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return "?"
}

func first(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return "?"
	}
	word, _, _ := strings.Cut(string(b), "\n")
	return word
}

func loadAverage() string {
	word, _, _ := strings.Cut(first("/proc/loadavg"), " ")
	return word
}
