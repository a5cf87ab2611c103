package main

import (
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"gatehouse/bench/load"
)

// lines measures round trips on standard input and output and on a Unix
// socket. Plain only says again what it reads; decoding and encoding it on the
// way makes a figure of its own.
func (b *bench) lines() error {
	for rep := range b.reps {
		for _, endpoint := range []string{"stdio", "unix"} {
			if err := b.linesRound(rep, endpoint); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bench) linesRound(rep int, endpoint string) (err error) {
	var all []*talker
	defer func() {
		for _, t := range all {
			t.lines.Close()
			t.p.stop()
		}
	}()
	talk := func(name string, args ...string) error {
		t, err := b.lab.talk(name, endpoint, args...)
		if err == nil {
			all = append(all, t)
		}
		return err
	}
	for i := range b.subjects {
		if err := talk(b.subjects[(i+rep)%len(b.subjects)]); err != nil {
			return err
		}
	}
	if err := talk(plain, "-json"); err != nil {
		return err
	}
	// In short turns: which core the two ends land on matters more than what
	// they do.
	const turns = 6
	for range turns {
		for _, t := range all {
			if err := t.turn(b.slice / turns); err != nil {
				return err
			}
		}
	}
	at, decoding := endpoint+", one at a time: ", endpoint+", plain decoding and encoding: "
	for i, t := range all {
		coder := i == len(all)-1
		if !coder {
			t.note(b.sheet, at)
		}
		if coder || t.p.name == ours {
			t.note(b.sheet, decoding)
		}
		if b.pprof != "" && !coder {
			if err := t.p.profiled(filepath.Join(b.pprof, folders[t.p.name]+"-"+endpoint),
				func() error { return t.turn(2 * b.slice) }); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *talker) note(s *sheet, at string) {
	s.add(at+"round trip, mean", "µs", t.p.name, micros(t.elapsed)/float64(t.calls))
	s.add(at+"round trip, p50", "µs", t.p.name, median(t.p50))
	s.add(at+"server CPU", "µs/call", t.p.name, float64(t.cpu)/1e3/float64(t.calls))
}

// talker is a subject with one client of lines.
type talker struct {
	p       *process
	lines   *load.Lines
	r       *load.Request
	calls   int
	elapsed time.Duration
	cpu     int64
	p50     []float64
}

func (l *lab) talk(name, endpoint string, args ...string) (*talker, error) {
	sock := filepath.Join(l.dir, strconv.Itoa(l.count+1)+".door")
	greets := name != plain
	if endpoint == "unix" {
		args = append(args, "-unix", sock)
	} else {
		args = append(args, "-stdio")
	}
	p, err := l.launch(name, args...)
	if err != nil {
		return nil, err
	}
	t := &talker{p: p, r: load.Line(load.Legacy)}
	if err := p.connect(); err != nil {
		return nil, err
	}
	if endpoint == "unix" {
		t.lines, err = load.DialUnix(sock)
	} else {
		t.lines = load.NewLines(p.out, p.in)
	}
	if err == nil && greets {
		err = t.lines.Greet()
	}
	if err == nil {
		_, err = t.lines.Run(t.r, 50*time.Millisecond)
	}
	if err != nil {
		p.stop()
		return nil, fmt.Errorf("%s, %s: %w", name, endpoint, err)
	}
	return t, nil
}

func (t *talker) turn(d time.Duration) error {
	found, used, err := t.p.metered(func() (load.Figures, error) { return t.lines.Run(t.r, d) })
	if err != nil {
		return err
	}
	t.calls += found.Calls
	t.elapsed += found.Elapsed
	t.cpu += used.CPU
	t.p50 = append(t.p50, micros(found.P50))
	return nil
}
