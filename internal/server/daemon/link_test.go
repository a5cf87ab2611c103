package daemon

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const testPatience = time.Minute

// listening opens a daemon's own socket whose connections are passed to serve.
func listening(t *testing.T, about About, serve func(net.Conn)) (path string, l *Listener) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l = Link(ln, func() About { return about })
	var open sync.WaitGroup
	open.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			open.Go(func() {
				defer c.Close()
				serve(c)
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		open.Wait()
	})
	return path, l
}

func dial(t *testing.T, path string) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(testPatience))
	return c
}

// echo answers every line with itself.
func echo(c net.Conn) {
	in := bufio.NewScanner(c)
	for in.Scan() {
		fmt.Fprintln(c, "got", in.Text())
	}
}

func TestClientWithoutGreetingSeesNothingOfTheLink(t *testing.T) {
	path, _ := listening(t, About{Build: "b", Ready: true}, echo)
	c := dial(t, path)
	fmt.Fprintln(c, `{"a":1}`)
	c.(*net.UnixConn).CloseWrite()
	if said, _ := io.ReadAll(c); string(said) != "got {\"a\":1}\n" {
		t.Errorf("got %q", said)
	}
}

func TestGreetingTellsWhoTheDaemonIs(t *testing.T) {
	path, _ := listening(t, About{PID: 7, Version: "1", Build: "b", Ready: true}, echo)
	for _, c := range []struct {
		build    string
		talk     bool
		err      error
		accepted bool
	}{{"b", true, nil, true}, {"other", true, ErrRefused, false}, {"other", false, nil, false}} {
		a, err := Greet(dial(t, path), c.build, c.talk, Work{}, testPatience)
		if !errors.Is(err, c.err) || a.PID != 7 || a.Accepted != c.accepted {
			t.Errorf("%+v: got %+v, %v", c, a, err)
		}
	}
	path, _ = listening(t, About{Build: "b"}, echo)
	if _, err := Greet(dial(t, path), "b", true, Work{}, testPatience); !errors.Is(err, ErrRefused) {
		t.Errorf("a daemon that is not ready: %v", err)
	}
}

// Daemons and clients of the version before call the listeners doors.
func TestTheFormerNameOfListeners(t *testing.T) {
	encoded, err := json.Marshal(About{Listeners: []string{"tcp://127.0.0.1:1"}})
	if err != nil || strings.Count(string(encoded), `["tcp://127.0.0.1:1"]`) != 2 ||
		!strings.Contains(string(encoded), `"doors":[`) || !strings.Contains(string(encoded), `"listeners":[`) {
		t.Errorf("encoded as %s, %v", encoded, err)
	}
	for _, name := range []string{"doors", "listeners"} {
		var a About
		err := json.Unmarshal([]byte(`{"pid":3,"`+name+`":["unix:///x"]}`), &a)
		if err != nil || a.PID != 3 || !slices.Equal(a.Listeners, []string{"unix:///x"}) {
			t.Errorf("%s: got %+v, %v", name, a, err)
		}
	}
}

// The greeting may arrive in pieces, and messages in the same piece as its end.
func TestMessagesBehindTheGreetingAreServed(t *testing.T) {
	path, _ := listening(t, About{Build: "b", Ready: true}, echo)
	c := dial(t, path)
	for _, part := range []string{"gate", "house-link 1 {\"build\":\"b\",", "\"talk\":true}\nfirst\nsec", "ond\n"} {
		io.WriteString(c, part)
	}
	c.(*net.UnixConn).CloseWrite()
	said, _ := io.ReadAll(c)
	lines := strings.Split(strings.TrimSpace(string(said)), "\n")
	if len(lines) != 4 || lines[1] != "got first" || lines[2] != "got second" ||
		lines[3] != `gatehouse-link bye {"lines":2}` {
		t.Errorf("got %q", said)
	}
}

// A linked client receives that the daemon stops and, at the end, how many of its lines were received;
// later lines were not.
func TestFarewellCountsWhatWasTaken(t *testing.T) {
	received, end := make(chan string, 9), make(chan struct{})
	path, l := listening(t, About{Build: "b", Ready: true}, func(c net.Conn) {
		in := bufio.NewReaderSize(c, 16)
		for range 2 {
			line, _ := in.ReadString('\n')
			received <- line
		}
		<-end
	})
	c := dial(t, path)
	if _, err := Greet(c, "b", true, Work{}, testPatience); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(c, "one\n")
	<-received
	fmt.Fprint(c, "two\n")
	<-received
	l.Stopping()
	in := bufio.NewScanner(c)
	if in.Scan(); in.Text() != "gatehouse-link stopping" {
		t.Errorf("got %q", in.Text())
	}
	fmt.Fprint(c, "three, which is not read\n")
	close(end)
	if in.Scan(); in.Text() != `gatehouse-link bye {"lines":2}` {
		t.Errorf("got %q", in.Text())
	}
	late := dial(t, path)
	if _, err := Greet(late, "b", true, Work{}, testPatience); err != nil {
		t.Fatal(err)
	}
	line, err := oneLine(late, 100)
	if string(line) != "gatehouse-link stopping" {
		t.Errorf("who comes later: %q, %v", line, err)
	}
}

func TestGreetingsWithoutEndOrSenseEndTheConnection(t *testing.T) {
	path, _ := listening(t, About{Build: "b", Ready: true}, echo)
	for _, text := range []string{"gatehouse-link 2 {}\n", "gatehouse-link 1 nonsense\n",
		"g" + strings.Repeat("x", 2*longestGreeting) + "\n"} {
		c := dial(t, path)
		io.WriteString(c, text)
		if said, _ := io.ReadAll(c); len(said) > 0 {
			t.Errorf("%.30q: got %q", text, said)
		}
	}
}

func TestAnswerThatIsNoneIsAnError(t *testing.T) {
	for _, answer := range []string{"{\"jsonrpc\":\"2.0\"}\n", "gatehouse-link 1 {\n", "",
		strings.Repeat("x", longestAbout+1)} {
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			oneLine(theirs, longestGreeting)
			io.WriteString(theirs, answer)
		}()
		if a, err := Greet(ours, "b", true, Work{}, testPatience); err == nil || errors.Is(err, ErrRefused) {
			t.Errorf("%.30q: got %+v, %v", answer, a, err)
		}
		ours.Close()
	}
}

// Whatever a client sends, a connection ends or passes on lines, and its count equals the number of
// lines passed on.
func FuzzLink(f *testing.F) {
	f.Add([]byte("gatehouse-link 1 {\"build\":\"b\",\"talk\":true}\nx\ny"), 3)
	f.Add([]byte("{\"jsonrpc\":\"2.0\"}\n"), 1)
	f.Add([]byte("gatehouse-link 1"), 100)
	f.Fuzz(func(t *testing.T, sent []byte, step int) {
		ours, theirs := net.Pipe()
		l := Link(nil, func() About { return About{Build: "b", Ready: true} })
		c := &conn{Conn: ours, l: l}
		go io.Copy(io.Discard, theirs)
		go func() {
			rest := sent
			for len(rest) > 0 {
				n := min(max(step, 1), len(rest))
				theirs.Write(rest[:n])
				rest = rest[n:]
			}
			theirs.Close()
		}()
		got, _ := io.ReadAll(c)
		if !bytes.HasSuffix(sent, got) {
			t.Errorf("%q became %q", sent, got)
		}
		if n := uint64(bytes.Count(got, []byte{'\n'})); c.linked.Load() && c.received.Load() != n {
			t.Errorf("%d lines were handed on, %d counted", n, c.received.Load())
		}
		c.Close()
	})
}
