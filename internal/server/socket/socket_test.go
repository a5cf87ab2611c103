package socket

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/tool"
)

const (
	hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`
	ping  = `{"jsonrpc":"2.0","id":3,"method":"ping"}`
)

// open serves a listener until the test ends or stop is called.
func open(t *testing.T, ln net.Listener, who func(net.Conn) (protocol.Caller, error), o Options) (stop func() error) {
	t.Helper()
	h := hosttest.New(t, hosttest.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, ln, h.Engine, who, o) }()
	stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(time.Minute):
			return errors.New("the listener does not close")
		}
	})
	t.Cleanup(func() { stop() })
	return stop
}

type client struct {
	t *testing.T
	net.Conn
	in *bufio.Reader
}

func dial(t *testing.T, addr net.Addr) *client {
	t.Helper()
	conn, err := net.Dial(addr.Network(), addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(time.Minute))
	return &client{t, conn, bufio.NewReader(conn)}
}

func (c *client) say(lines ...string) {
	c.t.Helper()
	if _, err := fmt.Fprint(c, strings.Join(lines, "\n")+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) hears(want string) {
	c.t.Helper()
	line, err := c.in.ReadString('\n')
	if err != nil || !strings.Contains(line, want) {
		c.t.Errorf("got %q and %v, want %s", line, err, want)
	}
}

func listenTCP(t *testing.T) net.Listener {
	t.Helper()
	ln, err := ListenTCP(":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

func listenUnix(t *testing.T) (net.Listener, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "gh") // the path of t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "run", "gatehouse.sock")
	ln, err := ListenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln, path
}

func TestConnections(t *testing.T) {
	unix, _ := listenUnix(t)
	for name, ln := range map[string]net.Listener{"TCP": listenTCP(t), "Unix": unix} {
		t.Run(name, func(t *testing.T) {
			open(t, ln, nil, Options{Limit: 1000})
			one, two := dial(t, ln.Addr()), dial(t, ln.Addr())
			one.say(hello)
			one.hears(`"id":1,"result"`)
			two.say(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
			two.hears("initialize first") // the sessions of two connections are separate
			two.say(strings.Repeat("x", 5000), ping)
			two.hears("longer than 1000 bytes")
			two.hears(`"id":3,"result":{}`)
			one.say(ping)
			one.hears(`"id":3,"result":{}`)
		})
	}
}

// A client that has closed its side still gets its answers.
func TestHalfClosed(t *testing.T) {
	ln := listenTCP(t)
	open(t, ln, nil, Options{})
	c := dial(t, ln.Addr())
	c.say(hello, ping)
	c.Conn.(*net.TCPConn).CloseWrite()
	c.hears(`"id":1,"result"`)
	c.hears(`"id":3,"result":{}`)
	if _, err := c.in.ReadByte(); err == nil {
		t.Error("the connection stays open")
	}
}

// The requests that a web page can make a browser send to this port are not read as messages, whatever
// they contain.
//
//redteam:attack Listeners for newline-framed messages reject HTTP: HTTP and TLS are sent to TCP and Unix sockets
func TestOtherProtocolsAreTurnedAway(t *testing.T) {
	ln := listenTCP(t)
	h := hosttest.New(t, hosttest.Options{})
	var heard atomic.Int64
	count := func(c net.Conn) (protocol.Caller, error) {
		return protocol.Caller{
			Caller: tool.Caller{Principal: "anonymous"},
			Pace:   func(context.Context) error { heard.Add(1); return nil },
		}, nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, ln, h.Engine, count, Options{Limit: 2000}) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	for name, sent := range map[string]string{
		"a form": "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n\r\n" + hello + "\n" +
			ping + "\n",
		"a long URL": "POST /" + strings.Repeat("x", 5000) + " HTTP/1.1\r\nHost: localhost\r\n\r\n" + hello + "\n" +
			ping + "\n",
		"blank lines":   "\r\n \r\nGET / HTTP/1.1\r\n\r\n" + ping + "\n",
		"HTTP/2":        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + ping + "\n",
		"TLS":           "\x16\x03\x01\x02\x00\n" + ping + "\n",
		"a proxy's":     "CONNECT localhost:9000 HTTP/1.1\r\n\r\n" + hello + "\n",
		"another, mail": "EHLO x\n" + ping + "\n",
	} {
		c := dial(t, ln.Addr())
		io.WriteString(c, sent)
		said, _ := io.ReadAll(c.in) // to the end, or to the reset that unread lines cause
		if strings.Contains(string(said), `"result"`) {
			t.Errorf("%s: got %q, want nothing of ours", name, said)
		}
	}
	if n := heard.Load(); n != 0 {
		t.Errorf("%d requests of strangers were heard", n)
	}
	c := dial(t, ln.Addr())
	c.say("no message, and none of HTTP", hello)
	c.hears(`"error"`)
	c.hears(`"id":1,"result"`)
	c.say("GET / HTTP/1.1", ping) // a client that has sent a valid message may continue after an error
	c.hears(`"error"`)
	c.hears(`"id":3,"result":{}`)
	if heard.Load() == 0 {
		t.Error("the count counts nothing")
	}
	c = dial(t, ln.Addr())
	io.WriteString(c, "GET / HTTP/1.1\r\n")
	c.hears("HTTP/1.1 400 Bad Request")
}

func TestTooMany(t *testing.T) {
	ln := listenTCP(t)
	open(t, ln, nil, Options{Max: 1})
	first := dial(t, ln.Addr())
	first.say(ping)
	first.hears(`"id":3`)
	dial(t, ln.Addr()).hears("you have 1 of this host's 1 connections")
	first.Close()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		c := dial(t, ln.Addr())
		fmt.Fprintln(c, ping)
		if line, _ := c.in.ReadString('\n'); strings.Contains(line, `"id":3,"result"`) {
			return
		}
		c.Close()
	}
	t.Error("the slot of a client that has disconnected is not reused")
}

func TestRefusedByName(t *testing.T) {
	ln := listenTCP(t)
	open(t, ln, func(net.Conn) (protocol.Caller, error) {
		return protocol.Caller{}, errors.New("a token is needed")
	}, Options{})
	dial(t, ln.Addr()).hears("a token is needed")
}

func TestStopClosesEverything(t *testing.T) {
	ln, path := listenUnix(t)
	before := runtime.NumGoroutine()
	stop := open(t, ln, nil, Options{})
	var clients []*client
	for range 20 {
		c := dial(t, ln.Addr())
		c.say(ping)
		c.hears(`"id":3`)
		clients = append(clients, c)
	}
	if err := stop(); err != nil {
		t.Fatalf("an orderly end is %v, want nil", err)
	}
	for _, c := range clients {
		if _, err := c.in.ReadByte(); err == nil {
			t.Error("a connection outlives the listener")
		}
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	buf := make([]byte, 1<<20)
	if n := runtime.NumGoroutine(); n > before+20 {
		t.Errorf("%d goroutines more than before\n%s", n-before, buf[:runtime.Stack(buf, true)])
	}
}

// moody fails to accept a few times.
type moody struct {
	net.Listener
	left int
}

func (m *moody) Accept() (net.Conn, error) {
	if m.left--; m.left >= 0 {
		return nil, errors.New("too many open files")
	}
	return m.Listener.Accept()
}

func TestAcceptIsTriedAgain(t *testing.T) {
	ln := listenTCP(t)
	open(t, &moody{ln, 3}, nil, Options{})
	c := dial(t, ln.Addr())
	c.say(ping)
	c.hears(`"id":3`)
}

func TestAFailedListenerIsReported(t *testing.T) {
	ln := listenTCP(t)
	h := hosttest.New(t, hosttest.Options{})
	done := make(chan error, 1)
	go func() { done <- Serve(t.Context(), ln, h.Engine, nil, Options{}) }()
	ln.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v, want the error", err)
	}
}

func TestListenTCP(t *testing.T) {
	if host := listenTCP(t).Addr().(*net.TCPAddr).IP; !host.Equal(net.IPv4(127, 0, 0, 1)) {
		t.Errorf("without a host we listen on %s, want 127.0.0.1", host)
	}
	for _, addr := range []string{"", "localhost", "127.0.0.1:x", "127.0.0.1:99999"} {
		if ln, err := ListenTCP(addr); err == nil {
			ln.Close()
			t.Errorf("%q was accepted", addr)
		}
	}
	for addr, lines := range map[string]int{":9100": 0, "127.0.0.1:9100": 0, "[::1]:9100": 0, "localhost:1": 0,
		"0.0.0.0:9100": 2, "10.0.0.1:9100": 2, "[::]:1": 2} {
		if got := WarnExposed(addr); len(got) != lines {
			t.Errorf("%s: warned with %q, want %d lines", addr, got, lines)
		}
	}
}

func TestListenUnix(t *testing.T) {
	ln, path := listenUnix(t)
	for p, mode := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
		info, err := os.Lstat(p)
		if err != nil || info.Mode().Perm() != mode && runtime.GOOS != "windows" {
			t.Errorf("%s: %v %v, want %v", p, info.Mode(), err, mode)
		}
	}
	t.Run("a live one is left alone", func(t *testing.T) {
		if other, err := ListenUnix(path); err == nil {
			other.Close()
			t.Fatal("the socket of another process was taken")
		} else if !strings.Contains(err.Error(), "another process listens") {
			t.Errorf("got %v, want the error that another process listens", err)
		}
	})
	t.Run("one on which no process answers is replaced", func(t *testing.T) {
		ln.(*unixListener).UnixListener.Close() // the state after a crash
		if _, err := os.Lstat(path); err != nil {
			t.Fatal(err)
		}
		again, err := ListenUnix(path)
		if err != nil {
			t.Fatal(err)
		}
		ln.Close() // closing the first must not remove the second one's socket
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("the second socket was removed: %v", err)
		}
		again.Close()
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a socket outlives its listener: %v", err)
		}
	})
	t.Run("what is no socket is left alone", func(t *testing.T) {
		file := filepath.Join(filepath.Dir(path), "notes.txt")
		if err := os.WriteFile(file, []byte("dear diary"), 0o600); err != nil {
			t.Fatal(err)
		}
		link := filepath.Join(filepath.Dir(path), "link")
		if err := os.Symlink(file, link); err != nil {
			t.Fatal(err)
		}
		for _, p := range []string{file, link} {
			if _, err := ListenUnix(p); err == nil || !strings.Contains(err.Error(), "not a socket") {
				t.Errorf("%s: got %v, want a refusal", p, err)
			}
		}
		if b, _ := os.ReadFile(file); string(b) != "dear diary" {
			t.Error("a file was harmed")
		}
	})
	t.Run("too long", func(t *testing.T) {
		if _, err := ListenUnix("/tmp/" + strings.Repeat("x", 200)); err == nil ||
			!strings.Contains(err.Error(), "the system allows") {
			t.Errorf("got %v, want the error about the limit", err)
		}
	})
}

func TestPeers(t *testing.T) {
	for _, c := range []struct {
		peer uint32
		own  int
		want bool
	}{{1000, 1000, true}, {0, 1000, true}, {1001, 1000, false}, {1000, 0, false}, {0, 0, true},
		{4294967295, -1, false}} {
		if got := allowed(c.peer, c.own); got != c.want {
			t.Errorf("user %d at a server of %d: %t, want %t", c.peer, c.own, got, c.want)
		}
	}
	if runtime.GOOS != "linux" && runtime.GOOS != "darwin" {
		t.Skip("this system does not say who is at the other end")
	}
	ln, path := listenUnix(t)
	go net.Dial("unix", path)
	conn, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	uid, known, err := peerUID(conn.(*net.UnixConn))
	if err != nil || !known || int(uid) != os.Getuid() {
		t.Errorf("got user %d, %t, %v, want ourselves", uid, known, err)
	}
}
