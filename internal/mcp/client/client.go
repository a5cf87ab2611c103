// Package client is the command line's own small MCP client: it lists the
// tools of one server and calls them, over HTTP or a newline-framed
// connection.
//
// It tries the newest revision first, whose requests stand alone, and falls
// back to the handshake of the older ones. It passes on questions to a person
// where there is one, and offers the server nothing else. One request is open at a
// time; a Client is not safe for concurrent use.
package client

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	modern       = "2026-07-28" // requests stand alone
	latestLegacy = "2025-11-25" // the newest one that begins with a handshake

	// discoverTimeout is how long a server that may not know the first question
	// gets to say so. A server of the older kind may stay silent.
	discoverTimeout = 5 * time.Second

	// answerLimit bounds one message of a server, in bytes.
	answerLimit = 64 << 20
)

// legacyRevisions are the older revisions this client can speak.
var legacyRevisions = []string{latestLegacy, "2025-06-18", "2025-03-26", "2024-11-05"}

// Options describe the caller and receive what arrives beside the answers.
type Options struct {
	Name, Version string
	Progress      func(done, total float64, note string) // nil drops them
	Roots         *x509.CertPool                         // authorities of servers with https; nil means the system's
	Context       string                                 // which of the server's contexts; "" leaves that to the server
	Ask           Ask                                    // nil: there is no person to answer questions
	Token         string                                 // for HTTP and TCP servers that require one; "" sends none
}

// Client is a connection to one server.
type Client struct {
	opts    Options
	wire    wire
	version string // the revision in use
	server  Server
	next    int64
}

// Server is the peer's description of itself, for display only.
type Server struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// ConnectError means that no server was reached, or that the peer does not speak the
// protocol.
type ConnectError struct {
	To  string
	Err error
}

func (e *ConnectError) Error() string { return fmt.Sprintf("cannot connect to %s: %v", e.To, e.Err) }
func (e *ConnectError) Unwrap() error { return e.Err }

// RPCError is a server's error response.
type RPCError struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

func (e *RPCError) Error() string { return fmt.Sprintf("%s (%d)", e.Message, e.Code) }

// Server returns the server's description of itself.
func (c *Client) Server() Server { return c.server }

// Version is the protocol revision in use.
func (c *Client) Version() string { return c.version }

// Close ends the connection, and the session if there is one.
func (c *Client) Close() error { return c.wire.closeWire() }

// connectWire finds out which revision the server speaks. The error is a
// *ConnectError.
func connectWire(ctx context.Context, to string, w wire, o Options) (*Client, error) {
	c := &Client{opts: o, wire: w}
	known, err := c.discover(ctx)
	if err == nil && !known {
		err = c.handshake(ctx)
	}
	if err != nil {
		w.closeWire()
		if _, refused := errors.AsType[*RPCError](err); refused && o.Context != "" {
			err = fmt.Errorf("context %q: %w", o.Context, err)
		}
		return nil, &ConnectError{to, err}
	}
	return c, nil
}

// discover asks in the newest revision and reports whether it was understood.
// Any refusal but one of access means that the server is of the older kind.
func (c *Client) discover(ctx context.Context) (known bool, err error) {
	c.version = modern
	soon, cancel := context.WithTimeout(ctx, discoverTimeout)
	defer cancel()
	raw, err := c.request(soon, "server/discover", "", nil, nil)
	var status *statusError
	switch {
	case errors.As(err, &status) && (status.code == 401 || status.code == 403):
		return false, err
	case err != nil && ctx.Err() != nil:
		return false, context.Cause(ctx)
	case err != nil && !c.wire.alive(err):
		return false, err
	case err != nil:
		return false, nil
	}
	var r struct {
		Supported []string `json:"supportedVersions"`
		Meta      struct {
			Server Server `json:"io.modelcontextprotocol/serverInfo"`
		} `json:"_meta"`
	}
	if json.Unmarshal(raw, &r) != nil || !slices.Contains(r.Supported, modern) {
		return false, nil
	}
	c.server = r.Meta.Server
	return true, nil
}

