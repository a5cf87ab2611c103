package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/internal/access/displaytext"
	"gatehouse/internal/mcp/rawjson"
)

// HTTPOptions describe the HTTP side of a connection.
type HTTPOptions struct {
	Client  *http.Client // nil means the default one
	Token   string       // sent as a bearer token; "" sends none
	Headers http.Header  // sent with every request
}

// NewHTTP returns a connection by Streamable HTTP to the endpoint at address.
func NewHTTP(address string, h HTTPOptions, o ConnOptions) *Conn {
	if h.Client == nil {
		h.Client = &http.Client{}
	}
	return newConn(&httpCarrier{url: address, o: h}, o)
}

// ErrSessionLost means that the server no longer knows the session. The request was
// not run; a new connection is needed.
var ErrSessionLost = errors.New("the server no longer knows the session")

// httpCarrier is a carrier of Streamable HTTP.
type httpCarrier struct {
	url string
	o   HTTPOptions

	mu      sync.Mutex
	session string // its ID; "" if there is none
}

var _ carrier = (*httpCarrier)(nil)

// statusError is an HTTP response that is no message of the protocol.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string {
	if e.text == "" {
		return fmt.Sprintf("the server answered %d %s", e.code, http.StatusText(e.code))
	}
	return fmt.Sprintf("the server answered %d %s: %s", e.code, http.StatusText(e.code), e.text)
}

// isUnreachable reports whether no server answered.
func isUnreachable(err error) bool {
	var unreachable *url.Error
	return errors.As(err, &unreachable)
}

func (w *httpCarrier) sessionID() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.session
}

// closeCarrier ends the session, if there is one; a server may refuse that.
func (w *httpCarrier) closeCarrier(version string) error {
	defer w.o.Client.CloseIdleConnections()
	if w.sessionID() == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	resp, err := w.doRequest(ctx, http.MethodDelete, version, nil, nil)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// doRequest sends one HTTP request with the headers that all requests have.
func (w *httpCarrier) doRequest(
	ctx context.Context,
	method, version string,
	body []byte,
	headers map[string]string,
) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, w.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, w.o.Headers)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("MCP-Protocol-Version", version)
	if id := w.sessionID(); id != "" && version != modern {
		req.Header.Set("Mcp-Session-Id", id)
	}
	if w.o.Token != "" {
		req.Header.Set("Authorization", "Bearer "+w.o.Token)
	}
	for k, v := range headers {
		req.Header.Set(k, v)
	}
	return w.o.Client.Do(req)
}

func (w *httpCarrier) notify(ctx context.Context, version string, text []byte, _ bool) error {
	if version == modern && bytes.Contains(text[:min(len(text), 100)], []byte(`"notifications/cancelled"`)) {
		return nil // the end of the stream has cancelled the request
	}
	resp, err := w.doRequest(ctx, http.MethodPost, version, text, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return httpError(resp)
	}
	return nil
}

// request posts a request and passes on what the response carries, until the answer
// has come.
func (w *httpCarrier) request(ctx context.Context, c *Conn, o *outgoing) error {
	ctx, cancel := c.within(ctx)
	defer cancel()
	headers := map[string]string{}
	maps.Copy(headers, o.forward)
	if o.version == modern {
		headers["Mcp-Method"] = o.method
		if o.name != "" {
			headers["Mcp-Name"] = headerValue(o.name)
		}
		maps.Copy(headers, o.headers)
	}
	resp, err := w.post(ctx, o, headers)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if id := resp.Header.Get("Mcp-Session-Id"); id != "" && o.method == "initialize" {
		w.mu.Lock()
		w.session = id
		w.mu.Unlock()
	}
	if err := w.readAnswer(ctx, c, resp, o); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		mayHaveRun := resp.StatusCode < 300 || resp.StatusCode >= 500
		return &NoAnswerError{mayHaveRun, err}
	}
	return nil
}

// post posts a request. The error is a *NoAnswerError.
func (w *httpCarrier) post(ctx context.Context, o *outgoing, headers map[string]string) (*http.Response, error) {
	if !o.markSent() {
		return nil, &NoAnswerError{false, context.Canceled}
	}
	var written atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteHeaderField: func(string, []string) { written.Store(true) },
	})
	resp, err := w.doRequest(traced, http.MethodPost, o.version, o.text, headers)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, &NoAnswerError{written.Load(), err}
	}
	return resp, nil
}

