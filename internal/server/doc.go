// Package server groups what accepts connections: httpserver (Streamable HTTP, with h1 for plain
// requests), stdio, socket (TCP and Unix sockets) and daemon (running in the background, and the link
// to thin clients).
//
// App and cli import them; they import mcp and access, never dispatch or a module. Begin with
// httpserver.
package server
