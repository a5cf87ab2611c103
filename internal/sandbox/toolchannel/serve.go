package toolchannel

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Limits of one program.
const (
	MaxConns      = 8                // connections at once; further ones wait
	MaxConcurrent = 64               // calls at once; further messages are not read meanwhile
	writeWait     = 60 * time.Second // for a program that reads no answers
)

// Handler handles the messages of one program. Both methods may be called concurrently.
type Handler interface {
	// Call handles a call, and returns when its answer may be written. ctx ends with the program.
	Call(ctx context.Context, m Message) Response
	// Return takes the value that the program returns.
	Return(m Message) error
}

// Serve serves the connections of l, until l is closed or ctx ends, which closes l. It returns when all of its calls
// have returned.
func Serve(ctx context.Context, l net.Listener, h Handler) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	conns := make(chan struct{}, MaxConns)
	calls := make(chan struct{}, MaxConcurrent)
	for {
		select {
		case conns <- struct{}{}:
		case <-ctx.Done():
			return
		}
		c, err := l.Accept()
		if err != nil {
			return
		}
		all.Go(func() {
			defer func() { <-conns }()
			s := &served{conn: c, handler: h, calls: calls}
			s.serve(ctx)
		})
	}
}

// served is one connection.
type served struct {
	conn    net.Conn
	handler Handler
	calls   chan struct{} // a semaphore of all connections
	writing sync.Mutex
}

// serve reads messages until the connection ends, and then waits for its calls.
func (s *served) serve(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	defer s.conn.Close()
	defer context.AfterFunc(ctx, func() { s.conn.Close() })()
	in := bufio.NewReaderSize(s.conn, 32<<10)
	for {
		m, err := Read(in)
		if err == nil && m.Result != nil {
			if err = s.handler.Return(m); err == nil {
				s.write(Response{}) // the program ends when it has this
				continue
			}
		}
		if errors.Is(err, ErrMalformed) {
			s.write(Response{Error: err.Error(), Kind: Limited})
		}
		if err != nil {
			return
		}
		select {
		case s.calls <- struct{}{}:
		case <-ctx.Done():
			return
		}
		all.Go(func() {
			defer func() { <-s.calls }()
			s.write(s.handler.Call(ctx, m))
		})
	}
}

// write sends an answer. A connection that fails is closed.
func (s *served) write(a Response) {
	b := Encode(a)
	s.writing.Lock()
	defer s.writing.Unlock()
	s.conn.SetWriteDeadline(time.Now().Add(writeWait))
	if _, err := s.conn.Write(b); err != nil {
		s.conn.Close()
	}
}

// ErrReturned is returned by a Handler for a second value.
var ErrReturned = fmt.Errorf("%w: it has returned a value already", ErrMalformed)
