package link

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/wire"
)

// peer is the agent's end of a link, in the test's hand.
type peer struct {
	t    *testing.T
	conn net.Conn
}

func pair(t *testing.T, l sandbox.Limits, ooms func() int) (*Link, *peer) {
	here, there := net.Pipe()
	return New(here, l, ooms), &peer{t, there}
}

// next is the next frame of these kinds; others are passed over.
func (p *peer) next(kinds ...wire.Kind) wire.Frame {
	p.t.Helper()
	for {
		f, err := wire.Read(p.conn)
		if err != nil {
			p.t.Errorf("the host: %v", err)
			return wire.Frame{}
		}
		if slices.Contains(kinds, f.Kind) {
			return f
		}
	}
}

func (p *peer) say(id uint32, k wire.Kind, body []byte) {
	p.t.Helper()
	if err := wire.Write(p.conn, wire.Frame{Kind: k, ID: id, Body: body}); err != nil {
		p.t.Errorf("to the host: %v", err)
	}
}

// ignore takes whatever the host says from here on.
func (p *peer) ignore() { go io.Copy(io.Discard, p.conn) }

func TestAProgramIsJudgedByItsStatusAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ooms := 0
		l, agent := pair(t, sandbox.Defaults(), func() int { ooms++; return ooms })
		defer l.Close()
		go func() {
			id := agent.next(wire.Start).ID
			agent.ignore()
			agent.say(id, wire.Ready, nil)
			agent.say(id, wire.Stdout, []byte("hello"))
			agent.say(id, wire.Stdout, nil)
			agent.say(id, wire.Exit, wire.Ended{Signal: 9, CPU: time.Second, MaxRSS: 5}.Body())
		}()
		var out bytes.Buffer
		p, err := l.Exec(t.Context(), sandbox.Command{Argv: []string{"x"}, Stdout: &out})
		if err != nil {
			t.Fatal(err)
		}
		r, err := p.Wait()
		if err != nil || r.Outcome != sandbox.OutOfMemory || r.Signal != 9 || r.CPU != time.Second || out.String() != "hello" || r.StdoutSize != 5 {
			t.Errorf("%+v, %v, %q", r, err, out.String())
		}
	})
}

func TestAnAgentThatDoesNotEndWhatItShallIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, agent := pair(t, sandbox.Defaults(), nil)
		got := make(chan []byte, 2)
		go func() {
			id := agent.next(wire.Start).ID
			agent.say(id, wire.Ready, nil)
			got <- agent.next(wire.Signal).Body
			got <- agent.next(wire.Signal).Body
			agent.ignore()
		}()
		p, err := l.Exec(t.Context(), sandbox.Command{Argv: []string{"x"}, Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		r, err := p.Wait()
		if took := time.Since(began); r.Outcome != sandbox.TimedOut || took != time.Minute+termGrace+killWait {
			t.Errorf("%+v, %v after %v", r, err, took)
		}
		if a, b := <-got, <-got; a[0] != sigterm || b[0] != sigkill {
			t.Errorf("the signals were %v and %v", a, b)
		}
		<-l.Done()
		if _, err := l.Exec(t.Context(), sandbox.Command{Argv: []string{"x"}}); !errors.Is(err, sandbox.ErrClosed) {
			t.Errorf("afterwards: %v", err)
		}
	})
}

func TestAnAgentThatEndsLosesWhatIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, agent := pair(t, sandbox.Defaults(), nil)
		go func() {
			agent.say(agent.next(wire.Start).ID, wire.Ready, nil)
			agent.conn.Close()
		}()
		p, err := l.Exec(t.Context(), sandbox.Command{Argv: []string{"x"}})
		if err != nil {
			t.Fatal(err)
		}
		if r, err := p.Wait(); r.Outcome != sandbox.Lost || !errors.Is(err, sandbox.ErrClosed) {
			t.Errorf("%+v, %v", r, err)
		}
		if err := l.Ping(t.Context()); !errors.Is(err, sandbox.ErrClosed) {
			t.Error(err)
		}
	})
}

func TestAnAgentThatDoesNotAnswerEndsWithTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, agent := pair(t, sandbox.Defaults(), nil)
		defer l.Close()
		agent.ignore()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := l.Ping(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if _, err := l.Stat(ctx, "x"); err == nil {
			t.Error("a file was described by nobody")
		}
	})
}

