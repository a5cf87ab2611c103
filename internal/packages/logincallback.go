package packages

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// callback is the listener on the loopback interface to which authorization servers send users
// back, for logins that callers began in the middle of a call. It is open until no login has
// waited for LoginLife. It is safe for concurrent use.
type callback struct {
	mu     sync.Mutex
	server *http.Server // nil while it is closed
	at     string       // the address of its page
	timer  *time.Timer
}

const callbackPath = "/callback"

// open returns the address of the callback page, and opens the listener if need be.
func (c *callback) open(h *Manager) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server != nil {
		c.timer.Reset(LoginLife)
		return c.at, nil
	}
	leave, err := h.addWork()
	if err != nil {
		return "", err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		leave()
		return "", err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+callbackPath, h.serveCallback)
	s := &http.Server{
		Handler: mux, ReadHeaderTimeout: dialTimeout, WriteTimeout: time.Minute, MaxHeaderBytes: maxRedirected,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	c.server, c.at = s, "http://"+l.Addr().String()+callbackPath
	c.timer = time.AfterFunc(LoginLife, c.close)
	stop := context.AfterFunc(h.ctx, c.close)
	go func() {
		defer leave()
		defer stop()
		s.Serve(l) // until close
	}()
	return c.at, nil
}

// close closes the listener and its connections.
func (c *callback) close() {
	c.mu.Lock()
	s := c.server
	c.server = nil
	if c.timer != nil {
		c.timer.Stop()
	}
	c.mu.Unlock()
	if s != nil {
		s.Close()
	}
}

// serveCallback ends the login that the parameters of the address answer.
func (h *Manager) serveCallback(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
	defer cancel()
	if err := h.finishLogin(ctx, r.URL.Query().Get("state"), r.URL.Query()); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintln(w, shorten(err.Error(), publicText))
		return
	}
	fmt.Fprintln(w, "You are logged in. You can close this page and return to your client.")
}
