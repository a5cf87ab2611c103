package webtest

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/access/approvals"
	"gatehouse/internal/access/identity"
	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/internal/tests/chromium"
)

const password = "a long enough password"

// people opens the users of the host, who are ann, an administrator, and bob.
func (h *host) people() *identity.Service {
	h.t.Helper()
	users, err := identity.Open(filepath.Join(h.cfg.Folders.Data, "identity.db"), identity.Options{})
	check(h.t, err)
	h.t.Cleanup(func() { users.Close() })
	check(h.t, users.AddUser(h.t.Context(), "ann", []string{identity.Admin}, password))
	check(h.t, users.AddUser(h.t.Context(), "bob", nil, password))
	return users
}

// logIn fills in the login form.
func logIn(p *chromium.Page, user string) {
	play(p, fmt.Sprintf(`
		const f = await story.until("a form", () => document.querySelector("form input[name=user]")?.form);
		f.user.value = %q; f.password.value = %q; f.requestSubmit();
		await story.text("Log out");`, user, password))
}

// call calls a tool with a token, as a client that can follow tasks, and returns the body of the answer.
func (h *host) call(token, endpoint, name, args string) string {
	h.t.Helper()
	return h.request(token, endpoint, "tools/call", name, fmt.Sprintf(`"name":%q,"arguments":%s,`, name, args))
}

