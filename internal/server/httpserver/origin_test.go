package httpserver

import (
	"crypto/tls"
	"net"
	nethttp "net/http"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/tests/hosttest"
)

// Origins that no browser sends for a page of this machine, although they resemble one.
var foreign = []string{
	"https://evil.com",
	"null",
	"",
	"http://localhost.evil.example",
	"http://localhost.evil.example:3000",
	"http://127.0.0.1.evil.example",
	"http://evil.example/localhost",
	"http://localhost@evil.example",
	"http://user@localhost",
	"http://user:pw@localhost:3000",
	"http://localhost.",
	"http://localhost.:3000",
	"http://LOCALHOST",
	"HTTP://localhost",
	"Http://Localhost:3000",
	"http://localhost/",
	"http://localhost?x",
	"http://localhost#x",
	"http://localhost:",
	"http://localhost:0",
	"http://localhost:080",
	"http://localhost:+80",
	"http://localhost:65536",
	"http://localhost:80:80",
	"http://localhost:80a",
	"http:// localhost",
	" http://localhost",
	"http://localhost ",
	"http://localhost\t",
	"http://loc\x80lhost",
	"http://%6c%6f%63%61%6c%68%6f%73%74",
	"http://localhost%00.evil.example",
	"http://localhost\\.evil.example",
	"http://127.1",
	"http://127.0.1",
	"http://2130706433",
	"http://0x7f.0.0.1",
	"http://0177.0.0.1",
	"http://127.000.000.001",
	"http://0.0.0.0",
	"http://[::1",
	"http://::1",
	"http://[::1]evil.example",
	"http://[::1].evil.example",
	"http://[0:0:0:0:0:0:0:1]",
	"http://[::0001]",
	"http://[::1%25lo]",
	"http://[::1%lo]",
	"http://[127.0.0.1]",
	"http://[::ffff:7f00:1]",
	"http://[::]",
	"http://..localhost",
	"http://sub.localhost",
	"http://xlocalhost",
	"http://localhost-evil.example",
	"http:localhost",
	"//localhost",
	"localhost",
	"file://",
	"file://localhost",
	"ftp://localhost",
	"javascript://localhost",
	"http://localhost, http://localhost",
	"http://localhost http://evil.example",
}

// asked returns a request of a page to a host, over TLS or not.
func asked(secure bool, host string, origins ...string) *nethttp.Request {
	r := &nethttp.Request{Host: host, Header: nethttp.Header{}}
	if secure {
		r.TLS = &tls.ConnectionState{}
	}
	if origins != nil {
		r.Header["Origin"] = origins
	}
	return r
}

// Pages of other ports of loopback are as foreign as those of other machines.
//
//redteam:attack Origin and Host: a page of another loopback port, as a sandbox serves it, calls the listener
func TestOnlyItsOwnPagesMayCall(t *testing.T) {
	local, err := newOrigins(nil, true)
	if err != nil {
		t.Fatal(err)
	}
	public, _ := newOrigins(nil, false)
	for _, c := range []struct {
		origin, host string
		secure, want bool
	}{
		{"http://localhost:3000", "localhost:3000", false, true},
		{"http://127.0.0.1:3000", "127.0.0.1:3000", false, true},
		{"http://localhost:3000", "LocalHost:3000", false, true},
		{"http://[::1]:3000", "[::1]:3000", false, true},
		{"http://localhost", "localhost", false, true},
		{"http://localhost", "localhost:80", false, true},
		{"https://localhost", "localhost", true, true},
		{"https://localhost:8443", "localhost:8443", true, true},
		{"http://localhost:3001", "localhost:3000", false, false},
		{"http://localhost", "localhost:3000", false, false},
		{"http://localhost:3000", "localhost", false, false},
		{"http://127.0.0.1:3000", "localhost:3000", false, false},
		{"http://127.9.8.7:3000", "127.0.0.1:3000", false, false},
		{"http://[::1]:3000", "127.0.0.1:3000", false, false},
		{"https://localhost:3000", "localhost:3000", false, false},
		{"http://localhost:8443", "localhost:8443", true, false},
		{"https://localhost", "localhost", false, false},
		{"ftp://localhost:3000", "localhost:3000", false, false},
	} {
		h := nethttp.Header{}
		if got := local.admit(h, asked(c.secure, c.host, c.origin)); got != c.want {
			t.Errorf("%s to %s: %t, want %t", c.origin, c.host, got, c.want)
		}
		if got := h.Get("Access-Control-Allow-Origin"); (got != "") != c.want {
			t.Errorf("%s to %s: allowed is %q", c.origin, c.host, got)
		}
		if public.admit(nethttp.Header{}, asked(c.secure, c.host, c.origin)) {
			t.Errorf("%s to %s on a public server: admitted", c.origin, c.host)
		}
	}
}

