package daemon

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

func ask(t *testing.T, url string) (status int, body string) {
	t.Helper()
	c := &http.Client{Timeout: testPatience}
	defer c.CloseIdleConnections()
	r, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

func TestHealthAndReadinessAreTwoThings(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	h, ended := &Health{}, make(chan error, 1)
	go func() { ended <- h.Serve(ctx, ln) }()
	at := "http://" + ln.Addr().String()
	for _, c := range []struct {
		path   string
		ready  bool
		status int
		body   string
	}{
		{"/health", false, 200, `{"status":"healthy","service":"gatehouse"}`},
		{"/healthz", false, 200, `{"ok":true}`},
		{"/ready", false, 503, `{"status":"not ready","service":"gatehouse"}`},
		{"/ready", true, 200, `{"status":"ready","service":"gatehouse"}`},
		{"/", true, 404, "404 page not found\n"},
	} {
		h.Ready(c.ready)
		if status, body := ask(t, at+c.path); status != c.status || body != c.body {
			t.Errorf("%s while ready is %v: got %d %s", c.path, c.ready, status, body)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Many requests cause one check a second.
func TestHealthIsLookedAtOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looked, answer := 0, error(nil)
		h := &Health{Check: func(context.Context) error { looked++; return answer }}
		for range 5 {
			if err := h.probe(t.Context()); err != nil {
				t.Error(err)
			}
		}
		answer = errors.New("no answer")
		if h.probe(t.Context()) != nil || looked != 1 {
			t.Errorf("looked %d times within a moment", looked)
		}
		time.Sleep(2 * time.Second)
		if h.probe(t.Context()) == nil || looked != 2 {
			t.Errorf("looked %d times after two seconds", looked)
		}
	})
}
