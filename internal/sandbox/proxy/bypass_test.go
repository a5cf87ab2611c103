package proxy

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"gatehouse/internal/sandbox"
)

// Each trick is tried on every way in. Nothing may be dialled for any.
//
//redteam:attack A sandbox has no network until it is given one: names and addresses in disguise
func TestNoTrickLeadsOut(t *testing.T) {
	w := newWorld(t, Options{}, func(n *sandbox.Network) {
		n.Allow = []string{"*.example.org", "example.org", "*:*"}
		n.Resolve = names{"": {"127.0.0.1"}}
	})
	for name, host := range tricks {
		t.Run(name, func(t *testing.T) {
			if status, _ := w.ask("GET", fmt.Sprintf("GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n", host,
				host)); status < 400 {
				t.Errorf("a request: %d", status)
			}
			if status, _ := w.ask("CONNECT", fmt.Sprintf("CONNECT %s:443 HTTP/1.1\r\nHost: %s\r\n\r\n", host,
				host)); status < 400 && status != 0 {
				t.Errorf("CONNECT: %d", status)
			}
			if len(host) > 255 {
				return
			}
			if _, code := w.socks(host, 443); code == socksOK {
				t.Error("SOCKS5 let it through")
			}
		})
	}
	if d := w.dials(); len(d) > 0 {
		t.Errorf("dialled were %q", d)
	}
	for _, d := range w.decisions() {
		if d.Allowed || d.Reason == "" || strings.ContainsAny(d.Reason+d.Target, "\x00\r\n") {
			t.Errorf("%+v", d)
		}
	}
}

// Names that lead where no name may lead, and addresses written plainly.
//
//redteam:attack A sandbox has no network until it is given one: every special address in every spelling
func TestNoAddressLeadsIn(t *testing.T) {
	for name, c := range map[string]struct{ host, at string }{
		"loopback by its name": {"localhost", "127.0.0.1"}, "a name for loopback": {"a.test", "127.0.0.1"},
		"loopback":           {"127.0.0.1", ""},
		"any other loopback": {"127.9.9.9", ""}, "loopback by IPv6": {"[::1]", ""},
		"loopback, mapped":                 {"[::ffff:127.0.0.1]", ""},
		"loopback, mapped, in hexadecimal": {"[::ffff:7f00:1]", ""}, "loopback, compatible": {"[::7f00:1]", ""},
		"loopback by 6to4":  {"[2002:7f00:1::1]", ""},
		"loopback by NAT64": {"[64:ff9b::7f00:1]", ""}, "loopback by a local NAT64": {"[64:ff9b:1::7f00:1]", ""},
		"loopback by Teredo": {"[2001:0:7f00:1::1]", ""},
		"everything":         {"0.0.0.0", ""}, "everything by IPv6": {"[::]", ""},
		"metadata": {"169.254.169.254", ""}, "a name for metadata": {"metadata.google.internal", "169.254.169.254"},
		"metadata, mapped": {"[::ffff:a9fe:a9fe]", ""}, "metadata by NAT64": {"[64:ff9b::a9fe:a9fe]", ""},
		"metadata by IPv6":          {"[fd00:ec2::254]", ""},
		"metadata of another cloud": {"100.100.100.200", ""}, "metadata of a third cloud": {"168.63.129.16", ""},
		"metadata of a fourth": {"192.0.0.192", ""},
		"private":              {"10.1.2.3", ""}, "a name for private": {"b.test", "192.168.1.1"},
		"unique local": {"[fd12::1]", ""}, "link-local": {"[fe80::1]", ""},
		"multicast": {"224.0.0.1", ""}, "broadcast": {"255.255.255.255", ""},
		"an address of this host": {"93.184.215.20", ""}, "a name for this host": {"c.test", "93.184.215.20"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{}, func(n *sandbox.Network) {
				n.Allow = []string{"*:*", "0.0.0.0/0:*", "[::/0]:*"}
				n.Resolve = names{strings.Trim(c.host, "[]"): {c.at}}
			})
			w.proxy.own = thisHost
			if status, body := w.ask("CONNECT", fmt.Sprintf("CONNECT %s:443 HTTP/1.1\r\nHost: %s:443\r\n\r\n",
				c.host, c.host)); status != http.StatusForbidden {
				t.Errorf("CONNECT: %d %s", status, body)
			}
			if status, body := w.ask("GET", fmt.Sprintf("GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n", c.host,
				c.host)); status != http.StatusForbidden {
				t.Errorf("a request: %d %s", status, body)
			}
			if d := w.dials(); len(d) > 0 {
				t.Errorf("dialled were %q", d)
			}
			if d := w.last(); d.Allowed || !strings.Contains(d.Reason, "such addresses are allowed only by") {
				t.Errorf("%+v", d)
			}
		})
	}
}

