package agentclient

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agentprotocol"
)

// dialled is a connection whose agent is in the test's hand from then on.
func dialled(t *testing.T, l *Client, agent *peer) (c net.Conn, id uint32) {
	t.Helper()
	asked := make(chan uint32)
	go func() {
		f := agent.next(agentprotocol.Dial)
		agent.say(f.ID, agentprotocol.Ready, nil)
		asked <- f.ID
	}()
	c, err := l.Dial(t.Context(), 80)
	if err != nil {
		t.Fatal(err)
	}
	return c, <-asked
}

func TestAConnectionPassesBytesBothWaysAndEndsByHalves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, agent := pair(t, sandbox.Defaults(), nil)
		c, id := dialled(t, l, agent)
		sent := make(chan string)
		go func() {
			var all bytes.Buffer
			for {
				f := agent.next(agentprotocol.Stdin)
				if len(f.Body) == 0 {
					break
				}
				all.Write(f.Body)
				agent.say(id, agentprotocol.Credit,
					agentprotocol.Grant{Stream: agentprotocol.Stdin, Bytes: uint32(len(f.Body))}.Body())
			}
			sent <- all.String()
			agent.say(id, agentprotocol.Stdout, []byte("answer"))
			agent.say(id, agentprotocol.Stdout, nil)
			agent.say(id, agentprotocol.Exit, agentprotocol.ExitStatus{}.Body())
		}()
		want := string(bytes.Repeat([]byte("0123456789"), agentprotocol.Window/5)) // twice what is granted at first
		if n, err := io.WriteString(c, want); n != len(want) || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Error(err)
		}
		if got := <-sent; got != want {
			t.Errorf("%d bytes arrived of %d", len(got), len(want))
		}
		if got, err := io.ReadAll(c); string(got) != "answer" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
		if _, err := c.Write([]byte("more")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("after its end: %v", err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if len(l.dialled) != 0 {
			t.Error("its place is still taken")
		}
		l.Close()
	})
}

func TestAConnectionKeepsItsDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, agent := pair(t, sandbox.Defaults(), nil)
		c, id := dialled(t, l, agent)
		agent.ignore()
		began := time.Now()
		c.SetReadDeadline(began.Add(time.Hour))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) ||
			time.Since(began) != time.Hour {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		c.SetWriteDeadline(time.Now().Add(time.Minute))
		if n, err := c.Write(make([]byte, agentprotocol.Window+1)); n != agentprotocol.Window ||
			!errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%d, %v", n, err)
		}
		// One that is moved, or taken away, counts for who waits already.
		c.SetDeadline(time.Time{})
		read := make(chan error)
		go func() {
			_, err := c.Read(make([]byte, 1))
			read <- err
		}()
		time.Sleep(time.Hour)
		c.SetReadDeadline(time.Unix(1, 0))
		if err := <-read; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		c.SetReadDeadline(time.Now().Add(time.Minute))
		agent.say(id, agentprotocol.Stdout, []byte("x"))
		synctest.Wait()
		if n, err := c.Read(make([]byte, 5)); n != 1 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		l.Close()
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, sandbox.ErrClosed) {
			t.Error(err)
		}
	})
}

func TestAConnectionWaitsWhileTheLinkIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, agent := pair(t, sandbox.Defaults(), nil)
		c, _ := dialled(t, l, agent)
		l.Suspend()
		if _, err := l.Dial(t.Context(), 80); !errors.Is(err, sandbox.ErrPaused) {
			t.Errorf("another one: %v", err)
		}
		if _, err := l.Listen(t.Context(), 80); !errors.Is(err, sandbox.ErrPaused) {
			t.Errorf("a listener: %v", err)
		}
		c.SetWriteDeadline(time.Now().Add(time.Minute))
		if _, err := c.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		c.SetWriteDeadline(time.Time{})
		wrote := make(chan error)
		go func() {
			_, err := c.Write([]byte("x"))
			wrote <- err
		}()
		time.Sleep(time.Hour)
		select {
		case err := <-wrote:
			t.Errorf("it was written while it was held: %v", err)
		default:
		}
		l.Continue()
		if f := agent.next(agentprotocol.Stdin); string(f.Body) != "x" {
			t.Errorf("%q", f.Body)
		}
		if err := <-wrote; err != nil {
			t.Error(err)
		}
		l.Close()
	})
}

