package agentclient

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agentprotocol"
)

// started is a program whose agent says nothing by itself any more. What the
// host says to it from then on comes out of the channel.
func started(ctx context.Context, t *testing.T, l *Client, agent *peer,
	c sandbox.Command) (sandbox.Process, chan agentprotocol.Frame) {
	t.Helper()
	said := make(chan agentprotocol.Frame, 10)
	go func() {
		f := agent.next(agentprotocol.Start)
		agent.say(f.ID, agentprotocol.Ready, nil)
		for {
			f, err := agentprotocol.Read(agent.conn)
			if err != nil {
				return
			}
			said <- f
		}
	}()
	p, err := l.Exec(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return p, said
}

func TestWhatIsAskedWhileHeldIsRefusedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, agent := pair(t, sandbox.Defaults(), nil)
		p, said := started(t.Context(), t, l, agent, sandbox.Command{Argv: []string{"x"}})
		<-said // the end of its input
		l.Suspend()
		l.Suspend()
		began := time.Now()
		for name, call := range map[string]func() error{
			"Exec":   func() error { return second(l.Exec(t.Context(), sandbox.Command{Argv: []string{"x"}})) },
			"Ping":   func() error { return l.Ping(t.Context()) },
			"Adjust": func() error { return l.Adjust(t.Context(), agentprotocol.Plan{}, sandbox.Limits{}) },
			"read":   func() error { return second(l.ReadFile(t.Context(), "x", 0, 0, io.Discard)) },
			"write": func() error {
				return second(l.WriteFile(t.Context(), "x", strings.NewReader("x"), sandbox.WriteOptions{}))
			},
			"stat":   func() error { return second(l.Stat(t.Context(), "x")) },
			"move":   func() error { return l.Rename(t.Context(), "x", "y") },
			"signal": func() error { return p.Signal(15) },
			"resize": func() error { return p.Resize(sandbox.Size{Cols: 1, Rows: 1}) },
		} {
			if err := call(); !errors.Is(err, sandbox.ErrPaused) {
				t.Errorf("%s: %v, want ErrPaused", name, err)
			}
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("the answers took %v", took)
		}
		if len(said) != 0 {
			t.Errorf("the agent was told something: %+v", <-said)
		}
		l.Continue()
		l.Continue()
		if err := p.Signal(3); err != nil {
			t.Error(err)
		}
		if f := <-said; f.Kind != agentprotocol.Signal || f.Body[0] != 3 {
			t.Errorf("the agent heard %+v", f)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		p.Wait()
	})
}

func TestTheTimeOfACallStandsStillWhileHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, agent := pair(t, sandbox.Defaults(), nil)
		began := time.Now()
		p, said := started(t.Context(), t, l, agent, sandbox.Command{Argv: []string{"x"}, Timeout: time.Minute})
		<-said
		for range 3 {
			time.Sleep(15 * time.Second)
			l.Suspend()
			time.Sleep(time.Hour)
			l.Continue()
		}
		f := <-said
		if took := time.Since(began); f.Kind != agentprotocol.Signal || f.Body[0] != sigterm ||
			took != 3*time.Hour+time.Minute {
			t.Errorf("%+v after %v", f, took)
		}
		// The grace that it has to end stands still as well.
		l.Suspend()
		time.Sleep(time.Hour)
		l.Continue()
		f = <-said
		if took := time.Since(began); f.Kind != agentprotocol.Signal || f.Body[0] != sigkill ||
			took != 4*time.Hour+time.Minute+termGrace {
			t.Errorf("%+v after %v", f, took)
		}
		l.Suspend()
		time.Sleep(time.Hour)
		l.Continue()
		if err := l.paused(); err != nil {
			t.Error(err)
		}
		agent.say(1, agentprotocol.Exit, agentprotocol.ExitStatus{Signal: 9}.Body())
		if r, err := p.Wait(); err != nil || r.Outcome != sandbox.TimedOut {
			t.Errorf("%+v, %v", r, err)
		}
		if len(l.clock.timers) != 0 {
			t.Errorf("%d timers are left", len(l.clock.timers))
		}
		l.Close()
	})
}

