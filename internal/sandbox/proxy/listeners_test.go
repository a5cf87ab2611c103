package proxy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"gatehouse/internal/sandbox"
)

// Whatever the rules and the settings open, a listener of the process that the
// proxy runs in is not reached: not by a request, not by a tunnel, not by a
// listener that came after the rules.
//
//redteam:attack A sandbox has no network until it is given one: the settings open loopback, and the sandbox asks for the host's own listeners
func TestTheHostsOwnListenersAreNotReached(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("no driver of this system gives a sandbox a network")
	}
	for _, on := range []string{"127.0.0.1:0", "0.0.0.0:0", "[::]:0", "[::1]:0"} {
		t.Run(on, func(t *testing.T) {
			w := newWorld(t, Options{}, func(n *sandbox.Network) {
				n.Allow = []string{"127.0.0.0/8:*", "[::1]:*", "inner.test:*"}
				n.Special = []string{"127.0.0.0/8:*", "[::1]:*"}
			})
			l, err := net.Listen("tcp", on)
			if err != nil {
				t.Skip(err)
			}
			server := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(hello)}}
			server.Start()
			defer server.Close()
			_, port, _ := net.SplitHostPort(l.Addr().String())
			to := []string{"127.0.0.1:" + port, "inner.test:" + port}
			if on == "[::1]:0" {
				to = []string{"[::1]:" + port}
			}
			for _, at := range to {
				w.servers[strings.Replace(at, "inner.test", "127.0.0.1", 1)] = l.Addr().String()
				if status, body := w.ask("GET", fmt.Sprintf("GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n", at,
					at)); status != http.StatusForbidden || !strings.Contains(body, "a listener of this host") {
					t.Errorf("a request to %s: %d %q", at, status, body)
				}
				if status, body := w.ask("CONNECT",
					fmt.Sprintf("CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", at, at)); status != http.StatusForbidden {
					t.Errorf("a tunnel to %s: %d %q", at, status, body)
				}
				if d := w.last(); d.Allowed {
					t.Errorf("%+v", d)
				}
			}
		})
	}
	if mine, err := listensHere(netip.MustParseAddrPort("127.0.0.1:1")); mine || err != nil {
		t.Errorf("a port at which nothing listens is ours: %v, %v", mine, err)
	}
}

// A forwarded request says so, and the sandbox cannot take that away.
//
//redteam:attack A sandbox has no network until it is given one: code removes what tells a server that a request was forwarded
func TestForwardedRequestsSaySo(t *testing.T) {
	w := newWorld(t, Options{}, nil)
	w.serve(public+":80", http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		io.WriteString(out, strings.Join(r.Header["Via"], ", "))
	}))
	for _, more := range []string{"", "Connection: via\r\n", "Via:\r\n", "Via: 1.1 a\r\n"} {
		_, body := w.ask("GET", "GET http://example.org/ HTTP/1.1\r\nHost: example.org\r\n"+more+"\r\n")
		if !strings.HasSuffix(body, via) {
			t.Errorf("with %q the server reads Via: %q", more, body)
		}
	}
}
