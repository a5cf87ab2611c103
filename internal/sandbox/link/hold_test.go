package link

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
	"gatehouse/internal/sandbox/wire"
)

// started is a program whose agent says nothing by itself any more. What the
// host says to it from then on comes out of the channel.
func started(ctx context.Context, t *testing.T, l *Link, agent *peer, c sandbox.Command) (sandbox.Process, chan wire.Frame) {
	t.Helper()
	said := make(chan wire.Frame, 10)
	go func() {
		f := agent.next(wire.Start)
		agent.say(f.ID, wire.Ready, nil)
		for {
			f, err := wire.Read(agent.conn)
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
		l.Hold()
		l.Hold()
		began := time.Now()
		for name, call := range map[string]func() error{
			"Exec":   func() error { return second(l.Exec(t.Context(), sandbox.Command{Argv: []string{"x"}})) },
			"Ping":   func() error { return l.Ping(t.Context()) },
			"Adjust": func() error { return l.Adjust(t.Context(), wire.Plan{}, sandbox.Limits{}) },
			"read":   func() error { return second(l.ReadFile(t.Context(), "x", 0, 0, io.Discard)) },
			"write":  func() error { return second(l.WriteFile(t.Context(), "x", strings.NewReader("x"), sandbox.Writing{})) },
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
		l.Let()
		l.Let()
		if err := p.Signal(3); err != nil {
			t.Error(err)
		}
		if f := <-said; f.Kind != wire.Signal || f.Body[0] != 3 {
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
			l.Hold()
			time.Sleep(time.Hour)
			l.Let()
		}
		f := <-said
		if took := time.Since(began); f.Kind != wire.Signal || f.Body[0] != sigterm || took != 3*time.Hour+time.Minute {
			t.Errorf("%+v after %v", f, took)
		}
		// The grace that it has to end stands still as well.
		l.Hold()
		time.Sleep(time.Hour)
		l.Let()
		f = <-said
		if took := time.Since(began); f.Kind != wire.Signal || f.Body[0] != sigkill || took != 4*time.Hour+time.Minute+termGrace {
			t.Errorf("%+v after %v", f, took)
		}
		l.Hold()
		time.Sleep(time.Hour)
		l.Let()
		if err := l.paused(); err != nil {
			t.Error(err)
		}
		agent.say(1, wire.Exit, wire.Ended{Signal: 9}.Body())
		if r, err := p.Wait(); err != nil || r.Outcome != sandbox.TimedOut {
			t.Errorf("%+v, %v", r, err)
		}
		if len(l.pace.timers) != 0 {
			t.Errorf("%d timers are left", len(l.pace.timers))
		}
		l.Close()
	})
}

func TestOthersCanGoByTheTimeOfALink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := pair(t, sandbox.Defaults(), nil)
		defer l.Close()
		began := time.Now()
		l.Hold()
		up, stop := l.After(time.Minute)
		defer stop()
		time.Sleep(time.Hour)
		l.Let()
		<-up
		if took := time.Since(began); took != time.Hour+time.Minute {
			t.Errorf("it was up after %v", took)
		}
	})
}

func TestWhatIsCalledOffWhileHeldEndsAfterwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, agent := pair(t, sandbox.Defaults(), nil)
		ctx, cancel := context.WithCancel(t.Context())
		p, said := started(ctx, t, l, agent, sandbox.Command{Argv: []string{"x"}})
		<-said
		l.Hold()
		cancel()
		time.Sleep(time.Hour)
		select {
		case f := <-said:
			t.Errorf("the agent was told %+v while it was stopped", f)
		case <-p.Done():
			t.Error("it ended while it was stopped")
		default:
		}
		l.Let()
		if f := <-said; f.Kind != wire.Signal || f.Body[0] != sigterm {
			t.Errorf("the agent heard %+v", f)
		}
		agent.say(1, wire.Exit, wire.Ended{Signal: 15}.Body())
		if r, err := p.Wait(); !errors.Is(err, context.Canceled) || r.Signal != 15 {
			t.Errorf("%+v, %v", r, err)
		}
		l.Close()
	})
}

func TestWhatWaitsWhileHeldEndsWithTheLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, agent := pair(t, sandbox.Defaults(), nil)
		var out bytes.Buffer
		in, typed := io.Pipe()
		p, said := started(t.Context(), t, l, agent, sandbox.Command{Argv: []string{"x"}, Stdin: in, Stdout: &out})
		l.Hold()
		go typed.Write([]byte("typed while it was stopped"))
		// What it had said before it was stopped is not lost.
		agent.say(1, wire.Stdout, []byte("hello"))
		synctest.Wait()
		if len(said) != 0 {
			t.Errorf("the agent was told %+v", <-said)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if r, err := p.Wait(); r.Outcome != sandbox.Lost || !errors.Is(err, sandbox.ErrClosed) || out.String() != "hello" {
			t.Errorf("%+v, %v, %q", r, err, out.String())
		}
		if err := l.Ping(t.Context()); !errors.Is(err, sandbox.ErrClosed) {
			t.Errorf("a closed link that is held: %v", err)
		}
	})
}

func second[T any](_ T, err error) error { return err }