// handshake opens a session of the older kind.
func (c *Client) handshake(ctx context.Context) error {
	c.version = latestLegacy
	params := map[string]any{
		"protocolVersion": latestLegacy,
		"capabilities":    c.capabilities(),
		"clientInfo":      map[string]string{"name": c.opts.Name, "version": c.opts.Version},
	}
	raw, err := c.request(ctx, "initialize", "", params, nil)
	if err != nil {
		return err
	}
	var r struct {
		Version string `json:"protocolVersion"`
		Server  Server `json:"serverInfo"`
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return fmt.Errorf("the answer to initialize is not understood: %w", err)
	}
	if !slices.Contains(legacyRevisions, r.Version) {
		return fmt.Errorf("the server speaks protocol %q, which this client does not", r.Version)
	}
	c.version, c.server = r.Version, r.Server
	return c.wire.notify(ctx, c.version, []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`))
}

// request sends one request and returns its result. name goes into a header
// where there are any, as do extra.
func (c *Client) request(
	ctx context.Context,
	method, name string,
	params map[string]any,
	extra map[string]string,
) (json.RawMessage, error) {
	c.next++
	if params == nil {
		params = map[string]any{}
	}
	c.addMetadata(method, params)
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": c.next, "method": method, "params": params})
	if err != nil {
		return nil, err
	}
	m, err := c.wire.exchange(ctx, request{c.next, method, name, c.version, body, extra}, c.handleServerMessage)
	if err != nil {
		return nil, err
	}
	if m.Error != nil {
		return nil, m.Error
	}
	if m.Result == nil {
		return nil, errors.New("the server's answer has neither a result nor an error")
	}
	return m.Result, nil
}

// addMetadata puts into _meta what the newest revision wants with every request, our
// credentials where no header carries them, and the token by which progress is
// reported. Of a tool of ours it asks for the whole structured output, which
// the view may keep from models.
func (c *Client) addMetadata(method string, params map[string]any) {
	meta := map[string]any{}
	if c.version == modern {
		meta["io.modelcontextprotocol/protocolVersion"] = modern
		meta["io.modelcontextprotocol/clientCapabilities"] = c.capabilities()
		meta["io.modelcontextprotocol/clientInfo"] = map[string]string{"name": c.opts.Name, "version": c.opts.Version}
	}
	if c.opts.Token != "" && c.wire.headerless() {
		meta["gatehouse/token"] = c.opts.Token
	}
	if c.opts.Context != "" && (c.version == modern || method == "initialize") {
		meta["gatehouse/context"] = c.opts.Context
	}
	if method == "tools/call" {
		meta["gatehouse/results"] = "structured" // whole, as programs want it; other servers ignore it
		if c.opts.Progress != nil {
			meta["progressToken"] = c.next
		}
	}
	if len(meta) > 0 {
		params["_meta"] = meta
	}
}

// handleServerMessage handles a message that the server sends before its answer. It
// returns the reply to a request; nil for none.
func (c *Client) handleServerMessage(m message) (reply []byte) {
	switch {
	case m.Method == "notifications/progress" && c.opts.Progress != nil:
		var p struct {
			Done  float64 `json:"progress"`
			Total float64 `json:"total"`
			Note  string  `json:"message"`
		}
		if json.Unmarshal(m.Params, &p) == nil {
			c.opts.Progress(p.Done, p.Total, p.Note)
		}
	case m.Method == "ping" && m.ID != nil:
		return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID)
	case m.Method == "elicitation/create" && m.ID != nil && c.opts.Ask != nil:
		return fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, c.answer(m.Params))
	case m.Method != "" && m.ID != nil:
		return fmt.Appendf(
			nil,
			`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"this client answers no questions"}}`,
			m.ID,
		)
	}
	return nil
}
