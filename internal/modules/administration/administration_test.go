package administration

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/access/approvals"
	"gatehouse/internal/access/audit"
	"gatehouse/internal/access/identity"
	"gatehouse/internal/access/secret"
	"gatehouse/module"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

// desk is an administrator at the modules of one host.
type desk struct {
	t       *testing.T
	cfg     Config
	modules map[string]module.Module
	who     tool.Caller
	noted   []string
}

func open(t *testing.T) *desk {
	users, err := identity.Open(filepath.Join(t.TempDir(), "identity.db"), identity.Options{})
	if err != nil {
		t.Fatal(err)
	}
	d := &desk{t: t, modules: map[string]module.Module{}}
	d.who = tool.Caller{Principal: "root", Roles: []string{"admin"}, Credential: "t_1", Context: "admin"}
	d.cfg = Config{
		Rules:     func(who tool.Caller) bool { return len(who.Roles) > 0 },
		Users:     users,
		Secrets:   secret.In(t.TempDir(), ""),
		Approvals: approvals.Open("", approvals.Options{}),
		Ledger:    audit.Open(filepath.Join(t.TempDir(), "audit.db"), audit.Options{}),
		Changed:   func(subject, name, by string) { d.noted = append(d.noted, subject+" "+name+" "+by) },
		CheckContext: func(name string) error {
			if name != "build" {
				return context.Canceled
			}
			return nil
		},
	}
	t.Cleanup(func() {
		users.Close()
		d.cfg.Approvals.Close()
		d.cfg.Ledger.Close(context.Background())
	})
	d.make()
	return d
}

func (d *desk) make() {
	for _, m := range Modules(d.cfg) {
		made, err := m.New(d.t.Context(), module.Deps{})
		if err != nil {
			d.t.Fatal(err)
		}
		d.modules[m.Name] = made
	}
}

// call returns the refusal of a call, or "" and its result in out.
func (d *desk) call(name, args string, out any) string {
	d.t.Helper()
	own, _, _ := strings.Cut(name, "_")
	c := moduletest.NewCall(d.t, args)
	c.Caller = d.who
	c.Caller.Can = tool.WordCounts
	return c.Ask(d.t, d.modules[own], name, out)
}

func TestOnlyAdministratorsMayCallAnyOfThem(t *testing.T) {
	d := open(t)
	d.who.Roles = nil
	for _, m := range d.modules {
		o, _ := m.Offer(t.Context(), module.Audience{})
		for _, one := range o.Tools {
			args := map[string]string{
				"user_add": `{"name":"x"}`, "user_roles": `{"name":"x","roles":[]}`, "user_password": `{"name":"x"}`,
				"user_remove": `{"name":"x"}`, "token_revoke": `{"id":"x"}`, "secret_set": `{"name":"x","value":"y"}`,
				"secret_remove": `{"name":"x"}`, "approval_decide": `{"id":"x","decision":"approve"}`,
				"config_set": `{"path":"log.level","value":"debug"}`,
			}[one.Name]
			if args == "" {
				args = `{}`
			}
			if got := d.call(one.Name, args, nil); !strings.HasPrefix(
				got,
				"denied: only administrators of this host may",
			) {
				t.Errorf("%s: got %q", one.Name, got)
			}
		}
	}
}