//redteam:attack Origin and Host: foreign origins in every spelling
func TestOrigins(t *testing.T) {
	local, err := newOrigins(
		[]string{"https://App.example.com", "app://obsidian.md", "http://[2001:db8::1]:8080"},
		true,
	)
	if err != nil {
		t.Fatal(err)
	}
	public, _ := newOrigins([]string{"https://app.example.com:443"}, false)
	anyone, _ := newOrigins([]string{"*", "https://app.example.com"}, false)
	for _, c := range []struct {
		name      string
		o         *origins
		origin    string
		allow     string // Access-Control-Allow-Origin; "" means refused
		withCreds bool
	}{
		{"listed", &local, "https://app.example.com", "https://app.example.com", true},
		{"another scheme", &local, "http://app.example.com", "", false},
		{"another port", &local, "https://app.example.com:8443", "", false},
		{"a name below", &local, "https://x.app.example.com", "", false},
		{"a scheme of its own", &local, "app://obsidian.md", "app://obsidian.md", true},
		{"an address", &local, "http://[2001:db8::1]:8080", "http://[2001:db8::1]:8080", true},
		{"its own", &local, "http://localhost:3000", "http://localhost:3000", false},
		{"another port of loopback", &local, "http://localhost:5173", "", false},
		{"the default port, spelt out", &public, "https://app.example.com", "https://app.example.com", true},
		{"loopback on a public server", &public, "http://localhost", "", false},
		{"anyone", &anyone, "https://evil.com", "*", false},
		{"a document without an origin", &anyone, "null", "", false},
		{"listed beside anyone", &anyone, "https://app.example.com", "https://app.example.com", true},
		{"not even anyone", &anyone, "https://user@evil.com", "", false},
	} {
		h := nethttp.Header{}
		ok := c.o.admit(h, asked(false, "localhost:3000", c.origin))
		if got := h.Get("Access-Control-Allow-Origin"); ok != (c.allow != "") || got != c.allow {
			t.Errorf("%s: admitted %t, as %q, want %q", c.name, ok, got, c.allow)
		}
		if got := h.Get("Access-Control-Allow-Credentials") == "true"; got != c.withCreds {
			t.Errorf("%s: credentials %t, want %t", c.name, got, c.withCreds)
		}
		if h.Get("Vary") != "Origin" {
			t.Errorf("%s: the answer may be taken for another origin's", c.name)
		}
	}
	for _, s := range foreign {
		for _, host := range []string{"localhost:3000", "localhost", "127.0.0.1:3000", "[::1]"} {
			if local.admit(nethttp.Header{}, asked(false, host, s)) {
				t.Errorf("%q was admitted to %s", s, host)
			}
		}
	}
	if local.admit(nethttp.Header{}, asked(false, "localhost", "http://localhost", "http://localhost")) {
		t.Error("two origins were admitted")
	}
	if !local.admit(nethttp.Header{}, asked(false, "localhost")) {
		t.Error("a client that is no browser was refused")
	}
}

//redteam:attack Origin and Host: a foreign Host, as DNS rebinding sends it
func TestHosts(t *testing.T) {
	local, err := newHosts([]string{"box.lan", "box2.lan:3000"}, true)
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]bool{
		"localhost": true, "localhost:3000": true, "LocalHost": true, "127.0.0.1:1": true, "127.1.2.3": true,
		"[::1]": true, "[::1]:80": true,
		"box.lan": true, "box.lan:99": true, "BOX.lan": true, "box2.lan:3000": true,
		"box2.lan": false, "box2.lan:3001": false, "evil.example.com": false, "localhost.evil.example": false,
		"localhost.": false,
		"10.0.0.1":   false, "": false, "localhost:": false, "localhost:x": false, "a@localhost": false, "::1": false,
		"[::1": false,
	} {
		if got := local.allow(host); got != want {
			t.Errorf("Host %q: %t, want %t", host, got, want)
		}
	}
	if public, _ := newHosts(nil, false); !public.allow("whatever.example") {
		t.Error("a public server refuses a name of its own")
	}
}

// Every route of the server refuses the same foreign pages.
//
//redteam:attack Origin and Host: every route from a foreign page
func TestForeignersAreRefusedEverywhere(t *testing.T) {
	h := newTestHost(t, Options{}, hosttest.Options{})
	id := h.session("2025-11-25")
	for _, where := range [][2]string{
		{"POST", "/mcp"}, {"GET", "/mcp"}, {"DELETE", "/mcp"}, {"OPTIONS", "/mcp"}, {"PUT", "/mcp"},
		{"POST", "/mcp/work"},
		{"GET", "/sse"}, {"POST", "/messages"}, {"GET", "/health"}, {"GET", "/"}, {"GET", "/nowhere"},
	} {
		for _, headers := range [][]string{
			{"Origin", "http://localhost.evil.example"},
			{"Host", "evil.example.com"},
			{"Host", "evil.example.com", "Origin", "http://evil.example.com"},
		} {
			r := h.do(where[0], where[1], initialize, append(headers, "Mcp-Session-Id", id)...)
			if r.status != 403 || r.header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("%s with %q: got %d %v, want 403", where, headers, r.status, r.header)
			}
			has(t, r.body, `"jsonrpc":"2.0"`, `"error"`)
		}
	}
	echo := call(1, "t_echo", `{"text":"hi"}`, envelope)
	if r := h.do("POST", "/mcp", echo,
		append(modern("tools/call", "t_echo"), "Origin", "http://localhost.evil.example")...); r.status != 403 {
		t.Errorf("in the modern era: got %d %s, want 403", r.status, r.body)
	}
	if _, ok := h.Table.Get(id, "anonymous"); !ok {
		t.Error("a stranger has ended the session")
	}
}

