package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"gatehouse/internal/app"
	"gatehouse/internal/config"
)

// overHTTP measures the same through MCP: a whole host, and a client at its
// door.
func overHTTP(ctx context.Context, s *sheet, n int) error {
	home, err := os.MkdirTemp("", "sandbox-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(home)
	cfg, err := config.FromEnv(
		func(name string) string { return map[string]string{"HOME": home, "XDG_RUNTIME_DIR": home}[name] },
	)
	if err != nil {
		return err
	}
	cfg.View.Modules, cfg.Roots.Folders = []string{"sandbox"}, []string{home}
	cfg.Listen.HTTP.Open, cfg.Listen.HTTP.Port = true, 0
	a, err := app.New(ctx, cfg, app.Options{Private: true})
	if err != nil {
		return err
	}
	life, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- a.Run(life) }()
	err = clientRounds(ctx, s, n, a.Listeners()[0].Address)
	stop()
	return errors.Join(err, <-ended)
}

// client speaks the revision that needs no session.
type client struct {
	url string
	id  int
}

func (c *client) call(ctx context.Context, name string, args any) (map[string]any, error) {
	c.id++
	body, err := json.Marshal(map[string]any{
		"jsonrpc": "2.0", "id": c.id, "method": "tools/call",
		"params": map[string]any{"name": name, "arguments": args, "_meta": map[string]any{
			"io.modelcontextprotocol/protocolVersion":    "2026-07-28",
			"io.modelcontextprotocol/clientInfo":         map[string]string{"name": "bench", "version": "1"},
			"io.modelcontextprotocol/clientCapabilities": map[string]any{},
		}},
	})
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, "POST", c.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for k, v := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": name,
	} {
		r.Header.Set(k, v)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	var m struct {
		Result struct {
			IsError           bool
			StructuredContent map[string]any
		}
	}
	if at := bytes.IndexByte(b, '{'); at < 0 || json.Unmarshal(b[at:], &m) != nil || m.Result.IsError ||
		m.Result.StructuredContent == nil {
		return nil, fmt.Errorf("%s: %.300s", name, b)
	}
	return m.Result.StructuredContent, nil
}

func clientRounds(ctx context.Context, s *sheet, n int, url string) error {
	c := &client{url: url}
	for range n {
		if err := c.round(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

func (c *client) round(ctx context.Context, s *sheet) error {
	for { // until one waits
		st, err := c.call(ctx, "sandbox_stats", map[string]any{})
		if err != nil {
			return err
		}
		pool, _ := st["pool"].(map[string]any)
		if n, _ := pool["waiting"].(float64); n >= 3 {
			break
		}
		if pool == nil {
			if _, err := c.call(ctx, "list_sandboxes", map[string]any{}); err != nil {
				return err
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
	var id any
	began := time.Now()
	if err := s.row("claim over MCP by HTTP", "p95 3").timed(func() error {
		made, err := c.call(ctx, "create_sandbox", map[string]any{})
		id = made["sandbox_id"]
		return err
	}); err != nil {
		return err
	}
	code := func() error {
		r, err := c.call(ctx, "execute_code", map[string]any{"sandbox_id": id, "language": "python", "code": script})
		if err == nil && r["stdout"] != "42\n" {
			err = fmt.Errorf("%v", r)
		}
		return err
	}
	if err := code(); err != nil {
		return err
	}
	whole := s.row("claim and first Python over MCP by HTTP", "p95 8")
	whole.took = append(whole.took, time.Since(began))
	k, err := c.call(ctx, "sandbox_context", map[string]any{"sandbox_id": id, "action": "create", "language": "python"})
	if err != nil {
		return err
	}
	piece := func() error {
		_, err := c.call(
			ctx,
			"execute_code",
			map[string]any{"sandbox_id": id, "language": "python", "code": script, "context_id": k["context_id"]},
		)
		return err
	}
	err = s.row("Python in a context over MCP by HTTP, the first", "").timed(piece)
	for range 20 {
		err = errors.Join(err, s.row("Python in a context over MCP by HTTP", "1").timed(piece))
	}
	if err != nil {
		return err
	}
	_, err = c.call(ctx, "destroy_sandbox", map[string]any{"sandbox_id": id})
	return err
}
