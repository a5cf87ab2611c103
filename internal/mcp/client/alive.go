package client

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"gatehouse/internal/server/httpserver/hangup"
)

// A peer may vanish without a word: its machine has lost its power, or a router has forgotten the connection. The
// kernel then notices within quietTime, also while data wait for their acknowledgement.
const (
	keepAliveIdle     = 15 * time.Second
	keepAliveInterval = 5 * time.Second
	keepAliveCount    = 4
	quietTime         = keepAliveIdle + keepAliveCount*keepAliveInterval
)

// NewDialer returns a dialer whose TCP connections notice within 35 s that their peer is gone.
func NewDialer(timeout time.Duration) *net.Dialer {
	return &net.Dialer{
		Timeout: timeout, Control: hangup.AfterUnacknowledged(quietTime),
		KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval, Count: keepAliveCount,
		},
	}
}

// NewTransport returns a transport that connects by dial. Connections of HTTP/2, which carry many requests, are
// asked for a sign of life after quiet, and closed if there is none in the same time again.
func NewTransport(
	dial func(ctx context.Context, network, address string) (net.Conn, error), quiet time.Duration,
) *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = dial
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: quiet, PingTimeout: quiet}
	return t
}

// ErrSilent means that a server answered nothing on a connection that is still open.
var ErrSilent = errors.New("the server no longer answers on its connection")

// Watch asks the server for a sign of life whenever the connection has carried no request for a while, and ends the
// connection if there is none in the same time again. It returns when the connection has ended. Requests that run are
// not disturbed, because a server that does one thing at a time answers nothing else meanwhile. Connections by
// Streamable HTTP have nothing to watch: each request may use another one.
func (c *Conn) Watch(ctx context.Context, quiet time.Duration) error {
	ctx, cancel := c.within(ctx)
	defer cancel()
	tick := time.NewTicker(quiet)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		if c.usesHTTP() || c.Idle() < quiet {
			continue
		}
		if err := c.probe(ctx, quiet); err != nil && ctx.Err() == nil {
			c.Fail(err)
			return err
		}
	}
}

// probe sends a request that any server answers. Each answer will do.
func (c *Conn) probe(ctx context.Context, patience time.Duration) error {
	used := c.lastUsed()
	defer c.setLastUsed(used) // it is no use of the server
	soon, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	method := "ping"
	if c.IsModern() {
		method = "server/discover"
	}
	_, err := c.Do(soon, Request{Method: method})
	if no, ok := errors.AsType[*NoAnswerError](err); ok && c.Err() == nil && no != nil {
		return ErrSilent
	}
	return nil
}

func (c *Conn) lastUsed() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used
}

func (c *Conn) setLastUsed(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pending) == 0 {
		c.used = at
	}
}
