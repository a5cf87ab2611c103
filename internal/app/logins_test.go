package app

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"gatehouse/internal/access/audit"
	"gatehouse/internal/access/identity"
)

// browser is a client of the HTTP listener that may have logged in.
type browser struct {
	t      *testing.T
	url    string // of the endpoint
	cookie string
	key    string // of the login
	token  string // instead of a login
	// endpoint is the path of the context; "" is /mcp.
	endpoint string
}

func (v *browser) post(path, body string, headers ...string) (status int, answer string, h http.Header) {
	v.t.Helper()
	r, err := http.NewRequestWithContext(
		v.t.Context(),
		"POST",
		strings.TrimSuffix(v.url, "/mcp")+path,
		strings.NewReader(body),
	)
	if err != nil {
		v.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("Cookie", v.cookie)
	if v.key != "" {
		r.Header.Set(identity.KeyHeader, v.key)
	}
	if v.token != "" {
		r.Header.Set("Authorization", "Bearer "+v.token)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		v.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		v.t.Fatal(err)
	}
	return res.StatusCode, string(b), res.Header
}

func (v *browser) logIn(user, password string) int {
	v.t.Helper()
	body, _ := json.Marshal(map[string]string{"user": user, "password": password})
	status, text, h := v.post("/auth/login", string(body))
	v.cookie, _, _ = strings.Cut(h.Get("Set-Cookie"), ";")
	var said struct{ Key string }
	json.Unmarshal([]byte(text), &said)
	v.key = said.Key
	return status
}

// call calls a tool in a session of its own, as clients of earlier revisions do.
func (v *browser) call(name, args string) (status int, answer string) {
	v.t.Helper()
	status, answer, h := v.post(
		cmp.Or(v.endpoint, "/mcp"),
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"v","version":"1"}}}`,
	)
	if status != 200 {
		return status, answer
	}
	id := h.Get("Mcp-Session-Id")
	v.post(
		cmp.Or(v.endpoint, "/mcp"),
		`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		"Mcp-Session-Id",
		id,
		"Mcp-Protocol-Version",
		"2025-11-25",
	)
	status, answer, _ = v.post(
		cmp.Or(v.endpoint, "/mcp"),
		fmt.Sprintf(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, name, args),
		"Mcp-Session-Id",
		id,
		"Mcp-Protocol-Version",
		"2025-11-25",
	)
	return status, answer
}

func TestPeopleLookAfterTheirLogins(t *testing.T) {
	cfg := ruled(t, "auth")
	cfg.Auth.Required = true
	cfg.Listen.HTTP.Open, cfg.Listen.HTTP.Host, cfg.Listen.HTTP.Port = true, "127.0.0.1", 0
	a, _ := liveOn(t, cfg, Options{})
	for user, roles := range map[string][]string{"ann": nil, "bob": nil} {
		if err := a.who.AddUser(t.Context(), user, roles, user+"'s password"); err != nil {
			t.Fatal(err)
		}
	}
	url := a.Listeners()[0].Address
	desktop, phone, bob := &browser{t: t, url: url}, &browser{t: t, url: url}, &browser{t: t, url: url}
	for v, user := range map[*browser]string{desktop: "ann", phone: "ann", bob: "bob"} {
		if got := v.logIn(user, user+"'s password"); got != 200 {
			t.Fatalf("%s cannot log in: %d", user, got)
		}
	}
	status, answer := desktop.call("auth_session_list", `{}`)
	var r struct {
		Result struct {
			StructuredContent struct {
				Current  string
				Sessions map[string]struct{ User string }
			}
		}
	}
	if err := json.Unmarshal([]byte(answer), &r); err != nil || status != 200 {
		t.Fatalf("%d %s: %v", status, answer, err)
	}
	list := r.Result.StructuredContent
	if len(list.Sessions) != 2 || list.Sessions[list.Current].User != "ann" {
		t.Fatalf("ann has %+v", list)
	}
	for id := range list.Sessions {
		if _, answer := bob.call("auth_session_kill", `{"ids":["`+id+`"]}`); !strings.Contains(answer, "not_found") {
			t.Errorf("bob ends ann's session: %s", answer)
		}
		if id != list.Current {
			if _, answer := desktop.call("auth_session_kill", `{"ids":["`+id+`"]}`); !strings.Contains(answer, id) {
				t.Errorf("ann cannot end %s: %s", id, answer)
			}
		}
	}
	if status, _ := phone.call("auth_session_list", `{}`); status != 401 {
		t.Errorf("the phone is answered %d", status)
	}
	// The answer arrives although its session ends.
	if status, answer := desktop.call("auth_password",
		`{"oldPassword":"ann's password","newPassword":"longer than before"}`); status != 200 ||
		!strings.Contains(answer, `"changed":true`) {
		t.Errorf("%d %s", status, answer)
	}
	if status, _ := desktop.call("auth_session_list", `{}`); status != 401 {
		t.Errorf("the old login is answered %d", status)
	}
	if err := a.ledger.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	changes := 0
	for line, err := range a.ledger.Query(t.Context(), audit.Filter{Tool: "auth_password"}) {
		if changes++; err != nil || strings.Contains(string(line.Raw), "'s password") ||
			strings.Contains(string(line.Raw), "longer than") {
			t.Errorf("the ledger says %s, %v", line.Raw, err)
		}
	}
	if changes == 0 {
		t.Errorf("the ledger does not know of it")
	}
}

