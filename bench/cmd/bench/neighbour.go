package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gatehouse/bench/load"
)

// A neighbour floods the host over so many connections, at the rate that
// strangers to the machine are held to or as fast as it is answered.
const (
	neighbourConns = 64
	neighbourRate  = "50"
	neighbourEvery = 25 * time.Millisecond // between two calls of the one who is quiet, well below the rate
)

// neighbours measures how long one session waits for its answers beside
// another that floods the host.
func (b *bench) neighbours() error {
	n := &neighbourBench{b: b, sheet: newSheet(), dir: filepath.Join(b.lab.dir, "neighbours")}
	n.sheet.begin("")
	if err := n.people(); err != nil {
		return err
	}
	for rep := range max(b.reps, 5) {
		for i := range neighbourhoods {
			if err := n.round(neighbourhoods[(i+rep)%len(neighbourhoods)]); err != nil {
				return err
			}
		}
	}
	for i, alone := range n.sheet.figures[neighbourhoods[0].name+": p99"].values[ours] {
		for _, h := range neighbourhoods[1:] {
			n.sheet.add(
				h.name+": p99, of that alone",
				"ratio",
				ours,
				n.sheet.figures[h.name+": p99"].values[ours][i]/alone,
			)
		}
	}
	b.asides["neighbours"] = n.report
	return nil
}

// neighbourBench is the part about neighbours, with a section of its own.
type neighbourBench struct {
	b            *bench
	sheet        *sheet
	dir          string
	quiet, noisy string // tokens
}

type neighbourhood struct {
	name, rate string
	conns      int
}

var neighbourhoods = []neighbourhood{
	{"alone", neighbourRate, 0},
	{"beside a flood", neighbourRate, neighbourConns},
	{"beside a flood that nothing slows down", "0", neighbourConns},
}

// people makes two users, each with a token.
func (n *neighbourBench) people() error {
	if err := os.MkdirAll(n.dir, 0o700); err != nil {
		return err
	}
	for who, secret := range map[string]*string{"quiet": &n.quiet, "noisy": &n.noisy} {
		for _, args := range [][]string{{"user", "add", who, "--no-password"}, {"token", "create", "--user", who}} {
			cmd := exec.Command(n.b.lab.product(), args...)
			cmd.Env = homeIn(n.dir)
			out, err := cmd.Output()
			if err != nil {
				return fmt.Errorf("%s: %w", strings.Join(args, " "), err)
			}
			*secret = strings.TrimSpace(string(out))
		}
	}
	return nil
}

// homeIn is an environment in which a host finds no user's files.
func homeIn(dir string) []string {
	return append(
		os.Environ(),
		"HOME="+dir,
		"XDG_CONFIG_HOME="+dir,
		"XDG_STATE_HOME="+dir,
		"XDG_DATA_HOME="+dir,
		"XDG_CACHE_HOME="+dir,
	)
}

// round measures one host, made for it.
func (n *neighbourBench) round(h neighbourhood) error {
	p, err := n.b.lab.startServing(homeIn(n.dir), "-d", n.dir, "--require-auth", "--rate-limit", h.rate)
	if err != nil {
		return err
	}
	defer p.stop()
	ctx, cancel := context.WithCancel(context.Background())
	flood, err := n.flood(ctx, p.addr, h.conns)
	defer func() {
		cancel()
		flood.wait()
	}()
	if err != nil {
		return err
	}
	time.Sleep(3 * time.Second) // what may come at once has come
	window := 4 * n.b.slice
	before := flood.answers.Load()
	took, err := n.ask(p.addr, window)
	if err != nil {
		return fmt.Errorf("%s: %w", h.name, err)
	}
	if err := flood.failed(); err != nil {
		return err
	}
	slices.Sort(took)
	n.sheet.add(h.name+": p50", "µs", ours, micros(took[len(took)/2]))
	n.sheet.add(h.name+": p99", "µs", ours, micros(took[len(took)*99/100]))
	if h.conns > 0 {
		n.sheet.add(h.name+": answers to it", "1/s", ours, float64(flood.answers.Load()-before)/window.Seconds())
	}
	return nil
}