// readAnswer reads the response out of one HTTP response: a JSON body, or a
// stream of events that may end early and continue elsewhere.
func (w *httpCarrier) readAnswer(ctx context.Context, c *Conn, resp *http.Response, o *outgoing) error {
	switch kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind {
	case "application/json":
		body, err := io.ReadAll(io.LimitReader(resp.Body, int64(c.o.Limit)+1))
		if err != nil {
			return err
		}
		if len(body) > c.o.Limit {
			c.receiveTooLong(body[:edgeBytes], body[len(body)-edgeBytes:], max(resp.ContentLength, int64(len(body))))
			if !c.isPending(o.id) {
				return nil
			}
			return fmt.Errorf("the server sent more than %d bytes", c.o.Limit)
		}
		if e, ok := rawjson.Get(body, "error"); ok && resp.StatusCode >= 400 && rawjson.Kind(e) == '{' {
			c.deliver(o.id, answer{err: parseError(e)}) // an error without an id answers what was sent
			return w.lost(resp, o)
		}
		c.receive(body, o.id)
		if c.isPending(o.id) {
			return &statusError{resp.StatusCode, firstLine(body)}
		}
		return nil
	case "text/event-stream":
		return w.readStream(ctx, c, resp.Body, o)
	}
	if err := w.lost(resp, o); err != nil {
		return err
	}
	return httpError(resp)
}

// lost returns ErrSessionLost if the response says that the session is unknown.
func (w *httpCarrier) lost(resp *http.Response, o *outgoing) error {
	if resp.StatusCode == http.StatusNotFound && o.version != modern && w.sessionID() != "" {
		return ErrSessionLost
	}
	return nil
}

// readStream reads streams until the response has come. A server may end one
// before, if it has named its events; then the rest is requested.
func (w *httpCarrier) readStream(ctx context.Context, c *Conn, body io.Reader, o *outgoing) error {
	s := newStream(body, c.o.Limit)
	for {
		err := w.readEvents(c, s, o)
		if err == nil || !errors.Is(err, io.EOF) {
			return err
		}
		if s.last == "" || o.version == modern {
			return errors.New("the server ended the stream without an answer")
		}
		resp, err := w.resume(ctx, s, o.version)
		if err != nil {
			return err
		}
		defer resp.Body.Close() // few, because a server pauses before each
		s.reset(resp.Body)
	}
}

// resume requests what follows the last event, after the pause that the server
// wishes.
func (w *httpCarrier) resume(ctx context.Context, s *stream, version string) (*http.Response, error) {
	pause := time.NewTimer(s.retry)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	headers := map[string]string{"Accept": "text/event-stream"}
	if s.last != "" {
		headers["Last-Event-ID"] = s.last
	}
	resp, err := w.doRequest(ctx, http.MethodGet, version, nil, headers)
	if err != nil {
		return nil, err
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if resp.StatusCode != http.StatusOK || kind != "text/event-stream" {
		defer resp.Body.Close()
		return nil, httpError(resp)
	}
	return resp, nil
}

// readEvents reads one stream to its end or to the response of o, which is nil for a
// stream without one.
func (w *httpCarrier) readEvents(c *Conn, s *stream, o *outgoing) error {
	within := int64(0)
	if o != nil {
		within = o.id
	}
	for {
		data, err := s.nextEvent()
		if err != nil {
			return err
		}
		if len(data) > 0 {
			c.receive(data, within)
		}
		if o != nil && !c.isPending(o.id) {
			return nil
		}
	}
}

// Follow receives what a legacy server sends outside of requests, over the stream
// that a GET opens, and opens it again when it ends. It returns when ctx is done, the
// connection has ended, or the server refuses such a stream. Connections that are no legacy
// HTTP have none. missed is called when a stream is open before which notifications may be
// lost: the first, and another if the server has not named its events.
func (c *Conn) Follow(ctx context.Context, missed func()) error {
	w, ok := c.transport().(*httpCarrier)
	if !ok || c.IsModern() {
		return nil
	}
	ctx, cancel := c.within(ctx)
	defer cancel()
	s := newStream(http.NoBody, c.o.Limit)
	s.retry = 0
	for opened := false; ; {
		resp, err := w.resume(ctx, s, c.Revision())
		var status *statusError
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.As(err, &status) && status.code < 500:
			if opened && status.code == http.StatusNotFound && w.sessionID() != "" {
				c.Fail(ErrSessionLost)
			}
			return err
		case err != nil:
			s.retry = min(max(2*s.retry, time.Second), time.Minute)
			continue
		}
		if s.last == "" {
			missed()
		}
		opened = true
		s.retry = max(s.retry, time.Second) // between two streams
		s.reset(resp.Body)
		w.readEvents(c, s, nil) // it ends for many reasons, none of which is final
		resp.Body.Close()
	}
}

// httpError returns the error for an HTTP response with an error status.
func httpError(resp *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	return &statusError{resp.StatusCode, firstLine(body)}
}

// firstLine returns the beginning of a body, for an error message.
func firstLine(body []byte) string {
	var e struct {
		Error struct{ Message string }
	}
	if json.Unmarshal(body, &e) == nil && e.Error.Message != "" {
		body = []byte(e.Error.Message)
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(body)), "\n")
	return displaytext.Cut(strings.ToValidUTF8(line, "?"), 200, "...")
}