func TestWhatIsNotToComeBreaksTheLink(t *testing.T) {
	flood := func(id uint32) (all []wire.Frame) {
		for range wire.Window/wire.MaxBody + 2 { // the Writer has one in its hands
			all = append(all, wire.Frame{Kind: wire.Stdout, ID: id, Body: make([]byte, wire.MaxBody)})
		}
		return all
	}
	one := func(k wire.Kind, body []byte) func(uint32) []wire.Frame {
		return func(id uint32) []wire.Frame { return []wire.Frame{{Kind: k, ID: id, Body: body}} }
	}
	exit := wire.Ended{}.Body()
	for name, frames := range map[string]func(id uint32) []wire.Frame{
		"more output than granted": flood,
		"a frame of the host's":    one(wire.Start, wire.Program{Argv: []string{"x"}}.Body()),
		"an entry of a folder":     one(wire.Entry, wire.Info{}.Body()),
		"a status of no kernel":    one(wire.Exit, append([]byte{1, 9}, exit[2:]...)),
		"a grant for output":       one(wire.Credit, wire.Grant{Stream: wire.Stdout, Bytes: 1}.Body()),
		"a grant of too much":      one(wire.Credit, wire.Grant{Stream: wire.Stdin, Bytes: 1}.Body()),
		"a request nobody made":    func(id uint32) []wire.Frame { return []wire.Frame{{Kind: wire.Exit, ID: id + 1, Body: exit}} },
		"an end told twice": func(id uint32) []wire.Frame {
			return []wire.Frame{{Kind: wire.Exit, ID: id, Body: exit}, {Kind: wire.Exit, ID: id, Body: exit}}
		},
		"output after its end": func(id uint32) []wire.Frame {
			return []wire.Frame{{Kind: wire.Stdout, ID: id}, {Kind: wire.Stdout, ID: id, Body: []byte("x")}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, agent := pair(t, sandbox.Defaults(), nil)
				go func() {
					id := agent.next(wire.Start).ID
					agent.ignore()
					wire.Write(agent.conn, wire.Frame{Kind: wire.Ready, ID: id})
					for _, f := range frames(id) {
						wire.Write(agent.conn, f)
					}
				}()
				block, free := io.Pipe()
				defer block.Close()
				p, err := l.Exec(t.Context(), sandbox.Command{Argv: []string{"x"}, Stdout: free})
				if err != nil {
					t.Fatal(err)
				}
				<-l.Done()
				block.Close()
				if r, err := p.Wait(); r.Outcome == sandbox.OK && name != "an end told twice" {
					t.Errorf("%+v, %v", r, err)
				}
				l.mu.Lock()
				defer l.mu.Unlock()
				if !errors.Is(l.err, wire.ErrBroken) {
					t.Errorf("it broke for %v", l.err)
				}
			})
		})
	}
}

// hostile is an agent that says what it likes and takes everything.
type hostile struct {
	io.Reader
	closed chan struct{}
}

func (hostile) Write(b []byte) (int, error)      { return len(b), nil }
func (hostile) SetWriteDeadline(time.Time) error { return nil }

func (h hostile) Close() error {
	select {
	case <-h.closed:
	default:
		close(h.closed)
	}
	return nil
}

