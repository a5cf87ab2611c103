//go:build linux

package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/proxy"

	"golang.org/x/sys/unix"
)

// agent is the other end of a door, in the test's hand.
type agent struct {
	t    *testing.T
	side *os.File
	last string // where its last listener is
}

func pair(t *testing.T) (*Server, *agent) {
	t.Helper()
	ours, theirs, err := Sockets()
	if err != nil {
		t.Fatal(err)
	}
	d, err := New(ours, proxy.Options{OwnListener: nobodys})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		theirs.Close()
		if err := errors.Join(d.Close(), d.Close()); err != nil {
			t.Error(err)
		}
	})
	return d, &agent{t: t, side: theirs}
}

// hand sends these files.
func (a *agent) hand(fds ...int) error {
	return unix.Sendmsg(int(a.side.Fd()), []byte{0}, unix.UnixRights(fds...), nil, unix.MSG_DONTWAIT)
}

// tell does what a good agent does: it hands over a listener and keeps none.
func (a *agent) tell(port int64) error {
	if port == 0 {
		return nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	a.last = l.Addr().String()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	defer f.Close()
	return a.hand(int(f.Fd()))
}

// here finds every name on this machine.
type here struct{}

func (here) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
}

// get asks the proxy at an address for a URL.
func get(at, url string) (string, error) {
	c, err := net.DialTimeout("tcp", at, time.Minute)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	host, _, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", url, host)
	b, err := io.ReadAll(c)
	return string(b), err
}

// nobodys takes the servers of the tests, which are in this process, for others'.
func nobodys(netip.AddrPort) (bool, error) { return false, nil }

func TestADoorOpensAndShuts(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "served")
	}))
	defer server.Close()
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	n := sandbox.Network{
		Allow:   []string{"allowed.test:" + port, "127.0.0.1:" + port},
		Special: []string{"127.0.0.1:" + port},
		Resolve: here{},
	}
	d, a := pair(t)
	if err := d.Set(sandbox.Network{}, func(int64) error {
		t.Error("the agent was bothered")
		return nil
	}); err != nil {
		t.Error(err)
	}
	for range 3 {
		if err := d.Set(n, a.tell); err != nil {
			t.Fatal(err)
		}
		if got, err := get(a.last, "http://allowed.test:"+port+"/"); err != nil || !strings.Contains(got, "served") {
			t.Errorf("%q, %v", got, err)
		}
		if got, err := get(a.last, "http://other.test:"+port+"/"); err != nil || !strings.Contains(got, "403") {
			t.Errorf("%q, %v", got, err)
		}
		shut := int64(-1)
		if err := d.Set(sandbox.Network{}, func(port int64) error {
			shut = port
			return nil
		}); err != nil || shut != 0 {
			t.Errorf("%v, the agent was told %d", err, shut)
		}
		if got, err := get(a.last, "http://allowed.test:"+port+"/"); err == nil {
			t.Errorf("a door that is shut: %q", got)
		}
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if err := d.Set(n, a.tell); !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// Where nothing can be handed over the door asks for a listener by itself.
func TestADoorOverAListenerOpensAndShuts(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "served")
	}))
	defer server.Close()
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	n := sandbox.Network{Allow: []string{"127.0.0.1:" + port}, Special: []string{"127.0.0.1:" + port}}
	var last net.Listener
	refused := errors.New("no")
	refuse := true
	d := NewOver(func(_ context.Context, port uint16) (net.Listener, error) {
		if refuse || port != Port {
			return nil, refused
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		last = l
		return l, err
	}, proxy.Options{OwnListener: nobodys})
	told := []int64{}
	notify := func(port int64) error {
		told = append(told, port)
		return nil
	}
	if err := d.Set(n, notify); !errors.Is(err, refused) || len(told) != 0 {
		t.Errorf("%v, and %v was told", err, told)
	}
	refuse = false
	if err := d.Set(n, func(int64) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("an agent that does not hear of it: %v", err)
	}
	if c, err := net.Dial("tcp", last.Addr().String()); err == nil {
		c.Close()
		t.Error("the listener of a door that did not open is there")
	}
	for range 2 {
		if err := d.Set(n, notify); err != nil {
			t.Fatal(err)
		}
		if got, err := get(last.Addr().String(), "http://127.0.0.1:"+port+"/"); err != nil ||
			!strings.Contains(got, "served") {
			t.Errorf("%q, %v", got, err)
		}
		if err := d.Set(sandbox.Network{}, notify); err != nil {
			t.Error(err)
		}
		if got, err := get(last.Addr().String(), "http://127.0.0.1:"+port+"/"); err == nil {
			t.Errorf("a door that is shut: %q", got)
		}
	}
	if want := []int64{Port, 0, Port, 0}; !slices.Equal(told, want) {
		t.Errorf("the agent was told %v, want %v", told, want)
	}
	if err := errors.Join(d.Set(n, notify), d.Close(), d.Close()); err != nil {
		t.Error(err)
	}
	if got, err := get(last.Addr().String(), "http://127.0.0.1:"+port+"/"); err == nil {
		t.Errorf("a door that is closed: %q", got)
	}
	if err := d.Set(n, notify); !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// What the agent hands over is not trusted to be a listener.
func TestWhatIsNoListenerIsRefused(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	pipe, other, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	defer other.Close()
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	socket, err := udp.(*net.UDPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	refused := errors.New("no")
	for name, hand := range map[string]func(*agent) error{
		"a device":            func(a *agent) error { return a.hand(int(null.Fd())) },
		"a pipe":              func(a *agent) error { return a.hand(int(pipe.Fd())) },
		"a UDP socket":        func(a *agent) error { return a.hand(int(socket.Fd())) },
		"two files":           func(a *agent) error { return a.hand(int(null.Fd()), int(null.Fd())) },
		"many files":          func(a *agent) error { return a.hand(make([]int, 100)...) },
		"no file":             func(a *agent) error { return unix.Sendmsg(int(a.side.Fd()), []byte{0}, nil, nil, 0) },
		"its end":             func(a *agent) error { return a.side.Close() },
		"a refusal":           func(a *agent) error { return refused },
		"another file before": func(a *agent) error { return errors.Join(a.hand(int(null.Fd())), a.tell(Port)) },
	} {
		t.Run(name, func(t *testing.T) {
			before := open(t)
			d, a := pair(t)
			told := []int64{}
			err := d.Set(sandbox.Network{Allow: []string{"example.org"}}, func(port int64) error {
				told = append(told, port)
				if port == 0 {
					return nil
				}
				return hand(a)
			})
			if err == nil {
				t.Error("it was taken for a listener")
			}
			if name != "a refusal" && (len(told) != 2 || told[1] != 0) {
				t.Errorf("the agent was told %v, and has to hear that there is none", told)
			}
			if name == "a refusal" && !errors.Is(err, refused) {
				t.Errorf("%v, want %v", err, refused)
			}
			if name != "its end" && name != "a refusal" {
				if err := d.Set(sandbox.Network{Allow: []string{"example.org"}}, a.tell); err != nil {
					t.Errorf("afterwards, with a good one: %v", err)
				}
			}
			a.side.Close()
			if err := d.Close(); err != nil {
				t.Error(err)
			}
			// Fewer is what an earlier test left to the collector.
			if after := open(t); after > before {
				t.Errorf("%d files were open before, %d are after", before, after)
			}
		})
	}
}

func open(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}
