package smtp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/state"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

func TestTheModuleKeepsTheContract(t *testing.T) {
	moduletest.Run(t, New(Config{}), moduletest.Options{})
}

// fixture is the module with a Mailer of its own.
type fixture struct {
	t       *testing.T
	mailer  *Mailer
	secrets *Memory
	role    string
}

func newFixture(t *testing.T, o Options) *fixture {
	t.Helper()
	m, err := state.Attach[Kept](t.Context(), state.New(state.Options{}), "/private/smtp", state.Live)
	if err != nil {
		t.Fatal(err)
	}
	secrets := &Memory{}
	o.Mount, o.Secrets, o.Name = m, secrets, func() string { return "lab" }
	return &fixture{t, NewMailer(o), secrets, "admin"}
}

// call gives a result as JSON, or the text of a refusal.
func (b *fixture) call(name, args string) string {
	b.t.Helper()
	deps := moduletest.NewHost(b.t).Deps()
	cfg := Config{Mailer: b.mailer, Rules: func(who tool.Caller) bool { return slices.Contains(who.Roles, "admin") }}
	m, err := New(cfg)(b.t.Context(), deps)
	if err != nil {
		b.t.Fatal(err)
	}
	defer m.Close(context.Background())
	c := moduletest.NewCall(b.t, args)
	c.Caller.Roles = []string{b.role}
	var out json.RawMessage
	if refused := c.Ask(b.t, m, name, &out); refused != "" {
		return refused
	}
	return string(out)
}

func (p *fakeServer) args(rest string) string {
	return fmt.Sprintf(`{"host":"127.0.0.1","port":%d,"from":"house@example.com"%s}`, p.port, rest)
}

func TestSettingsAreKeptAndThePasswordIsHidden(t *testing.T) {
	b := newFixture(t, Options{})
	const set = `{"host":"mail.example.com","port":587,"from":"House <house@example.com>","username":"house","password":"hunter2","to":["ann@example.com","Ann <ann@example.com>"]}`
	want := `{"configured":true,"host":"mail.example.com","port":587,"from":"house@example.com","username":"house","hasPassword":true,"security":"starttls","to":["ann@example.com"],"level":"warning"}`
	if got := b.call("smtp_set", set); got != want {
		t.Errorf("got %s", got)
	}
	if got := b.call("smtp_info", `{}`); got != want {
		t.Errorf("got %s", got)
	}
	if p, err := b.secrets.Get(SecretName); err != nil || p.Reveal() != "hunter2" {
		t.Errorf("kept is %q, %v", p.Reveal(), err)
	}
	// Without a password it stays, but not for another account.
	if got := b.call("smtp_set",
		`{"host":"mail.example.com","port":465,"from":"house@example.com","username":"house","security":"tls"}`); !strings.Contains(
		got,
		`"hasPassword":true`,
	) ||
		!strings.Contains(got, `"port":465`) {
		t.Errorf("got %s", got)
	}
	if got := b.call("smtp_set",
		`{"host":"mail.example.org","port":465,"from":"house@example.com","username":"house"}`); strings.Contains(
		got,
		"hasPassword",
	) {
		t.Errorf("another host has the password: %s", got)
	}
	if _, err := b.secrets.Get(SecretName); err == nil {
		t.Error("a password that is of no use is still there")
	}
	b.call("smtp_set", set)
	if got := b.call("smtp_clear", `{}`); got != `{"cleared":true}` {
		t.Error(got)
	}
	if _, err := b.secrets.Get(SecretName); err == nil || b.call("smtp_clear", `{}`) != `{"cleared":false}` ||
		b.call("smtp_info", `{}`) != `{"configured":false}` {
		t.Error("something is left")
	}
	if got := b.call("smtp_test", `{"to":"ann@example.com"}`); !strings.HasPrefix(got, "not_found") {
		t.Error(got)
	}
}

