package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"gatehouse/internal/access/displaytext"
)

// DialHTTP connects to a server by its URL. A URL without a path gets /mcp.
func DialHTTP(ctx context.Context, address string, o Options) (*Client, error) {
	u, err := url.Parse(address)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, &ConnectError{
			address,
			errors.New("expected a URL such as http://127.0.0.1:3000/mcp or tcp://127.0.0.1:9100"),
		}
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/mcp"
	}
	return connectWire(ctx, u.String(), &httpWire{url: u.String(), client: httpClient(o), token: o.Token}, o)
}

// httpClient follows the environment as the default one does, and believes
// the authorities it was given.
func httpClient(o Options) *http.Client {
	if o.Roots == nil {
		return &http.Client{}
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.TLSClientConfig = &tls.Config{RootCAs: o.Roots}
	return &http.Client{Transport: t}
}

// httpWire is a wire of Streamable HTTP.
type httpWire struct {
	url     string
	client  *http.Client
	version string // of the session
	session string // id; "" when there is none
	token   string // "" when there is none
}

var _ wire = (*httpWire)(nil)

// statusError is an answer that is no message of the protocol.
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

func (w *httpWire) headerless() bool { return false }

// alive reports whether a server answered at all.
func (w *httpWire) alive(err error) bool {
	var unreachable *url.Error
	return !errors.As(err, &unreachable)
}

// closeWire ends the session, if there is one; a server may refuse that.
func (w *httpWire) closeWire() error {
	defer w.client.CloseIdleConnections()
	if w.session == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	resp, err := w.do(ctx, http.MethodDelete, w.version, nil, nil)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// do sends one HTTP request with the headers that every one carries.
func (w *httpWire) do(
	ctx context.Context,
	method, version string,
	body []byte,
	headers map[string]string,
) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, w.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("MCP-Protocol-Version", version)
	if w.session != "" && version != modern {
		req.Header.Set("Mcp-Session-Id", w.session)
	}
	if w.token != "" {
		req.Header.Set("Authorization", "Bearer "+w.token)
	}
	for k, v := range headers {
		req.Header.Set(k, v)
	}
	return w.client.Do(req)
}

func (w *httpWire) notify(ctx context.Context, version string, msg []byte) error {
	w.version = version
	resp, err := w.do(ctx, http.MethodPost, version, msg, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return httpError(resp)
	}
	return nil
}

func (w *httpWire) exchange(ctx context.Context, r request, aside func(message) []byte) (message, error) {
	headers := map[string]string{}
	if r.version == modern {
		headers["Mcp-Method"] = r.method
		if r.name != "" {
			headers["Mcp-Name"] = headerValue(r.name)
		}
		maps.Copy(headers, r.headers)
	}
	resp, err := w.do(ctx, http.MethodPost, r.version, r.body, headers)
	if err != nil {
		return message{}, err
	}
	defer resp.Body.Close()
	if id := resp.Header.Get("Mcp-Session-Id"); id != "" && r.method == "initialize" {
		w.session, w.version = id, r.version
	}
	return w.answer(ctx, resp, r, aside)
}

// answer reads the response out of one HTTP response: a JSON body, or a
// stream of events that may end early and go on elsewhere.
func (w *httpWire) answer(
	ctx context.Context,
	resp *http.Response,
	r request,
	aside func(message) []byte,
) (m message, err error) {
	switch kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind {
	case "application/json":
		body, err := io.ReadAll(io.LimitReader(resp.Body, answerLimit))
		if err != nil {
			return m, err
		}
		if json.Unmarshal(body, &m) != nil || !m.answers(r.id) {
			return m, &statusError{resp.StatusCode, firstLine(body)}
		}
		return m, nil
	case "text/event-stream":
		return w.readStream(ctx, resp.Body, r, aside)
	}
	return m, httpError(resp)
}

// readStream reads streams until the response has come. A server may end one
// before, if it has named its events; then the rest is asked for.
func (w *httpWire) readStream(
	ctx context.Context,
	body io.Reader,
	r request,
	aside func(message) []byte,
) (message, error) {
	s := newStream(body)
	for {
		m, err := w.events(ctx, s, r, aside)
		if err == nil || !errors.Is(err, io.EOF) {
			return m, err
		}
		if s.last == "" || r.version == modern {
			return m, errors.New("the server ended the stream without an answer")
		}
		resp, err := w.resume(ctx, s)
		if err != nil {
			return m, err
		}
		defer resp.Body.Close() // few: each costs the server a pause
		s.reset(resp.Body)
	}
}

// resume asks for what follows the last event, after the pause the server
// wishes.
func (w *httpWire) resume(ctx context.Context, s *stream) (*http.Response, error) {
	pause := time.NewTimer(s.retry)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	resp, err := w.do(
		ctx,
		http.MethodGet,
		w.version,
		nil,
		map[string]string{"Last-Event-ID": s.last, "Accept": "text/event-stream"},
	)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		return nil, httpError(resp)
	}
	return resp, nil
}

// events reads one stream to its end or to the response.
func (w *httpWire) events(
	ctx context.Context,
	s *stream,
	r request,
	aside func(message) []byte,
) (m message, err error) {
	for {
		data, err := s.nextEvent()
		if err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return m, err
		}
		if len(data) == 0 {
			continue
		}
		m = message{}
		if err := json.Unmarshal(data, &m); err != nil {
			return m, fmt.Errorf("the server sent an event that is no message: %w", err)
		}
		if m.answers(r.id) {
			return m, nil
		}
		if reply := aside(m); reply != nil {
			if err := w.notify(ctx, r.version, reply); err != nil {
				return m, err
			}
		}
	}
}

// httpError returns the error of an HTTP response that is no answer.
func httpError(resp *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	return &statusError{resp.StatusCode, firstLine(body)}
}

// firstLine is the beginning of a body, for an error message.
func firstLine(body []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(body)), "\n")
	return displaytext.Cut(strings.ToValidUTF8(line, "?"), 200, "...")
}
