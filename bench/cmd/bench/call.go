package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"gatehouse/bench/load"
)

// calls measures tools/call in both eras with 1 and 16 connections.
func (b *bench) calls() error { return b.callRounds("call, ", 1, 16) }

// callsTuned is the same with the pace of garbage collection that the
// gatehouse command sets for itself, here for every subject.
func (b *bench) callsTuned() error {
	defer func(was string) { b.lab.gogc = was }(b.lab.gogc)
	b.lab.gogc = productGOGC
	return b.callRounds("call with GOGC="+productGOGC+", ", 16)
}

// productGOGC is what cmd/gatehouse sets.
const productGOGC = "400"

func (b *bench) callRounds(figure string, conns ...int) error {
	for rep := range b.reps {
		running, err := b.startAll(rep)
		if err != nil {
			return err
		}
		err = b.callRound(figure, running, conns)
		stopAll(running)
		if err != nil {
			return err
		}
	}
	return nil
}

// startAll starts every chosen subject; the order turns with each repetition.
func (b *bench) startAll(rep int, args ...string) ([]*process, error) {
	var all []*process
	for i := range b.subjects {
		p, err := b.lab.start(b.subjects[(i+rep)%len(b.subjects)], args...)
		if err != nil {
			stopAll(all)
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

func stopAll(all []*process) {
	for _, p := range all {
		p.stop()
	}
}

var eras = []struct {
	load.Era
	word string
}{{load.Legacy, "legacy"}, {load.Modern, "modern"}}

// callRound has the subjects take turns, so that each works under the same
// weather.
func (b *bench) callRound(figure string, running []*process, conns []int) error {
	for _, era := range eras {
		for _, n := range conns {
			for _, p := range running {
				if err := b.callOne(figure, p, era.Era, era.word, n); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (b *bench) callOne(figure string, p *process, era load.Era, word string, n int) error {
	conns, err := p.dial(n)
	if err != nil {
		return err
	}
	defer hangUp(conns)
	session := ""
	if era == load.Legacy {
		if session, err = conns[0].Open(); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	r := load.Call(era, session, "echo")
	if _, err := load.Run(conns, r, nil, b.slice/4, 0); err != nil {
		return fmt.Errorf("%s, %s: %w", p.name, word, err)
	}
	found, used, err := p.metered(func() (load.Figures, error) { return load.Run(conns, r, nil, b.slice, 0) })
	if err != nil {
		return fmt.Errorf("%s, %s: %w", p.name, word, err)
	}
	at := fmt.Sprintf("%s%s, %d conn.: ", figure, word, n)
	calls := float64(found.Calls)
	b.sheet.add(at+"server CPU", "µs/call", p.name, float64(used.CPU)/1e3/calls)
	b.sheet.add(at+"rate", "calls/s", p.name, found.Rate())
	b.sheet.add(at+"p50", "µs", p.name, micros(found.P50))
	b.sheet.add(at+"p99", "µs", p.name, micros(found.P99))
	if n == 16 {
		b.sheet.add(at+"allocated", "KB/call", p.name, float64(used.Bytes)/1e3/calls)
		b.sheet.add(at+"allocated objects", "1/call", p.name, float64(used.Objects)/calls)
	}
	if b.pprof != "" && n == 16 {
		return p.profiled(filepath.Join(b.pprof, folders[p.name]+"-"+word), func() error {
			_, err := load.Run(conns, r, nil, 2*b.slice, 0)
			return err
		})
	}
	return nil
}

// profiled is for a run of its own, because being profiled costs something.
func (p *process) profiled(prefix string, f func() error) error {
	if _, err := p.order("profile", prefix); err != nil {
		return err
	}
	err := f()
	_, stopped := p.order("profile", "")
	return errors.Join(err, stopped)
}

func micros(d time.Duration) float64 { return float64(d) / 1e3 }
