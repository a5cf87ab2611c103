// Package client is an MCP client for every revision of the protocol: a Conn
// carries raw requests to one server over HTTP or newline-framed messages, and
// a Client lists and calls the tools of a server for the command line.
//
// It tries the newest revision first, whose requests stand alone, and falls
// back to the handshake of the older ones.
package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"gatehouse/internal/mcp/rawjson"
)

// Options describes the caller and receives what arrives before the answers.
type Options struct {
	Name, Version string
	Progress      func(done, total float64, note string) // nil drops them
	Roots         *x509.CertPool                         // authorities of servers with https; nil means the system's
	// the context on the server; "" leaves the choice to the server
	Context string
	Ask     Ask          // nil: there is no user to answer questions
	HTTP    *http.Client // sends requests over HTTP; nil means one that uses Roots
	Token   string       // for HTTP and TCP servers that require one; "" sends none
}

// Client is a connection of the command line to one server. It passes on questions to a
// person where there is one, and offers the server nothing else. It is not
// safe for concurrent use.
type Client struct {
	opts Options
	conn *Conn
}

// Server is the peer's description of itself, for display only.
type Server struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// ConnectError means that no server was reached, or that the peer does not use the protocol.
type ConnectError struct {
	To  string
	Err error
}

func (e *ConnectError) Error() string { return fmt.Sprintf("cannot connect to %s: %v", e.To, e.Err) }
func (e *ConnectError) Unwrap() error { return e.Err }

// Server returns the server's description of itself.
func (c *Client) Server() (s Server) {
	raw, ok := rawjson.Get(c.conn.Info(), "serverInfo")
	if !ok {
		meta, _ := rawjson.Get(c.conn.Info(), "_meta")
		raw, _ = rawjson.Get(meta, "io.modelcontextprotocol/serverInfo")
	}
	json.Unmarshal(raw, &s) // for display only
	return s
}

// Version returns the protocol revision in use.
func (c *Client) Version() string { return c.conn.Revision() }

// Close ends the connection, and the session if it has one.
func (c *Client) Close() error { return c.conn.Close() }

// DialUnix connects to a host's Unix socket.
func DialUnix(ctx context.Context, path string, o Options) (*Client, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, &ConnectError{path, err}
	}
	return Over(ctx, path, conn, o)
}

// DialTCP connects to a host's TCP listener, by a URL as the host prints it:
// tcp://127.0.0.1:9100.
func DialTCP(ctx context.Context, address string, o Options) (*Client, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "tcp" || u.Port() == "" || u.Path != "" {
		return nil, &ConnectError{address, errors.New("expected a URL such as tcp://127.0.0.1:9100")}
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return nil, &ConnectError{address, err}
	}
	return Over(ctx, address, conn, o)
}

// Over speaks newline-framed messages over a connection, which it closes. to
// names the other end in errors.
func Over(ctx context.Context, to string, conn net.Conn, o Options) (*Client, error) {
	return connectClient(ctx, to, NewSocket(conn, o.Token, o.conn()), o)
}

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
	h := HTTPOptions{Client: httpClient(o), Token: o.Token}
	return connectClient(ctx, u.String(), NewHTTP(u.String(), h, o.conn()), o)
}

// httpClient follows the environment as the default one does, and trusts the
// authorities of o.
func httpClient(o Options) *http.Client {
	if o.HTTP != nil {
		return o.HTTP
	}
	if o.Roots == nil {
		return &http.Client{}
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.TLSClientConfig = &tls.Config{RootCAs: o.Roots}
	return &http.Client{Transport: t}
}

// connectClient finds out which revision the server speaks. The error is a
// *ConnectError.
func connectClient(ctx context.Context, to string, conn *Conn, o Options) (*Client, error) {
	if err := conn.Connect(ctx, ""); err != nil {
		conn.Close()
		if no, ok := errors.AsType[*NoAnswerError](err); ok {
			err = no.Why
		}
		if _, refused := errors.AsType[*RPCError](err); refused && o.Context != "" {
			err = fmt.Errorf("context %q: %w", o.Context, err)
		}
		return nil, &ConnectError{to, err}
	}
	if o.Ask != nil {
		conn.followQuestions(ctx)
	}
	return &Client{o, conn}, nil
}

// followQuestions receives questions that the server asks outside of requests. It returns when
// they can arrive: when the stream for them is open, or the server has refused it.
func (c *Conn) followQuestions(ctx context.Context) {
	ready := make(chan struct{})
	isReady := sync.OnceFunc(func() { close(ready) })
	go func() { // it ends with the connection
		defer isReady()
		c.Follow(context.Background(), isReady)
	}()
	late := time.NewTimer(discoverTimeout)
	defer late.Stop()
	select {
	case <-ready:
	case <-late.C:
	case <-ctx.Done():
	}
}

// conn returns the options of the connection.
func (o Options) conn() ConnOptions {
	c := ConnOptions{Name: o.Name, Version: o.Version}
	if o.Context != "" {
		c.HandshakeMeta = rawjson.Splice(
			[]byte(`{}`),
			rawjson.Edit{Key: "gatehouse/context", Value: rawjson.AppendString(nil, o.Context)},
		)
	}
	if o.Ask != nil {
		c.Capabilities = json.RawMessage(`{"elicitation":{"form":{}}}`)
		var asking sync.Mutex
		c.Answer = func(_ context.Context, method string, params json.RawMessage) (json.RawMessage, *RPCError) {
			if method != "elicitation/create" {
				return nil, &RPCError{Code: -32601, Message: "this client answers only elicitation/create"}
			}
			asking.Lock() // a terminal shows one question at a time
			defer asking.Unlock()
			return o.answerQuestion(params), nil
		}
	}
	return c
}

// request sends one request and returns its result. name and headers go into headers
// over HTTP. A call of a tool is asked for the whole structured output, which the view of a
// Gatehouse may keep from models; other servers ignore that.
func (c *Client) request(
	ctx context.Context,
	method, name string,
	params map[string]any,
	headers map[string]string,
) (json.RawMessage, error) {
	if params == nil {
		params = map[string]any{}
	}
	r := Request{Method: method, Name: name, Headers: headers}
	if method == "tools/call" {
		params["_meta"] = map[string]string{"gatehouse/results": "structured"}
		if c.opts.Progress != nil {
			r.Progress = c.showProgress
		}
	}
	var err error
	if r.Params, err = json.Marshal(params); err != nil {
		return nil, err
	}
	raw, err := c.conn.Do(ctx, r)
	if no, ok := errors.AsType[*NoAnswerError](err); ok {
		return nil, no.Why
	}
	return raw, err
}

func (c *Client) showProgress(params json.RawMessage) {
	var p struct {
		Done  float64 `json:"progress"`
		Total float64 `json:"total"`
		Note  string  `json:"message"`
	}
	if json.Unmarshal(params, &p) == nil {
		c.opts.Progress(p.Done, p.Total, p.Note)
	}
}
