package app

import (
	"context"
	nethttp "net/http"
	"testing"
)

const listTools = `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
	`"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`

// A request that a proxy on this machine forwards does not count as a request from this machine: neither open
// loopback nor the local token admits it, in any version of HTTP. The proxy of a sandbox sends Via.
//
//redteam:attack A sandbox has no network until it is given one: a forwarded request uses open loopback and the local token, over HTTP/1.1, TLS and HTTP/2
func TestWhatIsForwardedIsNotOfThisMachine(t *testing.T) {
	plain := func(t *testing.T) (string, *nethttp.Client) {
		cfg := settings(t)
		cfg.Listen.HTTP.Open, cfg.Listen.HTTP.Port = true, 0
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
		return a.Listeners()[0].Address, &nethttp.Client{}
	}
	for name, open := range map[string]func(*testing.T) (string, *nethttp.Client){
		"HTTP/1.1": plain,
		"TLS":      func(t *testing.T) (string, *nethttp.Client) { return overHTTPS(t, false) },
		"HTTP/2":   func(t *testing.T) (string, *nethttp.Client) { return overHTTPS(t, true) },
	} {
		t.Run(name, func(t *testing.T) {
			url, client := open(t)
			mcp := []string{"MCP-Protocol-Version: 2026-07-28", "Mcp-Method: tools/list"}
			if resp := ask(t, client, "POST", url, listTools, mcp...); resp.StatusCode != 200 {
				t.Fatalf("open loopback: %s", resp.Status)
			}
			for _, via := range []string{"Via: 1.1 gatehouse-sandbox", "via: x", "Via: ", "Forwarded: for=127.0.0.1",
				"X-Forwarded-For: 127.0.0.1", "X-Real-IP: 127.0.0.1"} {
				if resp := ask(t, client, "POST", url, listTools, append(mcp, via)...); resp.StatusCode != 401 {
					t.Errorf("%s: %s", via, resp.Status)
				}
			}
		})
	}
}
