package proxy

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"gatehouse/internal/sandbox"
)

// record is what a TLS client says first.
func record(t testing.TB, config *tls.Config) []byte {
	t.Helper()
	here, there := net.Pipe()
	go func() {
		config.InsecureSkipVerify = true
		tls.Client(there, config).Handshake()
	}()
	defer here.Close()
	defer there.Close()
	here.SetDeadline(time.Now().Add(patience))
	head := make([]byte, 5)
	if _, err := io.ReadFull(here, head); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, int(head[3])<<8|int(head[4]))
	if _, err := io.ReadFull(here, body); err != nil {
		t.Fatal(err)
	}
	return append(head, body...)
}

// cut parts a record into records of so many bytes.
func cut(whole []byte, size int) (parts []byte) {
	for body := whole[5:]; len(body) > 0; {
		n := min(size, len(body))
		parts = append(parts, 22, 3, 1, byte(n>>8), byte(n))
		parts = append(parts, body[:n]...)
		body = body[n:]
	}
	return parts
}

func TestHellosNameTheirServer(t *testing.T) {
	whole := record(t, &tls.Config{ServerName: "example.org"})
	for name, b := range map[string][]byte{"in one": whole, "in pieces": cut(whole, 7), "byte by byte": cut(whole, 1)} {
		in := bufio.NewReaderSize(iotest.OneByteReader(bytes.NewReader(append(b, "rest"...))), maxClientHello)
		got, err := peekClientHello(in)
		if err != nil || got != "example.org" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if all, _ := io.ReadAll(in); !bytes.HasPrefix(all, b) {
			t.Errorf("%s: the hello was taken", name)
		}
	}
	got, err := peekClientHello(bufio.NewReaderSize(bytes.NewReader(record(t, &tls.Config{})), maxClientHello))
	if err != nil || got != "" {
		t.Errorf("without a name: %q, %v", got, err)
	}
	for end := range len(whole) {
		if got, err := peekClientHello(bufio.NewReaderSize(bytes.NewReader(whole[:end]), maxClientHello)); err == nil {
			t.Fatalf("of %d bytes: %q", end, got)
		}
	}
}

func FuzzHello(f *testing.F) {
	whole := record(f, &tls.Config{ServerName: "example.org"})
	f.Add(whole)
	f.Add(cut(whole, 50))
	f.Add([]byte("\x16\x03\x01\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		in := bufio.NewReaderSize(bytes.NewReader(b), maxClientHello)
		peekClientHello(in)
		if all, _ := io.ReadAll(in); !bytes.Equal(all, b) {
			t.Error("something was taken")
		}
	})
}

func TestTunnelsCarryWhatBothSidesSay(t *testing.T) {
	w := newWorld(t, Options{}, func(n *sandbox.Network) { n.Allow = []string{"example.org:*", "9.9.9.9:7"} })
	w.echo(public + ":7")
	w.echo("9.9.9.9:7")
	for name, open := range map[string]func() net.Conn{
		"CONNECT":            func() net.Conn { c, _ := w.tunnel("example.org:7"); return c },
		"CONNECT an address": func() net.Conn { c, _ := w.tunnel("9.9.9.9:7"); return c },
		"SOCKS5": func() net.Conn {
			c, code := w.socks("EXAMPLE.org.", 7)
			if code != socksOK {
				t.Fatal(code)
			}
			return c
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := open()
			said := strings.Repeat("012345678\n", 100_000)
			go func() {
				io.WriteString(c, said)
				c.(*net.TCPConn).CloseWrite()
			}()
			if b, err := io.ReadAll(c); err != nil || string(b) != said {
				t.Errorf("%d bytes came back of %d, %v", len(b), len(said), err)
			}
		})
	}
}

// Some servers speak first, and their clients wait for that.
func TestServersMaySpeakFirst(t *testing.T) {
	w := newWorld(t, Options{}, func(n *sandbox.Network) { n.Allow = []string{"example.org:22"} })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		io.WriteString(c, "SSH-2.0-server\r\n")
		line, _ := bufio.NewReader(c).ReadString('\n')
		io.WriteString(c, "heard "+line)
	}()
	w.servers[public+":22"] = l.Addr().String()
	c, in := w.tunnel("example.org:22")
	if line, err := in.ReadString('\n'); err != nil || line != "SSH-2.0-server\r\n" {
		t.Fatalf("%q, %v", line, err)
	}
	fmt.Fprint(c, "SSH-2.0-client\r\n")
	if line, err := in.ReadString('\n'); err != nil || line != "heard SSH-2.0-client\r\n" {
		t.Errorf("%q, %v", line, err)
	}
}

