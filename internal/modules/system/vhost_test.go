package system

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	proxyproto "github.com/pires/go-proxyproto"
)

// backend is a server of TLS that answers with its name, and with the client's address
// as the PROXY protocol tells it.
func backend(t *testing.T, name string, proxied bool) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s", name, r.RemoteAddr)
	}))
	if proxied {
		s.Listener = &proxyproto.Listener{Listener: s.Listener, ReadHeaderTimeout: time.Minute}
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// fetch asks for a name at a port, and trusts the backend alone. It returns the
// answer and the client's own address.
func fetch(t *testing.T, name string, port uint16, trusted *httptest.Server) (answer, self string, err error) {
	t.Helper()
	roots := trusted.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	c, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port), &tls.Config{ServerName: name, RootCAs: roots})
	if err != nil {
		return "", "", err
	}
	defer c.Close()
	fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", name)
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return "", "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return string(b), c.LocalAddr().String(), err
}

// TLS goes to the backend of the name that the client asks for, who sees the backend's
// own certificate; the certificates of httptest are for example.com and its subdomains.
func TestTLSIsPassedOnByName(t *testing.T) {
	s := open(t, Config{Bus: "unix:path=/nonexistent/bus"})
	one, two := backend(t, "one", false), backend(t, "two", true)
	var a, b passthroughOut
	must(t, s, "system_vhost_add_passthrough", &a, "hostname", "Example.com", "listenPort", 0, "backend",
		one.Listener.Addr().String())
	must(t, s, "system_vhost_add_passthrough", &b, "hostname", "two.example.com", "listenPort", a.ListenPort,
		"backend", two.Listener.Addr().String(), "proxy", true)
	answer, _, err := fetch(t, "example.com", a.ListenPort, one)
	if err != nil || !strings.HasPrefix(answer, "one ") {
		t.Errorf("example.com: %q %v", answer, err)
	}
	answer, self, err := fetch(t, "two.example.com", a.ListenPort, two)
	if err != nil || answer != "two "+self {
		t.Errorf("two.example.com: %q %v, want the client's address %s", answer, err, self)
	}
	if _, _, err := fetch(t, "three.example.com", a.ListenPort, one); err == nil ||
		!strings.Contains(err.Error(), "unrecognized name") {
		t.Errorf("an unknown name: %v", err)
	}
	var table vhostTableOut
	must(t, s, "system_vhost_dump_table", &table)
	if names := table.Ports[fmt.Sprint(a.ListenPort)]; names["example.com"] != a.Backend ||
		names["two.example.com"] != b.Backend {
		t.Errorf("table: %+v", table)
	}
	refuses(t, s, "system_vhost_add_passthrough", "exists:", "hostname", "example.com", "listenPort", a.ListenPort,
		"backend", "127.0.0.1:1")
	refuses(t, s, "system_vhost_add_passthrough", "invalid_arguments:", "hostname", "a b", "listenPort", 0, "backend",
		"127.0.0.1:1")
	refuses(t, s, "system_vhost_add_passthrough", "invalid_arguments:", "hostname", "a", "listenPort", 0, "backend",
		"nowhere")
	must(t, s, "system_vhost_remove_passthrough", nil, "hostname", "example.com", "listenPort", a.ListenPort)
	if _, _, err := fetch(t, "example.com", a.ListenPort, one); err == nil {
		t.Error("it is passed on after it was removed")
	}
	must(t, s, "system_vhost_remove_passthrough", nil, "hostname", "two.example.com", "listenPort", a.ListenPort)
	refuses(t, s, "system_vhost_remove_passthrough", "not_found:", "hostname", "two.example.com", "listenPort",
		a.ListenPort)
	if c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", a.ListenPort)); err == nil {
		c.Close()
		t.Error("the port is open after its last name was removed")
	}
	var list vhostsOut
	must(t, s, "system_vhost_list_passthrough", &list)
	if len(list.Passthrough) != 0 {
		t.Errorf("list: %+v", list)
	}
}

// A connection to another address of the machine than those named is refused, as is what is no TLS.
func TestOnlyConnectionsToTheAddressesNamed(t *testing.T) {
	s := open(t, Config{Bus: "unix:path=/nonexistent/bus"})
	one := backend(t, "one", false)
	var a passthroughOut
	must(t, s, "system_vhost_add_passthrough", &a, "hostname", "example.com", "listenPort", 0,
		"backend", one.Listener.Addr().String(), "privateIp", []string{"192.0.2.1"})
	if _, _, err := fetch(t, "example.com", a.ListenPort, one); err == nil {
		t.Error("passed on from another address")
	}
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", a.ListenPort))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "GET / HTTP/1.1\r\n\r\n")
	if b, err := io.ReadAll(c); err != nil && !strings.Contains(err.Error(), "reset") || len(b) != 0 {
		t.Errorf("what is no TLS was answered: %q %v", b, err)
	}
}
