package proxy

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/sandbox"
)

func mustURL(s string) *url.URL {
	u, err := url.Parse(s)
	if err != nil {
		panic(err)
	}
	return u
}

func thisHost() []netip.Addr { return []netip.Addr{netip.MustParseAddr("93.184.215.20")} }

// flipping leads to a public address and to loopback in turns.
type flipping struct {
	mu sync.Mutex
	n  int
}

func (f *flipping) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
	return []netip.Addr{netip.MustParseAddr([]string{public, "127.0.0.1"}[(f.n-1)%2])}, nil
}

func TestRequestsThatAreAllowedArrive(t *testing.T) {
	w := newWorld(t, Options{}, nil)
	w.serve(public+":80", http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		for _, name := range []string{"Proxy-Connection", "Proxy-Authorization", "X-Hop", "Connection"} {
			if v := r.Header.Get(name); v != "" && v != "close" {
				t.Errorf("%s: %s arrived", name, v)
			}
		}
		out.Header().Set("X-Seen", "yes")
		fmt.Fprintf(out, "%s %s%s %s", r.Method, r.Host, r.RequestURI, body)
	}))
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(mustURL("http://" + w.inside))}}
	defer client.CloseIdleConnections()
	for range 3 { // over one connection
		r, err := http.NewRequest("POST", "http://Example.org/a%2fb?c=%20d", strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = http.Header{
			"Proxy-Connection":    {"keep-alive"},
			"Proxy-Authorization": {"Basic eDp5"},
			"X-Hop":               {"1"},
			"Connection":          {"X-Hop"},
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if want := "POST example.org/a%2fb?c=%20d hello"; err != nil || string(b) != want ||
			resp.Header.Get("X-Seen") != "yes" {
			t.Errorf("%q, %v, want %q", b, err, want)
		}
	}
	want := sandbox.Decision{
		Allowed: true,
		Method:  "POST",
		Target:  "example.org:80",
		Address: public + ":80",
		Rule:    "example.org",
		Reason:  "example.org:80 is allowed by the rule example.org",
	}
	if got := w.last(); got != want || len(w.decisions()) != 3 {
		t.Errorf("%d decisions, %+v, want %+v", len(w.decisions()), got, want)
	}
}

func TestRefusalsSayWhyAndWhatIsAllowed(t *testing.T) {
	w := newWorld(t, Options{}, nil)
	const want = "other.test:80 is not allowed: no rule matches it; allowed are example.org"
	status, body := w.ask("GET", "GET http://other.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n")
	if status != http.StatusForbidden || body != want+"\n" {
		t.Errorf("%d %q", status, body)
	}
	if d := w.last(); d.Reason != want || d.Allowed || d.Target != "other.test:80" {
		t.Errorf("%+v", d)
	}
	c, in := w.connect()
	fmt.Fprint(c, "CONNECT other.test:443 HTTP/1.1\r\nHost: other.test:443\r\n\r\n")
	if line, _ := in.ReadString('\n'); !strings.Contains(line, "403 other.test:443 is not allowed") {
		t.Errorf("the status line is %q", line)
	}
}

func TestServersThatDoNotAnswerAreNotRefusals(t *testing.T) {
	w := newWorld(t, Options{}, func(n *sandbox.Network) { n.Allow = []string{"example.org", "nowhere.test"} })
	if status, body := w.ask("GET",
		"GET http://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n"); status != http.StatusBadGateway ||
		!strings.Contains(body, "does not answer") {
		t.Errorf("%d %s", status, body)
	}
	if status, body := w.ask("CONNECT",
		"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n"); status != http.StatusBadGateway {
		t.Errorf("%d %s", status, body)
	}
	if status, body := w.ask("GET",
		"GET http://nowhere.test/ HTTP/1.1\r\nHost: nowhere.test\r\n\r\n"); status != http.StatusForbidden ||
		!strings.Contains(body, "the host does not exist") {
		t.Errorf("%d %s", status, body)
	}
}

func TestOlderClientsAndLongBodies(t *testing.T) {
	w := newWorld(t, Options{}, nil)
	w.serve(public+":80", http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		out.(http.Flusher).Flush() // no length is known
		fmt.Fprint(out, n)
	}))
	if status, body := w.ask("GET", "GET http://example.org/ HTTP/1.0\r\n\r\n"); status != 200 || body != "0" {
		t.Errorf("HTTP/1.0: %d %q", status, body)
	}
	if status, body := w.ask("POST",
		"POST http://example.org/ HTTP/1.1\r\nHost: example.org\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"); status != 200 || body != "5" {
		t.Errorf("chunks: %d %q", status, body)
	}
	c, in := w.connect()
	fmt.Fprint(c,
		"POST http://example.org/ HTTP/1.1\r\nHost: example.org\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
	if line, _ := in.ReadString('\n'); !strings.Contains(line, "100 Continue") {
		t.Fatalf("%q", line)
	}
	in.ReadString('\n')
	fmt.Fprint(c, "hello")
	if status, body := answerOf(t, in, "POST"); status != 200 || body != "5" {
		t.Errorf("after 100: %d %q", status, body)
	}
	if status, _ := w.ask("HEAD", "HEAD http://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n"); status != 200 {
		t.Errorf("HEAD: %d", status)
	}
}

