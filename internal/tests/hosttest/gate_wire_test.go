package hosttest_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"gatehouse/internal/access/identity"
)

// whoCall is a call of probe_who of the modern era, and its headers are in whoHeaders.
var whoCall = message(1, modernEra, "tools/call", `"name":"probe_who","arguments":{}`, "")

func whoHeaders() []string {
	return []string{
		"accept", "application/json, text/event-stream", "content-type", "application/json",
		"mcp-protocol-version", "2026-07-28", "mcp-method", "tools/call", "mcp-name", "probe_who",
	}
}

// signed makes a certificate as its template says, signed with a parent's key, or its own where there is no parent.
func (a *gateAuthority) signed(template, parent *x509.Certificate, by *ecdsa.PrivateKey) tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(a.t, err)
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	if template.NotBefore.IsZero() {
		template.NotBefore = time.Now().Add(-time.Hour)
	}
	template.NotAfter = template.NotBefore.Add(3 * time.Hour)
	if template.ExtKeyUsage == nil {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}
	if parent == nil {
		parent, by = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
	must(a.t, err)
	leaf, err := x509.ParseCertificate(der)
	must(a.t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// asked makes a call over HTTPS with a certificate and headers, in HTTP/2 or 1.1, and returns what came back; "" if
// there was no handshake.
func (g *gateHost) asked(cert *tls.Certificate, cache tls.ClientSessionCache, two bool, more ...string) string {
	g.t.Helper()
	config := &tls.Config{RootCAs: g.trust, ClientSessionCache: cache}
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if cert == nil {
			return &tls.Certificate{}, nil
		}
		return cert, nil // whatever authorities the host names
	}
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: two, DisableKeepAlives: !two}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(g.t.Context(), gateWait)
	defer cancel()
	url := "https://" + g.reach("HTTPS", false) + "/mcp"
	r, err := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(whoCall))
	must(g.t, err)
	for h := whoHeaders(); len(h) > 0; h = h[2:] {
		r.Header.Set(h[0], h[1])
	}
	for ; len(more) > 0; more = more[2:] {
		r.Header.Set(more[0], more[1])
	}
	res, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		return ""
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	must(g.t, err)
	return res.Status + " " + string(b)
}

