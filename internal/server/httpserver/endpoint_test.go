package httpserver

import (
	"io"
	nethttp "net/http"
	"net/url"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"gatehouse/internal/access/permit"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/tool"
)

const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`

// The cases are the tests of design E.
func TestDesignE(t *testing.T) {
	h := newTestHost(t, Options{}, hosttest.Options{})
	plain := []string{"Accept", "application/json", "Content-Type", ""}
	t.Run("initialize creates session", func(t *testing.T) {
		r := h.do("POST", "/mcp", initialize, plain...)
		if r.status != 200 || r.header.Get("mcp-session-id") == "" {
			t.Errorf("got %d %v %s, want 200 and a session", r.status, r.header, r.body)
		}
	})
	t.Run("request without session fails", func(t *testing.T) {
		r := h.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}`, plain...)
		if r.status != 400 {
			t.Errorf("got %d %s, want 400", r.status, r.body)
		}
	})
	t.Run("origin validation blocks foreign origin", func(t *testing.T) {
		r := h.do("POST", "/mcp", initialize, append(plain, "Origin", "https://evil.com")...)
		if r.status != 403 {
			t.Errorf("got %d %s, want 403", r.status, r.body)
		}
	})
	t.Run("tools/list straight after initialize", func(t *testing.T) {
		id := h.do("POST", "/mcp", initialize, plain...).header.Get("Mcp-Session-Id")
		r := h.do(
			"POST",
			"/mcp",
			`{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{}}`,
			"Accept",
			"",
			"Mcp-Session-Id",
			id,
		)
		if r.status != 200 {
			t.Errorf("got %d %s, want 200", r.status, r.body)
		}
		has(t, r.body, `"t_echo"`)
	})
}

