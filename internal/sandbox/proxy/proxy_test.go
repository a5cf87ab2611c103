package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
)

const patience = time.Minute // for what should take a moment

// names are addresses by name; those of "" apply to every name without its own.
type names map[string][]string

func (n names) LookupNetIP(_ context.Context, _, host string) (all []netip.Addr, err error) {
	host, rooted := strings.CutSuffix(host, ".")
	if !rooted {
		return nil, fmt.Errorf("%q could be looked for in a search domain", host)
	}
	found, ok := n[host]
	if !ok {
		found = n[""]
	}
	for _, a := range found {
		all = append(all, netip.MustParseAddr(a))
	}
	if len(all) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return all, nil
}

// world is what a proxy under test sees: names, servers at addresses, and what
// it says.
type world struct {
	t       *testing.T
	servers map[string]string // listening here, by the address they claim to have
	inside  string            // where the proxy listens
	proxy   *Proxy
	network sandbox.Network

	mu      sync.Mutex
	dialled []string
	said    []sandbox.Decision
}

const (
	public = "93.184.215.14"
	other  = "1.1.1.1"
)

// newWorld has a proxy that allows example.org, which is at public.
func newWorld(t *testing.T, o Options, change func(*sandbox.Network)) *world {
	t.Helper()
	w := &world{t: t, servers: map[string]string{}}
	w.network = sandbox.Network{
		Allow: []string{"example.org"}, Decided: w.decided,
		Resolve: names{"example.org": {public}, "other.test": {other}, "inner.test": {"127.0.0.1"}},
	}
	if change != nil {
		change(&w.network)
	}
	o.Own = func() []netip.Addr { return nil }
	o.Dial = w.dial
	w.proxy = New(o)
	if err := w.proxy.Set(w.network); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.inside = l.Addr().String()
	served := make(chan error, 1)
	go func() { served <- w.proxy.Serve(l) }()
	t.Cleanup(func() {
		l.Close()
		w.proxy.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) decided(d sandbox.Decision) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, d)
}

func (w *world) dial(ctx context.Context, at netip.AddrPort) (net.Conn, error) {
	w.mu.Lock()
	w.dialled = append(w.dialled, at.String())
	here := w.servers[at.String()]
	w.mu.Unlock()
	if here == "" {
		return nil, errors.New("connection refused")
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", here)
}

// serve puts a server at an address.
func (w *world) serve(at string, h http.Handler) *httptest.Server {
	s := httptest.NewServer(h)
	w.put(at, s)
	return s
}

func (w *world) put(at string, s *httptest.Server) {
	w.t.Cleanup(s.Close)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.servers[at] = s.Listener.Addr().String()
}

// echo is a server that says back what it hears.
func (w *world) echo(at string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.servers[at] = l.Addr().String()
}

func (w *world) dials() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.dialled...)
}

func (w *world) decisions() []sandbox.Decision {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]sandbox.Decision(nil), w.said...)
}

// last is the last decision.
func (w *world) last() sandbox.Decision {
	all := w.decisions()
	if len(all) == 0 {
		return sandbox.Decision{}
	}
	return all[len(all)-1]
}

// connect is a connection to the proxy.
func (w *world) connect() (net.Conn, *bufio.Reader) {
	w.t.Helper()
	c, err := net.Dial("tcp", w.inside)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	return c, bufio.NewReader(c)
}

// ask sends bytes and reads one response to a request of this method.
func (w *world) ask(method, text string) (status int, body string) {
	w.t.Helper()
	c, in := w.connect()
	go io.WriteString(c, text)
	return answerOf(w.t, in, method)
}

func answerOf(t *testing.T, in *bufio.Reader, method string) (status int, body string) {
	t.Helper()
	r, err := http.ReadResponse(in, &http.Request{Method: method})
	if err != nil {
		return 0, err.Error()
	}
	if method == http.MethodConnect && r.StatusCode == http.StatusOK {
		return r.StatusCode, ""
	}
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return r.StatusCode, string(b) + err.Error()
	}
	return r.StatusCode, string(b)
}

// tunnel opens one and expects that it opens.
func (w *world) tunnel(to string) (net.Conn, *bufio.Reader) {
	w.t.Helper()
	c, in := w.connect()
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", to, to)
	if status, body := answerOf(w.t, in, http.MethodConnect); status != http.StatusOK {
		w.t.Fatalf("%s: %d %s", to, status, body)
	}
	return c, in
}

// socks asks for a name by SOCKS5 and gives the code of the answer.
func (w *world) socks(host string, port uint16) (net.Conn, byte) {
	w.t.Helper()
	request := append([]byte{5, 1, 0, formName, byte(len(host))}, host...)
	return w.socksRaw(append(request, byte(port>>8), byte(port)))
}

func (w *world) socksRaw(request []byte) (net.Conn, byte) {
	w.t.Helper()
	c, in := w.connect()
	c.Write([]byte{5, 1, 0})
	var greeting [2]byte
	if _, err := io.ReadFull(in, greeting[:]); err != nil || greeting != [2]byte{5, 0} {
		w.t.Fatal(greeting, err)
	}
	c.Write(request)
	var answer [10]byte
	if _, err := io.ReadFull(in, answer[:]); err != nil {
		w.t.Fatal(err)
	}
	return c, answer[1]
}

func hello(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "%s %s", r.Host, r.URL) }
