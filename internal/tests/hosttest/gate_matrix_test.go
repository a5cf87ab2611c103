package hosttest_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/user"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"gatehouse/internal/access/identity"
)

// The columns of the matrix: what a caller sends or requests.
var gateColumns = []string{
	"right", "wrong", "expired", "revoked", "wrong role", "may only know", "unknown context", "other's session",
	"beyond loopback",
}

// gateListeners are all listeners.
var gateListeners = []string{"HTTP", "HTTPS", "TCP", "Unix", "stdio"}

// gateWay is a kind of credential. A state that it cannot be in has the reason.
type gateWay struct {
	name    string
	without map[string]string // those where it does not exist, and why; its credential is refused there all the same
	role    string            // why its principal may know of no context, unless it has a role that may

	right func(g *gateHost, listener string) credential
	wrong func(g *gateHost, listener string) credential
	// ages returns a credential and a function that makes it expire; nil if it has expired.
	ages, revoked func(g *gateHost, listener string) (c credential, end func())
	// brief returns a credential that expires by itself, which ends a connection.
	brief func(g *gateHost, listener string, life time.Duration) credential
	// anyway returns its secret, to be tried at listeners without this kind.
	anyway func(g *gateHost) string
	// the reason for which no such credential is wrong, expired or revoked.
	never map[string]string
	far   string // what comes of trying beyond loopback, where that is not tried
}

const (
	noHeaders = "a line has no headers"
	noTLS     = "there is no TLS"
	noPeer    = "only the kernel knows peers, of Unix sockets"
	theOwner  = "whoever started the host is at the other end"
	noRole    = "its principal has no such role"
)

