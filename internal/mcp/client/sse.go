package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"time"
)

// endpointTimeout is how long a server of HTTP+SSE may take to name its endpoint.
const endpointTimeout = 10 * time.Second

// sseCarrier is a carrier of HTTP+SSE, the HTTP transport of revision 2024-11-05. What the
// server sends comes over one stream, which lasts as long as the session; what it is
// sent is posted to the endpoint that the first event of the stream names.
type sseCarrier struct{ to *httpCarrier }

var _ carrier = (*sseCarrier)(nil)

// refusesPost reports whether initialize failed in the way in which a server of HTTP+SSE
// refuses a POST (docs of 2025-11-25, "Transports", backwards compatibility).
func refusesPost(err error) bool {
	var status *statusError
	return errors.As(err, &status) && (status.code == http.StatusBadRequest ||
		status.code == http.StatusNotFound || status.code == http.StatusMethodNotAllowed)
}

// useSSE replaces Streamable HTTP by HTTP+SSE. The stream that it opens ends with the
// connection, and the connection with the stream.
func (c *Conn) useSSE(ctx context.Context) error {
	w, ok := c.transport().(*httpCarrier)
	if !ok {
		return errors.New("the connection does not use HTTP")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, endpointTimeout, errors.New("the server opens no stream of events"))
	defer cancel()
	life, end := context.WithCancel(c.life)
	stop := context.AfterFunc(ctx, end) // until the endpoint is known
	body, s, endpoint, err := w.openSSE(life, c.o.Limit)
	if err == nil && !stop() {
		body.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		end()
		return err
	}
	c.mu.Lock()
	c.carrier = &sseCarrier{&httpCarrier{url: endpoint, o: w.o}}
	c.mu.Unlock()
	go func() { // it ends with the stream
		defer end()
		defer body.Close()
		c.Fail(fmt.Errorf("%w: %w", ErrSessionLost, c.readMessages(s)))
	}()
	return nil
}

// openSSE opens the stream and returns the endpoint that it names, which must have the
// stream's origin: otherwise a server could have credentials sent elsewhere.
func (w *httpCarrier) openSSE(ctx context.Context, limit int) (io.Closer, *stream, string, error) {
	resp, err := w.doRequest(ctx, http.MethodGet, latestLegacy, nil, map[string]string{"Accept": "text/event-stream"})
	if err != nil {
		return nil, nil, "", err
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if resp.StatusCode != http.StatusOK || kind != "text/event-stream" {
		defer resp.Body.Close()
		return nil, nil, "", httpError(resp)
	}
	s := newStream(resp.Body, limit)
	endpoint, err := w.readEndpoint(s)
	if err != nil {
		resp.Body.Close()
		return nil, nil, "", err
	}
	return resp.Body, s, endpoint, nil
}

// readEndpoint reads the first event of a stream.
func (w *httpCarrier) readEndpoint(s *stream) (string, error) {
	data, err := s.nextEvent()
	if err != nil {
		return "", err
	}
	if s.kind != "endpoint" {
		return "", fmt.Errorf("the stream begins with an event %.40q instead of endpoint", s.kind)
	}
	from, err := url.Parse(w.url)
	if err != nil {
		return "", err
	}
	to, err := from.Parse(string(data))
	if err != nil {
		return "", fmt.Errorf("the stream names the endpoint %.200q: %w", data, err)
	}
	if to.Scheme != from.Scheme || to.Host != from.Host {
		return "", fmt.Errorf(
			"the stream names the endpoint %.200q, which is not at %s://%s",
			data,
			from.Scheme,
			from.Host,
		)
	}
	return to.String(), nil
}

// readMessages receives messages until the stream ends, and returns why.
func (c *Conn) readMessages(s *stream) error {
	for {
		data, err := s.nextEvent()
		if err != nil {
			return fmt.Errorf("its stream has ended: %w", err)
		}
		if s.kind == "" || s.kind == "message" {
			c.receive(data, 0)
		}
	}
}

func (w *sseCarrier) request(ctx context.Context, c *Conn, o *outgoing) error {
	ctx, cancel := c.within(ctx)
	defer cancel()
	resp, err := w.to.post(ctx, o, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode < 300:
		return nil
	case resp.StatusCode == http.StatusNotFound:
		return &NoAnswerError{false, ErrSessionLost}
	}
	return &NoAnswerError{resp.StatusCode >= 500, httpError(resp)}
}

func (w *sseCarrier) notify(ctx context.Context, version string, text []byte, wait bool) error {
	return w.to.notify(ctx, version, text, wait)
}

// closeCarrier has nothing to end: the stream ends with the connection.
func (w *sseCarrier) closeCarrier(string) error {
	w.to.o.Client.CloseIdleConnections()
	return nil
}