func TestWhatIsNoMailServer(t *testing.T) {
	b := newFixture(t, Options{})
	for args, want := range map[string]string{
		`{}`:                                     "needs host, port and from",
		`{"host":"h","port":25}`:                 "needs host, port and from",
		`{"host":"h","port":25,"from":"nobody"}`: "is not a mail address",
		`{"host":"h","port":25,"from":"a@b\r\nBcc: x@y"}`:                                 "is not a mail address",
		`{"host":"h","port":25,"from":"ä@example.com"}`:                                   "is not a mail address",
		`{"host":"h:25","port":25,"from":"a@b.c"}`:                                        "is not a host name",
		`{"host":"http://h","port":25,"from":"a@b.c"}`:                                    "is not a host name",
		`{"host":"h","port":25,"from":"a@b.c","password":"x"}`:                            "needs a username",
		`{"host":"h","port":25,"from":"a@b.c","username":"x\r\nQUIT"}`:                    "must not contain line breaks",
		`{"host":"mail.example.com","port":25,"from":"a@b.c","security":"none"}`:          "is not allowed for a mail server on another machine",
		`{"host":"h","port":25,"from":"a@b.c","to":["ann@example.com, bob@example.com"]}`: "is not a mail address",
	} {
		if got := b.call("smtp_set", args); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", args, got, want)
		}
	}
	many, _ := json.Marshal(slices.Repeat([]string{"a@b.c"}, maxRecipients+1))
	if got := b.call("smtp_set", `{"host":"h","port":25,"from":"a@b.c","to":`+string(many)+`}`); !strings.Contains(
		got,
		"to has 21 addresses",
	) {
		t.Error(got)
	}
	if got := b.call("smtp_info", `{}`); got != `{"configured":false}` {
		t.Errorf("something was kept: %s", got)
	}
}

//redteam:attack Matters of the whole host are for administrators: an ordinary user sets the mail server
func TestOnlyAdministratorsManageMail(t *testing.T) {
	b := newFixture(t, Options{})
	b.role = "writer"
	for name, args := range map[string]string{"smtp_info": `{}`, "smtp_set": `{"host":"h","port":25,"from":"a@b.c"}`,
		"smtp_test": `{"to":"a@b.c"}`, "smtp_clear": `{}`} {
		if got := b.call(name, args); !strings.HasPrefix(got, "denied: ") {
			t.Errorf("%s: %s", name, got)
		}
	}
}

