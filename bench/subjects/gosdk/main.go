// Command gosdk is the official Go SDK doing the same work: one handler for
// each era, because it has none for both.
package main

import (
	"context"
	"io"
	"net/http"

	"gatehouse/bench/subject"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	task := subject.Parse()
	s := mcp.NewServer(&mcp.Implementation{Name: "gosdk", Version: "1.8.0"}, nil)
	for _, name := range task.Names() {
		add(s, name)
	}
	there := false
	task.Run(subject.Server{
		HTTP: &http.Server{Handler: handler(s)},
		Lines: func(c io.ReadWriteCloser) error {
			return s.Run(context.Background(), &mcp.IOTransport{Reader: c, Writer: c})
		},
		Extra: map[string]func(string) error{"change": func(string) error {
			if there = !there; there {
				add(s, "echo_more")
			} else {
				s.RemoveTools("echo_more")
			}
			return nil
		}},
	})
}

func add(s *mcp.Server, name string) {
	mcp.AddTool(s, &mcp.Tool{Name: name, Description: subject.Description},
		func(_ context.Context, _ *mcp.CallToolRequest, in subject.Echo) (*mcp.CallToolResult, any, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: in.Text}}}, nil, nil
		})
}

// handler chooses the era of each request.
func handler(s *mcp.Server) http.Handler {
	get := func(*http.Request) *mcp.Server { return s }
	sessions := mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{JSONResponse: true})
	stateless := mcp.NewStreamableHTTPHandler(get, &mcp.StreamableHTTPOptions{JSONResponse: true, Stateless: true})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("MCP-Protocol-Version") >= "2026-07-28" {
			stateless.ServeHTTP(w, r)
			return
		}
		sessions.ServeHTTP(w, r)
	})
}
