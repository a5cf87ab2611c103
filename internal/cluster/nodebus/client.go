package nodebus

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/cluster"
)

// Client sends HTTP/1.1 requests to a service of other nodes. It implements http.RoundTripper; the host of a URL is the
// id of a node and ".node". Unlike http.Transport it reads and writes on the goroutine of the caller, which takes half
// of the time of a short request. Its errors wrap cluster.ErrNotRun if the node did not get the request.
type Client struct {
	Service string
	Dial    func(ctx context.Context, node, service string) (net.Conn, error) // as cluster.Node.Dial

	mu    sync.Mutex
	idle  map[string][]*clientConn // by node, the one that was used last at the end
	sweep *time.Timer              // set while there are idle streams
}

// clientConn is a stream to the service.
type clientConn struct {
	net.Conn
	in    *bufio.Reader
	out   *bufio.Writer
	since time.Time // when it became idle
}

const (
	mostIdle  = 64               // streams to one node that wait for requests
	idleTime  = 30 * time.Second // for so long
	restTime  = time.Second      // in which the rest of an answer comes that the caller does not read
	mostRest  = 64 << 10         // bytes of it
	writeSize = 8 << 10
)

// RoundTrip implements http.RoundTripper.
func (c *Client) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		defer r.Body.Close()
	}
	node, _, _ := strings.Cut(r.URL.Host, ".")
	for {
		conn, used := c.takeIdle(node)
		if !used {
			stream, err := c.Dial(r.Context(), node, c.Service)
			if err != nil {
				return nil, err
			}
			conn = &clientConn{Conn: stream, in: bufio.NewReader(stream), out: bufio.NewWriterSize(stream, writeSize)}
		}
		answer, err := c.exchange(conn, node, r)
		if err == nil {
			return answer, nil
		}
		conn.Close()
		switch {
		case r.Context().Err() != nil:
			return nil, context.Cause(r.Context())
		case !used || !errors.Is(err, cluster.ErrNotRun): // a used one may have been ended meanwhile
			return nil, err
		case r.Body != nil && r.GetBody == nil:
			return nil, err
		case r.Body != nil:
			body, err := r.GetBody()
			if err != nil {
				return nil, err
			}
			again := *r
			again.Body, r = body, &again
		}
	}
}

// exchange sends the request over a stream and reads the head of the answer.
func (c *Client) exchange(conn *clientConn, node string, r *http.Request) (*http.Response, error) {
	stop := context.AfterFunc(r.Context(), func() { conn.Close() })
	err := r.Write(conn.out)
	if err == nil {
		err = conn.out.Flush()
	}
	var answer *http.Response
	if err == nil {
		answer, err = http.ReadResponse(conn.in, r)
	}
	if err != nil {
		stop()
		return nil, fmt.Errorf("node %s: %w", node, err)
	}
	answer.Body = &clientBody{body: answer.Body, conn: conn, client: c, node: node, stop: stop, keep: !answer.Close}
	return answer, nil
}

// takeIdle returns a stream that was used before.
func (c *Client) takeIdle(node string) (*clientConn, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.idle[node]
	if len(all) == 0 {
		return nil, false
	}
	last := all[len(all)-1]
	c.idle[node] = all[:len(all)-1]
	return last, true
}

// keepIdle keeps a stream for the next request.
func (c *Client) keepIdle(node string, conn *clientConn) {
	c.mu.Lock()
	if len(c.idle[node]) >= mostIdle {
		c.mu.Unlock()
		conn.Close()
		return
	}
	defer c.mu.Unlock()
	if c.idle == nil {
		c.idle = map[string][]*clientConn{}
	}
	conn.since = time.Now()
	c.idle[node] = append(c.idle[node], conn)
	if c.sweep == nil {
		c.sweep = time.AfterFunc(idleTime, func() { c.closeIdle(time.Now().Add(-idleTime)) })
	}
}

// CloseIdleConnections closes the streams that wait for requests.
func (c *Client) CloseIdleConnections() { c.closeIdle(time.Now()) }

// closeIdle closes the streams that have been idle since a time or longer.
func (c *Client) closeIdle(since time.Time) {
	var ended []*clientConn
	c.mu.Lock()
	for node, all := range c.idle {
		old := 0
		for old < len(all) && !all[old].since.After(since) {
			old++
		}
		ended = append(ended, all[:old]...)
		if c.idle[node] = all[old:]; old == len(all) {
			delete(c.idle, node)
		}
	}
	if c.sweep != nil && len(c.idle) > 0 {
		c.sweep.Reset(idleTime / 2)
	} else {
		c.sweep = nil
	}
	c.mu.Unlock()
	for _, conn := range ended { // which may wait for the node
		conn.Close()
	}
}

// clientBody is the body of an answer. Once it has been read the stream can be used again. One goroutine uses it.
type clientBody struct {
	body   io.ReadCloser
	conn   *clientConn
	client *Client
	node   string
	stop   func() bool // keeps the stream when the context of the request ends
	keep   bool
	limit  bool // reading has a deadline
	ended  bool
}

func (b *clientBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	if err != nil && !b.ended {
		b.ended = true
		if b.stop() && b.keep && err == io.EOF {
			if b.limit {
				b.conn.SetReadDeadline(time.Time{})
			}
			b.client.keepIdle(b.node, b.conn)
		} else {
			b.conn.Close()
		}
	}
	return n, err
}

// Close implements io.Closer. What is left of an answer, which after its last line is only its end, is read so that the
// stream can be used again.
func (b *clientBody) Close() error {
	if b.ended {
		return nil
	}
	b.limit = true
	b.conn.SetReadDeadline(time.Now().Add(restTime))
	go func() {
		if io.CopyN(io.Discard, b, mostRest); !b.ended {
			b.stop()
			b.conn.Close()
		}
	}()
	return nil
}