// Certificates that are not alice's, on the wire: of other authorities, of other purposes and times, by holders of a
// certificate who sign one themselves, with her name elsewhere, without the key, in headers as a proxy would write
// them, and by a session of TLS that she has ended.
//
//redteam:attack One principal, however it comes: forged, misused and resumed client certificates over TLS, in HTTP/1.1 and HTTP/2
func TestCertificatesThatAreNotBelieved(t *testing.T) {
	g := guardedGate(t, true)
	alice := g.ca.issue("alice", time.Hour)
	gone := g.ca.issue("gone", time.Hour)
	other := newGateAuthority(t)
	named := func(n pkix.Name) *x509.Certificate { return &x509.Certificate{Subject: n} }
	cn := func(name string) *x509.Certificate { return named(pkix.Name{CommonName: name}) }
	// Another authority of the same name as the one that is trusted.
	twin := other.signed(&x509.Certificate{Subject: g.ca.cert.Subject, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign}, nil, nil)
	chain := func(c, above tls.Certificate) tls.Certificate {
		c.Certificate = append(c.Certificate, above.Certificate...)
		return c
	}
	key := func(c tls.Certificate) *ecdsa.PrivateKey { return c.PrivateKey.(*ecdsa.PrivateKey) }
	server, early := cn("alice"), cn("alice")
	server.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	early.NotBefore = time.Now().Add(time.Hour)
	stolen := alice
	stolen.PrivateKey = other.key // the certificate is public, its key is not
	for name, c := range map[string]tls.Certificate{
		"of another authority":                  other.issue("alice", time.Hour),
		"of its own":                            g.ca.signed(cn("alice"), nil, nil),
		"of an authority of the same name":      chain(other.signed(cn("alice"), twin.Leaf, key(twin)), twin),
		"signed by a user with her certificate": chain(g.ca.signed(cn("alice"), gone.Leaf, key(gone)), gone),
		"for servers":                           g.ca.signed(server, g.ca.cert, g.ca.key),
		"not valid yet":                         g.ca.signed(early, g.ca.cert, g.ca.key),
		"expired":                               g.ca.issue("alice", -time.Minute),
		"without its key":                       stolen,
		"the authority's own, of no user":       {Certificate: [][]byte{g.ca.cert.Raw}, PrivateKey: g.ca.key},
		"her name in capitals":                  g.ca.signed(cn("ALICE"), g.ca.cert, g.ca.key),
		"her name with a blank":                 g.ca.signed(cn("alice "), g.ca.cert, g.ca.key),
		"her name with a NUL":                   g.ca.signed(cn("alice\x00.example"), g.ca.cert, g.ca.key),
		"her name in letters that look alike":   g.ca.signed(cn("аlice"), g.ca.cert, g.ca.key),
		"her name as the organisation": g.ca.signed(
			named(pkix.Name{Organization: []string{"alice"}}), g.ca.cert, g.ca.key,
		),
		"her name as serial number and unit": g.ca.signed(
			named(pkix.Name{SerialNumber: "alice", OrganizationalUnit: []string{"alice"}}), g.ca.cert, g.ca.key,
		),
		"her name as an address of mail": g.ca.signed(&x509.Certificate{
			Subject: pkix.Name{CommonName: "nobody"}, EmailAddresses: []string{"alice"},
		}, g.ca.cert, g.ca.key),
	} {
		for _, two := range []bool{false, true} {
			if got := g.asked(&c, nil, two); strings.HasPrefix(got, "200") || strings.Contains(got, "who=") {
				t.Errorf("%s (HTTP/2 %v): %s", name, two, got)
			}
		}
	}
	for _, two := range []bool{false, true} {
		if got := g.asked(&alice, nil, two); !strings.Contains(got, "who=alice;") {
			t.Errorf("alice herself (HTTP/2 %v): %s", two, got)
		}
		for _, h := range []string{
			"X-Client-Cert", "X-SSL-Cert", "SSL-Client-Cert", "X-Forwarded-Client-Cert", "X-SSL-Client-S-DN",
			"X-SSL-Client-Verify", "Client-Cert", "X-Remote-User", "Remote-User", "X-Forwarded-User",
		} {
			for _, value := range []string{"alice", "CN=alice", "SUCCESS", fmt.Sprintf("%x", alice.Certificate[0])} {
				if got := g.asked(nil, nil, two, h, value); !strings.HasPrefix(got, "401") {
					t.Errorf("%s: %.20s (HTTP/2 %v): %s", h, value, two, got)
				}
			}
		}
		// Two principals in one request are no way to be either.
		if got := g.asked(&gone, nil, two, "Authorization", "Bearer wrong"); !strings.HasPrefix(got, "401") {
			t.Errorf("a certificate and a wrong token (HTTP/2 %v): %s", two, got)
		}
	}
	// A session of TLS brings its certificate back, and nothing that has ended.
	cache := tls.NewLRUClientSessionCache(4)
	for range 2 {
		if got := g.asked(&gone, cache, false); !strings.Contains(got, "who=gone;") {
			t.Fatalf("before the end: %s", got)
		}
	}
	must(t, g.users.RemoveUser(t.Context(), "gone"))
	until(t, "a removed user is refused", func() bool { return strings.HasPrefix(g.asked(&gone, nil, false), "401") })
	for _, c := range []*tls.Certificate{&gone, nil} {
		if got := g.asked(c, cache, false); !strings.HasPrefix(got, "401") {
			t.Errorf("a resumed session of a removed user: %s", got)
		}
	}
}

// framed is a connection whose frames of HTTP/2 the test writes itself.
type framed struct {
	t    *testing.T
	conn *tls.Conn
	*http2.Framer
	ended chan struct{}          // the host has closed the connection
	said  chan map[string]string // headers of answers, by name; lost if no one takes them
}

func (g *gateHost) framed(settings ...http2.Setting) *framed {
	g.t.Helper()
	conn, err := tls.Dial("tcp", g.reach("HTTPS", false), &tls.Config{RootCAs: g.trust, NextProtos: []string{"h2"}})
	must(g.t, err)
	g.t.Cleanup(func() { conn.Close() })
	if p := conn.ConnectionState().NegotiatedProtocol; p != "h2" {
		g.t.Fatalf("the protocol is %q", p)
	}
	_, err = io.WriteString(conn, http2.ClientPreface)
	must(g.t, err)
	f := &framed{g.t, conn, http2.NewFramer(conn, conn), make(chan struct{}), make(chan map[string]string, 64)}
	f.Framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	must(g.t, f.WriteSettings(settings...))
	go func() {
		defer close(f.ended)
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				if _, ok := err.(http2.StreamError); ok {
					continue
				}
				return
			}
			said := map[string]string{}
			switch frame := frame.(type) {
			case *http2.MetaHeadersFrame:
				said["stream"] = strconv.Itoa(int(frame.StreamID))
				for _, h := range frame.Fields {
					said[h.Name] = h.Value
				}
			case *http2.RSTStreamFrame:
				said["stream"], said[":status"] = strconv.Itoa(int(frame.StreamID)), "reset"
			default:
				continue
			}
			select {
			case f.said <- said:
			default:
			}
		}
	}()
	return f
}