func TestOthersCanGoByTheTimeOfALink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := pair(t, sandbox.Defaults(), nil)
		defer l.Close()
		began := time.Now()
		l.Suspend()
		up, stop := l.After(time.Minute)
		defer stop()
		time.Sleep(time.Hour)
		l.Continue()
		<-up
		if took := time.Since(began); took != time.Hour+time.Minute {
			t.Errorf("it was up after %v", took)
		}
	})
}

func TestWhatIsCalledOffWhileHeldIsLostAtOnceAndEndsAfterwards(t *testing.T) {
	for name, when := range map[string]func(l *Client, cancel func()){
		"while held":  func(l *Client, cancel func()) { l.Suspend(); cancel() },
		"before that": func(l *Client, cancel func()) { cancel(); synctest.Wait(); l.Suspend() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, agent := pair(t, sandbox.Defaults(), nil)
				defer l.Close()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var out bytes.Buffer
				in, typed := io.Pipe()
				p, said := started(ctx, t, l, agent, sandbox.Command{Argv: []string{"x"}, Stdin: in, Stdout: &out})
				agent.say(1, agentprotocol.Stdout, []byte("hello"))
				synctest.Wait()
				began := time.Now()
				when(l, cancel)
				r, err := p.Wait()
				if took := time.Since(began); took != 0 {
					t.Errorf("it took %v", took)
				}
				if !errors.Is(err, context.Canceled) || r.Outcome != sandbox.Lost || r.StdoutSize != 5 ||
					out.String() != "hello" {
					t.Errorf("%+v, %v, %q", r, err, out.String())
				}
				if _, err := typed.Write([]byte("x")); err == nil {
					t.Error("its input is still read")
				}
				time.Sleep(time.Hour)
				l.Continue()
				for _, signal := range []byte{sigterm, sigkill} {
					if f := <-said; f.Kind != agentprotocol.Signal || f.ID != 1 || f.Body[0] != signal {
						t.Errorf("the agent heard %+v, want signal %d", f, signal)
					}
				}
				// Its result has no receiver now, and is no fault either.
				agent.say(1, agentprotocol.Credit, agentprotocol.Grant{Stream: agentprotocol.Stdin, Bytes: 0}.Body())
				agent.say(1, agentprotocol.Stdout, []byte("and more"))
				agent.say(1, agentprotocol.Stdout, nil)
				agent.say(1, agentprotocol.Stderr, []byte("and more"))
				agent.say(1, agentprotocol.Exit, agentprotocol.ExitStatus{Signal: 9}.Body())
				answers(t, l, agent, said)
				if again, err := p.Wait(); again != r || !errors.Is(err, context.Canceled) || out.String() != "hello" {
					t.Errorf("afterwards: %+v, %v, %q", again, err, out.String())
				}
				nothingLeft(t, l)
			})
		})
	}
}

// nothingLeft is for a link without open requests.
func nothingLeft(t *testing.T, l *Client) {
	t.Helper()
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clock.mu.Lock()
	defer l.clock.mu.Unlock()
	if len(l.clock.timers) != 0 || len(l.requests) != 0 || l.err != nil {
		t.Errorf("%d timers and %d requests are left, %v", len(l.clock.timers), len(l.requests), l.err)
	}
}

// answers has the agent answer one question, so that the link is seen to work.
func answers(t *testing.T, l *Client, agent *peer, said <-chan agentprotocol.Frame) {
	t.Helper()
	go func() {
		f := <-said
		agent.say(f.ID, agentprotocol.Pong, f.Body)
	}()
	if err := l.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAProgramThatIsCalledOffBeforeItRunsIsLostWhileHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, agent := pair(t, sandbox.Defaults(), nil)
		defer l.Close()
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			agent.next(agentprotocol.Start)
			agent.ignore()
			l.Suspend()
			cancel()
		}()
		p, err := l.Exec(ctx, sandbox.Command{Argv: []string{"x"}})
		if err != nil {
			t.Fatal(err)
		}
		if r, err := p.Wait(); r.Outcome != sandbox.Lost || !errors.Is(err, context.Canceled) {
			t.Errorf("%+v, %v", r, err)
		}
		l.Continue()
		agent.say(1, agentprotocol.Ready, nil)
		agent.say(1, agentprotocol.Exit, agentprotocol.ExitStatus{Signal: 15}.Body())
		nothingLeft(t, l)
	})
}

