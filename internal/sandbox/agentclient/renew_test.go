package agentclient

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agentprotocol"
)

func TestAStillAgentIsToldToGoOnAndNothingElseInBetween(t *testing.T) {
	for _, another := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l, agent := pair(t, sandbox.Defaults(), nil)
			began := time.Now()
			p, said := started(t.Context(), t, l, agent, sandbox.Command{Argv: []string{"x"}, Timeout: time.Minute})
			<-said
			asked := make(chan error)
			go func() { asked <- l.Quiesce(t.Context()) }()
			f := <-said
			if f.Kind != agentprotocol.Quiesce {
				t.Errorf("the agent heard %+v", f)
			}
			agent.say(f.ID, agentprotocol.Ready, nil)
			if err := <-asked; err != nil {
				t.Fatal(err)
			}
			if err := l.Quiesce(t.Context()); err != nil {
				t.Errorf("again: %v", err)
			}
			if err := l.Ping(t.Context()); !errors.Is(err, sandbox.ErrPaused) {
				t.Errorf("meanwhile: %v", err)
			}
			time.Sleep(time.Hour)
			if len(said) != 0 {
				t.Errorf("the agent heard %+v", <-said)
			}
			if another {
				here, there := net.Pipe()
				agent.conn.Close() // the link notices, and waits for what follows
				synctest.Wait()
				if err := l.Switch(here); err != nil {
					t.Error(err)
				}
				agent.conn = there
				go func() {
					for {
						f, err := agentprotocol.Read(there)
						if err != nil {
							return
						}
						said <- f
					}
				}()
			}
			l.Continue()
			f = <-said
			if at, err := agentprotocol.ParseInstant(f.Body); f.Kind != agentprotocol.Resume || err != nil ||
				!at.Equal(began.Add(time.Hour)) {
				t.Errorf("the agent heard %+v at %v", f, time.Now())
			}
			if f, took := <-said, time.Since(began); f.Kind != agentprotocol.Signal || took != time.Hour+time.Minute {
				t.Errorf("%+v after %v", f, took)
			}
			agent.say(1, agentprotocol.Exit, agentprotocol.ExitStatus{Signal: 15}.Body())
			if r, err := p.Wait(); err != nil || r.Outcome != sandbox.TimedOut {
				t.Errorf("%+v, %v", r, err)
			}
			if err := l.Switch(&closing{}); err == nil {
				t.Error("the channel was changed of a link that was not still")
			}
			l.Close()
		})
	}
}

// closing is a channel that ends at once.
type closing struct{ net.Conn }

func (*closing) Close() error { return nil }

func TestASilenceEndsWithTheLink(t *testing.T) {
	for name, end := range map[string]func(*Client, *peer){
		"closed":                     func(l *Client, _ *peer) { l.Close() },
		"gone, and no other channel": func(l *Client, a *peer) { a.conn.Close(); l.Continue() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, agent := pair(t, sandbox.Defaults(), nil)
				go func() { agent.say(agent.next(agentprotocol.Quiesce).ID, agentprotocol.Ready, nil) }()
				if err := l.Quiesce(t.Context()); err != nil {
					t.Fatal(err)
				}
				end(l, agent)
				<-l.Done()
				if err := l.Ping(t.Context()); !errors.Is(err, sandbox.ErrClosed) {
					t.Error(err)
				}
				here, _ := net.Pipe()
				if err := l.Switch(here); !errors.Is(err, sandbox.ErrClosed) {
					t.Error(err)
				}
			})
		})
	}
}

func TestAnAgentThatDoesNotBecomeStillIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, agent := pair(t, sandbox.Defaults(), nil)
		agent.ignore()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := l.Quiesce(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		<-l.Done()
	})
}

func TestARestoredAgentIsToldWhatIsDifferentNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, agent := pair(t, sandbox.Defaults(), nil)
		go func() {
			f := agent.next(agentprotocol.Renew)
			n, err := agentprotocol.ParseRenewal(f.Body)
			if err != nil || !n.Clock.Equal(time.Now()) || len(n.Entropy) < 32 {
				t.Errorf("%+v, %v", n, err)
			}
			agent.say(f.ID, agentprotocol.Ready, []byte(n.Epoch))
			f = agent.next(agentprotocol.Renew)
			agent.say(f.ID, agentprotocol.Ready, []byte(n.Epoch)) // that of the time before
			io.Copy(io.Discard, agent.conn)
		}()
		asked := make(chan error)
		go func() { asked <- l.Ping(t.Context()) }()
		synctest.Wait()
		if err := l.Renew(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-asked; !errors.Is(err, errRestored) {
			t.Errorf("what was under way before: %v", err)
		}
		if err := l.Renew(t.Context()); !errors.Is(err, agentprotocol.ErrBroken) {
			t.Errorf("an answer of another epoch: %v", err)
		}
	})
}
