// Package acp relays an editor to an agent that both speak the Agent Client Protocol, and gives the
// agent one MCP server more.
//
// Every other message passes as it is, in both directions: permissions are asked of the editor's user, and files that
// are not saved are read through the editor.
package acp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"gatehouse/internal/exec/proc"
	"gatehouse/internal/exec/rpc"
)

const (
	maxMessage = 16 << 20
	grace      = 3 * time.Second // for an agent to end
)

// Server is an MCP server that an agent starts. Args and Env are not nil.
type Server struct {
	Name    string   `json:"name"`
	Command string   `json:"command"`
	Args    []string `json:"args"`
	Env     []string `json:"env"` // always empty, because agents give the server their own environment
}

// Options configures Relay. Agent, In and Out are required.
type Options struct {
	Agent []string // the command line
	In    io.ReadCloser
	Out   io.Writer
	Err   io.Writer // of the agent
	Env   []string
	// Server returns the server for a session in a folder; nil adds none.
	Server func(dir string) *Server
}

// Relay starts the agent and relays until the editor closes its output or the agent ends. It ends the agent and what
// that started.
func Relay(ctx context.Context, o Options) error {
	from, to := io.Pipe()
	agent, err := proc.Start(ctx, proc.Spec{
		Path: o.Agent[0], Args: o.Agent[1:], Env: o.Env, Input: true, Whole: true, Stdout: to, Stderr: o.Err,
	})
	if err != nil {
		return Refuse(o.In, o.Out, fmt.Errorf("the agent %s could not be started: %w", o.Agent[0], err))
	}
	ended := make(chan error, 1)
	go func() {
		state, err := agent.Wait()
		to.Close()
		if err == nil && state.Code != 0 {
			err = fmt.Errorf("the agent %s ended with code %d", o.Agent[0], state.Code)
		}
		ended <- err
	}()
	answers := make(chan error, 1)
	go func() {
		editor := rpc.Lines(from, func(_ context.Context, b []byte) error { _, err := o.Out.Write(b); return err },
			maxMessage, from.Close)
		answers <- copyMessages(ctx, editor, editor, nil)
	}()
	asks := make(chan error, 1)
	go func() {
		to := rpc.Lines(o.In, func(ctx context.Context, b []byte) error { _, err := agent.Type(ctx, b); return err },
			maxMessage, o.In.Close)
		asks <- copyMessages(ctx, to, to, func(b []byte) ([]byte, error) { return withServer(b, o.Server) })
	}()
	stop := func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		_ = agent.Stop(ctx) // it is killed then
		<-ended
	}
	select {
	case err = <-asks:
		stop()
	case <-ctx.Done():
		stop()
	case err = <-answers: // the agent has closed its output, usually because it has ended
		select {
		case own := <-ended:
			err = errors.Join(err, own)
		case <-time.After(grace):
			stop()
		}
	}
	from.Close()
	o.In.Close()
	return err
}

// Refuse answers the first request of an editor with the reason why there is no agent, because editors show that, and not
// the error output of a program that ends.
func Refuse(in io.ReadCloser, out io.Writer, why error) error {
	first, err := rpc.Lines(in, nil, maxMessage, in.Close).Read()
	if err != nil {
		return why
	}
	var request struct {
		ID json.RawMessage `json:"id"`
	}
	if json.Unmarshal(first, &request) != nil || request.ID == nil {
		return why
	}
	b, err := json.Marshal(map[string]any{
		"jsonrpc": "2.0", "id": request.ID, "error": rpc.Error{Code: rpc.CodeInternal, Message: why.Error()},
	})
	if err != nil {
		return why
	}
	if _, err := out.Write(append(b, '\n')); err != nil {
		return errors.Join(why, err)
	}
	return why
}

// copyMessages copies messages until their source ends, which is no error.
func copyMessages(ctx context.Context, from, to rpc.Stream, change func([]byte) ([]byte, error)) error {
	for {
		b, err := from.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && change != nil {
			b, err = change(b)
		}
		if err == nil {
			err = to.Write(ctx, b)
		}
		if err != nil {
			return err
		}
	}
}

// withServer adds the server to a message that begins or continues a session.
func withServer(b []byte, server func(dir string) *Server) ([]byte, error) {
	var m map[string]json.RawMessage
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("a message of the editor is not JSON-RPC: %w", err)
	}
	var method string
	json.Unmarshal(m["method"], &method) // a response has none
	switch method {
	case "session/new", "session/load", "session/resume", "session/fork":
	default:
		return b, nil
	}
	var params map[string]json.RawMessage
	var known struct {
		Dir     string            `json:"cwd"`
		Servers []json.RawMessage `json:"mcpServers"`
	}
	if json.Unmarshal(m["params"], &params) != nil || json.Unmarshal(m["params"], &known) != nil || server == nil {
		return b, nil // the agent answers what is wrong with it
	}
	s := server(known.Dir)
	if s == nil {
		return b, nil
	}
	for _, raw := range known.Servers {
		var has struct{ Name string }
		if json.Unmarshal(raw, &has) == nil && has.Name == s.Name {
			return b, nil
		}
	}
	own, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	if params["mcpServers"], err = json.Marshal(append(known.Servers, own)); err != nil {
		return nil, err
	}
	if m["params"], err = json.Marshal(params); err != nil {
		return nil, err
	}
	return json.Marshal(m)
}
