package load

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Streams are many open event streams, each on a connection of its own.
type Streams struct {
	all []*stream
}

type stream struct {
	c    *Client
	came time.Time // when its event did
	err  error
}

// OpenStreams opens a stream for each session.
func OpenStreams(addr string, sessions []string) (*Streams, error) {
	s := &Streams{all: make([]*stream, len(sessions))}
	errs := make([]error, 8)
	var workers sync.WaitGroup
	for k := range errs {
		workers.Go(func() {
			for i := k; i < len(sessions) && errs[k] == nil; i += len(errs) {
				s.all[i], errs[k] = openStream(addr, sessions[i])
			}
		})
	}
	workers.Wait()
	if err := errors.Join(errs...); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func openStream(addr, session string) (*stream, error) {
	c, err := Dial(addr)
	if err != nil {
		return nil, err
	}
	c.buf = make([]byte, 1<<10)
	if err := c.send(Stream(session)); err != nil {
		c.Close()
		return nil, err
	}
	a, _, err := c.head()
	if err == nil && (a.Status != 200 || a.Header("Content-Type") != "text/event-stream") {
		err = fmt.Errorf("no stream: %s", a.Head)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return &stream{c: c}, nil
}

// Close closes every connection.
func (s *Streams) Close() {
	for _, st := range s.all {
		if st != nil {
			st.c.Close()
		}
	}
}

// Await reads every stream until it has told that the tools have changed, or
// until the deadline. begin is called when all are being read. It returns how
// long each took from then on; those to which nothing came are left out.
func (s *Streams) Await(deadline time.Duration, begin func() error) ([]time.Duration, error) {
	var workers sync.WaitGroup
	for _, st := range s.all {
		st.c.conn.SetDeadline(time.Now().Add(deadline))
		workers.Go(st.await)
	}
	from := time.Now()
	if err := begin(); err != nil {
		s.Close()
		workers.Wait()
		return nil, err
	}
	workers.Wait()
	var took []time.Duration
	for _, st := range s.all {
		if st.err == nil {
			took = append(took, st.came.Sub(from))
		}
	}
	return took, nil
}

var isChanged = []byte("notifications/tools/list_changed")

func (st *stream) await() {
	c := st.c
	for {
		if bytes.Contains(c.buf[c.r:c.w], isChanged) {
			st.came = time.Now()
			return
		}
		if st.err = c.fill(); st.err != nil {
			return
		}
	}
}