func TestTLSGoesThroughForItsTargetOnly(t *testing.T) {
	w := newWorld(t, Options{}, func(n *sandbox.Network) {
		n.Allow = []string{"example.com", "9.9.9.9"}
		n.Resolve = names{"example.com": {public}}
	})
	server := httptest.NewUnstartedServer(http.HandlerFunc(hello))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	w.put(public+":443", server)
	w.put("9.9.9.9:443", server)
	roots := server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	get := func(to, name string) error {
		c, _ := w.tunnel(to)
		s := tls.Client(c, &tls.Config{
			ServerName:         name,
			RootCAs:            roots,
			InsecureSkipVerify: name == "" || name != "example.com",
		})
		fmt.Fprint(s, "GET / HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n")
		_, err := io.ReadAll(s)
		return err
	}
	if err := get("example.com:443", "example.com"); err != nil {
		t.Error(err)
	}
	if err := get("9.9.9.9:443", ""); err != nil {
		t.Errorf("to an address: %v", err)
	}
	for name, c := range map[string]struct{ to, name string }{
		"another name": {"example.com:443", "evil.test"}, "a name below": {"example.com:443", "a.example.com"},
		"no name": {"example.com:443", ""}, "a name for an address": {"9.9.9.9:443", "evil.test"},
	} {
		if err := get(c.to, c.name); err == nil || !strings.Contains(err.Error(), "unrecognized name") {
			t.Errorf("%s: %v", name, err)
		}
		if d := w.last(); d.Allowed || !strings.Contains(d.Reason, "the TLS ClientHello names") {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

// A tunnel is no way around the judging of requests.
//
//redteam:attack A sandbox has no network until it is given one: a tunnel speaks to another host than it names
func TestRequestsInATunnelAreForItsTarget(t *testing.T) {
	w := newWorld(t, Options{}, nil)
	w.serve(public+":80", http.HandlerFunc(hello))
	_, in := w.connect()
	open := func() (c net.Conn) { c, in = w.tunnel("example.org:80"); return c }
	c := open()
	for range 2 {
		fmt.Fprint(c, "GET /path HTTP/1.1\r\nHost: example.org\r\n\r\n")
		if status, body := answerOf(t, in, "GET"); status != 200 || body != "example.org /path" {
			t.Errorf("%d %q", status, body)
		}
	}
	fmt.Fprint(c, "GET /path HTTP/1.1\r\nHost: other.test\r\n\r\n")
	if status, body := answerOf(t, in, "GET"); status != http.StatusMisdirectedRequest {
		t.Errorf("another Host in the third request: %d %q", status, body)
	}
	for name, text := range map[string]string{
		"another Host":           "GET / HTTP/1.1\r\nHost: other.test\r\n\r\n",
		"a blank first":          " GET / HTTP/1.1\r\nHost: other.test\r\n\r\n",
		"a tab first":            "\tGET / HTTP/1.1\r\nHost: other.test\r\n\r\n",
		"a form feed first":      "\fGET / HTTP/1.1\r\nHost: other.test\r\n\r\n",
		"blanks and lines first": " \r\n \r\nGET / HTTP/1.1\r\nHost: other.test\r\n\r\n",
		"a vertical tab":         "GET\v/ HTTP/1.1\r\nHost: other.test\r\n\r\n",
		"another URL":            "GET http://other.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n",
		"a tunnel":               "CONNECT other.test:80 HTTP/1.1\r\nHost: other.test:80\r\n\r\n",
		"an unknown method":      "FROB / HTTP/1.1\r\nHost: other.test\r\n\r\n",
		"an empty line first":    "\r\nGET / HTTP/1.1\r\nHost: other.test\r\n\r\n",
		"two blanks":             "GET  /  HTTP/1.1\r\nHost: other.test\r\n\r\n",
		"a tab":                  "GET\t/ HTTP/1.1\r\nHost: other.test\r\n\r\n",
		"HTTP/2":                 "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"lower case":             "get / http/1.1\r\nhost: other.test\r\n\r\n",
		"a method with a dash":   "M-SEARCH / HTTP/1.1\r\nHost: other.test\r\n\r\n",
		"one with a digit":       "G3T / HTTP/1.1\r\nHost: other.test\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			c := open()
			io.WriteString(c, text)
			if status, body := answerOf(t, in, "GET"); status < 400 {
				t.Errorf("%d %q", status, body)
			}
			if d := w.last(); d.Allowed {
				t.Errorf("%+v", d)
			}
		})
	}
	for _, d := range w.dials() {
		if d != public+":80" {
			t.Errorf("dialled %s", d)
		}
	}
}

// At the ports of the web a tunnel carries HTTP and TLS, and all else only where
// a rule says so.
//
//redteam:attack A sandbox has no network until it is given one: a tunnel to a web port carries what is neither HTTP nor TLS
func TestOtherProtocolsNeedARule(t *testing.T) {
	for _, c := range []struct {
		rule, to string
		want     bool
	}{
		{"example.org", "example.org:80", false}, {"example.org", "example.org:443", false},
		{"example.org:*", "example.org:443", false},
		{"9.9.9.9", "9.9.9.9:443", false}, {"example.org:443/tcp", "example.org:443", true},
		{"example.org:*/tcp", "example.org:80", true},
		{"9.9.9.9:443/tcp", "9.9.9.9:443", true}, {"example.org:7", "example.org:7", true},
	} {
		w := newWorld(t, Options{}, func(n *sandbox.Network) { n.Allow = []string{c.rule} })
		for _, at := range []string{public + ":80", public + ":443", public + ":7", "9.9.9.9:443"} {
			w.echo(at)
		}
		for _, said := range []string{"GET /\r\n", "SSH-2.0-x\r\n", "\x00\x00GET / HTTP/1.1\r\n\r\n",
			"\xffGET / HTTP/1.1\r\n\r\n", "X\r\nGET / HTTP/1.1\r\nHost: other.test\r\n\r\n"} {
			tunnel, in := w.tunnel(c.to)
			io.WriteString(tunnel, said)
			tunnel.(*net.TCPConn).CloseWrite()
			b, _ := io.ReadAll(in)
			if got := string(b) == said; got != c.want {
				t.Errorf("%s by the rule %s: sent %q, got %q", c.to, c.rule, said, b)
			}
			if d := w.last(); !c.want && (d.Allowed || !strings.Contains(d.Reason, "neither HTTP nor TLS")) {
				t.Errorf("%s by the rule %s, sent %q: %+v", c.to, c.rule, said, d)
			}
		}
	}
}

func TestWhatIsNoLongerAllowedIsCutOff(t *testing.T) {
	begun, end := make(chan bool), make(chan bool)
	w := newWorld(t, Options{}, func(n *sandbox.Network) {
		n.Allow = []string{"example.org", "other.test:7", "9.9.9.9:7"}
	})
	defer close(end)
	w.serve(public+":80", http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		out.(http.Flusher).Flush()
		begun <- true
		select {
		case <-end:
		case <-r.Context().Done():
		}
	}))
	w.echo(other + ":7")
	w.echo("9.9.9.9:7")
	gone, goneIn := w.tunnel("other.test:7")
	kept, keptIn := w.tunnel("9.9.9.9:7")
	byWords := func(c net.Conn, in *bufio.Reader) error {
		fmt.Fprintln(c, "are you there")
		_, err := in.ReadString('\n')
		return err
	}
	if byWords(gone, goneIn) != nil || byWords(kept, keptIn) != nil {
		t.Fatal("the tunnels are of no use")
	}
	asked := make(chan string, 1)
	go func() {
		_, body := w.ask("GET", "GET http://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n")
		asked <- body
	}()
	<-begun
	n := w.network
	n.Allow = []string{"9.9.9.9:7"}
	if err := w.proxy.Set(n); err != nil {
		t.Fatal(err)
	}
	if err := byWords(gone, goneIn); err == nil {
		t.Error("a tunnel that is not allowed any more goes on")
	}
	if body := <-asked; body == "" {
		t.Error("a response that is not allowed any more came to its end")
	}
	if err := byWords(kept, keptIn); err != nil {
		t.Errorf("a tunnel that is still allowed: %v", err)
	}
	if d := w.last(); d.Allowed || !strings.Contains(d.Reason, "closed because the rules changed") {
		t.Errorf("%+v", d)
	}
	if status, _ := w.ask("GET",
		"GET http://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n"); status != http.StatusForbidden {
		t.Errorf("afterwards: %d", status)
	}
	if err := w.proxy.Set(sandbox.Network{Allow: []string{"a b"}}); err == nil || byWords(kept, keptIn) != nil {
		t.Errorf("malformed rules: %v, and what was allowed before ended", err)
	}
	w.proxy.Close()
	if err := byWords(kept, keptIn); err == nil {
		t.Error("a tunnel outlives the proxy")
	}
}

// Whatever is said to the proxy, nothing but what is allowed is dialled.
func FuzzConversation(f *testing.F) {
	for _, s := range []string{
		"GET http://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n",
		"CONNECT example.org:443 HTTP/1.1\r\n\r\n\x16\x03\x01",
		"GET http://other.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n",
		"\x05\x01\x00\x05\x01\x00\x03\x0bexample.org\x01\xbb", "\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50",
		"POST http://example.org/ HTTP/1.1\r\nHost: example.org\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n" +
			"0\r\n\r\nGET http://127.0.0.1/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
		"CONNECT example.org:80 HTTP/1.1\r\nHost: example.org\r\n\r\nGET / HTTP/1.1\r\nHost: other.test\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) { converse(t, b) })
}