func TestUsersAndTokensAreAdministered(t *testing.T) {
	d := open(t)
	var made Made
	if got := d.call("user_add", `{"name":"ann","roles":["dev"]}`, &made); got != "" || len(made.Password) < 16 {
		t.Fatal(got, made)
	}
	if got := d.call("user_add", `{"name":"ann"}`, nil); !strings.HasPrefix(got, "exists") {
		t.Error(got)
	}
	if got := d.call("user_add", `{"name":"bob","password":"short"}`, nil); !strings.Contains(got, "8") {
		t.Error(got)
	}
	if got := d.call("user_roles", `{"name":"ann","roles":["admin"]}`, &made); got != "" {
		t.Error(got)
	}
	if got := d.call("user_password", `{"name":"ann","password":"correct horse"}`, nil); got != "" {
		t.Error(got)
	}
	var list UserList
	d.call("user_list", `{}`, &list)
	if len(list.Users) != 1 || list.Users[0].Roles[0] != "admin" || !list.Users[0].Password {
		t.Errorf("got %+v", list)
	}
	var token MadeToken
	if got := d.call("token_create", `{"context":"build","scopes":["read"],"expires":"2d"}`, &token); got != "" ||
		!strings.HasPrefix(
			token.Secret,
			"gh_",
		) || token.Token.User != "ann" || time.Until(token.Token.Until) > 48*time.Hour {
		t.Fatal(got, token)
	}
	for args, want := range map[string]string{
		`{"expires":"soon"}`: "expires: \"soon\"", `{"scopes":["fly"]}`: "scopes: ",
		`{"context":"nowhere"}`: "context: ",
		`{"user":"eve"}`:        "there is no such user",
	} {
		if got := d.call("token_create", args, nil); !strings.Contains(got, want) {
			t.Errorf("%s: got %q", args, got)
		}
	}
	var tokens TokenList
	d.call("token_list", `{}`, &tokens)
	if len(tokens.Tokens) != 1 || tokens.Tokens[0].Context != "build" {
		t.Errorf("got %+v", tokens)
	}
	if got := d.call("token_revoke", `{"id":"`+token.Token.ID+`"}`, nil); got != "" {
		t.Error(got)
	}
	if got := d.call("token_revoke", `{"id":"t_none"}`, nil); !strings.HasPrefix(got, "not_found") {
		t.Error(got)
	}
	if got := d.call("user_remove", `{"name":"ann"}`, nil); !strings.HasPrefix(got, "unconfirmed") {
		t.Error(got)
	}
	if got := d.call("user_remove", `{"name":"ann","confirm":"ann"}`, nil); got != "" {
		t.Error(got)
	}
}

// No tool returns a value, and each change is recorded.
func TestSecretsGoInAndNeverOut(t *testing.T) {
	d := open(t)
	var all []string
	for _, c := range [][2]string{
		{"secret_set", `{"name":"KEY","value":"s3cr3t-value"}`}, {"secret_list", `{}`},
		{"secret_remove", `{"name":"KEY","confirm":"KEY"}`}, {"secret_set", `{"name":"1","value":"s3cr3t-value"}`},
		{"secret_remove", `{"name":"KEY","confirm":"KEY"}`},
	} {
		var out json.RawMessage
		got := d.call(c[0], c[1], &out)
		all = append(all, got+string(out))
	}
	text := strings.Join(all, "\n")
	if strings.Contains(text, "s3cr3t") || !strings.Contains(all[1], `"KEY"`) ||
		!strings.HasPrefix(all[3], "invalid_arguments") ||
		!strings.HasPrefix(all[4], "not_found") {
		t.Error(text)
	}
	if got := strings.Join(d.noted, ","); got != "secret.set KEY root,secret.removed KEY root" {
		t.Error(got)
	}
}

