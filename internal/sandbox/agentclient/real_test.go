//go:build linux && (amd64 || arm64)

package agentclient_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/agentclient"
	"gatehouse/internal/sandbox/egress"
	"gatehouse/internal/sandbox/namespaces"
	"gatehouse/internal/sandbox/proxy"
)

// linked is a sandbox, seen through its link.
type linked struct {
	*agentclient.Client
	box sandbox.Sandbox
}

func real(t *testing.T) linked {
	t.Helper()
	d, err := namespaces.New(namespaces.Options{NoCgroups: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	b, err := d.Create(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Skipf("no sandbox can be made here: %v", err)
	}
	return linked{reflect.ValueOf(b).Elem().FieldByName("Client").Interface().(*agentclient.Client), b}
}

// python runs a program in the background; without Python the test is skipped.
func python(t *testing.T, b linked, text string, out io.Writer) sandbox.Process {
	t.Helper()
	p, err := b.Exec(t.Context(), sandbox.Command{
		Argv:        []string{"python3", "-uc", text},
		Stdout:      out,
		Stderr:      os.Stderr,
		Timeout:     -1,
		OutputBytes: -1,
	})
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("Python is not there")
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const echo = `
import socket, threading
s = socket.create_server(("%s", 8000), family=socket.%s, backlog=100)
print("listens")
def serve(c):
    with c:
        while b := c.recv(65536):
            c.sendall(b)
        c.sendall(b"the end")
while True:
    threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
`

func TestServersInASandboxAreReached(t *testing.T) {
	for at, family := range map[string]string{"127.0.0.1": "AF_INET", "::1": "AF_INET6"} {
		t.Run(family, func(t *testing.T) {
			b := real(t)
			out, say := io.Pipe()
			python(t, b, fmt.Sprintf(echo, at, family), say)
			if _, err := io.ReadFull(out, make([]byte, len("listens\n"))); err != nil {
				t.Fatal(err)
			}
			var all sync.WaitGroup
			for range 10 {
				all.Go(func() {
					c, err := b.Dial(t.Context(), 8000)
					if err != nil {
						t.Error(err)
						return
					}
					defer c.Close()
					c.SetDeadline(time.Now().Add(time.Minute))
					sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB
					go func() {
						c.Write(sent)
						c.(interface{ CloseWrite() error }).CloseWrite()
					}()
					if got, err := io.ReadAll(c); err != nil || string(got) != string(sent)+"the end" {
						t.Errorf("%d bytes, %v", len(got), err)
					}
				})
			}
			all.Wait()
			if _, err := b.Dial(t.Context(), 8001); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("where nobody listens: %v", err)
			}
			for range 100 { // more than there may be at once
				c, err := b.Dial(t.Context(), 8000)
				if errors.Is(err, syscall.EMFILE) {
					time.Sleep(10 * time.Millisecond) // those that were closed are still ending
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				c.Close()
			}
			// A connection ends with the sandbox.
			c, err := b.Dial(t.Context(), 8000)
			for errors.Is(err, syscall.EMFILE) {
				time.Sleep(10 * time.Millisecond)
				c, err = b.Dial(t.Context(), 8000)
			}
			if err != nil {
				t.Fatal(err)
			}
			b.box.Close()
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Error("a connection outlived its sandbox")
			}
		})
	}
}

func TestThePortsOfTheHostAreNotReached(t *testing.T) {
	b := real(t)
	here, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	if c, err := b.Dial(t.Context(), uint16(here.Addr().(*net.TCPAddr).Port)); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%v, %v", c, err)
	}
}

func TestTheHostListensInASandbox(t *testing.T) {
	b := real(t)
	for range 2 { // the port is free again
		n, err := b.Listen(t.Context(), 3128)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for {
				c, err := n.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					got, _ := io.ReadAll(c)
					fmt.Fprintf(c, "%d bytes", len(got))
				}()
			}
		}()
		var out bytes.Buffer
		if r, err := python(t, b, `
import socket, concurrent.futures, threading
threading.stack_size(1 << 18)
def one(n):
    with socket.create_connection(("127.0.0.1", 3128)) as c:
        c.sendall(b"x" * n)
        c.shutdown(socket.SHUT_WR)
        return c.makefile().read()
with concurrent.futures.ThreadPoolExecutor(30) as e:
    print(sum(s == "500000 bytes" for s in e.map(one, [500000] * 100)))
`, &out).Wait(); err != nil || r.Outcome != sandbox.OK || out.String() != "100\n" {
			t.Errorf("%+v, %v, %q", r, err, out.String())
		}
		if _, err := b.Listen(t.Context(), 3128); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("the same port again: %v", err)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		if _, err := b.Dial(t.Context(), 3128); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("after Close: %v", err)
		}
	}
}

