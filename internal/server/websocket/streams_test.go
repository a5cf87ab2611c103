package websocket

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"gatehouse/internal/access/identity"
	"gatehouse/tool"
)

// A stream reaches the one client that has its ticket. It ends, as unused tickets do, when the credential is revoked,
// and with the host.
func TestAStreamEndsWithItsCredentialAndItsHost(t *testing.T) {
	s := &Streams{Claim: func(tool.Caller) (func(), error) { return func() {}, nil }, Log: slog.New(slog.DiscardHandler)}
	ctx, stop := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- s.Run(ctx) }()
	site := httptest.NewServer(http.HandlerFunc(s.Serve))
	defer site.Close()
	limited, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	serve := func(ctx context.Context, send Send) error {
		if err := send(false, []byte{0xff, 27, 0}); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}
	offer := func(principal string) string {
		t.Helper()
		path, err := s.Offer(tool.Caller{Principal: principal, Credential: "c"}, serve)
		if err != nil {
			t.Fatal(err)
		}
		return "ws" + strings.TrimPrefix(site.URL, "http") + path
	}
	open := func(at string) *websocket.Conn {
		t.Helper()
		for { // Run may not have begun
			c, answer, err := websocket.Dial(limited, at, nil)
			if err == nil {
				return c
			}
			if answer == nil || answer.StatusCode != 401 || limited.Err() != nil {
				t.Fatal(err)
			}
			at = offer("ann")
		}
	}
	read := func(c *websocket.Conn) error {
		kind, b, err := c.Read(limited)
		if err == nil && (kind != websocket.MessageBinary || string(b) != "\xff\x1b\x00") {
			t.Errorf("%v %q", kind, b)
		}
		return err
	}
	first := open(offer("ann"))
	other := open(offer("bob"))
	unused := offer("ann")
	if err := read(first); err != nil {
		t.Fatal(err)
	}
	if err := read(other); err != nil {
		t.Fatal(err)
	}
	s.Revoke(identity.Revocation{Principal: "ann", Credential: "c"})
	if read(first) == nil {
		t.Error("the stream goes on after the credential was revoked")
	}
	if _, _, err := websocket.Dial(limited, unused, nil); err == nil {
		t.Error("a ticket works after its credential was revoked")
	}
	stop()
	if read(other) == nil || limited.Err() != nil {
		t.Error("a stream goes on after the host has stopped")
	}
	if err := <-over; err != nil {
		t.Error(err)
	}
}
