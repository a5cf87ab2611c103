package app

import (
	"context"
	"io"
	nethttp "net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// A call is traced as a child of the trace that its caller sends, in a header or in _meta, in every protocol
// revision.
func TestCallsAreTraced(t *testing.T) {
	var mu sync.Mutex
	var sent strings.Builder
	collector := httptest.NewServer(nethttp.HandlerFunc(func(_ nethttp.ResponseWriter, r *nethttp.Request) {
		mu.Lock()
		defer mu.Unlock()
		io.Copy(&sent, r.Body)
	}))
	defer collector.Close()
	cfg := settings(t)
	cfg.Listen.HTTP.Open, cfg.Listen.HTTP.Port = true, 0
	cfg.Observe.Traces.Endpoint, cfg.Observe.Traces.Sample = collector.URL, 0
	if err := os.WriteFile(filepath.Join(cfg.Roots.Folders[0], "a.txt"), []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := New(t.Context(), cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()

	url, client := a.Listeners()[0].Address, &nethttp.Client{Transport: &nethttp.Transport{}}
	trace := func(id string) string { return "00-" + strings.Repeat(id, 32) + "-b7ad6b7169203331-01" }
	const modern = `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}`
	call := func(meta string, headers ...string) {
		t.Helper()
		got := body(
			t,
			ask(
				t,
				client,
				"POST",
				url,
				`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"file_read","arguments":{"path":"a.txt"}`+meta+`}}`,
				headers...),
		)
		if !strings.Contains(got, "hello") {
			t.Fatalf("got %s", got)
		}
	}
	headers := []string{"Mcp-Protocol-Version: 2026-07-28", "Mcp-Method: tools/call", "Mcp-Name: file_read"}
	call(`,"_meta":{`+modern+`}`, append(headers, "Traceparent: "+trace("1"))...)
	call(`,"_meta":{`+modern+`,"traceparent":"`+trace("2")+`"}`, headers...)
	call(`,"_meta":{`+modern+`}`, headers...) // sends no trace, and none are sampled
	init := ask(t, client, "POST", url, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`)
	session := "Mcp-Session-Id: " + init.Header.Get("Mcp-Session-Id")
	call("", session, "Traceparent: "+trace("3"))
	call(`,"_meta":{"traceparent":"`+trace("4")+`"}`, session)

	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, id := range []string{"1", "2", "3", "4"} {
		if n := strings.Count(sent.String(), `"traceId":"`+strings.Repeat(id, 32)+`"`); n != 1 {
			t.Errorf("%d spans in trace %s, want 1", n, id)
		}
	}
	if n := strings.Count(sent.String(), `"name":"tools/call file_read"`); n != 4 {
		t.Errorf("%d spans, want 4:\n%s", n, sent.String())
	}
}