func TestTheWayOutLeadsThroughTheLink(t *testing.T) {
	b := real(t)
	body := strings.Repeat("served ", 100_000)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, body)
	}))
	defer server.Close()
	d := egress.NewOver(b.Listen, proxy.Options{OwnListener: func(netip.AddrPort) (bool, error) { return false, nil }})
	defer d.Close()
	tell := func(int64) error { return nil }
	here := []string{strings.TrimPrefix(server.URL, "http://")}
	if err := d.Set(sandbox.Network{Allow: here, Special: here}, tell); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`
import urllib.request
o = urllib.request.build_opener(urllib.request.ProxyHandler({"http": "http://127.0.0.1:%d"}))
print(sum(len(o.open("%s").read()) for _ in range(20)))
`, egress.Port, server.URL)
	var out bytes.Buffer
	if r, err := python(t, b, text, &out).Wait(); err != nil || out.String() != fmt.Sprintln(20*len(body)) {
		t.Errorf("%+v, %v, %q", r, err, out.String())
	}
	if err := d.Set(sandbox.Network{}, tell); err != nil {
		t.Error(err)
	}
	if _, err := b.Dial(t.Context(), egress.Port); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a door that is shut: %v", err)
	}
}

const counts = `
import sys, time
n = 0
while True:
    n += 1
    print(n)
    open("count", "w").write(str(n))
    time.sleep(0.001)
`

// lines counts those that come.
type lines struct {
	mu sync.Mutex
	n  int
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n += bytes.Count(b, []byte("\n"))
	return len(b), nil
}

func (l *lines) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
}

// until waits for what comes to be sooner or later.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not in a minute", what)
		}
	}
}

func TestAStillAgentSaysNothingAndThenGoesOn(t *testing.T) {
	b := real(t)
	var out lines
	p := python(t, b, counts, &out)
	for range 3 {
		before := out.count()
		until(t, "the program speaks", func() bool { return out.count() > before })
		if err := b.Quiesce(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Exec(t.Context(), sandbox.Command{Argv: []string{"true"}}); !errors.Is(err, sandbox.ErrPaused) {
			t.Error(err)
		}
		b.Continue()
		if err := b.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Signal(9); err != nil {
		t.Error(err)
	}
	if r, err := p.Wait(); err != nil || r.Outcome != sandbox.Signalled {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestARenewedAgentLetsGoOfWhatWasUnderWay(t *testing.T) {
	b := real(t)
	var out lines
	p := python(t, b, counts, &out)
	until(t, "the program speaks", func() bool { return out.count() > 0 })
	n, err := b.Listen(t.Context(), 3128)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if err := b.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r, err := p.Wait(); r.Outcome != sandbox.Lost || err == nil {
		t.Errorf("what was under way: %+v, %v", r, err)
	}
	before := out.count()
	count := func() string {
		var said strings.Builder
		p, err := b.Exec(t.Context(), sandbox.Command{Argv: []string{"cat", "count"}, Stdout: &said})
		if err != nil {
			t.Fatal(err)
		}
		if r, err := p.Wait(); err != nil || r.Outcome != sandbox.OK {
			t.Fatalf("%+v, %v", r, err)
		}
		return said.String()
	}
	first := count()
	until(t, "the program runs on", func() bool { return count() != first })
	if out.count() != before {
		t.Errorf("%d lines came of it, and %d before", out.count(), before)
	}
	if _, err := b.Dial(t.Context(), 3128); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("what the old host listened at: %v", err)
	}
}
