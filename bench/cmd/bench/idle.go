package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"gatehouse/bench/load"
	"gatehouse/bench/subject"
)

// idle measures what sessions cost that do nothing: (resident at N - resident
// at 0)/N after a collection, in a fresh process each time.
func (b *bench) idle() error {
	n := b.number(10_000)
	for rep := range min(b.reps, 3) {
		for i := range b.subjects {
			if err := b.idleOne(b.subjects[(i+rep)%len(b.subjects)], n); err != nil {
				return err
			}
		}
	}
	return nil
}

// number is n, or a tenth of it when in a hurry.
func (b *bench) number(n int) int {
	if b.quick {
		return n / 10
	}
	return n
}

func (b *bench) idleOne(name string, n int) error {
	p, err := b.lab.start(name)
	if err != nil {
		return err
	}
	defer p.stop()
	before, err := warmed(p)
	if err != nil {
		return err
	}
	var sessions []string
	var used subject.Usage
	open := func() (err error) {
		sessions, used, err = openSessions(p, n)
		return err
	}
	if b.pprof != "" {
		err = p.profiled(filepath.Join(b.pprof, folders[p.name]+"-sessions"), open)
	} else {
		err = open()
	}
	if err != nil {
		return err
	}
	b.sheet.add("session open: server CPU", "µs", name, float64(used.CPU)/1e3/float64(n))
	b.sheet.add("session open: allocated", "KB", name, float64(used.Bytes)/1e3/float64(n))
	at := fmt.Sprintf("%d idle sessions", n)
	if err := b.note(p, at, before, n); err != nil {
		return err
	}
	if err := callOnce(p, sessions); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := b.note(p, at+" that have called once", before, n); err != nil {
		return err
	}
	streams, err := load.OpenStreams(p.addr, sessions)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer streams.Close()
	return b.note(p, at+" with their streams", before, n)
}

// warmed loads a fresh process a little, so that what it needs once is not
// counted, and takes its measure.
func warmed(p *process) (subject.Usage, error) {
	conns, err := p.dial(8)
	if err != nil {
		return subject.Usage{}, err
	}
	session, err := conns[0].Open()
	if err == nil {
		_, err = load.Run(conns, load.Call(load.Legacy, session, "echo"), nil, 0, 4000)
	}
	hangUp(conns)
	if err != nil {
		return subject.Usage{}, fmt.Errorf("%s: %w", p.name, err)
	}
	return p.settled()
}

// settled waits until the connections that were closed are gone, and collects.
func (p *process) settled() (subject.Usage, error) {
	u, err := p.usage()
	for range 40 {
		last := u.Files
		time.Sleep(25 * time.Millisecond)
		if u, err = p.usage(); err != nil || u.Files == last {
			break
		}
	}
	if err != nil {
		return u, err
	}
	return p.collect()
}

// openSessions opens n sessions over a few connections that are closed again.
func openSessions(p *process, n int) (ids []string, used subject.Usage, err error) {
	conns, err := p.dial(4)
	if err != nil {
		return nil, used, err
	}
	defer hangUp(conns)
	_, used, err = p.metered(func() (load.Figures, error) {
		ids, err = load.OpenSessions(conns, n)
		return load.Figures{}, err
	})
	return ids, used, err
}

// callOnce has every session make a call.
func callOnce(p *process, sessions []string) error {
	conns, err := p.dial(1)
	if err != nil {
		return err
	}
	defer hangUp(conns)
	_, err = load.Run(conns, load.Call(load.Legacy, sessions[0], "echo"), sessions, 0, len(sessions))
	return err
}

// note writes down what each of n sessions costs.
func (b *bench) note(p *process, at string, before subject.Usage, n int) error {
	u, err := p.settled()
	if err != nil {
		return err
	}
	each := float64(n)
	b.sheet.add(at+": resident", "KiB each", p.name, float64(u.Resident-before.Resident)/1024/each)
	b.sheet.add(at+": goroutines", "each", p.name, float64(u.Goroutines-before.Goroutines)/each)
	b.sheet.add(at+": heap", "KiB each", p.name, float64(int64(u.Heap)-int64(before.Heap))/1024/each)
	return nil
}

// emptied waits, a minute at most, until the subject has no more descriptors
// than it had once, and says how long that took.
func (p *process) emptied(files int) (time.Duration, error) {
	begin := time.Now()
	for time.Since(begin) < time.Minute {
		u, err := p.usage()
		if err != nil {
			return 0, err
		}
		if u.Files <= files {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	return time.Since(begin), nil
}

// streams has one event sent to each of many open streams at once.
func (b *bench) streams() error {
	n := b.number(15_000)
	for rep := range min(b.reps, 3) {
		for i := range b.subjects {
			if err := b.streamsOne(b.subjects[(i+rep)%len(b.subjects)], n); err != nil {
				return err
			}
		}
	}
	return nil
}

const mib = 1 << 20

func (b *bench) streamsOne(name string, n int) error {
	p, err := b.lab.start(name)
	if err != nil {
		return err
	}
	defer p.stop()
	before, err := warmed(p)
	if err != nil {
		return err
	}
	sessions, _, err := openSessions(p, n)
	if err != nil {
		return err
	}
	without, err := p.settled()
	if err != nil {
		return err
	}
	open, err := load.OpenStreams(p.addr, sessions)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer open.Close()
	full, err := p.settled()
	if err != nil {
		return err
	}
	took, err := open.Await(20*time.Second, func() error { _, err := p.order("change", ""); return err })
	if err != nil {
		return err
	}
	after, err := p.usage()
	if err != nil {
		return err
	}
	open.Close()
	emptied, err := p.emptied(before.Files)
	if err != nil {
		return err
	}
	closed, err := p.collect()
	if err != nil {
		return err
	}
	at := fmt.Sprintf("event to %d streams: ", n)
	b.sheet.add(at+"delivered", "%", name, 100*float64(len(took))/float64(n))
	if len(took) > 0 {
		slices.Sort(took)
		b.sheet.add(at+"p50", "ms", name, micros(took[len(took)/2])/1e3)
		b.sheet.add(at+"p99", "ms", name, micros(took[len(took)*99/100])/1e3)
	}
	b.sheet.add(at+"server CPU", "µs/stream", name, float64(after.CPU-full.CPU)/1e3/float64(n))
	b.sheet.add(at+"resident before any session", "MiB", name, float64(before.Resident)/mib)
	b.sheet.add(at+"resident with the sessions", "MiB", name, float64(without.Resident)/mib)
	b.sheet.add(at+"resident while open", "MiB", name, float64(full.Resident)/mib)
	b.sheet.add(at+"resident after they closed", "MiB", name, float64(closed.Resident)/mib)
	b.sheet.add(
		at+"kept after they closed",
		"KiB each",
		name,
		float64(closed.Resident-without.Resident)/1024/float64(n),
	)
	b.sheet.add(at+"until the server has let go of them", "s", name, emptied.Seconds())
	b.sheet.add(at+"goroutines after they closed", "more", name, float64(closed.Goroutines-without.Goroutines))
	b.sheet.add(at+"descriptors after they closed", "more", name, float64(closed.Files-before.Files))
	return nil
}