// fields encodes names and values that take turns.
func fields(of ...string) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for ; len(of) > 0; of = of[2:] {
		e.WriteField(hpack.HeaderField{Name: of[0], Value: of[1]})
	}
	return b.Bytes()
}

// send sends a call on a stream and returns the status of the answer, "reset" or "closed".
func (f *framed) send(stream uint32, body string, of ...string) string {
	f.t.Helper()
	if err := f.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: fields(of...), EndHeaders: true, EndStream: body == "",
	}); err == nil && body != "" {
		f.WriteData(stream, true, []byte(body)) // fails if the host has closed the connection
	}
	late := time.After(gateWait)
	for {
		select {
		case said := <-f.said:
			if said["stream"] == strconv.Itoa(int(stream)) {
				return said[":status"]
			}
		case <-f.ended:
			return "closed"
		case <-late:
			f.t.Fatal("there is no answer")
		}
	}
}

// Requests in HTTP/2 that say two things, that come from foreign pages and names, or that no request may be.
//
//redteam:attack A request is read in one way: frames of HTTP/2 with two hosts, lengths, methods or paths, with fields of HTTP/1.1, and from foreign origins
func TestFramesThatSayTwoThings(t *testing.T) {
	g := openGate(t, true)
	at := g.reach("HTTPS", false)
	plain := func(authority string, more ...string) []string {
		return append(append([]string{":method", "POST", ":scheme", "https", ":authority", authority, ":path", "/mcp"},
			whoHeaders()...), more...)
	}
	if got := g.framed().send(1, whoCall, plain(at)...); got != "200" {
		t.Fatalf("a plain request: %s", got)
	}
	replaced := func(name string, values ...string) (all []string) {
		for h := plain(at); len(h) > 0; h = h[2:] {
			if h[0] != name {
				all = append(all, h[0], h[1])
				continue
			}
			for _, v := range values {
				all = append(all, name, v)
			}
		}
		return all
	}
	for name, of := range map[string][]string{
		"a foreign authority":             plain("evil.example"),
		"a foreign authority, our host":   plain("evil.example", "host", at),
		"a foreign origin":                plain(at, "origin", "https://evil.example"),
		"the origin of another port":      plain(at, "origin", "https://127.0.0.1:1"),
		"two authorities":                 replaced(":authority", at, "evil.example"),
		"two paths":                       replaced(":path", "/mcp", "/auth/login"),
		"two methods":                     replaced(":method", "POST", "GET"),
		"no path":                         replaced(":path"),
		"a path without a slash":          replaced(":path", "mcp"),
		"no method":                       replaced(":method"),
		"a method with a blank":           replaced(":method", "POST /mcp HTTP/1.1"),
		"a pseudo field after the others": append(replaced(":path"), ":path", "/mcp"),
		"an unknown pseudo field":         append([]string{":upgrade", "h2c"}, plain(at)...),
		"transfer-encoding":               plain(at, "transfer-encoding", "chunked"),
		"connection":                      plain(at, "connection", "keep-alive"),
		"upgrade":                         plain(at, "upgrade", "websocket"),
		"a name in capitals":              plain(at, "X-Context", "default"),
		"a line end in a value":           plain(at, "x-a", "1\r\nauthorization: Bearer x"),
		"a line end in a name":            plain(at, "x-a\r\nx-b", "1"),
		"a length that is too short":      plain(at, "content-length", "3"),
		"a length that is too long":       plain(at, "content-length", strconv.Itoa(len(whoCall)+1)),
		"two lengths":                     plain(at, "content-length", "3", "content-length", strconv.Itoa(len(whoCall))),
		"CONNECT":                         {":method", "CONNECT", ":authority", at},
		"extended CONNECT":                append(replaced(":method", "CONNECT"), ":protocol", "websocket"),
	} {
		if got := g.framed().send(1, whoCall, of...); strings.HasPrefix(got, "2") {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// Clients of HTTP/2 that open and reset streams, never end their headers, ping, change settings, and never read.
//
//redteam:attack No principal takes the host from the others: streams of HTTP/2 that are reset at once, headers without an end, pings, settings, windows of no size
func TestFloodsOfFrames(t *testing.T) {
	g := guardedGate(t, true)
	secret, _ := g.token(identity.Token{User: "alice"})
	at := g.reach("HTTPS", false)
	head := append([]string{":method", "POST", ":scheme", "https", ":authority", at, ":path", "/mcp",
		"authorization", "Bearer " + secret}, whoHeaders()...)
	rounds := 3000
	if os.Getenv("GATEHOUSE_TEST_ALL") != "" {
		rounds = 20_000
	}
	open := func(f *framed, stream uint32) error {
		return f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: fields(head...), EndHeaders: true})
	}
	floods := map[string]func(f *framed, i int) error{
		"streams that are reset": func(f *framed, i int) error {
			if err := open(f, uint32(2*i+1)); err != nil {
				return err
			}
			return f.WriteRSTStream(uint32(2*i+1), http2.ErrCodeCancel)
		},
		"streams without a body": func(f *framed, i int) error { return open(f, uint32(2*i+1)) },
		"headers without an end": func(f *framed, i int) error {
			if i == 0 {
				return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: fields(head...)})
			}
			return f.WriteContinuation(1, false, fields("x-"+strconv.Itoa(i), strings.Repeat("x", 8000)))
		},
		"pings": func(f *framed, i int) error { return f.WritePing(false, [8]byte{byte(i)}) },
		"settings": func(f *framed, i int) error {
			return f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(i)})
		},
		"empty data": func(f *framed, i int) error {
			if i == 0 {
				return open(f, 1)
			}
			return f.WriteData(1, false, nil)
		},
	}
	for name, write := range floods {
		t.Run(name, func(t *testing.T) {
			f := g.framed()
			f.conn.SetWriteDeadline(time.Now().Add(gateWait)) // a host that no longer reads has stopped the flood
			for i := range rounds {
				if write(f, i) != nil {
					t.Logf("the host ended the connection after %d", i)
					break
				}
				if i%1000 == 0 {
					if got := g.asked(nil, nil, i%2000 == 0, "X-API-Key", secret); !strings.Contains(got, "who=alice;") {
						t.Fatalf("beside it: %s", got)
					}
				}
			}
		})
	}
	t.Run("answers that are not read", func(t *testing.T) {
		for range 8 {
			f := g.framed(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			for i := range 100 {
				stream := uint32(2*i + 1)
				if open(f, stream) != nil || f.WriteData(stream, true, []byte(whoCall)) != nil {
					break
				}
			}
		}
		for i := range 20 {
			if got := g.asked(nil, nil, i%2 == 0, "X-API-Key", secret); !strings.Contains(got, "who=alice;") {
				t.Fatalf("beside it: %s", got)
			}
		}
	})
}