// The caller of a call cannot approve it, and a program cannot approve any.
func TestOnlyAPersonWithAnotherLoginDecides(t *testing.T) {
	d := open(t)
	model := approvals.Caller{Credential: "t_model", Session: "sess_model"}
	ask := func(by approvals.Caller) string {
		r, err := d.cfg.Approvals.Ask(
			"ann/default",
			"file_delete",
			"rule 1",
			by,
			json.RawMessage(`{"path":"x"}`),
			func(approvals.Request) {},
		)
		if err != nil {
			t.Fatal(err)
		}
		return r.ID
	}
	id := ask(model)
	decide := func(who tool.Caller, id string) string {
		d.who = who
		return d.call("approval_decide", `{"id":"`+id+`","decision":"approve"}`, nil)
	}
	admin := []string{"admin"}
	for name, who := range map[string]tool.Caller{
		"the token that made the call": {Principal: "ann", Roles: admin, Credential: "t_model"},
		"another token":                {Principal: "ann", Roles: admin, Credential: "t_other"},
		"the local token":              {Principal: "root", Roles: admin, Credential: "local", Local: true},
		"a child that claims a login":  {Principal: "ann", Roles: admin, Credential: "s_1", Person: true, Child: true},
		"a login with that credential": {Principal: "ann", Roles: admin, Credential: "t_model", Person: true},
		"a login in the session": {Principal: "ann", Roles: admin, Credential: "s_1", Session: "sess_model",
			Person: true},
		"a login of no administrator": {Principal: "ann", Credential: "s_1", Person: true},
	} {
		if got := decide(who, id); !strings.HasPrefix(got, "denied") && !strings.Contains(got, "cannot decide") {
			t.Errorf("%s: got %q", name, got)
		}
	}
	if r, _ := d.cfg.Approvals.Get(id); r.State != approvals.Pending {
		t.Errorf("it is %s", r.State)
	}
	person := tool.Caller{Principal: "root", Roles: admin, Credential: "s_9", Person: true}
	if got := decide(person, ask(approvals.Caller{})); !strings.Contains(got, "cannot decide") {
		t.Errorf("a call of an unknown caller: got %q", got)
	}
	d.who = person
	var list ApprovalList
	d.call("approval_list", `{}`, &list)
	if len(list.Approvals) != 2 || list.Approvals[0].Mine || list.Proof != "none" {
		t.Errorf("got %+v", list)
	}
	if got := decide(person, id); got != "" {
		t.Error(got)
	}
	if r, _ := d.cfg.Approvals.Get(id); r.State != approvals.Allowed || r.By != "root"+approvals.ByLogin {
		t.Errorf("it is %+v", r)
	}
	if got := decide(person, id); !strings.HasPrefix(got, "stale") {
		t.Error(got)
	}
}

// With a passphrase, a login alone approves nothing.
func TestAnApprovalNeedsThePassphrase(t *testing.T) {
	d := open(t)
	file := filepath.Join(t.TempDir(), "approvals.proof")
	proof, err := approvals.NewProof([]byte("a long passphrase"))
	if err == nil {
		err = proof.Save(file)
	}
	if err != nil {
		t.Fatal(err)
	}
	d.cfg.Approvals = approvals.Open("", approvals.Options{Proof: file})
	d.make()
	r, err := d.cfg.Approvals.Ask("ann/default", "file_delete", "r", approvals.Caller{Credential: "t_model"}, nil,
		func(approvals.Request) {})
	if err != nil {
		t.Fatal(err)
	}
	d.who = tool.Caller{Principal: "root", Roles: []string{"admin"}, Credential: "s_9", Person: true}
	for args, want := range map[string]string{
		`{"id":"` + r.ID + `","decision":"approve"}`:                                   "denied",
		`{"id":"` + r.ID + `","decision":"approve","passphrase":"another passphrase"}`: "denied",
	} {
		if got := d.call("approval_decide", args, nil); !strings.HasPrefix(got, want) {
			t.Errorf("%s: got %q", args, got)
		}
	}
	if got := d.call("approval_decide",
		`{"id":"`+r.ID+`","decision":"approve","passphrase":"a long passphrase"}`, nil); got != "" {
		t.Fatal(got)
	}
	r, _ = d.cfg.Approvals.Get(r.ID)
	if ok, err := d.cfg.Approvals.Spend(r, "ann/default", "file_delete"); !ok || err != nil {
		t.Errorf("the approval does not count: %v", err)
	}
}

