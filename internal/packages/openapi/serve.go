package openapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"
)

const (
	maxLine  = 16 << 20 // bytes of one message
	maxCalls = 256      // that run at once
)

type message struct {
	ID     json.RawMessage `json:"id,omitempty"`
	Method string          `json:"method"`
	Params struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
		Version   string          `json:"protocolVersion"`
		Request   json.RawMessage `json:"requestId"`
	} `json:"params"`
}

// Serve serves the tools as an MCP server over lines, until the connection or ctx ends. It closes the connection, and
// returns when its calls have ended.
func (a *API) Serve(ctx context.Context, conn io.ReadWriteCloser) error {
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	s := &server{api: a, conn: conn, running: map[string]context.CancelFunc{}}
	lines := bufio.NewScanner(conn)
	lines.Buffer(make([]byte, 64<<10), maxLine)
	slots := make(chan struct{}, maxCalls)
	for lines.Scan() {
		var m message
		if json.Unmarshal(lines.Bytes(), &m) != nil {
			continue
		}
		switch {
		case m.Method == "notifications/cancelled":
			s.cancel(string(m.Params.Request))
		case m.ID == nil:
		case m.Method == "tools/call":
			slots <- struct{}{}
			call := s.begin(ctx, string(m.ID))
			work.Go(func() {
				defer func() { <-slots }()
				defer s.cancel(string(m.ID))
				s.callOperation(call, &m)
			})
		default:
			s.handleMessage(&m)
		}
	}
	conn.Close()
	return lines.Err()
}

// server is one connection that Serve serves.
type server struct {
	api *API

	// writing guards conn, so that messages are not mixed. It is not held together with mu.
	writing sync.Mutex
	conn    io.Writer

	// mu guards running.
	mu      sync.Mutex
	running map[string]context.CancelFunc // by the id of the request
}

func (s *server) begin(ctx context.Context, id string) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[id] = cancel
	return ctx
}

func (s *server) cancel(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel := s.running[id]; cancel != nil {
		cancel()
		delete(s.running, id)
	}
}

func (s *server) send(id json.RawMessage, member string, value any) {
	b, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, member: value})
	if err != nil {
		b, _ = json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "error": rpcError{-32603, err.Error()}})
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	s.conn.Write(append(b, '\n')) // a connection that has ended ends Serve
}

type rpcError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

type toolOut struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Input       json.RawMessage `json:"inputSchema"`
	Annotations map[string]bool `json:"annotations"`
}

// revision is what the server speaks.
const revision = "2025-11-25"

// handleMessage answers every request except calls.
func (s *server) handleMessage(m *message) {
	switch m.Method {
	case "initialize":
		s.send(m.ID, "result", map[string]any{
			"protocolVersion": revision, "capabilities": map[string]any{"tools": map[string]any{}},
			"serverInfo": map[string]string{"name": s.api.Title, "version": s.api.Version},
		})
	case "ping":
		s.send(m.ID, "result", struct{}{})
	case "tools/list":
		tools := []toolOut{}
		for _, t := range s.api.Tools {
			tools = append(tools, toolOut{t.Name, t.Description, t.Input, map[string]bool{
				"readOnlyHint": t.ReadOnly, "idempotentHint": t.Idempotent, "destructiveHint": t.Destructive,
				"openWorldHint": true,
			}})
		}
		s.send(m.ID, "result", map[string]any{"tools": tools})
	default:
		s.send(m.ID, "error", rpcError{-32601, "there is no method " + m.Method})
	}
}

type textBlock struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// callOperation runs a call.
func (s *server) callOperation(ctx context.Context, m *message) {
	r, err := s.api.Call(ctx, m.Params.Name, m.Params.Arguments)
	if wrong, ok := errors.AsType[*errArguments](err); ok {
		err = errors.New("invalid_arguments: " + wrong.Error() + "; nothing was sent")
	}
	if err != nil {
		s.send(m.ID, "result", map[string]any{"content": []textBlock{{"text", err.Error()}}, "isError": true})
		return
	}
	text, err := json.Marshal(r)
	if err != nil {
		s.send(m.ID, "error", rpcError{-32603, err.Error()})
		return
	}
	out := map[string]any{"content": []textBlock{{"text", string(text)}}, "structuredContent": json.RawMessage(text)}
	if r.Status >= 400 {
		out["isError"] = true
	}
	s.send(m.ID, "result", out)
}
