package app

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/access/approvals"
	"gatehouse/internal/access/audit"
	"gatehouse/internal/access/identity"
	"gatehouse/internal/config"
)

// A model with an administrator's token cannot approve its own call, nor with a link that a program made for itself;
// a person who logged in can, and sees the call in the tree.
//
//redteam:attack A login has two halves: a model approves its own call with its token, another token or a link
func TestAModelCannotApproveWhatAPersonCan(t *testing.T) {
	cfg := ruled(t, "file")
	cfg.Auth.Required = true
	cfg.Listen.HTTP.Open, cfg.Listen.HTTP.Host, cfg.Listen.HTTP.Port = true, "127.0.0.1", 0
	cfg.Rules = []config.Rule{{Names: []string{"file_write"}, Then: "ask-operator"}}
	a, _ := liveOn(t, cfg, Options{})
	if err := a.who.AddUser(t.Context(), "ann", []string{"admin"}, "ann's password"); err != nil {
		t.Fatal(err)
	}
	url := a.Listeners()[0].Address
	model, other, person := &browser{t: t, url: url}, &browser{t: t, url: url}, &browser{t: t, url: url}
	for _, b := range []*browser{model, other} {
		secret, _, err := a.who.CreateToken(t.Context(), identity.Token{User: "ann"})
		if err != nil {
			t.Fatal(err)
		}
		b.token = secret
	}
	if _, answer := model.call("file_write", `{"path":"note.txt","content":"hello"}`); !strings.Contains(
		answer,
		"waits for",
	) {
		t.Fatal(answer)
	}
	list, err := a.approvals.Pending(false)
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	id := list[0].ID
	program := &browser{t: t, url: url}
	link, err := a.who.CreateLink(t.Context(), "ann", false)
	if err != nil {
		t.Fatal(err)
	}
	program.openLink(link.Code)
	admin := func(b *browser) string {
		b.url = strings.TrimSuffix(url, "/mcp") + "/mcp"
		at := *b
		at.endpoint = "/mcp/admin"
		_, answer := at.call("approval_decide", `{"id":"`+id+`","decision":"approve"}`)
		return answer
	}
	for name, b := range map[string]*browser{"the model": model, "another token": other,
		"a link of a program": program} {
		if got := admin(b); !strings.Contains(got, "denied: only a person who logged in") {
			t.Errorf("%s: %s", name, got)
		}
	}
	person.logIn("ann", "ann's password")
	if got := admin(person); !strings.Contains(got, `"state":"allowed"`) {
		t.Fatalf("the person: %s", got)
	}
	state := approvals.Allowed
	for end := time.Now().Add(20 * time.Second); state == approvals.Allowed &&
		time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		r, err := a.approvals.Get(id)
		if err != nil {
			t.Fatal(err)
		}
		state = r.State
	}
	if state != approvals.Spent {
		t.Errorf("the approval is %s, and the call did not use it", state)
	}
}

// openLink logs in with the code of a link.
func (v *browser) openLink(code string) {
	v.t.Helper()
	_, text, h := v.post("/auth/link", `{"code":"`+code+`"}`)
	v.cookie, _, _ = strings.Cut(h.Get("Set-Cookie"), ";")
	var said struct{ Key string }
	if err := json.Unmarshal([]byte(text), &said); err != nil || said.Key == "" {
		v.t.Fatal(text, err)
	}
	v.key = said.Key
}

// A page reads the ledger, the approvals and the alerts again when one of them changes, so the lines of these reads are
// no change that pages are told about.
func TestReadsOfPagesAreNoNews(t *testing.T) {
	a, _ := liveOn(t, settings(t), Options{})
	lastAfter := func(tool string) int64 {
		t.Helper()
		before, err := a.ledger.Last(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := a.ledger.Keep(t.Context(), audit.Entry{Kind: "call", Method: "tools/call", Tool: tool}); err != nil {
			t.Fatal(err)
		}
		return before
	}
	for _, tool := range []string{"alert_list", "approval_list", "audit_query", "metrics_series", "gatehouse:///public"} {
		if after := lastAfter(tool); !a.onlyLooks(t.Context(), after) {
			t.Errorf("%s is news", tool)
		}
	}
	for _, tool := range []string{"alert_remove", "approval_decide", "file_read"} {
		if after := lastAfter(tool); a.onlyLooks(t.Context(), after) {
			t.Errorf("%s is no news", tool)
		}
	}
}
