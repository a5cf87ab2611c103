package backend

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"gatehouse/internal/access/secret"
)

// transport serves all servers. Redirects are not followed, since they would pass the key on.
var transport = &http.Transport{
	Proxy:                  http.ProxyFromEnvironment,
	MaxIdleConnsPerHost:    512,
	IdleConnTimeout:        90 * time.Second,
	TLSHandshakeTimeout:    10 * time.Second,
	MaxResponseHeaderBytes: 64 << 10,
}

// CloseIdle closes the connections to servers that are not in use.
func CloseIdle() { transport.CloseIdleConnections() }

// address is where a server is and how it is asked.
type address struct {
	url  string // without a slash at the end
	key  func() (secret.Text, error)
	idle time.Duration // without a byte
}

var errSilent = errors.New("the server sent nothing for too long")

// do sends a request and calls line with each line of the response until it returns false. The last line need not end
// with a newline; eof reports whether the response ended by itself.
func (a *address) do(
	ctx context.Context, method, path string, body any, line func(kind string, b []byte) (more bool, err error),
) (eof bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	idle := time.AfterFunc(a.idle, func() { cancel(errSilent) })
	defer idle.Stop()
	res, err := a.send(ctx, method, path, body)
	if err != nil {
		return false, a.failed(ctx, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return false, refusalOf(res)
	}
	kind, _, _ := strings.Cut(res.Header.Get("Content-Type"), ";")
	limited := &io.LimitedReader{R: &heard{res.Body, idle, a.idle}, N: maxStream}
	lines := bufio.NewScanner(limited)
	lines.Buffer(make([]byte, 0, 4<<10), maxLine)
	if kind == "application/json" { // the whole response is one value
		lines.Split(func(data []byte, end bool) (int, []byte, error) {
			if end && len(data) > 0 {
				return len(data), data, nil
			}
			return 0, nil, nil
		})
	}
	for lines.Scan() {
		if more, err := line(kind, lines.Bytes()); err != nil || !more {
			return false, err
		}
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return false, &Failure{
			Reason: fmt.Sprintf("a line of the response has more than %d bytes", maxLine),
			Again:  true,
		}
	case limited.N <= 0:
		return false, &Failure{Reason: fmt.Sprintf("the response has more than %d bytes", maxStream), Again: true}
	case err != nil:
		return false, a.failed(ctx, err)
	}
	return true, nil
}

// heard is a body whose every byte puts off the end of the wait for it.
type heard struct {
	body io.Reader
	idle *time.Timer
	wait time.Duration
}

func (h *heard) Read(b []byte) (int, error) {
	n, err := h.body.Read(b)
	if n > 0 {
		h.idle.Reset(h.wait)
	}
	return n, err
}

func (a *address) send(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		r = bytes.NewReader(b)
	}
	q, err := http.NewRequestWithContext(ctx, method, a.url+path, r)
	if err != nil {
		return nil, err
	}
	if body != nil {
		q.Header.Set("Content-Type", "application/json")
	}
	if a.key != nil {
		key, err := a.key()
		if err != nil {
			return nil, &Failure{Reason: "its key cannot be read: " + err.Error()}
		}
		if k := key.Reveal(); k != "" {
			q.Header.Set("Authorization", "Bearer "+k)
		}
	}
	return transport.RoundTrip(q)
}

// failed makes a Failure of an error of the connection, and returns that of ctx if its caller ended it.
func (a *address) failed(ctx context.Context, err error) error {
	if f, ok := errors.AsType[*Failure](err); ok {
		return f
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errSilent):
		return &Failure{Reason: fmt.Sprintf("%v (%v)", cause, a.idle), Again: true}
	case cause != nil:
		return cause
	}
	return &Failure{Reason: err.Error(), Again: true}
}

// refusalOf makes a Failure of a response that is not 200.
func refusalOf(res *http.Response) *Failure {
	head, _ := io.ReadAll(io.LimitReader(res.Body, 4<<10))
	f := &Failure{
		Reason: fmt.Sprintf("status %d: %s", res.StatusCode, errorOf(head)), Status: res.StatusCode,
		Again: res.StatusCode >= 500 || res.StatusCode == http.StatusTooManyRequests ||
			res.StatusCode == http.StatusRequestTimeout,
		Request: res.StatusCode == http.StatusBadRequest || res.StatusCode == http.StatusUnprocessableEntity ||
			res.StatusCode == http.StatusRequestEntityTooLarge,
	}
	if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && s > 0 {
		f.After = min(time.Duration(s)*time.Second, longestRest)
	}
	return f
}

// errorOf returns the message of an error in the forms of OpenAI and Ollama, or the beginning of any other text.
func errorOf(body []byte) string {
	var wrapped struct{ Error json.RawMessage }
	text := strings.TrimSpace(string(body))
	if json.Unmarshal(body, &wrapped) == nil && len(wrapped.Error) > 0 {
		var object struct{ Message string }
		var plain string
		switch {
		case json.Unmarshal(wrapped.Error, &object) == nil && object.Message != "":
			text = object.Message
		case json.Unmarshal(wrapped.Error, &plain) == nil:
			text = plain
		}
	}
	if text = strings.ToValidUTF8(text, "?"); text == "" {
		return "without a reason"
	}
	if len(text) > 300 {
		text = strings.ToValidUTF8(text[:300], "") + "..."
	}
	return strings.Join(strings.Fields(text), " ")
}

// get reads one JSON value.
func (a *address) get(ctx context.Context, path string, into any) error {
	var all []byte
	eof, err := a.do(ctx, http.MethodGet, path, nil, func(_ string, b []byte) (bool, error) {
		all = append(all, b...)
		return true, nil
	})
	if err != nil {
		return err
	}
	if err := json.Unmarshal(all, into); err != nil || !eof {
		return &Failure{Reason: "the response is not JSON", Again: true}
	}
	return nil
}
