// Command mcpgo is mcp-go doing the same work.
package main

import (
	"context"
	"io"
	"net/http"

	"gatehouse/bench/subject"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

func main() {
	task := subject.Parse()
	s := server.NewMCPServer("mcpgo", "1.2.1", server.WithToolCapabilities(true))
	var all []server.ServerTool
	for _, name := range task.Names() {
		all = append(all, echo(name))
	}
	s.AddTools(all...)
	there := false
	task.Run(subject.Server{
		HTTP:  &http.Server{Handler: server.NewStreamableHTTPServer(s, server.WithStateful(true))},
		Lines: func(c io.ReadWriteCloser) error { return server.NewStdioServer(s).Listen(context.Background(), c, c) },
		Extra: map[string]func(string) error{"change": func(string) error {
			if there = !there; there {
				s.AddTools(echo("echo_more"))
			} else {
				s.DeleteTools("echo_more")
			}
			return nil
		}},
	})
}

func echo(name string) server.ServerTool {
	return server.ServerTool{
		Tool: mcp.NewTool(
			name,
			mcp.WithDescription(subject.Description),
			mcp.WithString("text", mcp.Required(), mcp.Description("what to say")),
		),
		Handler: mcp.NewTypedToolHandler(
			func(_ context.Context, _ mcp.CallToolRequest, in subject.Echo) (*mcp.CallToolResult, error) {
				return mcp.NewToolResultText(in.Text), nil
			},
		),
	}
}