// A name that has another address the second time.
//
//redteam:attack A sandbox has no network until it is given one: a name that leads elsewhere the second time
func TestRebinding(t *testing.T) {
	w := newWorld(t, Options{}, func(n *sandbox.Network) { n.Resolve = &flipping{} })
	w.serve(public+":80", http.HandlerFunc(hello))
	w.serve("127.0.0.1:80", http.HandlerFunc(hello))
	for range 4 {
		w.ask("GET", "GET http://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n")
	}
	for _, d := range w.dials() {
		if d != public+":80" {
			t.Errorf("dialled %s", d)
		}
	}
	if n := len(w.dials()); n != 2 {
		t.Errorf("dialled %d times, want each time the address was public", n)
	}
}

// Every request is judged by itself, so a client that follows a redirect asks again.
func TestRedirectsAreJudgedAgain(t *testing.T) {
	w := newWorld(t, Options{}, nil)
	w.serve(public+":80", http.RedirectHandler("http://169.254.169.254/latest/", http.StatusFound))
	c := &http.Client{Transport: &http.Transport{
		Proxy:             http.ProxyURL(mustURL("http://" + w.inside)),
		DisableKeepAlives: true,
	}}
	r, err := c.Get("http://example.org/")
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	if d := w.last(); r.StatusCode != http.StatusForbidden || d.Allowed || d.Target != "169.254.169.254:80" {
		t.Errorf("%d, %+v", r.StatusCode, d)
	}
}

