package agentclient

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
	"gatehouse/internal/sandbox/agentprotocol"
)

// peer is the agent's end of a link, in the test's hand.
type peer struct {
	t    *testing.T
	conn net.Conn
}

func pair(t *testing.T, l sandbox.Limits, ooms func() int) (*Client, *peer) {
	here, there := net.Pipe()
	return New(here, l, ooms), &peer{t, there}
}

// next is the next frame of these kinds; others are passed over.
func (p *peer) next(kinds ...agentprotocol.Kind) agentprotocol.Frame {
	p.t.Helper()
	for {
		f, err := agentprotocol.Read(p.conn)
		if err != nil {
			p.t.Errorf("the host: %v", err)
			return agentprotocol.Frame{}
		}
		if slices.Contains(kinds, f.Kind) {
			return f
		}
	}
}

func (p *peer) say(id uint32, k agentprotocol.Kind, body []byte) {
	p.t.Helper()
	if err := agentprotocol.Write(p.conn, agentprotocol.Frame{Kind: k, ID: id, Body: body}); err != nil {
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
			id := agent.next(agentprotocol.Start).ID
			agent.ignore()
			agent.say(id, agentprotocol.Ready, nil)
			agent.say(id, agentprotocol.Stdout, []byte("hello"))
			agent.say(id, agentprotocol.Stdout, nil)
			agent.say(id, agentprotocol.Exit, agentprotocol.ExitStatus{Signal: 9, CPU: time.Second, MaxRSS: 5}.Body())
		}()
		var out bytes.Buffer
		p, err := l.Exec(t.Context(), sandbox.Command{Argv: []string{"x"}, Stdout: &out})
		if err != nil {
			t.Fatal(err)
		}
		r, err := p.Wait()
		if err != nil || r.Outcome != sandbox.OutOfMemory || r.Signal != 9 || r.CPU != time.Second ||
			out.String() != "hello" || r.StdoutSize != 5 {
			t.Errorf("%+v, %v, %q", r, err, out.String())
		}
	})
}

