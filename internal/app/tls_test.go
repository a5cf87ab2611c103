package app

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	nethttp "net/http"
	"os"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/config"
)

// overHTTPS runs a host with a self-signed certificate and returns its URL and a client that trusts it.
func overHTTPS(t *testing.T, two bool) (string, *nethttp.Client) {
	t.Helper()
	cfg := settings(t)
	cfg.Listen.HTTP.Open, cfg.Listen.HTTP.Port, cfg.Listen.HTTP.TLS = true, 0, config.TLS{On: true}
	a, err := New(t.Context(), cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	listener := a.Listeners()[0]
	if listener.Kind != HTTPS || !strings.HasPrefix(listener.Address, "https://127.0.0.1:") {
		t.Fatalf("the listener is %s at %s", listener.Kind, listener.Address)
	}
	crt, err := os.ReadFile(listener.Trust)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(crt)
	transport := &nethttp.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: two}
	t.Cleanup(transport.CloseIdleConnections)
	return listener.Address, &nethttp.Client{Transport: transport}
}

// ask sends one request; the caller closes the response.
func ask(t *testing.T, client *nethttp.Client, method, url, body string, headers ...string) *nethttp.Response {
	t.Helper()
	r, err := nethttp.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("Content-Type", "application/json")
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// first reads a stream until a line contains a text.
func first(t *testing.T, resp *nethttp.Response, text string) {
	t.Helper()
	late := time.AfterFunc(time.Minute, func() { resp.Body.Close() })
	defer late.Stop()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if strings.Contains(lines.Text(), text) {
			return
		}
	}
	t.Fatalf("the stream ended without %q: %v", text, lines.Err())
}

// Streams of both eras open over HTTPS, in HTTP/1.1 and HTTP/2.
func TestStreamsOverTLS(t *testing.T) {
	for proto, two := range map[string]bool{"HTTP/1.1": false, "HTTP/2.0": true} {
		t.Run(proto, func(t *testing.T) {
			url, client := overHTTPS(t, two)
			init := ask(t, client, "POST", url, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`)
			if init.Proto != proto || init.StatusCode != 200 {
				t.Fatalf("got %s %s, want %s 200", init.Proto, init.Status, proto)
			}
			session := "Mcp-Session-Id: " + init.Header.Get("Mcp-Session-Id")
			stream := ask(t, client, "GET", url, "", session)
			if stream.StatusCode != 200 || stream.Header.Get("Content-Type") != "text/event-stream" {
				t.Fatalf("GET: %s, %s", stream.Status, stream.Header.Get("Content-Type"))
			}
			listen := ask(
				t,
				client,
				"POST",
				url,
				`{"jsonrpc":"2.0","id":2,"method":"subscriptions/listen","params":{"_meta":{`+
					`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}},"notifications":{"toolsListChanged":true}}}`,
				"Mcp-Protocol-Version: 2026-07-28",
				"Mcp-Method: subscriptions/listen",
			)
			first(t, listen, "subscriptions/acknowledged")
			if end := ask(t, client, "DELETE", url, "", session); end.StatusCode != 200 {
				t.Errorf("DELETE: %s", end.Status)
			}
			if stream.Proto != proto || listen.Proto != proto {
				t.Errorf("the streams came over %s and %s", stream.Proto, listen.Proto)
			}
			if n, err := bufio.NewReader(stream.Body).WriteTo(&strings.Builder{}); err != nil {
				t.Errorf("the stream of an ended session broke after %d bytes: %v", n, err)
			}
		})
	}
}