// On an open loopback any process and user of the machine is a caller, so an anonymous caller cannot administer. A
// caller with the local token of this user can, as can one on the Unix socket.
//
//redteam:attack Matters of the whole host are for administrators: an anonymous caller on an open loopback administers
func TestTheLocalTokenAdministersAndAnAnonymousCallerNeverDoes(t *testing.T) {
	cfg := ruled(t, "server", "package", "smtp", "backup")
	cfg.Listen.HTTP.Open, cfg.Listen.HTTP.Host, cfg.Listen.HTTP.Port = true, "127.0.0.1", 0
	a, _ := liveOn(t, cfg, Options{})
	ask := func(context, params string, headers ...string) string {
		v := &browser{t: t, url: a.Listeners()[0].Address}
		_, answer, _ := v.post("/mcp/"+context, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{`+params+
			`,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`,
			append(headers, "Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call")...)
		return answer
	}
	local := []string{"Authorization", "Bearer " + a.LocalToken()}
	for _, c := range [][2]string{
		{"server_logs", `{}`}, {"server_set_name", `{"name":"mine"}`}, {"server_shutdown", `{"confirm":"gatehouse"}`},
		{"package_install", `{"id":"x","command":"true","confirm":"x"}`}, {"package_list", `{}`},
		{"backup_list", `{}`}, {"smtp_info", `{}`},
	} {
		params := `"name":"` + c[0] + `","arguments":` + c[1]
		got := ask("default", params, "Mcp-Name", c[0])
		if strings.Contains(got, "unknown tool") || strings.Contains(got, "invalid_arguments") {
			t.Fatalf("%s: %s", c[0], got)
		}
		if !strings.Contains(got, "denied") || !strings.Contains(got, "--token local") {
			t.Errorf("an anonymous caller of %s is answered %s", c[0], got)
		}
		if c[0] == "server_shutdown" || c[0] == "package_install" {
			continue // it would
		}
		if got := ask("default", params, append(local, "Mcp-Name", c[0])...); strings.Contains(got, "denied") {
			t.Errorf("the bearer of the local token calls %s and is answered %s", c[0], got)
		}
	}
	if got := ask("admin", `"name":"context_list","arguments":{}`, "Mcp-Name", "context_list"); !strings.Contains(
		got,
		"Context not found",
	) {
		t.Errorf("an anonymous caller of the administration is answered %s", got)
	}
	if got := ask("admin", `"name":"context_list","arguments":{}`,
		append(local, "Mcp-Name", "context_list")...); !strings.Contains(
		got,
		"default",
	) {
		t.Errorf("the bearer of the local token is answered %s", got)
	}
}

// A session whose caller may no longer use its context is answered as docs/contexts.md describes, in every method,
// and works again when the caller may use the context again.
func TestASessionThatLostItsContextIsAnswered404(t *testing.T) {
	cfg := ruled(t, "file")
	cfg.Listen.HTTP.Open, cfg.Listen.HTTP.Host, cfg.Listen.HTTP.Port = true, "127.0.0.1", 0
	a, client := liveOn(t, cfg, Options{})
	admin := client("root", "admin")
	expect(t, admin.call("admin", "context_create", `{"name":"dev","modules":["file"]}`), `"revision":1`)
	v := &browser{t: t, url: a.Listeners()[0].Address}
	local := []string{"Authorization", "Bearer " + a.LocalToken()}
	status, answer, h := v.post(
		"/mcp/dev",
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"v","version":"1"}}}`,
		local...)
	if status != 200 {
		t.Fatal(status, answer)
	}
	session := append(local, "Mcp-Session-Id", h.Get("Mcp-Session-Id"), "Mcp-Protocol-Version", "2025-11-25")
	v.post("/mcp/dev", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, session...)
	ask := func(want int, words string) {
		t.Helper()
		for _, method := range []string{"tools/list", "prompts/list", "resources/list",
			`tools/call","params":{"name":"file_exists","arguments":{"path":"x"}},"x":"`} {
			status, answer, _ := v.post("/mcp/dev", `{"jsonrpc":"2.0","id":2,"method":"`+method+`"}`, session...)
			if status != want || !strings.Contains(answer, words) {
				t.Errorf("%.12s: %d %s, want %d with %s", method, status, answer, want, words)
			}
		}
	}
	ask(200, "result")
	expect(t, admin.call("admin", "context_update", `{"name":"dev","roles":["keeper"]}`), "revision")
	ask(404, "Context not found")
	expect(
		t,
		admin.call("admin", "context_update", `{"name":"dev","roles":["keeper"],"known_to":["admin"]}`),
		"revision",
	)
	ask(403, "Context not allowed")
	expect(t, admin.call("admin", "context_update", `{"name":"dev","clear":["roles","known_to"]}`), "revision")
	ask(200, "result")
}