// request sends a request with members of its params, each followed by a comma, and returns the body of the answer.
func (h *host) request(token, endpoint, method, name, params string) string {
	h.t.Helper()
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{%s"_meta":{`+
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{`+
		`"extensions":{"io.modelcontextprotocol/tasks":{}}}}}}`, method, params)
	r, err := http.NewRequestWithContext(h.t.Context(), "POST", h.url+endpoint, strings.NewReader(body))
	check(h.t, err)
	for k, v := range map[string]string{"Content-Type": "application/json",
		"Accept":               "application/json, text/event-stream",
		"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method, "Authorization": "Bearer " + token} {
		r.Header.Set(k, v)
	}
	if name != "" {
		r.Header.Set("Mcp-Name", name)
	}
	answer, err := http.DefaultClient.Do(r)
	check(h.t, err)
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	check(h.t, err)
	return string(b)
}

// A model's call waits. The model cannot approve it, its user without rights sees nothing of it, and an
// administrator sees all of its arguments and approves it, while the page is told by itself.
func TestAPersonApprovesWhatAModelMayNot(t *testing.T) {
	cfg := settings(t)
	cfg.Auth.Required = true
	cfg.Rules = []config.Rule{{Names: []string{"file_write"}, Then: "ask-operator"}}
	h := start(t, cfg)
	users := h.people()
	token, _, err := users.CreateToken(t.Context(), identity.Token{User: "ann"})
	check(t, err)
	b := chromium.New(t)
	ann := h.visit(b, "#/now")
	logIn(ann, "ann")
	play(ann, `await story.text("Live")`)

	said := h.call(token, "/mcp", "file_write", `{"path":"plan.txt","content":"<b>bold</b> plan"}`)
	var task struct {
		Result struct{ TaskID, ResultType string }
	}
	check(t, json.Unmarshal([]byte(said), &task))
	if task.Result.ResultType != "task" {
		t.Fatalf("the call does not wait: %s", said)
	}
	id := play(ann, `await story.text("Waits for a yes"); await story.press("file_write", "a");
		await story.text("<b>bold</b> plan"); return document.querySelector("section[id^=approval-]").id.slice(9)`).(string)
	if got := h.call(token, "/mcp/admin", "approval_decide",
		fmt.Sprintf(`{"id":%q,"decision":"approve"}`, id)); !strings.Contains(
		got,
		"denied",
	) {
		t.Errorf("the model decides about its own call: %s", got)
	}
	play(ann, `await story.press("Approve once"); await story.text("Nothing waits for you");
		story.go("#/ledger"); await story.text("approval_decide"); await story.text("file_write");`)
	check(t, until(func() error { return exists(filepath.Join(h.cfg.Roots.Folders[0], "plan.txt")) }))
}

// A login is two halves: a browser sends the cookie to every port of a host, and the key to none. Logging out in one
// tab ends it in all; another user sees another host.
func TestALoginIsTwoHalves(t *testing.T) {
	cfg := settings(t)
	cfg.Auth.Required = true
	h := start(t, cfg)
	h.people()
	b := chromium.New(t)
	p := h.visit(b, "#/now")
	play(
		p,
		`await story.text("Log in"); const f = await story.until("a form", () => document.querySelector("form input[name=user]")?.form);
		f.user.value = "bob"; f.password.value = "wrong"; f.requestSubmit(); await story.text("user or password is wrong");`,
	)
	logIn(p, "bob")
	got := play(p, `await story.text("bob");
		const ask = (headers) => fetch("/auth/me", { headers }).then((r) => r.status);
		return [await ask({}), await ask({ "Gatehouse-Key": "A".repeat(32) }), await ask({ "Gatehouse-Key": sessionStorage.getItem("gatehouse.key") }), document.cookie].join()`)
	if got != "401,401,200," {
		t.Errorf("cookie alone, another key, both, and what scripts read of the cookie: %v", got)
	}
	if nav := play(p, `return document.querySelector("nav").innerText`).(string); strings.Contains(nav, "Ledger") ||
		strings.Contains(nav, "Settings") {
		t.Errorf("bob administers: %s", nav)
	}
	second := h.visit(b, "#/tools")
	play(second, `await story.text("bob"); await story.text("file_read")`)
	play(p, `window.logOut = await story.find("button", "Log out"); 0`)
	p.Leave("window.logOut.click()")
	time.Sleep(time.Second) // until the page loads again
	play(p, `await story.text("Password")`)
	play(second, `await story.text("Password")`)
}

// A link of gatehouse ui logs in once, and its code is out of the address at once.
func TestALinkLogsInOnce(t *testing.T) {
	cfg := settings(t)
	cfg.Auth.Required = true
	h := start(t, cfg)
	users := h.people()
	link, err := users.CreateLink(t.Context(), "ann", true)
	check(t, err)
	b := chromium.New(t)
	p := h.blank(b)
	p.Do("Page.navigate", map[string]any{"url": h.url + "/#login=" + link.Code})
	got := play(p, `await story.text("Log out"); await story.text("ann");
		return location.hash + (await fetch("/auth/me", { headers: { "Gatehouse-Key": sessionStorage.getItem("gatehouse.key") } }).then((r) => r.json())).person`)
	if got != "true" {
		t.Errorf("the hash of the address, and whether ann may decide: %v", got)
	}
	again := h.blank(chromium.New(t))
	again.Do("Page.navigate", map[string]any{"url": h.url + "/#login=" + link.Code})
	play(again, `await story.text("Password"); await story.text("This link")`)
}

// ann registers a passkey, logs in with it, and after a restart approves a call with it, which her password alone
// does not. The authenticator is the virtual one of the browser.
func TestAPasskeyLogsInAndApproves(t *testing.T) {
	cfg := settings(t)
	cfg.Auth.Required = true
	cfg.Approvals.Proof = "passkey"
	cfg.View.Modules = append(cfg.View.Modules, "auth")
	cfg.Rules = []config.Rule{{Names: []string{"file_write"}, Then: "ask-operator"}}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	port := ln.Addr().(*net.TCPAddr).Port
	h := &host{t: t, cfg: cfg}
	h.run(ln, nil)
	users := h.people()
	token, _, err := users.CreateToken(t.Context(), identity.Token{User: "ann"})
	check(t, err)
	byName := fmt.Sprintf("http://localhost:%d", port)
	b := chromium.New(t)
	p := h.blank(b)
	p.Do("WebAuthn.enable", nil)
	p.Do("WebAuthn.addVirtualAuthenticator", map[string]any{"options": map[string]any{
		"protocol": "ctap2", "transport": "internal", "hasResidentKey": true, "hasUserVerification": true,
		"isUserVerified": true, "automaticPresenceSimulation": true,
	}})
	p.Open(byName + "/#/people")
	logIn(p, "ann")
	play(p, `story.go("#/people?view=logins"); await story.text("Passkeys");
		(await story.until("a field", () => document.querySelector("input[name=passkey]"))).focus()`)
	play(
		p,
		`const f = document.querySelector("input[name=passkey]"); f.value = "red"; f.dispatchEvent(new Event("input"));
		f.form.requestSubmit(); await story.text("after a restart of the host"); await story.text("red")`,
	)
	play(p, `window.logOut = await story.find("button", "Log out"); 0`)
	p.Leave("window.logOut.click()")
	time.Sleep(time.Second) // until the page loads again
	play(p, `await story.press("Log in with a passkey"); await story.text("Log out"); await story.text("ann")`)

	h.stop()
	ln, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	check(t, err)
	h.run(ln, nil)
	p.Open("about:blank")
	p.Open(byName + "/#/approvals")
	play(
		p,
		`await story.press("Log in with a passkey"); await story.text("Log out"); await story.text("Nothing waits for you")`,
	)
	h.call(token, "/mcp", "file_write", `{"path":"plan.txt","content":"a plan"}`)
	play(p, `await story.text("a plan")`)
	id := play(p, `return document.querySelector("section[id^=approval-]").id.slice(9)`).(string)
	if list, err := h.approvalIs(id); err != nil || list != "pending" {
		t.Fatalf("%s, %v", list, err)
	}
	play(p, `await story.press("Approve once"); await story.text("Nothing waits for you")`)
	check(t, until(func() error { return exists(filepath.Join(h.cfg.Roots.Folders[0], "plan.txt")) }))

	// a second call, approved by the login alone
	h.call(token, "/mcp", "file_write", `{"path":"second.txt","content":"another plan"}`)
	got := play(
		p,
		`await story.text("another plan"); const { run } = await import(document.querySelector("script[type=module]").src.replace("main.js", "store.js"));
		const id = document.querySelector("section[id^=approval-]").id.slice(9);
		try { await run("approval_decide", { id, decision: "approve" }); return "approved"; } catch (e) { return String(e.message); }`,
	)
	if got == "approved" || exists(filepath.Join(h.cfg.Roots.Folders[0], "second.txt")) == nil {
		t.Errorf("a login alone approves: %v", got)
	}
}

// approvalIs returns the state of an approval as the file of approvals has it.
func (h *host) approvalIs(id string) (approvals.State, error) {
	s := approvals.Open(app.ApprovalsFile(h.cfg.Folders), approvals.Options{})
	defer s.Close()
	r, err := s.Get(id)
	return r.State, err
}
