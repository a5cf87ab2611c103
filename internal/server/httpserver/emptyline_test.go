package httpserver

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	nethttp "net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/tests/hosttest"
)

// Old clients send an empty line after the body of a POST, which belongs to no
// request (RFC 9112, section 2.2). It is ignored on cleartext connections, on
// those whose first request net/http answers, and inside TLS, whether it
// arrives with the next request, before it, or in the middle of the answer.
//
//redteam:attack A request is read in one way: an empty line after a body, in one piece with the next request and in pieces
func TestAnEmptyLineAfterABodyIsIgnored(t *testing.T) {
	clear, secure := newTestHost(t, Options{}, hosttest.Options{}), newTestHost(t, Options{}, hosttest.Options{})
	other := httptest.NewTLSServer(nethttp.NotFoundHandler()) // for its certificate
	defer other.Close()
	pool := x509.NewCertPool()
	pool.AddCert(other.Certificate())
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stops := []func() error{
		clear.serve(), secure.serveOn(tls.NewListener(ln, &tls.Config{Certificates: other.TLS.Certificates})),
	}
	for name, dial := range map[string]func() (net.Conn, error){
		"cleartext": func() (net.Conn, error) { return net.Dial("tcp", strings.TrimPrefix(clear.url, "http://")) },
		"TLS": func() (net.Conn, error) {
			return tls.Dial("tcp", ln.Addr().String(), &tls.Config{RootCAs: pool, NextProtos: []string{"http/1.1"}})
		},
	} {
		for _, first := range []string{"plain", "chunked"} {
			one, two := rawPost(first, 1), rawPost("plain", 2)
			for _, pieces := range [][]string{
				{one + "\r\n" + two},
				{one, "\r\n", two},
				{one, "\r", "\n" + two},
				{one + "\r\n", two + "\r\n"},
				{one[:len(one)-1], one[len(one)-1:] + "\r\n" + two},
			} {
				c, err := dial()
				if err != nil {
					t.Fatal(err)
				}
				c.SetDeadline(time.Now().Add(time.Minute))
				go func() {
					for _, p := range pieces {
						io.WriteString(c, p)
						time.Sleep(10 * time.Millisecond) // so that it arrives separately
					}
				}()
				in := bufio.NewReader(c)
				for id := 1; id <= 2; id++ {
					res, err := nethttp.ReadResponse(in, nil)
					if err != nil {
						t.Fatalf("%s, %s first, %q: answer %d: %v", name, first, pieces, id, err)
					}
					body, err := io.ReadAll(res.Body)
					if err != nil || res.StatusCode != 200 ||
						!strings.Contains(string(body), fmt.Sprintf(`"id":%d`, id)) {
						t.Errorf(
							"%s, %s first, %q: answer %d is %d %.200q, %v",
							name,
							first,
							pieces,
							id,
							res.StatusCode,
							body,
							err,
						)
					}
				}
				c.Close()
			}
		}
	}
	for _, stop := range stops {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
}

// rawPost returns a request without a session; net/http answers a chunked one.
func rawPost(framing string, id int) string {
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"server/discover","params":{"_meta":{%s}}}`, id, envelope)
	head := "POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
		"Accept: application/json, text/event-stream\r\n" +
		"Mcp-Protocol-Version: 2026-07-28\r\nMcp-Method: server/discover\r\n"
	if framing == "chunked" {
		return head + fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body)
	}
	return head + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)
}