func TestWorkOnFilesThatIsCalledOffWhileHeldIsLostAtOnce(t *testing.T) {
	for name, do := range map[string]func(ctx context.Context, l *Client) error{
		"stat": func(ctx context.Context, l *Client) error { return second(l.Stat(ctx, "x")) },
		"list": func(ctx context.Context, l *Client) error { _, _, err := l.List(ctx, "x", "", 0); return err },
		"read": func(ctx context.Context, l *Client) error { return second(l.ReadFile(ctx, "x", 0, 0, io.Discard)) },
		"pack": func(ctx context.Context, l *Client) error { return l.Pack(ctx, "x", io.Discard) },
		"write": func(ctx context.Context, l *Client) error {
			return second(l.WriteFile(ctx, "x", endless{}, sandbox.WriteOptions{}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, agent := pair(t, sandbox.Defaults(), nil)
				defer l.Close()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				said := make(chan agentprotocol.Frame, 100)
				go func() {
					for {
						f, err := agentprotocol.Read(agent.conn)
						if err != nil {
							return
						}
						said <- f
					}
				}()
				done := make(chan error, 1)
				go func() { done <- do(ctx, l) }()
				synctest.Wait()
				l.Suspend()
				began := time.Now()
				cancel()
				if err := <-done; !errors.Is(err, context.Canceled) || time.Since(began) != 0 {
					t.Errorf("%v after %v", err, time.Since(began))
				}
				time.Sleep(time.Hour)
				l.Continue()
				f := <-said
				for f.Kind != agentprotocol.Signal {
					f = <-said
				}
				if f.ID != 1 || f.Body[0] != sigkill {
					t.Errorf("the agent heard %+v", f)
				}
				agent.say(1, agentprotocol.Exit, agentprotocol.ExitStatus{}.Body())
				synctest.Wait()
				answers(t, l, agent, said)
				nothingLeft(t, l)
			})
		})
	}
}

// endless is a Reader without an end.
type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

func TestWhatListensIsClosedWhenTheLinkIsHeldMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, agent := pair(t, sandbox.Defaults(), nil)
		defer l.Close()
		go func() {
			agent.say(agent.next(agentprotocol.Listen).ID, agentprotocol.Ready, nil)
			agent.next(agentprotocol.Signal)
			l.Suspend() // before the agent has answered
		}()
		n, err := l.Listen(t.Context(), 80)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := n.Close(); err != nil || time.Since(began) != 0 {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

func TestWhatWaitsWhileHeldEndsWithTheLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, agent := pair(t, sandbox.Defaults(), nil)
		var out bytes.Buffer
		in, typed := io.Pipe()
		p, said := started(t.Context(), t, l, agent, sandbox.Command{Argv: []string{"x"}, Stdin: in, Stdout: &out})
		l.Suspend()
		go typed.Write([]byte("typed while it was stopped"))
		// What it had said before it was stopped is not lost.
		agent.say(1, agentprotocol.Stdout, []byte("hello"))
		synctest.Wait()
		if len(said) != 0 {
			t.Errorf("the agent was told %+v", <-said)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if r, err := p.Wait(); r.Outcome != sandbox.Lost || !errors.Is(err, sandbox.ErrClosed) ||
			out.String() != "hello" {
			t.Errorf("%+v, %v, %q", r, err, out.String())
		}
		if err := l.Ping(t.Context()); !errors.Is(err, sandbox.ErrClosed) {
			t.Errorf("a closed link that is held: %v", err)
		}
	})
}

func second[T any](_ T, err error) error { return err }