func TestCORS(t *testing.T) {
	h := newTestHost(t, Options{Origins: []string{"https://app.example.com"}}, hosttest.Options{})
	const page = "https://app.example.com"
	for name, r := range map[string]reply{
		"an answer":       h.do("POST", "/mcp", initialize, "Origin", page),
		"a bad message":   h.do("POST", "/mcp", `{`, "Origin", page),
		"a wrong type":    h.do("POST", "/mcp", initialize, "Origin", page, "Content-Type", "text/plain"),
		"no session":      h.do("DELETE", "/mcp", "", "Origin", page),
		"a wrong method":  h.do("PATCH", "/mcp", "", "Origin", page),
		"a wrong address": h.do("GET", "/nowhere", "", "Origin", page),
	} {
		if got := r.header.Get("Access-Control-Allow-Origin"); got != page {
			t.Errorf("%s: allowed origin %q, want %q", name, got, page)
		}
		has(t, r.header.Get("Access-Control-Expose-Headers"), "Mcp-Session-Id", "MCP-Protocol-Version")
	}
	r := h.do("OPTIONS", "/mcp", "", "Origin", page, "Access-Control-Request-Method", "POST",
		"Access-Control-Request-Headers", "content-type, Mcp-Param-Region, x-evil, mcp-param-a b, mcp-param-")
	if r.status != 204 || r.header.Get("Access-Control-Max-Age") != "86400" {
		t.Errorf("preflight: got %d %v, want 204, kept for a day", r.status, r.header)
	}
	allowed := r.header.Get("Access-Control-Allow-Headers")
	has(t, allowed, "Content-Type", "Mcp-Session-Id", "Mcp-Method", "mcp-param-region")
	if strings.Contains(allowed, "x-evil") || strings.Contains(allowed, "a b") {
		t.Errorf("preflight allows %q", allowed)
	}
}

//redteam:attack Loopback by default: a listener beyond loopback is opened without a word
func TestWarnExposed(t *testing.T) {
	lines := WarnExposed("0.0.0.0", false)
	want := []string{
		"WARNING: Binding to 0.0.0.0 exposes this server to all network interfaces.",
		"         Ensure proper authentication and firewall rules are in place.",
		"WARNING: Running without TLS on a public interface.",
		"         Consider using --tls for encrypted connections.",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("got\n%s", strings.Join(lines, "\n"))
	}
	if n := len(WarnExposed("10.0.0.1", true)); n != 2 {
		t.Errorf("with TLS there are %d lines, want 2", n)
	}
	for _, host := range []string{"", "localhost", "127.0.0.1", "::1", "127.1.1.1"} {
		if WarnExposed(host, false) != nil {
			t.Errorf("%q is warned of", host)
		}
	}
	if got := URL(&net.TCPAddr{IP: net.IPv6loopback, Port: 3000}, true); got != "https://[::1]:3000/mcp" {
		t.Errorf("got %s", got)
	}
}

func FuzzOrigin(f *testing.F) {
	for _, s := range append(foreign, "http://localhost", "http://127.0.0.1:3000", "http://[::1]:80") {
		f.Add(s, strings.TrimPrefix(s, "http://"))
		f.Add(s, "localhost:3000")
	}
	o, _ := newOrigins(nil, true)
	f.Fuzz(func(t *testing.T, s, host string) {
		if !o.admit(nethttp.Header{}, asked(false, host, s)) {
			return
		}
		// The admitted origins are exactly those that a browser sends for a page of that host.
		bare, _ := strings.CutSuffix(strings.ToLower(host), ":80")
		if page := "http://" + bare; s != page && s != page+":80" {
			t.Errorf("%q was admitted to %q", s, host)
		}
		if i := strings.LastIndexByte(bare, ':'); i >= 0 && !strings.HasSuffix(bare, "]") {
			bare = bare[:i]
		}
		if ip := net.ParseIP(strings.Trim(bare, "[]")); bare != "localhost" && (ip == nil || !ip.IsLoopback()) {
			t.Errorf("%q was admitted to %q", s, host)
		}
	})
}
