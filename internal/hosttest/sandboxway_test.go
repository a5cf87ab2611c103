package hosttest_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"gatehouse/internal/config"
)

// fromInside asks the host that a sandbox is on for its tools, by each way out of
// the sandbox, and prints what came.
const fromInside = `
import json, os, socket
host, port, path = %q, %s, %q
body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": {
  "io.modelcontextprotocol/protocolVersion": "2026-07-28",
  "io.modelcontextprotocol/clientInfo": {"name": "x", "version": "1"}, "io.modelcontextprotocol/clientCapabilities": {}}}}).encode()
head = "Host: %%s:%%d\r\nConnection: close\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nContent-Length: %%d\r\n\r\n" %% (host, port, len(body))
proxy = os.environ["HTTP_PROXY"].split("//")[1].split(":")
tunnel = "CONNECT %%s:%%d HTTP/1.1\r\nHost: %%s:%%d\r\n\r\n" %% (host, port, host, port)
for way, first, line in (("request", "", "POST http://%%s:%%d%%s HTTP/1.1\r\n" %% (host, port, path)),
                         ("tunnel", tunnel, "POST %%s HTTP/1.1\r\n" %% path), ("tunnel and blank", tunnel, " POST %%s HTTP/1.1\r\n" %% path)):
    got = b""
    try:
        s = socket.create_connection((proxy[0], int(proxy[1])), 20)
        if first:
            s.sendall(first.encode())
            got += s.recv(4096)
        s.sendall((line + head).encode() + body)
        while True:
            b = s.recv(4096)
            if not b: break
            got += b
    except OSError: pass
    print(way, got.decode()[:300])
`

// On an open host, whose HTTP listener serves every program of this machine, a
// caller gives a sandbox the listener as its network, and code in it asks for the
// host's tools.
//
//redteam:attack A sandbox has no network until it is given one: code in a sandbox calls the tools of its own host, as any program of this machine may
func TestASandboxDoesNotCallItsHost(t *testing.T) {
	needSandboxes(t)
	for name, special := range map[string][]string{"closed": nil, "opened by the settings": {"127.0.0.0/8:*"}} {
		t.Run(name, func(t *testing.T) {
			h := sandboxHost(t, func(c *config.Config) {
				c.Auth.Required = false
				c.Modules.Sandbox.Network, c.Modules.Sandbox.NetworkSpecial = true, special
			})
			u, err := url.Parse(h.url)
			if err != nil {
				t.Fatal(err)
			}
			c := h.enter("ann", "")
			id := c.call("sandbox_create").id("sandbox_id")
			if set := c.call("sandbox_network", "sandbox_id", id, "action", "set", "allow", []string{u.Host, "localhost:" + u.Port()}); set.IsError {
				t.Fatalf("%+v", set)
			}
			for _, host := range []string{"127.0.0.1", "localhost"} {
				code := fmt.Sprintf(fromInside, host, u.Port(), u.Path)
				got := c.call("sandbox_run", "sandbox_id", id, "language", "python", "code", code)
				text := ""
				for _, part := range got.Content {
					text += part.Text
				}
				if strings.Contains(text, "tools\"") || strings.Count(text, "HTTP/1.1 403") != 3 {
					t.Errorf("by %s:\n%s", host, text)
				}
			}
			// What came into being after the rules counts as well.
			shown := c.call("sandbox_expose", "sandbox_id", id, "port", 80)
			address := shown.id("address")
			if !strings.HasPrefix(address, "127.") {
				t.Fatalf("%+v", shown)
			}
			c.call("sandbox_network", "sandbox_id", id, "action", "set", "allow", []string{address})
			host, port, _ := strings.Cut(address, ":")
			got := c.call("sandbox_run", "sandbox_id", id, "language", "python", "code", fmt.Sprintf(fromInside, host, port, "/"))
			if text := got.text(); strings.Count(text, "HTTP/1.1 403") != 3 {
				t.Errorf("an exposed port: %s", text)
			}
		})
	}
}