func TestATestMailArrives(t *testing.T) {
	for name, c := range map[string]struct {
		server *fakeServer
		rest   string
	}{
		"starttls and PLAIN": {&fakeServer{starttls: true, auth: "PLAIN LOGIN", user: "house",
			password: "hunter2"}, `,"username":"house","password":"hunter2"`},
		"starttls and LOGIN": {&fakeServer{starttls: true, auth: "CRAM-MD5 LOGIN", user: "house",
			password: "hunter2"}, `,"username":"house","password":"hunter2"`},
		"tls from the start": {&fakeServer{tls: true, auth: "LOGIN", user: "house", password: "hunter2"},
			`,"username":"house","password":"hunter2","security":"tls"`},
		"without a login": {&fakeServer{starttls: true}, ``},
		"in the clear, from here": {&fakeServer{auth: "PLAIN", user: "house", password: "x"},
			`,"security":"none","username":"house","password":"x"`},
	} {
		p := c.server.open(t)
		b := newFixture(t, Options{Roots: p.roots})
		if got := b.call("smtp_test", p.args(c.rest+`,"to":"ann@example.com"`)); !strings.HasPrefix(
			got,
			`{"sent":true,"to":"ann@example.com"`,
		) {
			t.Errorf("%s: %s", name, got)
		}
		all := p.all()
		if len(all) != 1 {
			t.Fatalf("%s: %d mails arrived", name, len(all))
		}
		m := all[0]
		if m.from != "house@example.com" || !slices.Equal(m.to, []string{"ann@example.com"}) ||
			m.subject != "[lab] Test mail" ||
			!strings.Contains(m.text, "test mail from lab") ||
			m.header.Get("From") != "<house@example.com>" ||
			m.header.Get("Auto-Submitted") != "auto-generated" ||
			!strings.HasSuffix(m.header.Get("Message-Id"), "@example.com>") {
			t.Errorf("%s: %+v", name, m)
		}
		if _, err := m.header.Date(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if slices.Contains(p.encrypted, false) && !strings.HasPrefix(name, "in the clear") {
			t.Errorf("%s: a password went in the clear", name)
		}
		if b.call("smtp_info", `{}`) != `{"configured":false}` {
			t.Errorf("%s: what was only tried was kept", name)
		}
		// The same, from what is kept.
		b.call("smtp_set", p.args(c.rest))
		if got := b.call("smtp_test", `{"to":"bob@example.com"}`); !strings.HasPrefix(got, `{"sent":true`) ||
			len(p.all()) != 2 {
			t.Errorf("%s, kept: %s", name, got)
		}
	}
}

func TestWhatAServerRefusesIsSaid(t *testing.T) {
	login := `,"username":"house","password":"hunter2","to":"ann@example.com"`
	for name, c := range map[string]struct {
		server *fakeServer
		rest   string
		want   string
	}{
		"a wrong password": {&fakeServer{starttls: true, auth: "PLAIN", user: "house", password: "other"},
			login, "refused the username or password: 535"},
		"one that containsPart it": {&fakeServer{starttls: true, auth: "PLAIN", user: "house", password: "other",
			echoes: true}, login, `refused the username or password: 535 "[an answer that contains the password]"`},
		"one that goes on": {&fakeServer{endless: true}, login, "the server sent more than"},
		"no starttls": {&fakeServer{auth: "PLAIN", user: "house", password: "hunter2"}, login,
			"does not offer STARTTLS"},
		"no way to log in": {&fakeServer{starttls: true, auth: "GSSAPI"}, login, "neither PLAIN nor LOGIN"},
		"another sender": {&fakeServer{starttls: true, refuse: "MAIL"}, `,"to":"ann@example.com"`,
			"refused the sender: 550"},
		"another receiver": {&fakeServer{starttls: true, refuse: "RCPT"}, `,"to":"ann@example.com"`,
			"refused the recipient ann@example.com: 550"},
		"the mail": {&fakeServer{starttls: true, refuse: "DATA"}, `,"to":"ann@example.com"`,
			"refused the mail: 550"},
		"tls where there is none": {&fakeServer{}, `,"security":"tls","to":"ann@example.com"`,
			"did not accept the mail"},
	} {
		p := c.server.open(t)
		b := newFixture(t, Options{Roots: p.roots})
		if got := b.call("smtp_test", p.args(c.rest)); !strings.HasPrefix(got, "failed: ") ||
			!strings.Contains(got, c.want) ||
			!strings.Contains(got, "\n") ||
			strings.Contains(got, "hunter2") ||
			strings.Contains(got, encoded("\x00house\x00hunter2")) {
			t.Errorf("%s: %s", name, got)
		}
		if len(p.all()) != 0 || slices.Contains(p.encrypted, false) {
			t.Errorf("%s: %d mails, logins encrypted %v", name, len(p.all()), p.encrypted)
		}
	}
	p := (&fakeServer{starttls: true}).open(t)
	if got := newFixture(t, Options{}).call("smtp_test", p.args(`,"to":"ann@example.com"`)); !strings.Contains(
		got,
		"certificate",
	) {
		t.Errorf("a server nobody knows: %s", got)
	}
}

func TestWhatRepeatsAPassword(t *testing.T) {
	for said, want := range map[string]bool{
		"": false, "wrong": false, "hunter2": true, "what is <hunter2>?": true, "hunter": false,
		"AUTH PLAIN " + encoded("\x00house\x00hunter2"):              true,
		"AUTH PLAIN " + encoded("\x00house\x00hunter2")[:12] + "...": true, encoded("hunter2"): true,
	} {
		err := redact(&textproto.Error{Code: 535, Msg: said}, &Settings{Username: "house"}, secret.New("hunter2"))
		if hushed := err.Error() != (&textproto.Error{Code: 535, Msg: said}).Error(); hushed != want {
			t.Errorf("%q: %v", said, err)
		}
	}
}

// A caller that has gone does not wait for a server that says nothing.
func TestASilentServer(t *testing.T) {
	p := (&fakeServer{silent: true}).open(t)
	b := newFixture(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	_, err := b.mailer.sendLetter(
		ctx,
		&Settings{Host: "127.0.0.1", Port: p.port, From: "a@b.c", Security: "none"},
		secret.Text{},
		message{to: []string{"a@b.c"}},
	)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// told is what a host has told.
type told struct {
	mu   sync.Mutex
	news []Notification
}

func (h *told) tell(b *fixture, level string, titles ...string) {
	h.mu.Lock()
	for _, title := range titles {
		h.news = append(
			h.news,
			Notification{
				ID:      int64(len(h.news) + 1),
				At:      time.Now(),
				Level:   level,
				Title:   title,
				Message: "Grüße an\n.alle",
			},
		)
	}
	h.mu.Unlock()
	b.mailer.Wake()
}

func (h *told) since(id int64) []Notification {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.news[min(int(id), len(h.news)):])
}

func (h *told) newest() int64 { return int64(len(h.since(0))) }

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func (b *fixture) run() {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { b.mailer.Run(ctx); close(done) }()
	b.t.Cleanup(func() { stop(); <-done })
}

func titles(all []received) string {
	var said []string
	for _, m := range all {
		for line := range strings.Lines(m.text) {
			if i := strings.Index(line, " (warning, "); i > 0 {
				said = append(said, line[:i])
			}
			if i := strings.Index(line, " (error, "); i > 0 {
				said = append(said, line[:i])
			}
		}
	}
	return strings.Join(said, " ")
}

func TestNotificationsAreMailed(t *testing.T) {
	p := (&fakeServer{starttls: true}).open(t)
	h := &told{}
	b := newFixture(t, Options{Roots: p.roots, Since: h.since, Newest: h.newest})
	b.run()
	h.tell(b, "error", "before")
	b.call("smtp_set", p.args(`,"to":["ann@example.com","bob@example.com"]`))
	h.tell(b, "warning", "Übung")
	eventually(t, "the first", func() bool { return titles(p.all()) == "Übung" })
	m := p.all()[0]
	if m.subject != "[lab] Übung" || !slices.Equal(m.to, []string{"ann@example.com", "bob@example.com"}) ||
		!strings.Contains(m.text, "Grüße an\r\n.alle") && !strings.Contains(m.text, "Grüße an\n.alle") {
		t.Errorf("got %+v", m)
	}
	if strings.ContainsFunc(m.raw, func(r rune) bool { return r > 126 }) {
		t.Errorf("it is not ASCII: %q", m.raw)
	}
	h.tell(b, "info", "small")
	h.tell(b, "success", "done")
	h.tell(b, "error", "big")
	eventually(t, "the second", func() bool { return titles(p.all()) == "Übung big" })
	if got := b.call("smtp_info", `{}`); strings.Contains(got, `"error":`) {
		t.Errorf("got %s", got)
	}
}

// What a server does not take is tried again, told of, and nothing is sent
// twice.
func TestMailIsTriedAgain(t *testing.T) {
	p := (&fakeServer{starttls: true, auth: "PLAIN", user: "house", password: "hunter2"}).open(t)
	h := &told{}
	tries := make(chan int, 1000)
	b := newFixture(t, Options{Roots: p.roots, Since: h.since, Newest: h.newest, Pause: func(try int) time.Duration {
		tries <- try
		return time.Millisecond
	}})
	b.run()
	b.call("smtp_set", p.args(`,"username":"house","password":"wrong","to":["ann@example.com"]`))
	h.tell(b, "warning", "one", "two")
	for want := range 3 {
		if got := <-tries; got != want {
			t.Errorf("try %d counts as %d", want, got)
		}
	}
	eventually(
		t,
		"it is said",
		func() bool { return strings.Contains(b.call("smtp_info", `{}`), "refused the username or password") },
	)
	b.call("smtp_set", p.args(`,"username":"house","password":"hunter2","to":["ann@example.com"]`))
	eventually(t, "the mail", func() bool { return titles(p.all()) == "one two" })
	eventually(t, "all is well again", func() bool { return !strings.Contains(b.call("smtp_info", `{}`), "refused") })
	if m := p.all(); len(m) != 1 || m[0].subject != "[lab] one (and 1 more)" {
		t.Errorf("got %d mails, the first is %q", len(m), m[0].subject)
	}
}

func TestTheOthersGetTheirMail(t *testing.T) {
	p := (&fakeServer{starttls: true, refuse: "RCPT TO:<BOB@"}).open(t)
	h := &told{}
	b := newFixture(t, Options{Roots: p.roots, Since: h.since, Newest: h.newest})
	b.run()
	b.call("smtp_set", p.args(`,"to":["ann@example.com","bob@example.com"],"level":"info"`))
	h.tell(b, "warning", "one")
	eventually(t, "ann's mail", func() bool { return len(p.all()) == 1 })
	if got := p.all()[0].to; !slices.Equal(got, []string{"ann@example.com"}) {
		t.Errorf("it went to %v", got)
	}
	eventually(
		t,
		"bob is told of",
		func() bool { return strings.Contains(b.call("smtp_info", `{}`), "recipient bob@example.com") },
	)
}

// Two hosts that share the settings mail each notification once.
func TestHostsDoNotMailTwice(t *testing.T) {
	p := (&fakeServer{starttls: true}).open(t)
	h := &told{}
	o := Options{Roots: p.roots, Since: h.since, Newest: h.newest}
	one := newFixture(t, o)
	o.Mount, o.Secrets = one.mailer.o.Mount, one.secrets
	other := &fixture{t, NewMailer(o), one.secrets, "admin"}
	one.run()
	other.run()
	one.call("smtp_set", p.args(`,"to":["ann@example.com"]`))
	var want []string
	for i := range 20 {
		want = append(want, fmt.Sprintf("n%d", i))
		h.tell(one, "warning", want[i])
		other.mailer.Wake()
	}
	eventually(t, "all are mailed", func() bool { return len(strings.Fields(titles(p.all()))) >= len(want) })
	got := strings.Fields(titles(p.all()))
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("mailed are %v", got)
	}
}

func TestOldNewsAreNotMailed(t *testing.T) {
	p := (&fakeServer{starttls: true}).open(t)
	h := &told{}
	b := newFixture(t, Options{Roots: p.roots, Since: h.since, Newest: h.newest})
	b.call("smtp_set", p.args(`,"to":["ann@example.com"]`))
	h.tell(b, "error", "old", "new")
	h.news[0].At = time.Now().Add(-25 * time.Hour)
	if err := b.mailer.mail(t.Context()); err != nil || titles(p.all()) != "new" {
		t.Errorf("%v, mailed is %q", err, titles(p.all()))
	}
}

func TestPausesGrow(t *testing.T) {
	if pause(0) != time.Minute || pause(3) != 8*time.Minute || pause(9) != time.Hour || pause(1_000_000) != time.Hour {
		t.Error(pause(0), pause(3), pause(9), pause(1_000_000))
	}
}

// Whatever is told, the mail is one that can be read, with the headers we gave
// it and no others.
func FuzzMessage(f *testing.F) {
	f.Add("title\r\nBcc: eve@example.com\r\n\r\nx", "text\r\n.\r\nQUIT", "house@example.com")
	f.Fuzz(func(t *testing.T, title, text, from string) {
		from, err := address("from", from)
		if err != nil {
			t.Skip()
		}
		l := message{to: []string{"ann@example.com"}, subject: title, text: text}
		raw := string(l.bytes(from, time.Unix(0, 0)))
		head, _, found := strings.Cut(raw, "\r\n\r\n")
		if !found || strings.Contains(strings.ToLower(head), "\nbcc:") || strings.Count(head, "\r\nTo: ") != 1 {
			t.Errorf("%q", raw)
		}
		if strings.ContainsFunc(
			raw,
			func(r rune) bool { return r > 126 || r < 32 && r != '\r' && r != '\n' && r != '\t' },
		) {
			t.Errorf("not ASCII: %q", raw)
		}
	})
}
