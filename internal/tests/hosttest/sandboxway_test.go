package hosttest_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"testing"
	"time"

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
			if set := c.call("sandbox_network", "sandbox_id", id, "action", "set", "allow",
				[]string{u.Host, "localhost:" + u.Port()}); set.IsError {
				t.Fatalf("%+v", set)
			}
			for _, host := range []string{"127.0.0.1", "localhost"} {
				code := fmt.Sprintf(fromInside, host, u.Port(), u.Path)
				got := c.call("sandbox_run", "sandbox_id", id, "language", "python", "code", code)
				var text strings.Builder
				for _, part := range got.Content {
					text.WriteString(part.Text)
				}
				if strings.Contains(text.String(), "tools\"") || strings.Count(text.String(), "HTTP/1.1 403") != 3 {
					t.Errorf("by %s:\n%s", host, text.String())
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
			got := c.call(
				"sandbox_run",
				"sandbox_id",
				id,
				"language",
				"python",
				"code",
				fmt.Sprintf(fromInside, host, port, "/"),
			)
			if text := got.text(); strings.Count(text, "HTTP/1.1 403") != 3 {
				t.Errorf("an exposed port: %s", text)
			}
		})
	}
}

// echoes is a server in a sandbox that answers with the head it was sent.
const echoes = `
import socket
s = socket.create_server(("127.0.0.1", 8000))
while True:
    c, _ = s.accept()
    head = c.recv(65536).split(b"\r\n\r\n")[0]
    c.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/plain\r\n\r\n" + head)
    c.close()
`

// A logged-in user opens what a sandbox serves: a browser sends the
// sandbox no cookie of the host, and a page of the sandbox may not call the host.
//
//redteam:attack Origin and Host: a server in a sandbox waits for the login cookie, and its page calls the host
func TestAnExposedPortGetsNoLogin(t *testing.T) {
	needSandboxes(t)
	h := sandboxHost(t, nil)
	c := h.enter("ann", "")
	id := c.call("sandbox_create").id("sandbox_id")
	c.call("sandbox_write", "sandbox_id", id, "path", "echoes.py", "content", echoes)
	if started := c.call("sandbox_start", "sandbox_id", id, "command", "python3 echoes.py"); started.IsError {
		t.Fatalf("%+v", started)
	}
	address := c.call("sandbox_expose", "sandbox_id", id, "port", 8000).id("address")
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Jar: jar, Timeout: time.Minute}
	at, err := url.Parse(h.url)
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{at.Host, "localhost:" + at.Port()} {
		r, err := browser.Post(
			"http://"+host+"/auth/login",
			"application/json",
			strings.NewReader(`{"user":"ann","password":"a long enough password"}`),
		)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode != 200 {
			t.Fatalf("login at %s: %s", host, r.Status)
		}
	}
	var head []byte
	for end := time.Now().Add(time.Minute); len(head) == 0 &&
		time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		r, err := browser.Get("http://" + address + "/")
		if err != nil {
			continue // the server in the sandbox may not have begun
		}
		head, _ = io.ReadAll(r.Body)
		r.Body.Close()
	}
	if text := string(head); !strings.HasPrefix(text, "GET /") || strings.Contains(strings.ToLower(text), "cookie") {
		t.Errorf("the sandbox was sent\n%s", text)
	}
	for _, path := range []string{"/mcp", "/sse", "/auth/login", "/auth/logout", "/health", "/"} {
		for _, method := range []string{"GET", "POST", "OPTIONS", "DELETE"} {
			r, err := http.NewRequestWithContext(t.Context(), method, "http://"+at.Host+path, strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Origin", "http://"+address)
			r.Header.Set("Content-Type", "application/json")
			resp, err := browser.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != 403 || resp.Header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("a page of the sandbox: %s %s: %s", method, path, resp.Status)
			}
		}
	}
}
