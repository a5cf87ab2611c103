package httpserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	nethttp "net/http"
	"time"

	"gatehouse/internal/server/httpserver/h1"
)

// Limits of a connection.
const (
	headerTime  = 10 * time.Second // until a request's headers have arrived
	idleTime    = 2 * time.Minute  // between two requests
	headerBytes = 64 << 10
	lastWait    = 2 * time.Second // for goroutines whose connections were closed
)

// Serve serves the listener until ctx is done and closes it. Then new requests are refused, idle
// streams end, and running requests get Options.Patience to finish before their connections are closed.
// It returns nil after an orderly end, and an error if the listener failed or a handler did not return.
func (d *Server) Serve(ctx context.Context, ln net.Listener) error {
	srv := &h1.Server{Handler: d, Log: d.log, Rest: &nethttp.Server{
		Handler:           d,
		ReadHeaderTimeout: headerTime,
		WriteTimeout:      answerTime, // from the headers on; extended for longer answers
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    headerBytes,
		ErrorLog:          slog.NewLogLogger(d.log.Handler(), slog.LevelDebug),
	}}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(ln) }()
	var err error
	select {
	case <-ctx.Done():
		err = d.drain(srv)
		<-failed
	case err = <-failed:
		err = errors.Join(fmt.Errorf("serve http: %w", err), d.drain(srv))
	}
	return err
}

// drain ends open requests and streams.
func (d *Server) drain(srv *h1.Server) error {
	d.stopping.Store(true)
	d.pulse.dismissAll()
	patience, cancel := context.WithTimeout(context.Background(), d.opts.Patience)
	defer cancel()
	srv.Shutdown(patience)
	d.rest(patience, d.streaming)
	d.pulse.each((*wire).Close)
	srv.Close()
	last, cancel := context.WithTimeout(context.Background(), lastWait)
	defer cancel()
	d.rest(last, nil)
	if n := d.serving.Load(); n > 0 {
		return fmt.Errorf("%d requests could not be ended: their handlers ignore cancellation", n)
	}
	return nil
}

func (d *Server) streaming() bool { return len(d.pulse.all()) > 0 }

// rest waits until no request is being served and busy, if given, returns false, or until ctx is done.
func (d *Server) rest(ctx context.Context, busy func() bool) {
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for d.serving.Load() > 0 || busy != nil && busy() {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}

// Close ends every open stream. A program that uses a Server as a handler in another server calls it;
// Serve does so itself.
func (d *Server) Close() {
	d.stopping.Store(true)
	d.pulse.each((*wire).Close)
}