func TestDesignECurlLines(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("curl is not installed")
	}
	h := newTestHost(t, Options{}, hosttest.Options{})
	u, _ := url.Parse(h.url)
	run := func(args ...string) string {
		t.Helper()
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "localhost:3000", "localhost:"+u.Port())
		}
		out, err := exec.CommandContext(t.Context(), curl, append(args, "-sS", "--noproxy", "*", "-4")...).
			CombinedOutput()
		if err != nil {
			t.Fatalf("curl: %v\n%s", err, out)
		}
		return string(out)
	}
	out := run("-X", "POST", "http://localhost:3000/mcp",
		"-H", "Content-Type: application/json",
		"-H", "Accept: application/json",
		"-d", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`,
		"-v")
	has(t, out, "HTTP/1.1 200 OK", `"protocolVersion"`)
	id := regexp.MustCompile(`(?i)< mcp-session-id: (\S+)`).FindStringSubmatch(out)
	if id == nil {
		t.Fatalf("no session id in\n%s", out)
	}
	out = run("-X", "POST", "http://localhost:3000/mcp",
		"-H", "Content-Type: application/json",
		"-H", "Mcp-Session-Id: "+id[1],
		"-d", `{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{}}`)
	has(t, out, `{"jsonrpc":"2.0","id":2,"result":{"tools":[`)
}

func TestPlaces(t *testing.T) {
	pages := nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		io.WriteString(w, "page "+r.URL.Path)
	})
	h := newTestHost(t, Options{Pages: pages}, hosttest.Options{})
	for _, c := range []struct {
		method, path string
		status       int
		allow, body  string
	}{
		{"GET", "/.well-known/mcp", 200, "", `{"mcp_endpoint":"/mcp"}`},
		{"GET", "/health", 200, "", `{"status":"healthy","service":"gatehouse"}`},
		{"HEAD", "/health", 200, "", ""},
		{"GET", "/healthz", 200, "", `{"ok":true}`},
		{"GET", "/ready", 200, "", `{"status":"ready","service":"gatehouse"}`},
		{"GET", "/", 200, "", "page /"},
		{"GET", "/ui/x", 200, "", "page /ui/x"},
		{"GET", "/nowhere", 404, "", "the MCP endpoint is /mcp"},
		{"GET", "/mcp/", 404, "", "the MCP endpoint is /mcp"},
		{"PUT", "/mcp", 405, "POST, GET, DELETE, OPTIONS", ""},
		{"HEAD", "/mcp", 405, "POST, GET, DELETE, OPTIONS", ""},
		{"POST", "/health", 405, "GET, OPTIONS", ""},
		{"OPTIONS", "/mcp", 204, "POST, GET, DELETE, OPTIONS", ""},
	} {
		r := h.do(c.method, c.path, "")
		if r.status != c.status || r.header.Get("Allow") != c.allow {
			t.Errorf(
				"%s %s: got %d, Allow %q, want %d, %q",
				c.method,
				c.path,
				r.status,
				r.header.Get("Allow"),
				c.status,
				c.allow,
			)
		}
		has(t, r.body, c.body)
		if strings.HasPrefix(c.body, "{") && r.body != c.body {
			t.Errorf("%s %s: got %s, want %s", c.method, c.path, r.body, c.body)
		}
	}
}

// The files of the pages are for every caller, and nothing else is.
func TestPagesNeedNoIdentity(t *testing.T) {
	pages := nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		io.WriteString(w, "page "+r.URL.Path)
	})
	h := newTestHost(t, Options{
		Pages:  pages,
		Public: func(*nethttp.Request) bool { return false },
		Identify: func(*nethttp.Request) (protocol.Caller, *Denied) {
			return protocol.Caller{}, &Denied{Status: 401, Message: "who is it"}
		},
	}, hosttest.Options{})
	for path, want := range map[string]int{"/": 200, "/ui/x/app.css": 200, "/uix": 401, "/health": 401,
		"/metrics": 401} {
		if r := h.do("GET", path, ""); r.status != want || want == 200 && r.body != "page "+path {
			t.Errorf("GET %s: got %d %s, want %d", path, r.status, r.body, want)
		}
	}
}

func TestADegradedHostSaysSoAndServes(t *testing.T) {
	reason := `the disk is "full"`
	h := newTestHost(t, Options{Degraded: func() string { return reason }}, hosttest.Options{})
	if r := h.do("GET", "/ready", ""); r.status != 200 ||
		r.body != `{"status":"degraded","service":"gatehouse","reason":"the disk is \"full\""}` {
		t.Errorf("got %d %s", r.status, r.body)
	}
	reason = ""
	if r := h.do("GET", "/ready", ""); r.status != 200 || r.body != `{"status":"ready","service":"gatehouse"}` {
		t.Errorf("got %d %s", r.status, r.body)
	}
}

func TestContextInThePath(t *testing.T) {
	h := newTestHost(t, Options{}, hosttest.Options{})
	r := h.do("POST", "/mcp/nowhere", initialize)
	if r.status != 404 {
		t.Errorf("an unknown context: got %d %s, want 404", r.status, r.body)
	}
}

// places returns a host with two contexts that have different tools, and one that only some callers may
// enter.
func places(t *testing.T) *testHost {
	t.Helper()
	p, err := permit.New(
		permit.Options{
			Default: permit.Allow,
			Access:  []permit.Access{{Context: "vault", Roles: []string{"keeper"}, KnownTo: []string{"staff"}}},
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	identify := func(r *nethttp.Request) (protocol.Caller, *Denied) {
		who := protocol.Caller{Caller: tool.Caller{Principal: "ann"}}
		if role := r.Header.Get("X-Role"); role != "" {
			who.Roles = []string{role}
		}
		if to := r.Header.Get("X-Bound"); to != "" {
			who.Context, who.Bound = to, to
		}
		return who, nil
	}
	h := newTestHost(t, Options{Identify: identify}, hosttest.Options{Policy: p})
	h.Views.Set(views.Rules{Policy: p, Specs: []views.Spec{
		{
			Name:  "default",
			Tools: []string{"t_echo"},
		}, {Name: "work", Tools: []string{"t_log"}}, {Name: "vault", Tools: []string{"t_ask"}},
	}})
	return h
}

func TestTheContextOfARequest(t *testing.T) {
	h := places(t)
	for _, c := range []struct {
		path    string
		headers []string
		status  int
		body    string
		vary    string
	}{
		{"/mcp", nil, 200, "t_echo", "Origin"},
		{"/mcp/work", nil, 200, "t_log", "Origin"},
		{"/mcp", []string{"X-MCP-Context", "work"}, 200, "t_log", "Origin, X-MCP-Context"},
		{"/mcp", []string{"X-MCP-Context", " work "}, 200, "t_log", "Origin, X-MCP-Context"},
		{"/mcp", []string{"X-MCP-Context", " "}, 200, "t_echo", "Origin, X-MCP-Context"},
		{"/mcp/default", []string{"X-MCP-Context", "work"}, 200, "t_echo", "Origin"}, // the path has priority
		{"/mcp", []string{"X-MCP-Context", "nowhere"}, 404, "Context not found", "Origin, X-MCP-Context"},
		{"/mcp", []string{"X-MCP-Context", "vault"}, 404, "Context not found", "Origin, X-MCP-Context"},
		{"/mcp", []string{"X-MCP-Context", "vault", "X-Role", "staff"}, 403, "Context not allowed",
			"Origin, X-MCP-Context"},
		{"/mcp", []string{"X-MCP-Context", "vault", "X-Role", "keeper"}, 200, "t_ask", "Origin, X-MCP-Context"},
		{"/mcp", []string{"X-MCP-Context", "work, default"}, 400, "may be sent once", "Origin, X-MCP-Context"},
		{"/mcp", []string{"X-Bound", "work"}, 200, "t_log", "Origin"},
		{"/mcp/work", []string{"X-Bound", "work"}, 200, "t_log", "Origin"},
		{"/mcp/default", []string{"X-Bound", "work"}, 404, "Context not found", "Origin"},
		{"/mcp", []string{"X-Bound", "work", "X-MCP-Context", "vault"}, 404, "Context not found",
			"Origin, X-MCP-Context"},
	} {
		r := h.modernList(c.path, c.headers...)
		if r.status != c.status || !strings.Contains(r.body, c.body) || r.header.Get("Vary") != c.vary {
			t.Errorf(
				"%s %q: got %d, Vary %q, %s; want %d, %q, %s",
				c.path,
				c.headers,
				r.status,
				r.header.Get("Vary"),
				r.body,
				c.status,
				c.vary,
				c.body,
			)
		}
	}
}

// modernList lists the tools in one request without a session.
func (h *testHost) modernList(path string, headers ...string) reply {
	h.t.Helper()
	return h.do(
		"POST",
		path,
		`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`,
		append([]string{"MCP-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/list"}, headers...)...)
}

// A session stays in the context in which it was opened, whatever later requests name.
func TestASessionStaysInItsContext(t *testing.T) {
	h := places(t)
	id := h.do("POST", "/mcp", initialize, "X-MCP-Context", "work").header.Get("Mcp-Session-Id")
	h.do("POST", "/mcp", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, "Mcp-Session-Id", id)
	list := `{"jsonrpc":"2.0","id":7,"method":"tools/list"}`
	for _, c := range []struct {
		method, path string
		headers      []string
		status       int
	}{
		{"POST", "/mcp", nil, 200},
		{"POST", "/mcp/work", nil, 200},
		{"POST", "/mcp", []string{"X-MCP-Context", "work"}, 200},
		{"POST", "/mcp", []string{"X-MCP-Context", "default"}, 404},
		{"POST", "/mcp", []string{"X-MCP-Context", "nowhere"}, 404},
		{"POST", "/mcp/default", nil, 404},
		{"GET", "/mcp/default", []string{"Accept", "text/event-stream"}, 404},
		{"DELETE", "/mcp/default", nil, 404},
		{"POST", "/mcp", []string{"X-Bound", "default"}, 404}, // a credential that is bound to another context
		{"POST", "/mcp", []string{"X-Bound", "work"}, 200},
	} {
		body := ""
		if c.method == "POST" {
			body = list
		}
		r := h.do(c.method, c.path, body, append([]string{"Mcp-Session-Id", id}, c.headers...)...)
		if r.status != c.status || c.status == 200 && !strings.Contains(r.body, "t_log") ||
			c.status == 404 && !strings.Contains(r.body, "there is no such session") {
			t.Errorf("%s %s %q: got %d %s, want %d", c.method, c.path, c.headers, r.status, r.body, c.status)
		}
	}
}

func TestSessionLife(t *testing.T) {
	h := newTestHost(t, Options{}, hosttest.Options{})
	id := h.session("2025-11-25")
	list := `{"jsonrpc":"2.0","id":7,"method":"tools/list"}`
	ask := func(headers ...string) reply { return h.do("POST", "/mcp", list, headers...) }
	for _, c := range []struct {
		name    string
		got     reply
		status  int
		message string
	}{
		{"with it", ask("Mcp-Session-Id", id), 200, `"id":7,"result"`},
		{"with it and the version", ask("Mcp-Session-Id", id, "MCP-Protocol-Version", "2025-11-25"), 200, `"result"`},
		{"without", ask(), 400, `"id":7,"error":{"code":-32600,"message":"the header Mcp-Session-Id is missing`},
		{"unknown", ask("Mcp-Session-Id", "00000000-0000-4000-8000-000000000000"), 404, `"id":7,"error"`},
		{"a strange version", ask("Mcp-Session-Id", id, "MCP-Protocol-Version", "1999-01-01"), 400, "1999-01-01"},
		{"notification", h.do("POST", "/mcp", `{"jsonrpc":"2.0","method":"notifications/initialized"}`,
			"Mcp-Session-Id", id), 202, ""},
		{"delete without", h.do("DELETE", "/mcp", ""), 400, ""},
		{"delete unknown", h.do("DELETE", "/mcp", "", "Mcp-Session-Id", "x"), 404, ""},
		{"delete", h.do("DELETE", "/mcp", "", "Mcp-Session-Id", id), 200, ""},
		{"deleted", ask("Mcp-Session-Id", id), 404, "initialize again"},
		{"delete twice", h.do("DELETE", "/mcp", "", "Mcp-Session-Id", id), 404, ""},
	} {
		if c.got.status != c.status {
			t.Errorf("%s: got %d %s, want %d", c.name, c.got.status, c.got.body, c.status)
		}
		has(t, c.got.body, c.message)
	}
}

func TestWithoutSessions(t *testing.T) {
	h := newTestHost(t, Options{}, hosttest.Options{NoTable: true})
	r := h.do("POST", "/mcp", initialize)
	if r.status != 200 || r.header.Get("Mcp-Session-Id") != "" {
		t.Errorf("initialize: got %d with session %q, want 200 without", r.status, r.header.Get("Mcp-Session-Id"))
	}
	r = h.do("POST", "/mcp", call(2, "t_echo", `{"text":"hi"}`), "MCP-Protocol-Version", "2025-06-18")
	has(t, r.body, `"structuredContent":{"text":"hi"}`)
	r = h.do(
		"POST",
		"/mcp",
		call(3, "t_progress", `{"n":3}`, `"progressToken":"p"`),
		"MCP-Protocol-Version",
		"2025-06-18",
	)
	if has(t, r.body, "data: ", `"progress":3`, `"id":3,"result"`); strings.Contains(r.body, "id: ") {
		t.Errorf("a stream that cannot be resumed has event ids:\n%s", r.body)
	}
	for _, method := range []string{"GET", "DELETE"} {
		if r := h.do(method, "/mcp", "", "Accept", "text/event-stream"); r.status != 405 ||
			r.header.Get("Allow") != "POST, OPTIONS" {
			t.Errorf("%s: got %d, want 405", method, r.status)
		}
	}
}

func TestModern(t *testing.T) {
	h := newTestHost(t, Options{}, hosttest.Options{})
	echo := call("a", "t_echo", `{"text":"hi"}`, envelope)
	r := h.do("POST", "/mcp", echo, append(modern("tools/call", "t_echo"), "Mcp-Session-Id", "nonsense")...)
	if r.status != 200 || r.header.Get("Mcp-Session-Id") != "" || r.header.Get("Content-Length") == "" {
		t.Errorf("got %d %v, want 200 with a length and without a session", r.status, r.header)
	}
	has(t, r.body, `"id":"a"`, `"resultType":"complete"`)
	for _, c := range []struct {
		accept string
		status int
	}{
		{"application/json, text/event-stream", 200},
		{"text/event-stream;q=0.9,application/json", 200},
		{"*/*", 200},
		{"", 200},
		{"application/json", 406},
		{"application/json, text/event-stream;q=0", 406},
		{"text/html", 406},
	} {
		if r := h.do("POST", "/mcp", echo,
			append(modern("tools/call", "t_echo"), "Accept", c.accept)...); r.status != c.status {
			t.Errorf("Accept %q: got %d, want %d", c.accept, r.status, c.status)
		}
	}
	note := `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a","_meta":{` + envelope + `}}}`
	if r := h.do("POST", "/mcp", note, modern("notifications/cancelled")...); r.status != 202 || r.body != "" {
		t.Errorf("a notification: got %d %q, want 202 and nothing", r.status, r.body)
	}
	answer := `{"jsonrpc":"2.0","id":1,"result":{}}`
	if r := h.do("POST", "/mcp", answer, modern("")...); r.status != 400 {
		t.Errorf("a response: got %d, want 400", r.status)
	}
	for _, method := range []string{"GET", "DELETE"} {
		r := h.do(method, "/mcp", "", "Accept", "text/event-stream", "MCP-Protocol-Version", "2026-07-28")
		if r.status != 405 {
			t.Errorf("%s: got %d, want 405", method, r.status)
		}
	}
	for name, bad := range map[string][2]string{
		"a batch":        {"[" + echo + "]", "-32600"},
		"half a message": {echo[:len(echo)-1], "-32700"},
		"an id null":     {strings.Replace(echo, `"id":"a"`, `"id":null`, 1), "-32600"},
		"no method":      {strings.Replace(echo, `"method"`, `"Method"`, 1), "-32600"},
	} {
		r := h.do("POST", "/mcp", bad[0], modern("tools/call", "t_echo")...)
		if ct := r.header.Get("Content-Type"); r.status != 400 || ct != "application/json" {
			t.Errorf("%s: got %d %s %s, want 400", name, r.status, ct, r.body)
		}
		has(t, r.body, `"jsonrpc":"2.0"`, `"error":{"code":`+bad[1]+`,`)
	}
}

func TestBatch(t *testing.T) {
	h := newTestHost(t, Options{}, hosttest.Options{})
	old, newer := h.session("2025-03-26"), h.session("2025-06-18")
	two := "[" + call(1, "t_echo", `{"text":"one"}`) + "," + call(2, "t_echo", `{"text":"two"}`) +
		`,{"jsonrpc":"2.0","method":"notifications/initialized"},{"jsonrpc":"2.0","id":3},{"jsonrpc":"2.0","id":4,"method":"ping"}]`
	t.Run("answers in one array", func(t *testing.T) {
		r := h.do("POST", "/mcp", two, "Mcp-Session-Id", old)
		has(t, r.body, `"id":1,"result"`, `"id":2,"result"`, `"id":3,"error"`, `"id":4,"result":{}`)
		if r.status != 200 || r.body[0] != '[' || r.body[len(r.body)-1] != ']' {
			t.Errorf("got %d %s, want one array", r.status, r.body)
		}
	})
	t.Run("in one stream when something precedes them", func(t *testing.T) {
		b := "[" + call(
			1,
			"t_echo",
			`{"text":"one"}`,
		) + "," + call(
			2,
			"t_progress",
			`{"n":1}`,
			`"progressToken":"p"`,
		) + "]"
		data := strings.Join(stream(t, h.open("POST", "/mcp", b, "Mcp-Session-Id", old)).end(), "\n")
		has(t, data, `"id":1,"result"`, `"id":2,"result"`, `"progressToken":"p"`)
	})
	t.Run("nothing to answer", func(t *testing.T) {
		r := h.do("POST", "/mcp", `[{"jsonrpc":"2.0","method":"notifications/initialized"}]`, "Mcp-Session-Id", old)
		if r.status != 202 || r.body != "" {
			t.Errorf("got %d %q, want 202 and nothing", r.status, r.body)
		}
	})
	for name, r := range map[string]reply{
		"a revision without":  h.do("POST", "/mcp", two, "Mcp-Session-Id", newer),
		"no session":          h.do("POST", "/mcp", two),
		"with the handshake":  h.do("POST", "/mcp", "["+initialize+"]"),
		"empty":               h.do("POST", "/mcp", "[]", "Mcp-Session-Id", old),
		"too many":            h.do("POST", "/mcp", "[{}"+strings.Repeat(",{}", batchSize)+"]", "Mcp-Session-Id", old),
		"nothing but numbers": h.do("POST", "/mcp", "[1]", "Mcp-Session-Id", old),
	} {
		if r.status != 400 {
			t.Errorf("%s: got %d %s, want 400", name, r.status, r.body)
		}
		has(t, r.body, `"code":-32600`)
	}
}
