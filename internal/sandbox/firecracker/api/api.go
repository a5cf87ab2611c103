// Package api is a client of the interface by which one Firecracker process is
// told what machine to run: HTTP over a Unix socket.
//
// It knows what can be said and what the answers mean. In which order things
// have to be said is for whoever runs the machine, and the process enforces it:
// what it refuses is a Fault.
package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

const (
	// Answering is how long one request may take whose ctx allows longer.
	Answering = 10 * time.Second
	// Copying is how long one may take that reads or writes all memory of a
	// machine.
	Copying = 3 * time.Minute

	largestAnswer = 1 << 20 // bytes
	longestFault  = 1000    // bytes of what is told of a refusal
)

// Client speaks to one process. It is safe for concurrent use; its requests take
// turns, as the process would make them anyway. Whoever makes it calls Close.
type Client struct{ http *http.Client }

// New makes a client that reaches the process by dial.
func New(dial func(context.Context) (net.Conn, error)) *Client {
	return &Client{http: &http.Client{
		Transport: &http.Transport{
			DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
			DisableCompression:     true,
			MaxConnsPerHost:        1,
			MaxResponseHeaderBytes: 16 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("the VMM answered with a redirection") },
	}}
}

// Close lets go of the connection.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// A Fault is a refusal: the process understood, and says no.
type Fault struct {
	Method, Path string
	Status       int    // of HTTP
	Message      string // what the process said
}

func (f *Fault) Error() string {
	return fmt.Sprintf("firecracker refused %s %s: %s", f.Method, f.Path, f.Message)
}

// put and patch say something; get asks. The answer to what is said is empty.
func (c *Client) put(ctx context.Context, path string, says any) error {
	return c.do(ctx, Answering, http.MethodPut, path, says, nil)
}

func (c *Client) patch(ctx context.Context, path string, says any) error {
	return c.do(ctx, Answering, http.MethodPatch, path, says, nil)
}

func (c *Client) get(ctx context.Context, path string, into any) error {
	return c.do(ctx, Answering, http.MethodGet, path, nil, into)
}

func (c *Client) do(ctx context.Context, within time.Duration, method, path string, says, into any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("no answer in %v", within))
	defer cancel()
	answer, err := c.exchange(ctx, method, path, says)
	if err != nil {
		return err
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(answer, into); err != nil {
		return fmt.Errorf("firecracker answered %s %s with something else than was asked for: %w", method, path, err)
	}
	return nil
}

// exchange sends a request and gives the answer's body.
func (c *Client) exchange(ctx context.Context, method, path string, says any) ([]byte, error) {
	var body io.Reader
	if says != nil {
		b, err := json.Marshal(says)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	if says != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, unreachable(ctx, method, path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, largestAnswer+1))
	switch {
	case err != nil:
		return nil, unreachable(ctx, method, path, err)
	case len(b) > largestAnswer:
		return nil, fmt.Errorf("firecracker answered %s %s with more than %d bytes", method, path, largestAnswer)
	case resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusNoContent:
		return nil, &Fault{Method: method, Path: path, Status: resp.StatusCode, Message: message(resp.Status, b)}
	}
	return b, nil
}

// unreachable tells of a request that got no answer. The reason of ctx says more
// than that it ended.
func unreachable(ctx context.Context, method, path string, err error) error {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return fmt.Errorf("firecracker did not answer %s %s: %w", method, path, err)
}

// message is what a refusal says, in one line.
func message(status string, body []byte) string {
	var fault struct {
		Message string `json:"fault_message"`
	}
	if err := json.Unmarshal(body, &fault); err != nil || fault.Message == "" {
		fault.Message = string(body)
	}
	text := strings.Join(strings.FieldsFunc(strings.ToValidUTF8(fault.Message, "?"), func(r rune) bool { return r <= ' ' || r == 0x7f }), " ")
	if text == "" {
		return status
	}
	return strings.ToValidUTF8(text[:min(len(text), longestFault)], "")
}