// gateWays returns all kinds of credentials. Some are accepted only on a host that requires none.
func gateWays() []gateWay {
	inHeader := func(name, prefix string) func(string, string) credential {
		return func(_ string, secret string) credential {
			c := headers(name, prefix+secret)
			c.token = secret
			return c
		}
	}
	bearer, key := inHeader("Authorization", "Bearer "), inHeader("X-API-Key", "")
	// byToken is a kind of credential that contains a user's token.
	byToken := func(name string, show func(listener, secret string) credential) gateWay {
		return gateWay{
			name: name,
			right: func(g *gateHost, listener string) credential {
				secret, _ := g.token(identity.Token{User: "alice"})
				return show(listener, secret)
			},
			wrong: func(g *gateHost, listener string) credential {
				other, _ := openElsewhere(g.t)
				return show(listener, other)
			},
			ages: func(g *gateHost, listener string) (credential, func()) {
				secret, id := g.token(identity.Token{User: "alice", Until: time.Now().Add(time.Hour)})
				return show(listener, secret), func() { g.age("token", id) }
			},
			brief: func(g *gateHost, listener string, life time.Duration) credential {
				secret, _ := g.token(identity.Token{User: "alice", Until: time.Now().Add(life)})
				return show(listener, secret)
			},
			revoked: func(g *gateHost, listener string) (credential, func()) {
				secret, id := g.token(identity.Token{User: "alice"})
				return show(listener, secret), func() { must(g.t, g.users.RevokeToken(g.t.Context(), id)) }
			},
		}
	}
	fixed := func(name string, secret func(*gateHost) string) gateWay {
		return gateWay{
			name: name, role: noRole, anyway: secret,
			right: func(g *gateHost, listener string) credential { return bearer(listener, secret(g)) },
			wrong: func(g *gateHost, listener string) credential {
				s := []byte(secret(g))
				s[len(s)-1] ^= 1
				return bearer(listener, string(s))
			},
		}
	}

	tokens := byToken("bearer token", bearer)
	tokens.without = map[string]string{"stdio": theOwner}
	tokens.anyway = func(g *gateHost) string {
		secret, _ := g.token(identity.Token{User: "alice"})
		return secret
	}
	keys := byToken("API key", key)
	keys.without = map[string]string{
		"TCP":   noHeaders + "; the same token goes into _meta, see above",
		"Unix":  noHeaders + "; the same token goes into _meta, see above",
		"stdio": theOwner,
	}

	anonymous := gateWay{
		name: "anonymous", role: noRole,
		without: map[string]string{
			"TCP":   "every line needs a token, unless --insecure says otherwise",
			"Unix":  "the kernel always says who connects",
			"stdio": theOwner,
		},
		right: func(*gateHost, string) credential { return credential{} },
		revoked: func(g *gateHost, _ string) (credential, func()) {
			return credential{}, func() { must(g.t, g.users.AddUser(g.t.Context(), "first", nil, "")) }
		},
		never: map[string]string{"expired": "there is nothing that could expire"},
		far:   "refuses to start",
	}
	cookie := gateWay{
		name: "cookie",
		anyway: func(g *gateHost) string {
			if g.cookie.header == nil {
				g.cookie = g.login("HTTP")
			}
			_, secret, _ := strings.Cut(g.cookie.header.Get("Cookie"), "=")
			return secret
		},
		without: map[string]string{"TCP": noHeaders, "Unix": noHeaders, "stdio": noHeaders},
		right: func(g *gateHost, listener string) credential {
			g.cookie = g.login(listener)
			return g.cookie
		},
		wrong: func(g *gateHost, _ string) credential {
			name, value, _ := strings.Cut(g.cookie.header.Get("Cookie"), "=")
			flipped := []byte(value)
			flipped[3] ^= 1
			return headers("Cookie", name+"="+string(flipped), identity.KeyHeader,
				g.cookie.header.Get(identity.KeyHeader))
		},
		ages: func(g *gateHost, listener string) (credential, func()) {
			c := g.login(listener)
			return c, func() { g.age("login", g.lastLogin()) }
		},
		revoked: func(g *gateHost, listener string) (credential, func()) {
			c := g.login(listener)
			return c, func() { g.logout(listener, c) }
		},
	}
	certificate := gateWay{
		name:    "client certificate",
		without: map[string]string{"HTTP": noTLS, "TCP": noTLS, "Unix": noTLS, "stdio": noTLS},
		right:   func(g *gateHost, _ string) credential { return g.certificate(g.ca, "alice", time.Hour) },
		wrong: func(g *gateHost, _ string) credential {
			return g.certificate(newGateAuthority(g.t), "alice", time.Hour)
		},
		ages: func(g *gateHost, _ string) (credential, func()) {
			return g.certificate(g.ca, "alice", -time.Minute), nil
		},
		revoked: func(g *gateHost, _ string) (credential, func()) {
			return g.certificate(
				g.ca,
				"gone",
				time.Hour,
			), func() { must(g.t, g.users.RemoveUser(g.t.Context(), "gone")) }
		},
	}
	oauth := gateWay{
		name:    "OAuth token",
		anyway:  func(g *gateHost) string { return g.issuer.issue(gateSubject, time.Hour, nil) },
		without: map[string]string{"stdio": theOwner},
		right: func(g *gateHost, listener string) credential {
			return bearer(listener, g.issuer.issue(gateSubject, time.Hour, nil))
		},
		wrong: func(g *gateHost, listener string) credential {
			return bearer(
				listener,
				g.issuer.issue(gateSubject, time.Hour, map[string]any{"aud": "https://other.example.com/mcp"}),
			)
		},
		ages: func(g *gateHost, listener string) (credential, func()) {
			return bearer(listener, g.issuer.issue(gateSubject, -2*time.Minute, nil)), nil
		},
		revoked: func(g *gateHost, listener string) (credential, func()) {
			must(g.t, g.users.Link(g.t.Context(), identity.LinkOAuth, "5678", "alice"))
			return bearer(listener, g.issuer.issue("5678", time.Hour, nil)), func() {
				must(g.t, g.users.Unlink(g.t.Context(), identity.LinkOAuth, "5678"))
			}
		},
	}
	peer := gateWay{
		name: "peer uid", role: noRole,
		without: map[string]string{"HTTP": noPeer, "HTTPS": noPeer, "TCP": noPeer, "stdio": theOwner},
		right:   func(*gateHost, string) credential { return credential{} },
		never: map[string]string{
			"expired": "a process does not stop being its user's",
			"revoked": "a process does not stop being its user's",
			"wrong":   "see TestOtherUsersAreTurnedAway",
		},
		far: "a socket is on this machine",
	}
	local := fixed("local token", func(g *gateHost) string { return g.app.LocalToken() })
	local.without = map[string]string{
		"Unix":  "a socket has no address that could be loopback; its peer is known anyway",
		"stdio": theOwner,
	}
	local.never = map[string]string{
		"expired": "it lives as long as its file",
		"revoked": "it lives as long as its file, which the host reads at its start",
	}
	flag := fixed("--auth-token", func(*gateHost) string { return gateFlag })
	flag.without = map[string]string{"stdio": theOwner}
	flag.never = map[string]string{
		"expired": "it lives as long as the setting",
		"revoked": "it lives as long as the setting",
	}
	owner := gateWay{
		name: "who started it", role: noRole,
		without: map[string]string{
			"HTTP":  "others reach it too",
			"HTTPS": "others reach it too",
			"TCP":   "others reach it too",
			"Unix":  "the kernel says who connects",
		},
		right: func(*gateHost, string) credential { return credential{} },
		wrong: func(*gateHost, string) credential { return credential{token: gateFlag} },
		never: map[string]string{"expired": "the host ends with its input", "revoked": "the host ends with its input"},
		far:   "a pipe is on this machine",
	}
	return []gateWay{anonymous, cookie, tokens, keys, certificate, oauth, peer, local, flag, owner}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// openElsewhere creates a token of another host.
func openElsewhere(t testing.TB) (secret, id string) {
	t.Helper()
	s, err := identity.Open("", identity.Options{})
	must(t, err)
	defer s.Close()
	must(t, s.AddUser(t.Context(), "alice", nil, ""))
	secret, made, err := s.CreateToken(t.Context(), identity.Token{User: "alice"})
	must(t, err)
	return secret, made.ID
}

func (g *gateHost) certificate(by *gateAuthority, name string, life time.Duration) credential {
	c := by.issue(name, life)
	return credential{cert: &c}
}

// login logs alice in, once for each host and purpose, because only three logins are allowed within 20 s.
func (g *gateHost) login(listener string) credential {
	g.t.Helper()
	b := g.byHTTP(listener, credential{}, false)
	entry, _ := json.Marshal(map[string]any{"user": "alice", "password": gatePassword, "lasting": true})
	r, err := http.NewRequestWithContext(
		g.t.Context(),
		"POST",
		strings.TrimSuffix(b.url, "/mcp")+"/auth/login",
		bytes.NewReader(entry),
	)
	must(g.t, err)
	r.Header.Set("Content-Type", "application/json")
	res, err := b.http.Do(r)
	must(g.t, err)
	defer res.Body.Close()
	if res.StatusCode != 200 || len(res.Cookies()) != 2 {
		g.t.Fatalf("logging in: %s, %d cookies", res.Status, len(res.Cookies()))
	}
	var said struct{ Key string }
	must(g.t, json.NewDecoder(res.Body).Decode(&said))
	c := res.Cookies()[0]
	if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Secure != (listener == "HTTPS") {
		g.t.Errorf("the cookie at %s is %v", listener, c)
	}
	return headers("Cookie", c.Name+"="+c.Value, identity.KeyHeader, said.Key)
}

func (g *gateHost) logout(listener string, c credential) {
	g.t.Helper()
	b := g.byHTTP(listener, c, false)
	res, err := b.http.Do(b.request(g.t.Context(), "POST", strings.TrimSuffix(b.url, "/mcp")+"/auth/logout", ""))
	must(g.t, err)
	res.Body.Close()
	if res.StatusCode != 204 {
		g.t.Fatalf("logging out: %s", res.Status)
	}
}

// lastLogin returns the id of alice's newest login.
func (g *gateHost) lastLogin() string {
	g.t.Helper()
	all, err := g.users.Logins(g.t.Context(), "alice")
	must(g.t, err)
	if len(all) == 0 {
		g.t.Fatal("nobody is logged in")
	}
	return all[len(all)-1].ID
}

// matrix fills in the cells of one kind of credential at one listener.
type matrix struct {
	t        *testing.T
	way      gateWay
	listener string
	host     func(open, fresh bool) *gateHost
	good     credential // the right one
}

// all makes every request in all eras, and summarizes the results.
func (m *matrix) all(c caller) string {
	got := map[string][]string{} // by era
	for _, era := range gateEras {
		for _, op := range gateOps {
			got[era] = append(got[era], c.try(era, op))
		}
	}
	l, n := m.short(got[legacyEra]), m.short(got[modernEra])
	if l == n {
		return l
	}
	return l + " / " + n
}

// short shortens repeated results, and shows ok if a principal is named as well.
func (m *matrix) short(got []string) string {
	if got[0] == "ok" && got[3] == "ok" && got[1] == got[2] && got[1] != "ok" {
		if me, err := user.Current(); err == nil && got[1] == me.Username {
			return "owner"
		}
		name, _, _ := strings.Cut(got[1], "@127.0.0.1:") // the name of a provider here
		return name
	}
	for _, one := range got {
		if one != got[0] {
			return strings.Join(got, " ")
		}
	}
	return got[0]
}

// anyway sends a secret that this listener does not support in a message.
func (m *matrix) anyway() string {
	if m.way.name == "anonymous" && m.listener == "TCP" {
		return "; refused: " + m.all(m.begun(m.host(true, false), m.listener, credential{}))
	}
	if m.way.anyway == nil || m.listener == "HTTP" || m.listener == "HTTPS" {
		return ""
	}
	g := m.host(false, false)
	return "; refused: " + m.all(m.begun(g, m.listener, credential{token: m.way.anyway(g)}))
}

// cell fills in one column.
func (m *matrix) cell(column string) string {
	if why := m.way.never[column]; why != "" {
		return "- " + why
	}
	open := m.way.name == "anonymous"
	g := m.host(open, open && column == "revoked")
	switch column {
	case "right":
		c := m.opened(g, m.good, false)
		return m.all(c)
	case "wrong":
		if open {
			g = m.host(false, false)
			return m.all(m.begun(g, m.listener, credential{}))
		}
		return m.swapped(g, m.way.wrong(g, m.listener))
	case "expired":
		if m.way.brief != nil && (m.listener == "TCP" || m.listener == "Unix") {
			return m.ranOut(g, 2*time.Second)
		}
		c, end := m.way.ages(g, m.listener)
		return m.ended(g, c, end)
	case "revoked":
		c, end := m.way.revoked(g, m.listener)
		return m.ended(g, c, end)
	case "wrong role":
		return m.elsewhere(g, "staff")
	case "may only know":
		if m.way.role != "" {
			return "- " + m.way.role
		}
		return m.elsewhere(g, "lab")
	case "unknown context":
		return m.elsewhere(g, "nowhere")
	case "other's session":
		return m.others(g)
	}
	return m.beyond(g)
}

// begun is a caller who has tried to begin a session.
func (m *matrix) begun(g *gateHost, listener string, c credential) caller {
	b := g.at(listener, c, false)
	if b.open() == "ok" {
		m.t.Errorf("%s at %s: a session begins with a credential that is not good", m.way.name, listener)
	}
	return b
}

// opened is a caller with a session.
func (m *matrix) opened(g *gateHost, c credential, beyond bool) caller {
	m.t.Helper()
	b := g.at(m.listener, c, beyond)
	if got := b.open(); got != "ok" {
		m.t.Errorf("%s at %s: the session does not begin: %s", m.way.name, m.listener, got)
	}
	return b
}

// swapped uses a session of the right credential with a wrong one. If the connection is the session, it begins one
// with the wrong credential.
func (m *matrix) swapped(g *gateHost, wrong credential) string {
	if m.listener == "HTTP" || m.listener == "HTTPS" {
		c := m.opened(g, m.good, false)
		c.brings(wrong)
		return m.all(c)
	}
	return m.all(m.begun(g, m.listener, wrong))
}

// ended begins a session with a credential and then ends the credential.
func (m *matrix) ended(g *gateHost, c credential, end func()) string {
	if end == nil {
		return m.swapped(g, c)
	}
	b := m.opened(g, c, false)
	who := b.try(modernEra, "call")
	if all := m.all(b); all != who {
		m.t.Errorf("%s at %s: %s before the end", m.way.name, m.listener, all)
	}
	end()
	m.over(b, who)
	return m.all(b)
}

// over waits until a caller is refused, both with the credential and in the session that it began.
func (m *matrix) over(b caller, who string) {
	m.t.Helper()
	until(
		m.t,
		m.way.name+" is over at "+m.listener,
		func() bool { return b.try(modernEra, "call") != who && b.try(legacyEra, "call") != who },
	)
}

// ranOut waits until a credential expires during a session. If it expired before the session began, it is given
// more time.
func (m *matrix) ranOut(g *gateHost, life time.Duration) string {
	b := g.at(m.listener, m.way.brief(g, m.listener, life), false)
	if b.open() != "ok" || m.all(b) != "alice" {
		return m.ranOut(g, 4*life)
	}
	m.over(b, "alice")
	return m.all(b)
}

// elsewhere requests another context, with a session and without.
func (m *matrix) elsewhere(g *gateHost, context string) string {
	if m.listener == "HTTP" || m.listener == "HTTPS" {
		c := m.opened(g, m.good, false)
		c.names(context)
		fresh := g.at(m.listener, m.good, false)
		fresh.names(context)
		if a, b := fresh.open(), c.try(modernEra, "list"); a != b {
			m.t.Errorf(
				"%s at %s: beginning a session in %s comes to %s, a list of the newest era to %s",
				m.way.name,
				m.listener,
				context,
				a,
				b,
			)
		}
		return m.all(c)
	}
	b := g.at(m.listener, m.good, false)
	b.names(context)
	if b.open() == "ok" {
		m.t.Errorf("%s at %s: a session begins in %s", m.way.name, m.listener, context)
	}
	return m.all(b)
}

// others uses a session of another caller.
func (m *matrix) others(g *gateHost) string {
	if m.listener != "HTTP" && m.listener != "HTTPS" {
		return "- a connection is its own session"
	}
	somebody := credential{}
	switch {
	case g.issuer == nil:
		somebody = headers("Authorization", "Bearer "+g.app.LocalToken())
	default:
		secret, _ := g.token(identity.Token{User: "zoe"})
		somebody = headers("X-API-Key", secret)
	}
	c := m.opened(g, somebody, false)
	c.brings(m.good)
	for _, op := range gateOps[1:] {
		if a, b := c.try(legacyEra, gateOps[0]), c.try(legacyEra, op); a != b {
			return a + " " + b
		}
	}
	return c.try(legacyEra, "call")
}

func (m *matrix) beyond(g *gateHost) string {
	switch {
	case m.way.far != "":
		return "- " + m.way.far
	case g.far == "":
		return "(no address but loopback here)"
	}
	c := g.at(m.listener, m.good, true)
	c.open()
	return m.all(c)
}

// The complete matrix: every kind of credential at every listener, in every state, for lists, calls, reads and
// subscriptions of both eras. What exists is served; nothing else is; and each empty cell has its reason.
//
//redteam:attack One principal, however it comes: every route with every method, by every kind of credential and by none
func TestTheGate(t *testing.T) {
	hosts := map[string]*gateHost{}
	var rows [][]string
	for _, way := range gateWays() {
		for _, listener := range gateListeners {
			secure := listener == "HTTPS"
			host := func(open, fresh bool) *gateHost {
				name := fmt.Sprint(way.name == "cookie", open, secure) // logins are few: they have a host of their own
				if hosts[name] == nil || fresh {
					g := (*gateHost)(nil)
					if open {
						g = openGate(t, secure)
					} else {
						g = guardedGate(t, secure)
					}
					if fresh {
						return g
					}
					hosts[name] = g
				}
				return hosts[name]
			}
			m := &matrix{t: t, way: way, listener: listener, host: host}
			row := []string{way.name, listener}
			if why := way.without[listener]; why != "" {
				rows = append(rows, append(row, "- "+why+m.anyway()))
				continue
			}
			m.good = way.right(host(way.name == "anonymous", false), listener)
			for _, column := range gateColumns {
				row = append(row, m.cell(column))
			}
			rows = append(rows, row)
		}
	}
	got := table(rows)
	t.Logf("what is served is named by its principal; where the eras differ, the older / the newest\n%s", got)
	want, err := os.ReadFile("testdata/gate.txt")
	must(t, err)
	most := 2 + len(gateColumns)
	if farAddress() == "" {
		most--
		t.Log("this machine has no address but those of loopback, so the last column was not tried")
	}
	if !slices.EqualFunc(cells(got, most), cells(string(want), most), slices.Equal) {
		t.Error("this is not the matrix in testdata/gate.txt; read both, and put the one there that should be")
	}
}

// cells formats a table with at most a number of its columns.
func cells(table string, most int) (rows [][]string) {
	for line := range strings.Lines(table) {
		row := strings.Split(strings.TrimSpace(line), "|")
		for i := range row {
			row[i] = strings.TrimSpace(row[i])
		}
		rows = append(rows, row[:min(len(row), most)])
	}
	return rows
}

// table writes rows below each other.
func table(rows [][]string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 1, ' ', tabwriter.Debug)
	fmt.Fprintln(w, "way in\tdoor\t"+strings.Join(gateColumns, "\t"))
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	w.Flush()
	return b.String()
}