// Access tokens that the provider did not issue for this host, on the wire: unsigned, signed by another key or with the
// public one, with a key or an address of keys of their own, with claims that do not fit, and where no token belongs.
//
//redteam:attack One principal, however it comes: forged access tokens over TLS, with keys of their own, and in the address, the body and twice in the headers
func TestForgedTokensOnTheWire(t *testing.T) {
	g := guardedGate(t, true)
	asked := make(chan string, 64)
	keysOf, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	theirs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path
		json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: keysOf.Public(), KeyID: "k"}}})
	}))
	defer theirs.Close()
	claims := func(changes map[string]any) map[string]any {
		c := map[string]any{"iss": g.issuer.srv.URL, "sub": gateSubject, "aud": gateResource,
			"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix()}
		for k, v := range changes {
			if c[k] = v; v == nil {
				delete(c, k)
			}
		}
		return c
	}
	part := func(v any) string {
		b, err := json.Marshal(v)
		must(t, err)
		return base64.RawURLEncoding.EncodeToString(b)
	}
	by := func(alg jose.SignatureAlgorithm, key any, head, changes map[string]any) string {
		o := (&jose.SignerOptions{}).WithHeader("kid", "k")
		for k, v := range head {
			o.WithHeader(jose.HeaderKey(k), v)
		}
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, o)
		must(t, err)
		token, err := jwt.Signed(signer).Claims(claims(changes)).Serialize()
		must(t, err)
		return token
	}
	der, err := x509.MarshalPKIXPublicKey(g.issuer.key.Public())
	must(t, err)
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	good := by(jose.ES256, g.issuer.key, nil, nil)
	head, rest, _ := strings.Cut(good, ".")
	body, sign, _ := strings.Cut(rest, ".")
	zoe := part(claims(map[string]any{"sub": "5678"}))
	soon := time.Now().Add(time.Hour).Unix()
	own := jose.JSONWebKey{Key: keysOf.Public(), KeyID: "k", Algorithm: "ES256"}
	if got := g.asked(nil, nil, true, "Authorization", "Bearer "+good); !strings.Contains(got, "who=alice;") {
		t.Fatalf("a good token: %s", got)
	}
	for name, token := range map[string]string{
		"unsigned":                   part(map[string]string{"alg": "none"}) + "." + body + ".",
		"unsigned in capitals":       part(map[string]string{"alg": "NONE", "kid": "k"}) + "." + body + "." + sign,
		"without its signature":      head + "." + body + ".",
		"of zoe with a signature":    head + "." + zoe + "." + sign,
		"signed with the public key": by(jose.HS256, public, nil, nil),
		"of another key":             by(jose.ES256, keysOf, nil, nil),
		"with its own key":           by(jose.ES256, keysOf, map[string]any{"jwk": own}, nil),
		"with an address of keys":    by(jose.ES256, keysOf, map[string]any{"jku": theirs.URL, "x5u": theirs.URL}, nil),
		"of another issuer":          by(jose.ES256, g.issuer.key, nil, map[string]any{"iss": theirs.URL}),
		"an issuer with a slash":     by(jose.ES256, g.issuer.key, nil, map[string]any{"iss": g.issuer.srv.URL + "/"}),
		"for another resource":       by(jose.ES256, g.issuer.key, nil, map[string]any{"aud": gateResource + "/"}),
		"for no resource":            by(jose.ES256, g.issuer.key, nil, map[string]any{"aud": nil}),
		"without an end":             by(jose.ES256, g.issuer.key, nil, map[string]any{"exp": nil}),
		"not valid yet":              by(jose.ES256, g.issuer.key, nil, map[string]any{"nbf": soon}),
		"without a subject":          by(jose.ES256, g.issuer.key, nil, map[string]any{"sub": nil}),
		"with a critical field":      by(jose.ES256, g.issuer.key, map[string]any{"crit": []string{"x"}, "x": 1}, nil),
		"in five parts":              good + ".." + sign,
	} {
		for _, two := range []bool{false, true} {
			if got := g.asked(nil, nil, two, "Authorization", "Bearer "+token); !strings.HasPrefix(got, "401") {
				t.Errorf("%s (HTTP/2 %v): %s", name, two, got)
			}
		}
	}
	// A subject that has the name of a user is a principal of the provider, and not that user.
	named := by(jose.ES256, g.issuer.key, nil, map[string]any{"sub": "alice"})
	if got := g.asked(nil, nil, true, "Authorization", "Bearer "+named); strings.Contains(got, "who=alice;") {
		t.Errorf("a subject that is called alice: %s", got)
	}
	select {
	case path := <-asked:
		t.Errorf("a token made the host ask %s of its own server", path)
	default:
	}
	at := g.reach("HTTPS", false)
	call := func(path string, more ...string) []string {
		return append(append([]string{":method", "POST", ":scheme", "https", ":authority", at, ":path", path},
			whoHeaders()...), more...)
	}
	for name, of := range map[string][]string{
		"in the address":         call("/mcp?access_token=" + good),
		"as a user's name":       call("/mcp", "authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(good+":"))),
		"twice, one wrong":       call("/mcp", "authorization", "Bearer wrong", "authorization", "Bearer "+good),
		"twice, the other wrong": call("/mcp", "authorization", "Bearer "+good, "authorization", "Bearer wrong"),
		"with a wrong key":       call("/mcp", "authorization", "Bearer "+good, "x-api-key", "wrong"),
		"beside another":         call("/mcp", "authorization", "Bearer wrong, Bearer "+good),
		"as a cookie":            call("/mcp", "cookie", "gatehouse="+good),
	} {
		if got := g.framed().send(1, whoCall, of...); strings.HasPrefix(got, "2") {
			t.Errorf("%s: %s", name, got)
		}
	}
}