func TestTheLedgerIsQueriedInPagesVerifiedAndExported(t *testing.T) {
	d := open(t)
	for i := range 30 {
		e := audit.Entry{Kind: "call", Tool: "file_read", Principal: []string{"ann", "bob"}[i%2], Outcome: audit.OK}
		if err := d.cfg.Ledger.Keep(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	var page AuditLines
	if got := d.call("audit_query", `{"principal":"ann","last":10}`, &page); got != "" || len(page.Lines) != 10 ||
		!page.More ||
		page.Lines[9].Seq != 29 {
		t.Fatalf("%s %+v", got, page)
	}
	var before AuditLines
	args, _ := json.Marshal(map[string]any{"principal": "ann", "last": 10, "before": page.Lines[0].Seq})
	if got := d.call("audit_query", string(args), &before); got != "" || len(before.Lines) != 5 || before.More {
		t.Errorf("%s %+v", got, before)
	}
	var later AuditLines
	if got := d.call("audit_query", `{"after":3,"last":4}`, &later); got != "" || len(later.Lines) != 4 ||
		!later.More ||
		later.Lines[0].Seq != 4 {
		t.Errorf("%s %+v", got, later)
	}
	if got := d.call("audit_query", `{"since":"soon"}`, nil); !strings.HasPrefix(got, "invalid_arguments: since: ") {
		t.Error(got)
	}
	var report audit.Report
	if got := d.call("audit_verify", `{}`, &report); got != "" || !report.OK || report.Lines != 30 {
		t.Errorf("%s %+v", got, report)
	}
	a, text, after := Audit{d.cfg.Ledger}, "", int64(0)
	for parts := 0; ; parts++ {
		part, err := a.Export(t.Context(), after, 1024)
		if err != nil || parts > 30 {
			t.Fatal(err, parts)
		}
		text, after = text+part.Text, part.Last
		if !part.More {
			break
		}
	}
	if r, err := audit.VerifyLines(t.Context(), strings.NewReader(text)); err != nil || !r.OK || r.Lines != 30 {
		t.Errorf("the export: %+v, %v", r, err)
	}
}

// changing is a Settings that remembers.
type changing struct{ set []string }

func (c *changing) Show(context.Context) (SettingsShown, error) { return SettingsShown{File: "f"}, nil }
func (c *changing) Check(context.Context, string) (SettingsChecked, error) {
	return SettingsChecked{OK: true}, nil
}
func (c *changing) Set(_ context.Context, path string, v json.RawMessage) (SettingChanged, error) {
	c.set = append(c.set, path+"="+string(v))
	return SettingChanged{Path: path, After: v}, nil
}

func TestSettingsThatDecideWhatCallersMayDoAskThePerson(t *testing.T) {
	d := open(t)
	settings := &changing{}
	d.cfg.Settings = settings
	d.make()
	if got := d.call("config_set", `{"path":"log.level","value":"debug"}`, nil); got != "" {
		t.Error(got)
	}
	for _, path := range []string{"rules", "auth.required", "approvals.proof"} {
		if got := d.call("config_set", `{"path":"`+path+`","value":[]}`, nil); !strings.HasPrefix(got, "unconfirmed") {
			t.Errorf("%s: %q", path, got)
		}
	}
	if got := d.call("config_set", `{"path":"rules","value":[],"confirm":"rules"}`, nil); got != "" {
		t.Error(got)
	}
	if got := strings.Join(settings.set, " "); got != `log.level="debug" rules=[]` {
		t.Error(got)
	}
}

func TestDoctorCountsWhatFails(t *testing.T) {
	d := open(t)
	d.cfg.Doctor = func(context.Context) ([]Finding, error) {
		return []Finding{{"ok", "a", ""},
			{"fail", "b", "c"}}, nil
	}
	d.make()
	var out Findings
	if got := d.call("doctor_run", `{}`, &out); got != "" || out.Failed != 1 || len(out.Checks) != 2 {
		t.Errorf("%s %+v", got, out)
	}
}