func FuzzLink(f *testing.F) {
	frames := func(all ...wire.Frame) []byte {
		var b bytes.Buffer
		for _, f := range all {
			wire.Write(&b, f)
		}
		return b.Bytes()
	}
	f.Add(frames(wire.Frame{Kind: wire.Ready, ID: 1}, wire.Frame{Kind: wire.Stdout, ID: 1, Body: []byte("x")}, wire.Frame{Kind: wire.Exit, ID: 1, Body: wire.Ended{}.Body()}))
	f.Add(frames(wire.Frame{Kind: wire.Failed, ID: 1, Body: wire.Failure{Errno: 2, Text: "no"}.Body()}, wire.Frame{Kind: wire.Entry, ID: 2, Body: wire.Info{Name: "a"}.Body()}, wire.Frame{Kind: wire.Exit, ID: 2, Body: wire.Ended{}.Body()}))
	f.Add(frames(wire.Frame{Kind: wire.Entry, ID: 2, Body: wire.Info{Name: "a", Size: 5}.Body()}, wire.Frame{Kind: wire.Stdout, ID: 2, Body: []byte("12345")}, wire.Frame{Kind: wire.Credit, ID: 1, Body: wire.Grant{Stream: wire.Stdin, Bytes: 1}.Body()}))
	f.Add(frames(wire.Frame{Kind: wire.Ready, ID: 3}, wire.Frame{Kind: wire.Stdout, ID: 3, Body: []byte("x")}, wire.Frame{Kind: wire.Stdout, ID: 3}, wire.Frame{Kind: wire.Exit, ID: 3, Body: wire.Ended{}.Body()}))
	f.Add(frames(wire.Frame{Kind: wire.Ready, ID: 4}, wire.Frame{Kind: wire.Ready, ID: 3}, wire.Frame{Kind: wire.Failed, ID: 3, Body: wire.Failure{Errno: 104, Text: "reset"}.Body()}, wire.Frame{Kind: wire.Exit, ID: 4, Body: wire.Ended{}.Body()}))
	f.Fuzz(func(t *testing.T, said []byte) {
		// What it says comes once all four requests are under way.
		start, say := io.Pipe()
		h := hostile{Reader: start, closed: make(chan struct{})}
		l := New(h, sandbox.Limits{OutputBytes: 1000, Call: time.Minute}, nil)
		go func() {
			for l.underWay() < 4 {
				time.Sleep(10 * time.Microsecond)
			}
			say.Write(said)
			say.CloseWithError(io.EOF)
		}()
		read := make(chan error)
		var file bytes.Buffer
		exec := make(chan error)
		go func() {
			p, err := l.Exec(t.Context(), sandbox.Command{Argv: []string{"x"}, Stdin: strings.NewReader("input")})
			if err == nil {
				r, _ := p.Wait()
				if r.StdoutSize > 1000 || r.StderrSize > 1000 {
					t.Errorf("%+v is above the limit", r)
				}
			}
			exec <- err
		}()
		for l.underWay() < 1 {
			time.Sleep(10 * time.Microsecond)
		}
		go func() {
			_, err := l.ReadFile(t.Context(), "x", 0, 0, &file)
			read <- err
		}()
		for l.underWay() < 2 {
			time.Sleep(10 * time.Microsecond)
		}
		passed := make(chan int)
		go func() {
			c, err := l.Dial(t.Context(), 80)
			if err != nil {
				passed <- 0
				return
			}
			b, _ := io.ReadAll(c)
			c.Close()
			passed <- len(b)
		}()
		for l.underWay() < 3 {
			time.Sleep(10 * time.Microsecond)
		}
		listened := make(chan error)
		go func() {
			n, err := l.Listen(t.Context(), 80)
			if err == nil {
				_, err = n.Accept() // nothing takes the next request's number in what was said
				n.Close()
			}
			listened <- err
		}()
		<-exec
		<-read
		if n := <-passed; n > len(said) {
			t.Errorf("%d bytes came through of %d", n, len(said))
		}
		<-listened
		<-l.Done()
		if file.Len() > len(said) {
			t.Errorf("%d bytes were read of %d", file.Len(), len(said))
		}
	})
}

// underWay counts requests that were ever made.
func (l *Link) underWay() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int(l.last)
}

func TestAnAgentThatOwesTooManyAnswersIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, agent := pair(t, sandbox.Defaults(), nil)
		defer l.Close()
		asked := make(chan wire.Frame, 3*mostOwed)
		go func() {
			for {
				f, err := wire.Read(agent.conn)
				if err != nil {
					return
				}
				asked <- f
			}
		}()
		askInVain := func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := l.Ping(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("an agent that says nothing: %v", err)
			}
		}
		for range mostOwed {
			askInVain()
		}
		for range mostOwed { // one that is late only is not given up
			f := <-asked
			agent.say(f.ID, wire.Pong, f.Body)
		}
		synctest.Wait()
		for range mostOwed {
			askInVain()
		}
		select {
		case <-l.Done():
			t.Fatal("it was given up too early")
		default:
		}
		askInVain()
		<-l.Done()
		if err := l.Ping(t.Context()); !errors.Is(err, sandbox.ErrClosed) {
			t.Errorf("afterwards: %v", err)
		}
	})
}