func TestAnAgentThatKeepsAClosedConnectionIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, agent := pair(t, sandbox.Defaults(), nil)
		c, _ := dialled(t, l, agent)
		agent.ignore()
		began := time.Now()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := c.Close(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("closed again: %v", err)
		}
		<-l.Done()
		if took := time.Since(began); took != closeWait {
			t.Errorf("it was given up after %v", took)
		}
	})
}

func TestSoManyConnectionsAndNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, agent := pair(t, sandbox.Defaults(), nil)
		var all []net.Conn
		for range mostStreams {
			c, _ := dialled(t, l, agent)
			all = append(all, c)
		}
		if _, err := l.Dial(t.Context(), 80); !errors.Is(err, syscall.EMFILE) {
			t.Errorf("one more: %v", err)
		}
		go func() {
			f := agent.next(agentprotocol.Signal)
			agent.say(f.ID, agentprotocol.Exit, agentprotocol.ExitStatus{}.Body())
		}()
		all[0].Close()
		synctest.Wait()
		dialled(t, l, agent)
		l.Close()
	})
}

func TestConnectionsAreAcceptedOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, agent := pair(t, sandbox.Defaults(), nil)
		go func() {
			n := agent.next(agentprotocol.Listen)
			agent.say(n.ID, agentprotocol.Ready, nil)
			for i := range 3 {
				a := agent.next(agentprotocol.Accept)
				if of, err := agentprotocol.ParseRequestID(a.Body); err != nil || uint32(of) != n.ID {
					t.Errorf("a connection of %d, %v", of, err)
				}
				switch i {
				case 1: // which passes
					agent.say(a.ID, agentprotocol.Failed,
						agentprotocol.Failure{Errno: syscall.EAGAIN, Text: "too much"}.Body())
				default:
					agent.say(a.ID, agentprotocol.Ready, nil)
					agent.say(a.ID, agentprotocol.Stdout, []byte{'a' + byte(i)})
					agent.say(a.ID, agentprotocol.Stdout, nil)
				}
			}
			waits := agent.next(agentprotocol.Accept)
			if f := agent.next(agentprotocol.Signal); f.ID != waits.ID && f.ID != n.ID {
				t.Errorf("a signal for %d", f.ID)
			}
			agent.ignore()
			agent.say(waits.ID, agentprotocol.Failed,
				agentprotocol.Failure{Errno: syscall.ECANCELED, Text: "over"}.Body())
			agent.say(n.ID, agentprotocol.Exit, agentprotocol.ExitStatus{}.Body())
		}()
		n, err := l.Listen(t.Context(), 80)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"a", "c"} {
			c, err := n.Accept()
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(c); string(got) != want || err != nil {
				t.Errorf("%q, %v, want %s", got, err, want)
			}
		}
		last := make(chan error)
		go func() {
			_, err := n.Accept()
			last <- err
		}()
		synctest.Wait()
		if err := errors.Join(n.Close(), n.Close()); err != nil {
			t.Error(err)
		}
		if err := <-last; !errors.Is(err, net.ErrClosed) {
			t.Errorf("who waited for a connection: %v", err)
		}
		if _, err := n.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		l.Close()
	})
}

