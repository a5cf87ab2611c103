// Package socket serves clients on TCP and Unix sockets, with one message per line.
//
// Each connection is a client of its own. On a Unix socket only processes of the same user, and of
// root, are admitted.
package socket

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"gatehouse/internal/access/limit"
	"gatehouse/internal/access/operator"
	"gatehouse/internal/mcp/newline"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/tool"
)

// Options configures Serve. The zero value is usable.
type Options struct {
	Limit int // bytes of one message; 0 means 24 MiB
	Max   int // connections at once, which principals share; 0 means 1024
	// Administrator reports who gets the connections that are kept for administrators;
	// nil means no caller.
	Administrator operator.Func
	Patience      time.Duration // for requests in flight when the client has closed its side; 0 means 60 s
	Stop          time.Duration // the same when ctx is done; 0 means 5 s
	Log           *slog.Logger  // nil: nothing is logged
}

const (
	writeTime  = 30 * time.Second // until a client must have received a message
	refuseTime = time.Second      // for writing why a connection is refused
	firstPause = 5 * time.Millisecond
	longPause  = time.Second
)

func (o *Options) setDefaults() {
	if o.Max == 0 {
		o.Max = 1024
	}
	if o.Patience == 0 {
		o.Patience = time.Minute
	}
	if o.Stop == 0 {
		o.Stop = 5 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

// Serve serves every connection of the listener until ctx is done, and closes the listener. who returns
// the caller of a connection; if it is nil, every peer is anonymous. When Serve returns, all
// connections are closed and their goroutines have ended. It returns the error because of which
// listening failed.
func Serve(
	ctx context.Context,
	ln net.Listener,
	e *protocol.Engine,
	who func(net.Conn) (protocol.Caller, error),
	o Options,
) error {
	o.setDefaults()
	if who == nil {
		who = func(net.Conn) (protocol.Caller, error) {
			return protocol.Caller{Caller: tool.Caller{Principal: "anonymous"}}, nil
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { ln.Close() })()
	d := &server{engine: e, who: who, o: o, shares: limit.NewShares(limit.Resource{
		Name: "connections", Total: int64(o.Max), Administrator: o.Administrator,
	})}
	err := d.accept(ctx, ln)
	ln.Close()
	cancel()
	d.open.Wait()
	return err
}

// server holds what the connections of one listener share.
type server struct {
	engine *protocol.Engine
	who    func(net.Conn) (protocol.Caller, error)
	o      Options
	shares *limit.Shares // of connections
	open   sync.WaitGroup
}

// accept accepts connections until ctx is done. If accepting fails, for example for lack of
// descriptors, it tries again after a pause.
func (d *server) accept(ctx context.Context, ln net.Listener) error {
	pause := firstPause
	for {
		conn, err := ln.Accept()
		switch {
		case err == nil:
			pause = firstPause
			d.admitConn(ctx, conn)
			continue
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept on %s: %w", ln.Addr(), err)
		}
		d.o.Log.WarnContext(ctx, "cannot accept a connection", "listener", ln.Addr().String(), "err", err, "again",
			pause)
		select {
		case <-time.After(pause):
			pause = min(2*pause, longPause)
		case <-ctx.Done():
			return nil
		}
	}
}

// admitConn starts to serve a connection, or refuses it with the reason.
func (d *server) admitConn(ctx context.Context, conn net.Conn) {
	if err := checkPeer(conn); err != nil {
		d.o.Log.WarnContext(ctx, "connection refused", "listener", conn.LocalAddr().String(), "err", err)
		refuseConn(conn, err.Error())
		return
	}
	who, err := d.who(conn)
	if err != nil {
		refuseConn(conn, err.Error())
		return
	}
	held, err := d.shares.Acquire(&who.Caller, 1)
	if err != nil {
		refuseConn(conn, err.Error())
		return
	}
	d.open.Go(func() {
		defer held.Release()
		d.serveConn(ctx, conn, who)
	})
}

// refuseConn sends a client the reason for which it is not served. The message fits into the socket's
// buffer, so it is sent at once.
func refuseConn(conn net.Conn, why string) {
	defer conn.Close()
	conn.SetWriteDeadline(time.Now().Add(refuseTime))
	newline.NewWriter(conn).Write(protocol.Respond(&protocol.Fault{Code: protocol.CodeInternal, Message: why}))
}

// serveConn serves one connection to its end.
func (d *server) serveConn(ctx context.Context, conn net.Conn, who protocol.Caller) {
	defer conn.Close()
	w := newline.NewWriter(conn)
	pipe := d.engine.Pipe(who, func(msg []byte) error {
		conn.SetWriteDeadline(time.Now().Add(writeTime))
		err := w.Write(msg)
		if err != nil {
			conn.Close() // ends reading, too
		}
		return err
	})
	defer pipe.Close(nil)
	defer context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Now()) })() // the line being read is the last
	over := make(chan struct{})
	defer close(over)
	d.open.Go(func() {
		select {
		case <-pipe.Done():
			conn.Close()
		case <-over:
		}
	})
	newline.NewReader(conn, d.o.Limit).Feed(&screen{receiver: pipe,
		refuseForeign: func() { d.refuseForeign(ctx, conn) }})
	d.drain(ctx, pipe)
}

// drain answers running requests after the last message was read.
func (d *server) drain(ctx context.Context, pipe *protocol.Pipe) {
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.o.Patience)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(d.o.Stop, cancel) })
	defer stop()
	pipe.Drain(last)
}