// Heads that two readers read in two ways.
//
//redteam:attack A sandbox has no network until it is given one: requests that two readers read differently
func TestAmbiguousRequestsAreRefused(t *testing.T) {
	const first = "GET http://example.org/ HTTP/1.1\r\nHost: example.org\r\n"
	for name, c := range map[string]struct {
		text   string
		status int
	}{
		"no Host":                 {"GET http://example.org/ HTTP/1.1\r\n\r\n", 400},
		"two of Host":             {first + "Host: example.org\r\n\r\n", 400},
		"another Host":            {"GET http://example.org/ HTTP/1.1\r\nHost: other.test\r\n\r\n", 421},
		"another port in Host":    {"GET http://example.org/ HTTP/1.1\r\nHost: example.org:443\r\n\r\n", 421},
		"another Host of CONNECT": {"CONNECT example.org:443 HTTP/1.1\r\nHost: other.test:443\r\n\r\n", 421},
		"a body of CONNECT": {"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n" +
			"Content-Length: 5\r\n\r\nhello", 400},
		"CONNECT without a port": {"CONNECT example.org HTTP/1.1\r\nHost: example.org\r\n\r\n", 400},
		"CONNECT to a URL":       {"CONNECT http://example.org:443/ HTTP/1.1\r\nHost: example.org\r\n\r\n", 400},
		"a length and chunks": {first +
			"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
		"two lengths":          {first + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", 400},
		"lengths in a list":    {first + "Content-Length: 5, 5\r\n\r\nhello", 400},
		"a length with a sign": {first + "Content-Length: +5\r\n\r\nhello", 400},
		"two codings":          {first + "Transfer-Encoding: gzip, chunked\r\n\r\n", 400},
		"chunks twice": {first +
			"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
		"a coding nobody knows":             {first + "Transfer-Encoding: xchunked\r\n\r\n", 400},
		"chunks in HTTP/1.0":                {"POST http://example.org/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
		"a blank before the colon":          {first + "Content-Length : 5\r\n\r\nhello", 400},
		"a field that goes on":              {first + "X-A: b\r\n c\r\n\r\n", 400},
		"a bare line feed":                  {"GET http://example.org/ HTTP/1.1\nHost: example.org\n\n", 400},
		"a bare line feed later":            {first + "X-A: b\nX-B: c\r\n\r\n", 400},
		"a bare carriage return":            {first + "X-A: b\rX-B: c\r\n\r\n", 400},
		"a NUL in a field":                  {first + "X-A: b\x00\r\n\r\n", 400},
		"a NUL in the Host":                 {"GET http://example.org/ HTTP/1.1\r\nHost: example.org\x00\r\n\r\n", 400},
		"two blanks":                        {"GET  http://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n", 400},
		"a tab":                             {"GET\thttp://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n", 400},
		"a field without a name":            {first + ": b\r\n\r\n", 400},
		"an empty line first":               {"\r\n" + first + "\r\n", 400},
		"a path, as to a server":            {"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n", 400},
		"another scheme":                    {"GET ftp://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n", 400},
		"a file":                            {"GET file:///etc/passwd HTTP/1.1\r\nHost: example.org\r\n\r\n", 400},
		"a user in the URL":                 {"GET http://example.org@other.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n", 400},
		"a user with a password in the URL": {"GET http://a:b@example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n", 400},
		"a backslash in the URL": {`GET http://other.test\@example.org/ HTTP/1.1` +
			"\r\nHost: example.org\r\n\r\n", 400},
		"HTTP/2 that nobody agreed on": {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
		"HTTP/0.9":                     {"GET http://example.org/\r\n\r\n", 400},
		"a head without an end":        {first + strings.Repeat("X-A: "+strings.Repeat("b", 1000)+"\r\n", 100), 431},
		"too many fields":              {first + strings.Repeat("X: y\r\n", 300) + "\r\n", 431},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{}, nil)
			w.serve(public+":80", http.HandlerFunc(hello))
			w.echo(public + ":443")
			method, _, _ := strings.Cut(c.text, " ")
			if status, body := w.ask(method, c.text); status != c.status {
				t.Errorf("%d %s, want %d", status, body, c.status)
			}
			if d := w.dials(); len(d) > 0 {
				t.Errorf("dialled were %q", d)
			}
			if d := w.last(); d.Allowed || d.Reason == "" {
				t.Errorf("the decision is %+v", d)
			}
		})
	}
}

func TestSocksDoesNothingButTCPOut(t *testing.T) {
	w := newWorld(t, Options{}, nil)
	w.echo(public + ":443")
	for name, request := range map[string][]byte{
		"listening":                {5, 2, 0, formIPv4, 93, 184, 215, 14, 1, 187},
		"UDP":                      {5, 3, 0, formIPv4, 93, 184, 215, 14, 1, 187},
		"an unknown form":          {5, 1, 0, 9, 93, 184, 215, 14, 1, 187},
		"another version":          {4, 1, 0, formIPv4, 93, 184, 215, 14, 1, 187},
		"a byte that must be zero": {5, 1, 1, formIPv4, 93, 184, 215, 14, 1, 187},
		"no port":                  {5, 1, 0, formIPv4, 93, 184, 215, 14, 0, 0},
		"an address nobody named":  {5, 1, 0, formIPv4, 93, 184, 215, 14, 1, 187},
		"loopback":                 {5, 1, 0, formIPv4, 127, 0, 0, 1, 1, 187},
		"loopback, mapped": append([]byte{5, 1, 0, formIPv6},
			append(net.ParseIP("::ffff:127.0.0.1").To16(), 1, 187)...),
		"an empty name": {5, 1, 0, formName, 0, 1, 187},
	} {
		if _, code := w.socksRaw(request); code == socksOK {
			t.Errorf("%s was let through", name)
		}
	}
	if d := w.dials(); len(d) > 0 {
		t.Errorf("dialled were %q", d)
	}
	c, in := w.connect()
	c.Write([]byte{5, 1, 2}) // with a password only
	if b, err := in.Peek(2); err != nil || b[1] != noMethod {
		t.Errorf("%v, %v", b, err)
	}
}
