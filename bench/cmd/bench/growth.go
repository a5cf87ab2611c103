package main

import (
	"fmt"
	"strconv"

	"gatehouse/bench/load"
)

// growth compares the cost of a call on a small and on a large host, the two
// taking turns. Both are the product alone, so they collect garbage as the
// gatehouse command does.
func (b *bench) growth() error {
	defer func(was string) { b.lab.gogc = was }(b.lab.gogc)
	b.lab.gogc = productGOGC
	for rep := range b.reps {
		if err := b.grown(rep, "call on a host of %s tools", "10", strconv.Itoa(b.number(5000)),
			func(n int) (*grown, error) {
				g, err := b.grow("-tools", strconv.Itoa(n))
				if err == nil {
					err = g.open(1, "echo_"+strconv.Itoa(n-1))
				}
				return g, err
			}); err != nil {
			return err
		}
		if err := b.grown(rep, "call on a host of %s sessions", "1", strconv.Itoa(b.number(10_000)),
			func(n int) (*grown, error) {
				g, err := b.grow()
				if err == nil {
					err = g.open(n, "echo")
				}
				return g, err
			}); err != nil {
			return err
		}
	}
	return nil
}

// grown is one host of a pair.
type grown struct {
	p        *process
	conns    []*load.Client
	r        *load.Request
	sessions []string
	cpu      int64
	calls    int
}

func (b *bench) grow(args ...string) (*grown, error) {
	p, err := b.lab.start(ours, args...)
	return &grown{p: p}, err
}

func (g *grown) open(sessions int, tool string) (err error) {
	if g.sessions, _, err = openSessions(g.p, sessions); err != nil {
		return err
	}
	g.r = load.Call(load.Legacy, g.sessions[0], tool)
	g.conns, err = g.p.dial(4)
	return err
}

func (g *grown) close() {
	if g != nil && g.p != nil {
		hangUp(g.conns)
		g.p.stop()
	}
}

// work has every call go to another session.
func (g *grown) work(b *bench) error {
	found, used, err := g.p.metered(
		func() (load.Figures, error) { return load.Run(g.conns, g.r, g.sessions, b.slice/2, 0) },
	)
	g.cpu += used.CPU
	g.calls += found.Calls
	return err
}

func (g *grown) each() float64 { return float64(g.cpu) / 1e3 / float64(g.calls) }

func (b *bench) grown(rep int, figure, little, much string, start func(int) (*grown, error)) error {
	var pair [2]*grown
	defer func() { pair[0].close(); pair[1].close() }()
	for i, size := range []string{little, much} {
		n, err := strconv.Atoi(size)
		if err != nil {
			return err
		}
		if pair[i], err = start(n); err != nil {
			return err
		}
		if err := pair[i].work(b); err != nil { // warm
			return err
		}
		pair[i].cpu, pair[i].calls = 0, 0
	}
	const turns = 6
	for turn := range turns {
		for i := range pair {
			if err := pair[(i+turn+rep)%2].work(b); err != nil {
				return err
			}
		}
	}
	b.sheet.add(fmt.Sprintf(figure, little)+": server CPU", "µs/call", ours, pair[0].each())
	b.sheet.add(fmt.Sprintf(figure, much)+": server CPU", "µs/call", ours, pair[1].each())
	b.sheet.add(fmt.Sprintf(figure, much)+", of one of "+little, "ratio", ours, pair[1].each()/pair[0].each())
	return nil
}
