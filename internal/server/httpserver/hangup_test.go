package httpserver

import (
	"context"
	nethttp "net/http"
	"runtime"
	"testing"
	"time"

	"gatehouse/internal/tests/hosttest"
)

// The server notices at once that a client has closed its stream, without a keep-alive, however many streams come and
// go.
func TestAClosedStreamIsNoticedAtOnce(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("on this system a keep-alive notices it")
	}
	h := newTestHost(t, Options{KeepAlive: time.Hour}, hosttest.Options{})
	body := `{"jsonrpc":"2.0","id":77,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},"_meta":{` + envelope + `}}}`
	for range 3 {
		var all []context.CancelFunc
		for range 10 {
			ctx, leave := context.WithCancel(t.Context())
			res, err := nethttp.DefaultClient.Do(
				h.request(ctx, "POST", "/mcp", body, modern("subscriptions/listen")...),
			)
			if err != nil {
				t.Fatal(err)
			}
			has(t, stream(t, res).next().data, "notifications/subscriptions/acknowledged")
			all = append(all, leave)
		}
		waitFor(t, "the serving goroutines to leave", func() bool { return h.server.serving.Load() == 0 })
		for i, leave := range all {
			leave()
			left := len(all) - i - 1
			waitFor(t, "the end of a stream", func() bool { return h.server.Streams() == left })
		}
	}
}