func TestWhatCannotBeOnAConnectionBreaksTheLink(t *testing.T) {
	exit, grant := agentprotocol.ExitStatus{}.Body(), func(n uint32) []byte {
		return agentprotocol.Grant{Stream: agentprotocol.Stdin, Bytes: n}.Body()
	}
	type said struct {
		k    agentprotocol.Kind
		body []byte
	}
	for name, frames := range map[string][]said{
		"bytes before it is made":   {{agentprotocol.Stdout, []byte("x")}},
		"its end before it is made": {{agentprotocol.Exit, exit}},
		"made twice":                {{agentprotocol.Ready, nil}, {agentprotocol.Ready, nil}},
		"more than was granted": {{agentprotocol.Ready, nil},
			{agentprotocol.Stdout, make([]byte, agentprotocol.MaxBody)},
			{agentprotocol.Stdout, make([]byte, agentprotocol.MaxBody)},
			{agentprotocol.Stdout, make([]byte, agentprotocol.MaxBody)},
			{agentprotocol.Stdout, make([]byte, agentprotocol.MaxBody)}, {agentprotocol.Stdout, []byte("x")}},
		"bytes after its end": {{agentprotocol.Ready, nil}, {agentprotocol.Stdout, nil},
			{agentprotocol.Stdout, []byte("x")}},
		"a grant of what was not sent": {{agentprotocol.Ready, nil}, {agentprotocol.Credit, grant(1)}},
		"a grant for what it sends": {{agentprotocol.Ready, nil},
			{agentprotocol.Credit, agentprotocol.Grant{Stream: agentprotocol.Stdout, Bytes: 1}.Body()}},
		"another stream":            {{agentprotocol.Ready, nil}, {agentprotocol.Stderr, []byte("x")}},
		"an entry":                  {{agentprotocol.Ready, nil}, {agentprotocol.Entry, agentprotocol.Info{}.Body()}},
		"a connection from nowhere": {{agentprotocol.Accept, agentprotocol.RequestID(1).Body()}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, agent := pair(t, sandbox.Defaults(), nil)
				go func() {
					id := agent.next(agentprotocol.Dial).ID
					agent.ignore()
					for _, f := range frames {
						agentprotocol.Write(agent.conn, agentprotocol.Frame{Kind: f.k, ID: id, Body: f.body})
					}
				}()
				if c, err := l.Dial(t.Context(), 80); err == nil {
					defer c.Close()
				}
				<-l.Done()
				l.mu.Lock()
				defer l.mu.Unlock()
				if !errors.Is(l.err, agentprotocol.ErrBroken) {
					t.Errorf("it broke for %v", l.err)
				}
			})
		})
	}
}

func TestWhoGivesUpDiallingLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, agent := pair(t, sandbox.Defaults(), nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		go func() {
			id := agent.next(agentprotocol.Dial).ID
			agent.next(agentprotocol.Signal)
			agent.say(id, agentprotocol.Ready, nil) // too late
			agent.say(id, agentprotocol.Stdout, []byte("x"))
			agent.say(id, agentprotocol.Exit, agentprotocol.ExitStatus{}.Body())
		}()
		if _, err := l.Dial(ctx, 80); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		synctest.Wait()
		l.mu.Lock()
		left := len(l.requests)
		l.mu.Unlock()
		if left != 0 || len(l.dialled) != 0 || l.paused() != nil {
			t.Errorf("%d requests are left, %d places taken", left, len(l.dialled))
		}
		l.Close()
	})
}

// shutting is a channel that breaks the link at the first frame, and gives the
// link the time to tell every request.
type shutting struct {
	net.Conn
	told func()
}

func (c shutting) Write([]byte) (int, error) {
	c.Conn.Close()
	c.told()
	return 0, io.ErrClosedPipe
}

func TestAConnectionThatBreaksWhileItIsAskedForLeavesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, _ := net.Pipe()
		l := New(shutting{here, func() { time.Sleep(time.Second) }}, sandbox.Defaults(), nil)
		if _, err := l.Dial(t.Context(), 80); !errors.Is(err, sandbox.ErrClosed) {
			t.Error(err)
		}
		if _, err := l.Dial(t.Context(), 80); !errors.Is(err, sandbox.ErrClosed) {
			t.Error(err)
		}
		if len(l.dialled) != 0 {
			t.Errorf("%d places are taken", len(l.dialled))
		}
	})
}
