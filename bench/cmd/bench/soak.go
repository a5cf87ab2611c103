package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"time"

	"gatehouse/bench/load"
	"gatehouse/bench/subject"
)

const (
	legs      = 10
	soakConns = 16
)

// soaked is how many calls a soak makes: what divides evenly.
func (b *bench) soaked() int {
	const part = legs * 2 * soakConns
	return b.number(1_000_000) / part * part
}

// soak makes a million calls in both eras and looks at what is left of them.
func (b *bench) soak() error {
	total := b.soaked()
	p, err := b.lab.start(ours)
	if err != nil {
		return err
	}
	defer p.stop()
	conns, err := p.dial(soakConns)
	if err != nil {
		return err
	}
	defer hangUp(conns)
	session, err := conns[0].Open()
	if err != nil {
		return err
	}
	requests := []*load.Request{load.Call(load.Legacy, session, "echo"), load.Call(load.Modern, "", "echo")}
	if _, err := load.Run(conns, requests[0], nil, b.slice, 0); err != nil {
		return err
	}
	before, err := p.collect()
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "  calls      µs/call  resident MiB  heap MiB  goroutines  descriptors\n")
	var costs []float64
	done := 0
	var last subject.Usage
	for range legs {
		var cpu int64
		leg := 0
		for _, r := range requests {
			found, used, err := p.metered(
				func() (load.Figures, error) { return load.Run(conns, r, nil, 0, total/legs/len(requests)) },
			)
			if err != nil {
				return err
			}
			cpu += used.CPU
			leg += found.Calls
		}
		done += leg
		costs = append(costs, float64(cpu)/1e3/float64(leg))
		if last, err = p.collect(); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "  %9d  %7.1f  %12.1f  %8.1f  %10d  %11d\n", done, costs[len(costs)-1],
			float64(last.Resident)/mib, float64(last.Heap)/mib, last.Goroutines, last.Files)
	}
	at := "after " + thousands(fmt.Sprint(done)) + " calls: "
	b.sheet.add(at+"server CPU", "µs/call", ours, median(costs[legs-3:]))
	b.sheet.add(at+"server CPU, of the first ones", "ratio", ours, median(costs[legs-3:])/median(costs[:3]))
	b.sheet.add(at+"resident", "MiB", ours, float64(last.Resident)/mib)
	b.sheet.add(at+"resident, more than before", "MiB", ours, float64(last.Resident-before.Resident)/mib)
	b.sheet.add(at+"goroutines, more than before", "", ours, float64(last.Goroutines-before.Goroutines))
	b.sheet.add(at+"descriptors, more than before", "", ours, float64(last.Files-before.Files))
	return nil
}

// flood has a tool stream 100 MB, to a client that reads at once and to one
// that does not read for a while.
func (b *bench) flood() error {
	for range min(b.reps, 3) {
		for _, pause := range []time.Duration{0, 3 * time.Second} {
			if err := b.floodOne(pause); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bench) floodOne(pause time.Duration) error {
	p, err := b.lab.start(ours, "-flood")
	if err != nil {
		return err
	}
	defer p.stop()
	before, err := warmed(p)
	if err != nil {
		return err
	}
	c, err := load.Dial(p.addr)
	if err != nil {
		return err
	}
	defer c.Close()
	session, err := c.Open()
	if err != nil {
		return err
	}
	over := make(chan struct{})
	peak := make(chan int64, 1)
	go func() { peak <- p.peak(over) }()
	events, tail, begin := 0, []byte(nil), time.Now()
	err = c.Follow(load.Flood(session), func() { time.Sleep(pause) }, func(part []byte) error {
		events += bytes.Count(part, []byte(`"method":"notifications/progress"`))
		tail = append(tail, part...)
		if over := len(tail) - 64<<10; over > 0 {
			tail = append(tail[:0], tail[over:]...)
		}
		return nil
	})
	took := time.Since(begin)
	close(over)
	highest := <-peak
	if err != nil {
		return fmt.Errorf("flood: %w", err)
	}
	if !strings.Contains(string(tail), "the flood is over") {
		return fmt.Errorf("flood: it ended with %.300s", tail)
	}
	at := "a call that streams 100 MB: "
	if pause > 0 {
		at = fmt.Sprintf("the same, not read for %v: ", pause)
	}
	b.sheet.add(at+"time", "ms", ours, micros(took)/1e3)
	b.sheet.add(at+"progress told", "times", ours, float64(events))
	b.sheet.add(at+"resident at most, more than before", "MiB", ours, float64(highest-before.Resident)/mib)
	return nil
}

// peak looks every 20 ms how much is resident, until it is told to stop.
func (p *process) peak(over <-chan struct{}) (most int64) {
	for {
		if u, err := p.usage(); err == nil {
			most = max(most, u.Resident)
		}
		select {
		case <-over:
			return most
		case <-time.After(20 * time.Millisecond):
		}
	}
}
