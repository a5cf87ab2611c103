package main

import (
	"bytes"
	"fmt"
	"strconv"

	"gatehouse/bench/load"
)

// lists measures tools/list of 100 and of 1,000 tools.
func (b *bench) lists() error {
	for rep := range b.reps {
		for _, n := range []int{100, 1000} {
			running, err := b.startAll(rep, "-tools", strconv.Itoa(n))
			if err != nil {
				return err
			}
			for _, era := range eras {
				for _, p := range running {
					if err = b.listOne(p, era.Era, era.word, n); err != nil {
						break
					}
				}
			}
			stopAll(running)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

const listConns = 4

func (b *bench) listOne(p *process, era load.Era, word string, n int) error {
	conns, err := p.dial(listConns)
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
	r := load.List(era, session)
	first, err := conns[0].Do(r.Bytes())
	if err != nil {
		return err
	}
	if got := bytes.Count(first.Body, []byte(`"name":"echo`)); got != n {
		return fmt.Errorf("%s lists %d tools, want %d on one page", p.name, got, n)
	}
	last := `"name":"echo_` + strconv.Itoa(n-1) + `"`
	r.Expect(last)
	if _, err := load.Run(conns, r, nil, b.slice/4, 0); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	found, used, err := p.metered(func() (load.Figures, error) { return load.Run(conns, r, nil, b.slice/2, 0) })
	if err != nil {
		return err
	}
	at := fmt.Sprintf("list of %d, %s: ", n, word)
	b.sheet.add(at+"server CPU", "µs/list", p.name, float64(used.CPU)/1e3/float64(found.Calls))
	b.sheet.add(at+"rate", "lists/s", p.name, found.Rate())
	b.sheet.add(at+"allocated", "KB/list", p.name, float64(used.Bytes)/1e3/float64(found.Calls))
	return nil
}