// upgrades is a server that agrees to another protocol and then says back what
// it hears.
func upgrades(to string) http.Handler {
	return http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		c, in, err := out.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		fmt.Fprintf(c,
			"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\nX-Asked: %s\r\n\r\n", to,
			r.Header.Get("Upgrade"))
		io.Copy(c, in)
	})
}

func TestWebSocketsGoThrough(t *testing.T) {
	w := newWorld(t, Options{}, func(n *sandbox.Network) {
		n.Allow = []string{"example.org", "other.test"}
		n.Secrets = []sandbox.Secret{{
			Placeholder: "PLAIN_KEY_1",
			Value:       secret.New("plain-value"),
			Hosts:       []string{"example.org"},
			Plain:       true,
		}}
	})
	w.serve(public+":80", upgrades("websocket"))
	w.serve(other+":80", upgrades("something-else"))
	ask := func(host, more string) (*http.Response, net.Conn, *bufio.Reader) {
		c, in := w.connect()
		fmt.Fprintf(
			c,
			"GET http://%s/ HTTP/1.1\r\nHost: %s\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n%s\r\n",
			host,
			host,
			more,
		)
		r, err := http.ReadResponse(in, &http.Request{Method: "GET"})
		if err != nil {
			t.Fatal(err)
		}
		return r, c, in
	}
	r, c, in := ask("example.org", "")
	if r.StatusCode != http.StatusSwitchingProtocols || r.Header.Get("X-Asked") != "websocket" {
		t.Fatalf("%+v", r)
	}
	for range 3 {
		fmt.Fprintln(c, "hello")
		if line, err := in.ReadString('\n'); err != nil || line != "hello\n" {
			t.Errorf("%q, %v", line, err)
		}
	}
	n := w.network
	n.Allow = []string{"other.test"}
	if err := w.proxy.Set(n); err != nil {
		t.Fatal(err)
	}
	if _, err := in.ReadString('\n'); err == nil || isTimeout(err) {
		t.Errorf("what is no longer allowed goes on: %v", err)
	}
	if r, _, _ := ask("other.test", ""); r.StatusCode != http.StatusBadGateway {
		t.Errorf("another protocol: %d", r.StatusCode)
	}
	if err := w.proxy.Set(w.network); err != nil {
		t.Fatal(err)
	}
	if r, _, _ := ask("example.org", "X-Key: PLAIN_KEY_1\r\n"); r.StatusCode != http.StatusBadGateway {
		t.Errorf("with a secret: %d", r.StatusCode)
	}
}

func TestLimitsOfBytesAndConnections(t *testing.T) {
	w := newWorld(t, Options{Limits: Limits{Bytes: 100_000, Connections: 2}}, func(n *sandbox.Network) {
		n.Allow = []string{"example.org:*"}
	})
	w.serve(public+":80", http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		out.Write(make([]byte, 200_000))
	}))
	w.echo(public + ":7")
	if _, body := w.ask("GET", "GET http://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n"); len(body) > 110_000 {
		t.Errorf("%d bytes came through", len(body))
	}
	c, in := w.tunnel("example.org:7")
	go c.Write(make([]byte, 200_000))
	if n, _ := io.Copy(io.Discard, in); n > 100_000 {
		t.Errorf("%d bytes came through a tunnel", n)
	}
	if d := w.last(); d.Allowed || !strings.Contains(d.Reason, "limit of bytes") {
		t.Errorf("%+v", d)
	}
	w.until(func() bool { w.proxy.mu.Lock(); defer w.proxy.mu.Unlock(); return len(w.proxy.clients) == 0 })
	w.tunnel("example.org:7")
	w.tunnel("example.org:7")
	if status, body := w.ask("GET", ""); status != http.StatusServiceUnavailable {
		t.Errorf("%d %s", status, body)
	}
}