// ask calls now and then, as a working user does.
func (n *neighbourBench) ask(addr string, window time.Duration) (took []time.Duration, err error) {
	c, err := load.Dial(addr)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	session, err := c.OpenAs(n.quiet)
	if err != nil {
		return nil, err
	}
	call := load.CallAs(n.quiet, session, 1, "file_exists", `{"path":"."}`)
	tick := time.NewTicker(neighbourEvery)
	defer tick.Stop()
	for end := time.Now().Add(window); time.Now().Before(end); {
		<-tick.C
		begin := time.Now()
		a, err := c.Do(call)
		if err != nil {
			return nil, err
		}
		took = append(took, time.Since(begin))
		if a.Status != 200 ||
			!strings.Contains(string(a.Body), `\"exists\":true`) && !strings.Contains(string(a.Body), `"exists":true`) {
			return nil, fmt.Errorf("the quiet one gets %d: %.300s", a.Status, a.Body)
		}
	}
	return took, nil
}

// flood is what the noisy one sends.
type flood struct {
	answers atomic.Int64
	crew    sync.WaitGroup
	mu      sync.Mutex
	err     error
	conns   []*load.Client
}

// flood has every connection send as fast as it is answered, all in one
// session.
func (n *neighbourBench) flood(ctx context.Context, addr string, conns int) (*flood, error) {
	f := &flood{}
	session := ""
	for i := range conns {
		c, err := load.Dial(addr)
		if err == nil {
			f.conns = append(f.conns, c)
			if session == "" {
				session, err = c.OpenAs(n.noisy)
			}
		}
		if err != nil {
			return f, err
		}
		call := load.CallAs(n.noisy, session, i+1, "file_exists", `{"path":"."}`)
		f.crew.Go(func() {
			for ctx.Err() == nil {
				a, err := c.Do(call)
				if err == nil && a.Status != 200 && a.Status != 429 {
					err = fmt.Errorf("status %d: %.300s", a.Status, a.Body)
				}
				if err != nil {
					f.fail(ctx, err)
					return
				}
				f.answers.Add(1)
			}
		})
	}
	return f, nil
}

func (f *flood) fail(ctx context.Context, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ctx.Err() == nil {
		f.err = errors.Join(f.err, fmt.Errorf("the flood: %w", err))
	}
}

func (f *flood) failed() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// wait ends the flood once its context has.
func (f *flood) wait() {
	hangUp(f.conns)
	f.crew.Wait()
}

// served is the command, serving HTTP.
type served struct {
	addr string
	cmd  *exec.Cmd
}

func (s *served) stop() {
	s.cmd.Process.Signal(syscall.SIGTERM)
	s.cmd.Wait()
}

// startServing starts the command as a person would, and reads where it
// listens.
func (l *lab) startServing(env []string, args ...string) (*served, error) {
	s := &served{cmd: exec.Command(l.product(), append([]string{"serve", "--http", "-p", "0"}, args...)...)}
	s.cmd.Env = env
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	says, err := s.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	late := time.AfterFunc(startTime, func() { s.cmd.Process.Kill() })
	defer late.Stop()
	lines := bufio.NewScanner(says)
	for s.addr == "" && lines.Scan() {
		if _, url, ok := strings.Cut(lines.Text(), "Listening on http://"); ok {
			s.addr, _, _ = strings.Cut(url, "/")
		}
	}
	if s.addr == "" {
		s.stop()
		return nil, fmt.Errorf("%s did not say where it listens", product)
	}
	go io.Copy(io.Discard, says)
	return s, nil
}

// report writes the section.
func (n *neighbourBench) report(w io.Writer) {
	fmt.Fprintf(w, "## Neighbours\n\n")
	fmt.Fprintf(
		w,
		`The command as it is installed, with two users: one calls a tool every %v, the other floods the host in one session
over %d connections that each send as fast as they are answered. All of it runs three times in each repetition: without the
flood, with the rate that callers from other machines are held to (`+"`--rate-limit %s`"+`), and without any rate. Driver and host share
the cores, so the flood takes time from both.
`,
		neighbourEvery,
		neighbourConns,
		neighbourRate,
	)
	n.b.circumstances(w)
	fmt.Fprintf(w, "\n### What is to hold\n\n")
	n.sheet.judge(w, []bar{{figure: neighbourhoods[1].name + ": p99, of that alone", limit: 2}})
	fmt.Fprintln(w)
	n.sheet.sections[0].column(w)
}
