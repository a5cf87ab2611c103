package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A server that answers nothing any more on an open connection is noticed while nothing runs; one that answers is kept.
func TestASilentServerIsNoticed(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	var silent atomic.Bool
	var asked atomic.Int32
	go func() {
		for in := bufio.NewScanner(there); in.Scan(); {
			if id, ok := answerIDOf(in.Bytes()); ok && !silent.Load() {
				asked.Add(1)
				fmt.Fprintf(there, `{"jsonrpc":"2.0","id":%d,"error":{"code":-32601,"message":"unknown"}}`+"\n", id)
			}
		}
	}()
	c := NewSocket(here, "", ConnOptions{})
	defer c.Close()
	ended := make(chan error, 1)
	go func() { ended <- c.Watch(t.Context(), 10*time.Millisecond) }()
	for end := time.Now().Add(time.Minute); asked.Load() < 3; time.Sleep(time.Millisecond) {
		if time.Now().After(end) || c.Err() != nil {
			t.Fatalf("it was asked %d times for a sign of life; %v", asked.Load(), c.Err())
		}
	}
	silent.Store(true)
	select {
	case err := <-ended:
		if !errors.Is(err, ErrSilent) || !errors.Is(c.Err(), ErrSilent) {
			t.Errorf("got %v, and the connection ended with %v", err, c.Err())
		}
	case <-time.After(time.Minute):
		t.Fatal("the connection is still open")
	}
}

// answerIDOf returns the id of a request.
func answerIDOf(line []byte) (id int64, ok bool) {
	_, err := fmt.Sscanf(string(line), `{"jsonrpc":"2.0","id":%d,`, &id)
	return id, err == nil
}

// A request over HTTP/2 ends when what is between it and the server passes nothing on any more.
func TestAConnectionThatPassesNothingOnIsNoticed(t *testing.T) {
	answer := make(chan struct{})
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("the request uses %s", r.Proto)
		}
		if r.URL.Path == "/wait" {
			<-answer
		}
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	defer close(answer)
	var hole hole
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := NewDialer(time.Minute).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return hole.through(conn), nil
	}
	transport := NewTransport(dial, 50*time.Millisecond)
	transport.TLSClientConfig = s.Client().Transport.(*http.Transport).TLSClientConfig
	transport.ForceAttemptHTTP2 = true
	hc := &http.Client{Transport: transport}
	if resp, err := hc.Get(s.URL); err != nil {
		t.Fatal(err)
	} else {
		resp.Body.Close()
	}
	ended := make(chan error, 1)
	go func() {
		resp, err := hc.Get(s.URL + "/wait")
		if err == nil {
			resp.Body.Close()
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		t.Fatalf("a request that is answered late ended: %v", err)
	case <-time.After(300 * time.Millisecond): // several signs of life
	}
	hole.open.Store(true)
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the request was answered")
		}
	case <-time.After(time.Minute):
		t.Fatal("the request still waits")
	}
}

// hole swallows what its connections carry, once it is open.
type hole struct{ open atomic.Bool }

func (h *hole) through(conn net.Conn) net.Conn {
	return &holeConn{Conn: conn, hole: h, ended: make(chan struct{})}
}

type holeConn struct {
	net.Conn
	hole  *hole
	once  sync.Once
	ended chan struct{}
}

func (c *holeConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.hole.open.Load() {
		<-c.ended
		return 0, io.ErrClosedPipe
	}
	return n, err
}

func (c *holeConn) Write(b []byte) (int, error) {
	if c.hole.open.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *holeConn) Close() error {
	c.once.Do(func() { close(c.ended) })
	return c.Conn.Close()
}