func (w *world) until(is func() bool) {
	w.t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatal("it never came to be")
		}
	}
}

func TestHalfARequestIsNotWaitedForLong(t *testing.T) {
	for name, begin := range map[string]string{
		"a head":       "GET http://exam",
		"SOCKS5":       "\x05",
		"a hello":      "\x16\x03\x01",
		"a first line": "GET /",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{Limits: Limits{Handshake: 50 * time.Millisecond}}, nil)
			w.echo(public + ":443")
			c, in := w.connect()
			if strings.HasPrefix(name, "a hello") || strings.HasPrefix(name, "a first") {
				c, in = w.tunnel("example.org:443")
			}
			io.WriteString(c, begin)
			if _, err := in.ReadByte(); err == nil || isTimeout(err) {
				t.Errorf("%v", err)
			}
		})
	}
}

func isTimeout(err error) bool {
	e, ok := err.(net.Error)
	return ok && e.Timeout()
}

func TestSecretsAreSwappedOnTheWay(t *testing.T) {
	const value, placeholder = "sk-real/value+1", "PLACEHOLDER_KEY"
	w := newWorld(t, Options{}, func(n *sandbox.Network) {
		n.Allow = []string{"example.org", "other.test"}
		n.Secrets = []sandbox.Secret{
			{Placeholder: placeholder, Value: secret.New(value), Hosts: []string{"example.org"}},
			{Placeholder: "PLAIN_KEY_1", Value: secret.New("plain-value"), Hosts: []string{"example.org"}, Plain: true},
		}
	})
	repeat := http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		said := fmt.Sprintf("%v|%s|%s|%s|%s:%s", r.TLS != nil, r.Header.Get("Authorization"),
			r.URL.Query().Get("key"), r.Header.Get("X-Plain"), user, password)
		out.Header().Set("X-Said", said)
		for _, b := range []byte(said) { // in as many pieces as can be
			out.Write([]byte{b})
			out.(http.Flusher).Flush()
		}
	})
	server := httptest.NewUnstartedServer(repeat)
	heard := make(chan string, 10)
	server.Config.Handler = http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		heard <- r.Header.Get("Authorization") + "|" + r.URL.Query().Get("key")
		repeat(out, r)
	})
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	w.put(public+":443", server)
	w.serve(public+":80", repeat)
	pool := server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	w.proxy.roots = pool

	status, body := w.ask("GET",
		"GET http://example.org/?key="+placeholder+" HTTP/1.1\r\nHost: example.org\r\nAuthorization: Bearer "+
			placeholder+"\r\n\r\n")
	if status != http.StatusBadGateway {
		t.Errorf("a server whose certificate is for another name: %d %s", status, body)
	}
	// httptest's certificate is for example.com.
	n := w.network
	n.Allow, n.Resolve = []string{"example.com", "other.test"}, names{"example.com": {public}, "other.test": {other}}
	n.Secrets[0].Hosts, n.Secrets[1].Hosts = []string{"example.com"}, []string{"example.com"}
	if err := w.proxy.Set(n); err != nil {
		t.Fatal(err)
	}
	status, body = w.ask("GET",
		"GET http://example.com/?key="+placeholder+" HTTP/1.1\r\nHost: example.com\r\nAuthorization: Bearer "+
			placeholder+"\r\n\r\n")
	if want := "true|Bearer " + placeholder + "|" + placeholder + "||:"; status != 200 || body != want {
		t.Errorf("%d %q, want %q", status, body, want)
	}
	if got, want := <-heard, "Bearer "+value+"|"+value; got != want {
		t.Errorf("the server heard %q, want %q", got, want)
	}
	if status, body = w.ask("GET",
		"GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\nX-Plain: PLAIN_KEY_1\r\n\r\n"); body != "false|||PLAIN_KEY_1|:" {
		t.Errorf("one that may travel in the open: %d %q", status, body)
	}
	// "user:PLACEHOLDER_KEY"
	status, _ = w.ask(
		"GET",
		"GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\nAuthorization: Basic "+
			"dXNlcjpQTEFDRUhPTERFUl9LRVk=\r\n\r\n",
	)
	if got, want := <-heard, "Basic dXNlcjpzay1yZWFsL3ZhbHVlKzE=|"; status != 200 || got != want {
		t.Errorf("in basic authentication: %d %q, want %q", status, got, want)
	}
	for name, text := range map[string]string{
		"to another host": "GET http://other.test/ HTTP/1.1\r\nHost: other.test\r\nX-Key: " + placeholder + "\r\n\r\n",
		"in the path":     "GET http://example.com/" + placeholder + " HTTP/1.1\r\nHost: example.com\r\n\r\n",
	} {
		before := len(w.dials())
		if status, body := w.ask("GET", text); status != http.StatusForbidden || strings.Contains(body, value) {
			t.Errorf("%s: %d %s", name, status, body)
		}
		if len(w.dials()) != before {
			t.Errorf("%s: something was dialled", name)
		}
	}
	for _, d := range w.decisions() {
		if strings.Contains(fmt.Sprint(d), value) {
			t.Errorf("a decision tells the secret: %+v", d)
		}
	}
}

