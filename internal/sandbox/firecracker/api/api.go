// Package api is a client of the API that configures one Firecracker process: HTTP over a Unix socket.
//
// It defines the requests and decodes the answers. The order of requests is up to the caller; the process
// enforces it, and a refused request is a Fault.
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
	// AnswerWait bounds a request whose ctx allows longer.
	AnswerWait = 10 * time.Second
	// CopyWait bounds a request that reads or writes all memory of a machine.
	CopyWait = 3 * time.Minute

	largestAnswer = 1 << 20 // bytes
	longestFault  = 1000    // bytes of a refusal's message
)

// Client calls one process. It is safe for concurrent use; it sends one request at a time, because the process
// handles one at a time. The caller must call Close.
type Client struct{ http *http.Client }

// New returns a client that connects to the process by dial.
func New(dial func(context.Context) (net.Conn, error)) *Client {
	return &Client{http: &http.Client{
		Transport: &http.Transport{
			DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
			DisableCompression:     true,
			MaxConnsPerHost:        1,
			MaxResponseHeaderBytes: 16 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return errors.New("firecracker answered with a redirection")
		},
	}}
}

// Close closes the connection.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// A Fault is the refusal of a request by the process.
type Fault struct {
	Method, Path string
	Status       int    // HTTP status
	Message      string // from the answer
}

func (f *Fault) Error() string {
	return fmt.Sprintf("firecracker refused %s %s: %s", f.Method, f.Path, f.Message)
}

// putJSON and patch send a request whose answer is empty; get decodes the answer.
func (c *Client) putJSON(ctx context.Context, path string, says any) error {
	return c.do(ctx, AnswerWait, http.MethodPut, path, says, nil)
}

func (c *Client) patch(ctx context.Context, path string, says any) error {
	return c.do(ctx, AnswerWait, http.MethodPatch, path, says, nil)
}

func (c *Client) getJSON(ctx context.Context, path string, into any) error {
	return c.do(ctx, AnswerWait, http.MethodGet, path, nil, into)
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
		return fmt.Errorf("firecracker sent an unexpected answer to %s %s: %w", method, path, err)
	}
	return nil
}

// exchange sends a request and returns the body of the answer.
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
		return nil, noAnswer(ctx, method, path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, largestAnswer+1))
	switch {
	case err != nil:
		return nil, noAnswer(ctx, method, path, err)
	case len(b) > largestAnswer:
		return nil, fmt.Errorf("firecracker answered %s %s with more than %d bytes", method, path, largestAnswer)
	case resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusNoContent:
		return nil, &Fault{Method: method, Path: path, Status: resp.StatusCode, Message: message(resp.Status, b)}
	}
	return b, nil
}

// noAnswer returns the error of a request without an answer. It prefers the cause of ctx, which says more.
func noAnswer(ctx context.Context, method, path string, err error) error {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return fmt.Errorf("firecracker did not answer %s %s: %w", method, path, err)
}

// message returns the message of a refusal in one line.
func message(status string, body []byte) string {
	var fault struct {
		Message string `json:"fault_message"`
	}
	if err := json.Unmarshal(body, &fault); err != nil || fault.Message == "" {
		fault.Message = string(body)
	}
	text := strings.Join(strings.FieldsFunc(strings.ToValidUTF8(fault.Message, "?"), func(r rune) bool {
		return r <= ' ' || r == 0x7f
	}), " ")
	if text == "" {
		return status
	}
	return strings.ToValidUTF8(text[:min(len(text), longestFault)], "")
}
