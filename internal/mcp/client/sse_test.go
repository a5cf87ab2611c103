package client

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// serveOld serves HTTP+SSE. Its stream begins with the given events.
func serveOld(
	t *testing.T, begin string, posted func(w http.ResponseWriter, r *http.Request, events chan<- string),
) string {
	t.Helper()
	events := make(chan string, 10)
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPost && r.URL.Path == "/say":
			posted(w, r, events)
		case r.Method == http.MethodGet && r.URL.Path == "/sse":
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, begin)
			w.(http.Flusher).Flush()
			for {
				select {
				case e, ok := <-events:
					if !ok {
						return
					}
					fmt.Fprint(w, e)
					w.(http.Flusher).Flush()
				case <-r.Context().Done():
					return
				}
			}
		default:
			w.WriteHeader(http.StatusMethodNotAllowed)
		}
	})
	return s.URL + "/sse"
}

func TestAnOldServerIsReachedByItsEndpoint(t *testing.T) {
	at := serveOld(t, ": hello\n\nevent: endpoint\ndata: /say?session=1\n\n",
		func(w http.ResponseWriter, r *http.Request, events chan<- string) {
			a := read(t, r)
			w.WriteHeader(http.StatusAccepted)
			if a.ID == nil {
				return
			}
			events <- "event: ping\ndata: {\"jsonrpc\":\"2.0\",\"id\":" + string(a.ID) +
				",\"result\":{\"wrong\":1}}\n\n"
			events <- "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":" + string(a.ID) + "," + legacyAnswer(a) +
				"}\n\n"
		})
	c, err := DialHTTP(t.Context(), at, Options{Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	tools, err := c.Tools(t.Context())
	if err != nil || len(tools) != 1 || c.Version() != "2025-06-18" {
		t.Errorf("%d tools in %s, %v", len(tools), c.Version(), err)
	}
}

// A server cannot have messages, and the credentials that go with them, sent elsewhere.
func TestAnEndpointElsewhereIsRefused(t *testing.T) {
	for _, begin := range []string{
		"event: endpoint\ndata: http://localhost.example/say\n\n",
		"event: endpoint\ndata: //localhost.example/say\n\n",
		"event: endpoint\ndata: https://%s/say\n\n",
		"event: message\ndata: /say\n\n",
		"data: /say\n\n",
		"event: endpoint\ndata: http://[::1/say\n\n",
	} {
		at := serveOld(t, begin, func(w http.ResponseWriter, r *http.Request, _ chan<- string) {
			t.Errorf("%q: it was posted to", begin)
		})
		if c, err := DialHTTP(t.Context(), at, Options{Name: "test"}); err == nil {
			c.Close()
			t.Errorf("%q: it is connected", begin)
		}
	}
}

// The end of the stream ends the session: requests fail at once.
func TestTheEndOfAnOldStreamEndsTheConnection(t *testing.T) {
	at := serveOld(t, "event: endpoint\ndata: /say\n\n",
		func(w http.ResponseWriter, r *http.Request, events chan<- string) {
			a := read(t, r)
			w.WriteHeader(http.StatusAccepted)
			switch {
			case a.Method == "tools/list":
				close(events)
			case a.ID != nil:
				events <- "data: {\"jsonrpc\":\"2.0\",\"id\":" + string(a.ID) + "," + legacyAnswer(a) + "}\n\n"
			}
		})
	c, err := DialHTTP(t.Context(), at, Options{Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Tools(t.Context()); err == nil || !strings.Contains(err.Error(), ErrSessionLost.Error()) {
		t.Errorf("got %v", err)
	}
	select {
	case <-c.conn.Done():
	case <-time.After(time.Minute):
		t.Error("the connection has not ended")
	}
}