// A server that has the secret may repeat it wherever and however it likes.
func TestSecretsAreHiddenInEveryPartOfAnAnswer(t *testing.T) {
	const value, placeholder = `sk-"real"/<value>+1`, "PLACEHOLDER_KEY"
	w := newWorld(t, Options{}, func(n *sandbox.Network) {
		n.Secrets = []sandbox.Secret{{
			Placeholder: placeholder,
			Value:       secret.New(value),
			Hosts:       []string{"example.org"},
			Plain:       true,
		}}
	})
	w.serve(public+":80", http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		conn, _, err := out.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		inJSON, err := json.Marshal(value)
		if err != nil {
			t.Error(err)
		}
		said := strings.Join([]string{
			r.Header.Get("X-Key"), r.Header.Get("Authorization"), r.URL.RawQuery, url.PathEscape(value),
			html.EscapeString(value), string(inJSON),
			strings.ReplaceAll(string(inJSON), "/", `\/`), `"sk-\"real\"/<value>+1"`,
		}, "\n")
		fmt.Fprintf(conn, "HTTP/1.1 200 it is %s\r\nX-Said: %s\r\nContent-Length: %d\r\n\r\n%s", value, value,
			len(said), said)
	}))
	c, in := w.connect()
	fmt.Fprintf(
		c,
		"GET http://example.org/?key=%s HTTP/1.1\r\nHost: example.org\r\nX-Key: %s\r\nAuthorization: Basic %s\r\n"+
			"Connection: close\r\n\r\n",
		placeholder,
		placeholder,
		base64.StdEncoding.EncodeToString([]byte("ann:"+placeholder)),
	)
	all, err := io.ReadAll(in)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"real", "value", base64.StdEncoding.EncodeToString([]byte("ann:" + value))} {
		if strings.Contains(string(all), part) {
			t.Errorf("%q is in %q", part, all)
		}
	}
	if n := strings.Count(string(all), placeholder); n != 9 {
		t.Errorf("the placeholder is there %d times: %q", n, all)
	}
}

func TestSecretsThatCannotBeKeptAreRefused(t *testing.T) {
	ok := sandbox.Secret{
		Placeholder: "PLACEHOLDER",
		Value:       secret.New("a secret value"),
		Hosts:       []string{"example.org"},
	}
	if err := Check(sandbox.Network{Secrets: []sandbox.Secret{ok}}); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*sandbox.Secret){
		"a short placeholder":      func(s *sandbox.Secret) { s.Placeholder = "KEY" },
		"an odd placeholder":       func(s *sandbox.Secret) { s.Placeholder = "PLACE HOLDER" },
		"a value of two lines":     func(s *sandbox.Secret) { s.Value = secret.New("a secret\r\nX-Injected: yes") },
		"an empty value":           func(s *sandbox.Secret) { s.Value = secret.New("") },
		"a malformed host":         func(s *sandbox.Secret) { s.Hosts = []string{"http://a"} },
		"a value that says itself": func(s *sandbox.Secret) { s.Value = secret.New("xPLACEHOLDERx") },
	} {
		s := ok
		change(&s)
		if err := Check(sandbox.Network{Secrets: []sandbox.Secret{s}}); err == nil ||
			strings.Contains(err.Error(), "a secret value") {
			t.Errorf("%s: %v", name, err)
		}
	}
	twice := ok
	twice.Placeholder += "_2"
	if err := Check(sandbox.Network{Secrets: []sandbox.Secret{ok, twice}}); err == nil {
		t.Error("a placeholder inside another one was taken")
	}
}
