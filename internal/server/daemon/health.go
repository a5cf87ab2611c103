package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Health serves the state of the daemon at an address of its own: GET /health, and GET /ready, which
// fails before the listeners close. It reveals nothing else, and answers any client.
type Health struct {
	// Check returns an error if the daemon does not work as it should. It is called at most once a
	// second, with a context that ends after 2 s.
	Check func(context.Context) error
	Log   *slog.Logger // nil: nothing is logged
	// Degraded returns what the daemon cannot do at the moment, "" for nothing; all callers of /ready
	// may read it. nil means never degraded.
	Degraded func() string

	ready atomic.Bool

	mu   sync.Mutex // held while Check runs: concurrent requests share its result
	at   time.Time
	last error
}

const (
	healthFresh = time.Second
	healthTime  = 2 * time.Second
	healthStop  = time.Second
)

// Ready sets whether the daemon accepts calls.
func (h *Health) Ready(yes bool) { h.ready.Store(yes) }

// Serve serves requests on the listener until ctx is done, and closes it.
func (h *Health) Serve(ctx context.Context, ln net.Listener) error {
	mux := http.NewServeMux()
	health := func(healthy, not string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if err := h.probe(r.Context()); err != nil {
				says(w, http.StatusServiceUnavailable, not)
				return
			}
			says(w, http.StatusOK, healthy)
		}
	}
	mux.HandleFunc(
		"GET /health",
		health(`{"status":"healthy","service":"gatehouse"}`, `{"status":"unhealthy","service":"gatehouse"}`),
	)
	mux.HandleFunc("GET /healthz", health(`{"ok":true}`, `{"ok":false}`))
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) {
		if !h.ready.Load() {
			says(w, http.StatusServiceUnavailable, `{"status":"not ready","service":"gatehouse"}`)
			return
		}
		if h.Degraded != nil {
			if reason := h.Degraded(); reason != "" {
				text, _ := json.Marshal(reason) // cannot fail for a string
				says(w, http.StatusOK, `{"status":"degraded","service":"gatehouse","reason":`+string(text)+`}`)
				return
			}
		}
		says(w, http.StatusOK, `{"status":"ready","service":"gatehouse"}`)
	})
	srv := &http.Server{
		Handler:        mux,
		ReadTimeout:    5 * time.Second,
		WriteTimeout:   10 * time.Second,
		IdleTimeout:    30 * time.Second,
		MaxHeaderBytes: 8 << 10,
	}
	if h.Log != nil {
		srv.ErrorLog = slog.NewLogLogger(h.Log.Handler(), slog.LevelDebug)
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), healthStop)
		defer cancel()
		if srv.Shutdown(last) != nil {
			srv.Close()
		}
	})
	err := srv.Serve(ln)
	if !stop() {
		<-ended
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func (h *Health) probe(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.Check == nil || !h.at.IsZero() && time.Since(h.at) < healthFresh {
		return h.last
	}
	// The check continues if the client closes its connection, because other requests share the result.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), healthTime)
	defer cancel()
	err := h.Check(ctx)
	if err != nil && h.last == nil && h.Log != nil {
		h.Log.Warn("the daemon is not healthy", "err", err)
	}
	h.last, h.at = err, time.Now()
	return err
}

func says(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	w.Write([]byte(body))
}

// AskHealth returns the health of the daemon at an address, such as http://127.0.0.1:9101: "healthy",
// "unhealthy", or the reason for which there is no answer.
func AskHealth(ctx context.Context, url string) string {
	ctx, cancel := context.WithTimeout(ctx, 2*healthTime)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/health", nil)
	if err != nil {
		return err.Error()
	}
	t := &http.Transport{DisableKeepAlives: true} // no proxy, because the address is on this machine
	resp, err := t.RoundTrip(r)
	if err != nil {
		return err.Error()
	}
	resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return "healthy"
	}
	return "unhealthy"
}