func TestAnAgentThatDoesNotEndWhatItShallIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, agent := pair(t, sandbox.Defaults(), nil)
		got := make(chan []byte, 2)
		go func() {
			id := agent.next(agentprotocol.Start).ID
			agent.say(id, agentprotocol.Ready, nil)
			got <- agent.next(agentprotocol.Signal).Body
			got <- agent.next(agentprotocol.Signal).Body
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
			agent.say(agent.next(agentprotocol.Start).ID, agentprotocol.Ready, nil)
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
	flood := func(id uint32) (all []agentprotocol.Frame) {
		for range agentprotocol.Window/agentprotocol.MaxBody + 2 { // the Writer has one in its hands
			all = append(all, agentprotocol.Frame{
				Kind: agentprotocol.Stdout,
				ID:   id,
				Body: make([]byte, agentprotocol.MaxBody),
			})
		}
		return all
	}
	one := func(k agentprotocol.Kind, body []byte) func(uint32) []agentprotocol.Frame {
		return func(id uint32) []agentprotocol.Frame { return []agentprotocol.Frame{{Kind: k, ID: id, Body: body}} }
	}
	exit := agentprotocol.ExitStatus{}.Body()
	for name, frames := range map[string]func(id uint32) []agentprotocol.Frame{
		"more output than granted": flood,
		"a frame of the host's":    one(agentprotocol.Start, agentprotocol.Program{Argv: []string{"x"}}.Body()),
		"an entry of a folder":     one(agentprotocol.Entry, agentprotocol.Info{}.Body()),
		"a status of no kernel":    one(agentprotocol.Exit, append([]byte{1, 9}, exit[2:]...)),
		"a grant for output": one(agentprotocol.Credit,
			agentprotocol.Grant{Stream: agentprotocol.Stdout, Bytes: 1}.Body()),
		"a grant of too much": one(agentprotocol.Credit,
			agentprotocol.Grant{Stream: agentprotocol.Stdin, Bytes: 1}.Body()),
		"a request nobody made": func(id uint32) []agentprotocol.Frame {
			return []agentprotocol.Frame{{Kind: agentprotocol.Exit, ID: id + 1, Body: exit}}
		},
		"an end told twice": func(id uint32) []agentprotocol.Frame {
			return []agentprotocol.Frame{{Kind: agentprotocol.Exit, ID: id, Body: exit},
				{Kind: agentprotocol.Exit, ID: id, Body: exit}}
		},
		"output after its end": func(id uint32) []agentprotocol.Frame {
			return []agentprotocol.Frame{{Kind: agentprotocol.Stdout, ID: id},
				{Kind: agentprotocol.Stdout, ID: id, Body: []byte("x")}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, agent := pair(t, sandbox.Defaults(), nil)
				go func() {
					id := agent.next(agentprotocol.Start).ID
					agent.ignore()
					agentprotocol.Write(agent.conn, agentprotocol.Frame{Kind: agentprotocol.Ready, ID: id})
					for _, f := range frames(id) {
						agentprotocol.Write(agent.conn, f)
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
				if !errors.Is(l.err, agentprotocol.ErrBroken) {
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
	frames := func(all ...agentprotocol.Frame) []byte {
		var b bytes.Buffer
		for _, f := range all {
			agentprotocol.Write(&b, f)
		}
		return b.Bytes()
	}
	f.Add(frames(agentprotocol.Frame{Kind: agentprotocol.Ready, ID: 1},
		agentprotocol.Frame{Kind: agentprotocol.Stdout, ID: 1, Body: []byte("x")}, agentprotocol.Frame{
			Kind: agentprotocol.Exit,
			ID:   1,
			Body: agentprotocol.ExitStatus{}.Body(),
		}))
	f.Add(frames(agentprotocol.Frame{
		Kind: agentprotocol.Failed,
		ID:   1,
		Body: agentprotocol.Failure{Errno: 2, Text: "no"}.Body(),
	}, agentprotocol.Frame{
		Kind: agentprotocol.Entry,
		ID:   2,
		Body: agentprotocol.Info{Name: "a"}.Body(),
	}, agentprotocol.Frame{Kind: agentprotocol.Exit, ID: 2, Body: agentprotocol.ExitStatus{}.Body()}))
	f.Add(frames(agentprotocol.Frame{
		Kind: agentprotocol.Entry,
		ID:   2,
		Body: agentprotocol.Info{Name: "a", Size: 5}.Body(),
	}, agentprotocol.Frame{Kind: agentprotocol.Stdout, ID: 2, Body: []byte("12345")}, agentprotocol.Frame{
		Kind: agentprotocol.Credit,
		ID:   1,
		Body: agentprotocol.Grant{Stream: agentprotocol.Stdin, Bytes: 1}.Body(),
	}))
	f.Add(frames(agentprotocol.Frame{Kind: agentprotocol.Ready, ID: 3},
		agentprotocol.Frame{Kind: agentprotocol.Stdout, ID: 3, Body: []byte("x")},
		agentprotocol.Frame{Kind: agentprotocol.Stdout, ID: 3}, agentprotocol.Frame{
			Kind: agentprotocol.Exit,
			ID:   3,
			Body: agentprotocol.ExitStatus{}.Body(),
		}))
	f.Add(frames(agentprotocol.Frame{Kind: agentprotocol.Ready, ID: 4},
		agentprotocol.Frame{Kind: agentprotocol.Ready, ID: 3}, agentprotocol.Frame{
			Kind: agentprotocol.Failed,
			ID:   3,
			Body: agentprotocol.Failure{Errno: 104, Text: "reset"}.Body(),
		}, agentprotocol.Frame{Kind: agentprotocol.Exit, ID: 4, Body: agentprotocol.ExitStatus{}.Body()}))
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
func (l *Client) underWay() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int(l.last)
}

func TestAnAgentThatOwesTooManyAnswersIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, agent := pair(t, sandbox.Defaults(), nil)
		defer l.Close()
		asked := make(chan agentprotocol.Frame, 3*maxOwed)
		go func() {
			for {
				f, err := agentprotocol.Read(agent.conn)
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
		for range maxOwed {
			askInVain()
		}
		for range maxOwed { // one that is late only is not given up
			f := <-asked
			agent.say(f.ID, agentprotocol.Pong, f.Body)
		}
		synctest.Wait()
		for range maxOwed {
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
