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

// The columns of the matrix: what a caller brings, or asks for.
var gateColumns = []string{
	"right", "wrong", "expired", "revoked", "wrong role", "may only know", "unknown context", "other's session", "beyond loopback",
}

// gateDoors are all doors.
var gateDoors = []string{"HTTP", "HTTPS", "TCP", "Unix", "stdio"}

// gateWay is a way in. A state that a credential cannot be in has the reason.
type gateWay struct {
	name  string
	doors map[string]string // those where it does not exist, and why; its credential is refused there all the same
	role  string            // why its principal may know of no context, unless it has a role that may

	right func(g *gatehouse, door string) credential
	wrong func(g *gatehouse, door string) credential
	// ages gives a credential and what makes it run out; nil when it has.
	ages, revoked func(g *gatehouse, door string) (c credential, end func())
	// brief gives one that runs out by itself, which ends a connection.
	brief func(g *gatehouse, door string, life time.Duration) credential
	// anyway is its secret, to be tried where the way does not exist.
	anyway func(g *gatehouse) string
	// why there is no credential that is wrong, expired or revoked.
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

// gateWays are all ways in. Some are open only on a host that requires no credentials.
func gateWays() []gateWay {
	inHeader := func(name, prefix string) func(string, string) credential {
		return func(_ string, secret string) credential {
			c := headers(name, prefix+secret)
			c.token = secret
			return c
		}
	}
	bearer, key := inHeader("Authorization", "Bearer "), inHeader("X-API-Key", "")
	// byToken is a way that shows a user's token somehow.
	byToken := func(name string, show func(door, secret string) credential) gateWay {
		return gateWay{
			name: name,
			right: func(g *gatehouse, door string) credential {
				secret, _ := g.token(identity.Token{User: "alice"})
				return show(door, secret)
			},
			wrong: func(g *gatehouse, door string) credential {
				other, _ := openElsewhere(g.t)
				return show(door, other)
			},
			ages: func(g *gatehouse, door string) (credential, func()) {
				secret, id := g.token(identity.Token{User: "alice", Until: time.Now().Add(time.Hour)})
				return show(door, secret), func() { g.age("token", id) }
			},
			brief: func(g *gatehouse, door string, life time.Duration) credential {
				secret, _ := g.token(identity.Token{User: "alice", Until: time.Now().Add(life)})
				return show(door, secret)
			},
			revoked: func(g *gatehouse, door string) (credential, func()) {
				secret, id := g.token(identity.Token{User: "alice"})
				return show(door, secret), func() { must(g.t, g.users.RevokeToken(g.t.Context(), id)) }
			},
		}
	}
	fixed := func(name string, secret func(*gatehouse) string) gateWay {
		return gateWay{
			name: name, role: noRole, anyway: secret,
			right: func(g *gatehouse, door string) credential { return bearer(door, secret(g)) },
			wrong: func(g *gatehouse, door string) credential {
				s := []byte(secret(g))
				s[len(s)-1] ^= 1
				return bearer(door, string(s))
			},
		}
	}

	tokens := byToken("bearer token", bearer)
	tokens.doors = map[string]string{"stdio": theOwner}
	tokens.anyway = func(g *gatehouse) string {
		secret, _ := g.token(identity.Token{User: "alice"})
		return secret
	}
	keys := byToken("API key", key)
	keys.doors = map[string]string{
		"TCP":   noHeaders + "; the same token goes into _meta, see above",
		"Unix":  noHeaders + "; the same token goes into _meta, see above",
		"stdio": theOwner,
	}

	anonymous := gateWay{
		name: "anonymous", role: noRole,
		doors: map[string]string{
			"TCP":   "every line needs a token, unless --insecure says otherwise",
			"Unix":  "the kernel always says who connects",
			"stdio": theOwner,
		},
		right: func(*gatehouse, string) credential { return credential{} },
		revoked: func(g *gatehouse, _ string) (credential, func()) {
			return credential{}, func() { must(g.t, g.users.AddUser(g.t.Context(), "first", nil, "")) }
		},
		never: map[string]string{"expired": "there is nothing that could expire"},
		far:   "refuses to start",
	}
	cookie := gateWay{
		name: "cookie",
		anyway: func(g *gatehouse) string {
			if g.cookie.header == nil {
				g.cookie = g.login("HTTP")
			}
			_, secret, _ := strings.Cut(g.cookie.header.Get("Cookie"), "=")
			return secret
		},
		doors: map[string]string{"TCP": noHeaders, "Unix": noHeaders, "stdio": noHeaders},
		right: func(g *gatehouse, door string) credential {
			g.cookie = g.login(door)
			return g.cookie
		},
		wrong: func(g *gatehouse, _ string) credential {
			name, value, _ := strings.Cut(g.cookie.header.Get("Cookie"), "=")
			flipped := []byte(value)
			flipped[3] ^= 1
			return headers("Cookie", name+"="+string(flipped))
		},
		ages: func(g *gatehouse, door string) (credential, func()) {
			c := g.login(door)
			return c, func() { g.age("login", g.lastLogin()) }
		},
		revoked: func(g *gatehouse, door string) (credential, func()) {
			c := g.login(door)
			return c, func() { g.logout(door, c) }
		},
	}
	certificate := gateWay{
		name:  "client certificate",
		doors: map[string]string{"HTTP": noTLS, "TCP": noTLS, "Unix": noTLS, "stdio": noTLS},
		right: func(g *gatehouse, _ string) credential { return g.certificate(g.ca, "alice", time.Hour) },
		wrong: func(g *gatehouse, _ string) credential {
			return g.certificate(newGateAuthority(g.t), "alice", time.Hour)
		},
		ages: func(g *gatehouse, _ string) (credential, func()) {
			return g.certificate(g.ca, "alice", -time.Minute), nil
		},
		revoked: func(g *gatehouse, _ string) (credential, func()) {
			return g.certificate(
				g.ca,
				"gone",
				time.Hour,
			), func() { must(g.t, g.users.RemoveUser(g.t.Context(), "gone")) }
		},
	}
	oauth := gateWay{
		name:   "OAuth token",
		anyway: func(g *gatehouse) string { return g.issuer.issue(gateSubject, time.Hour, nil) },
		doors:  map[string]string{"stdio": theOwner},
		right: func(g *gatehouse, door string) credential {
			return bearer(door, g.issuer.issue(gateSubject, time.Hour, nil))
		},
		wrong: func(g *gatehouse, door string) credential {
			return bearer(
				door,
				g.issuer.issue(gateSubject, time.Hour, map[string]any{"aud": "https://other.example.com/mcp"}),
			)
		},
		ages: func(g *gatehouse, door string) (credential, func()) {
			return bearer(door, g.issuer.issue(gateSubject, -2*time.Minute, nil)), nil
		},
		revoked: func(g *gatehouse, door string) (credential, func()) {
			must(g.t, g.users.Link(g.t.Context(), identity.LinkOAuth, "5678", "alice"))
			return bearer(door, g.issuer.issue("5678", time.Hour, nil)), func() {
				must(g.t, g.users.Unlink(g.t.Context(), identity.LinkOAuth, "5678"))
			}
		},
	}
	peer := gateWay{
		name: "peer uid", role: noRole,
		doors: map[string]string{"HTTP": noPeer, "HTTPS": noPeer, "TCP": noPeer, "stdio": theOwner},
		right: func(*gatehouse, string) credential { return credential{} },
		never: map[string]string{
			"expired": "a process does not stop being its user's", "revoked": "a process does not stop being its user's",
			"wrong": "see TestOtherUsersAreTurnedAway",
		},
		far: "a socket is on this machine",
	}
	local := fixed("local token", func(g *gatehouse) string { return g.app.LocalToken() })
	local.doors = map[string]string{
		"Unix":  "a socket has no address that could be loopback; its peer is known anyway",
		"stdio": theOwner,
	}
	local.never = map[string]string{
		"expired": "it lives as long as its file",
		"revoked": "it lives as long as its file, which the host reads at its start",
	}
	flag := fixed("--auth-token", func(*gatehouse) string { return gateFlag })
	flag.doors = map[string]string{"stdio": theOwner}
	flag.never = map[string]string{
		"expired": "it lives as long as the setting",
		"revoked": "it lives as long as the setting",
	}
	owner := gateWay{
		name: "who started it", role: noRole,
		doors: map[string]string{
			"HTTP":  "others reach it too",
			"HTTPS": "others reach it too",
			"TCP":   "others reach it too",
			"Unix":  "the kernel says who connects",
		},
		right: func(*gatehouse, string) credential { return credential{} },
		wrong: func(*gatehouse, string) credential { return credential{token: gateFlag} },
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

// openElsewhere makes a token of another host.
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

func (g *gatehouse) certificate(by *gateAuthority, name string, life time.Duration) credential {
	c := by.issue(name, life)
	return credential{cert: &c}
}

// login logs alice in, once for each host and purpose: three times are allowed
// within 20 s.
func (g *gatehouse) login(door string) credential {
	g.t.Helper()
	b := g.byHTTP(door, credential{}, false)
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
	c := res.Cookies()[0]
	if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Secure != (door == "HTTPS") {
		g.t.Errorf("the cookie at %s is %v", door, c)
	}
	return headers("Cookie", c.Name+"="+c.Value)
}

func (g *gatehouse) logout(door string, c credential) {
	g.t.Helper()
	b := g.byHTTP(door, c, false)
	res, err := b.http.Do(b.request(g.t.Context(), "POST", strings.TrimSuffix(b.url, "/mcp")+"/auth/logout", ""))
	must(g.t, err)
	res.Body.Close()
	if res.StatusCode != 204 {
		g.t.Fatalf("logging out: %s", res.Status)
	}
}

// lastLogin is the id of alice's newest login.
func (g *gatehouse) lastLogin() string {
	g.t.Helper()
	all, err := g.users.Logins(g.t.Context(), "alice")
	must(g.t, err)
	if len(all) == 0 {
		g.t.Fatal("nobody is logged in")
	}
	return all[len(all)-1].ID
}

// matrix fills in the cells of one way at one door.
type matrix struct {
	t    *testing.T
	way  gateWay
	door string
	host func(open, fresh bool) *gatehouse
	good credential // the right one
}

// all tries everything in all eras, and says in few words what came of it.
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

// short says the same once, and ok where a principal is named beside.
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

// anyway tries what is not for this door at it, in a message.
func (m *matrix) anyway() string {
	if m.way.name == "anonymous" && m.door == "TCP" {
		return "; refused: " + m.all(m.begun(m.host(true, false), m.door, credential{}))
	}
	if m.way.anyway == nil || m.door == "HTTP" || m.door == "HTTPS" {
		return ""
	}
	g := m.host(false, false)
	return "; refused: " + m.all(m.begun(g, m.door, credential{token: m.way.anyway(g)}))
}

// cell tries one column.
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
			return m.all(m.begun(g, m.door, credential{}))
		}
		return m.swapped(g, m.way.wrong(g, m.door))
	case "expired":
		if m.way.brief != nil && (m.door == "TCP" || m.door == "Unix") {
			return m.ranOut(g, 2*time.Second)
		}
		c, end := m.way.ages(g, m.door)
		return m.ended(g, c, end)
	case "revoked":
		c, end := m.way.revoked(g, m.door)
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

// begun is a caller who tries to begin a session, whatever comes of it.
func (m *matrix) begun(g *gatehouse, door string, c credential) caller {
	b := g.at(door, c, false)
	if b.open() == "ok" {
		m.t.Errorf("%s at %s: a session begins with a credential that is not good", m.way.name, door)
	}
	return b
}

// opened is a caller with a session.
func (m *matrix) opened(g *gatehouse, c credential, beyond bool) caller {
	m.t.Helper()
	b := g.at(m.door, c, beyond)
	if got := b.open(); got != "ok" {
		m.t.Errorf("%s at %s: the session does not begin: %s", m.way.name, m.door, got)
	}
	return b
}

// swapped uses a session that the right credential began with a wrong one, and
// where a connection is the session, begins one.
func (m *matrix) swapped(g *gatehouse, wrong credential) string {
	if m.door == "HTTP" || m.door == "HTTPS" {
		c := m.opened(g, m.good, false)
		c.brings(wrong)
		return m.all(c)
	}
	return m.all(m.begun(g, m.door, wrong))
}

// ended begins a session with a credential whose end then comes.
func (m *matrix) ended(g *gatehouse, c credential, end func()) string {
	if end == nil {
		return m.swapped(g, c)
	}
	b := m.opened(g, c, false)
	who := b.try(modernEra, "call")
	if all := m.all(b); all != who {
		m.t.Errorf("%s at %s: %s before the end", m.way.name, m.door, all)
	}
	end()
	m.over(b, who)
	return m.all(b)
}

// over waits until a caller is served no longer: neither by what the
// credential says, nor in the session that it began.
func (m *matrix) over(b caller, who string) {
	m.t.Helper()
	until(
		m.t,
		m.way.name+" is over at "+m.door,
		func() bool { return b.try(modernEra, "call") != who && b.try(legacyEra, "call") != who },
	)
}

// ranOut waits until a credential has run out under a session. Where that was
// faster than the session, it is given longer.
func (m *matrix) ranOut(g *gatehouse, life time.Duration) string {
	b := g.at(m.door, m.way.brief(g, m.door, life), false)
	if b.open() != "ok" || m.all(b) != "alice" {
		return m.ranOut(g, 4*life)
	}
	m.over(b, "alice")
	return m.all(b)
}

// elsewhere asks for another context, with a session and alone.
func (m *matrix) elsewhere(g *gatehouse, context string) string {
	if m.door == "HTTP" || m.door == "HTTPS" {
		c := m.opened(g, m.good, false)
		c.names(context)
		fresh := g.at(m.door, m.good, false)
		fresh.names(context)
		if a, b := fresh.open(), c.try(modernEra, "list"); a != b {
			m.t.Errorf(
				"%s at %s: beginning a session in %s comes to %s, a list of the newest era to %s",
				m.way.name,
				m.door,
				context,
				a,
				b,
			)
		}
		return m.all(c)
	}
	b := g.at(m.door, m.good, false)
	b.names(context)
	if b.open() == "ok" {
		m.t.Errorf("%s at %s: a session begins in %s", m.way.name, m.door, context)
	}
	return m.all(b)
}

// others uses a session of another caller.
func (m *matrix) others(g *gatehouse) string {
	if m.door != "HTTP" && m.door != "HTTPS" {
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

func (m *matrix) beyond(g *gatehouse) string {
	switch {
	case m.way.far != "":
		return "- " + m.way.far
	case g.far == "":
		return "(no address but loopback here)"
	}
	c := g.at(m.door, m.good, true)
	c.open()
	return m.all(c)
}

// The gate, whole: every way in at every door, with everything that can be
// right or wrong about it, for lists, calls, reads and subscriptions of both
// eras. What is there is served; nothing else is, and what cannot be has its
// reason.
//
//redteam:attack One principal, however it comes: every route with every method, by every kind of credential and by none
func TestTheGate(t *testing.T) {
	hosts := map[string]*gatehouse{}
	var rows [][]string
	for _, way := range gateWays() {
		for _, door := range gateDoors {
			secure := door == "HTTPS"
			host := func(open, fresh bool) *gatehouse {
				name := fmt.Sprint(way.name == "cookie", open, secure) // logins are few: they have a host of their own
				if hosts[name] == nil || fresh {
					g := (*gatehouse)(nil)
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
			m := &matrix{t: t, way: way, door: door, host: host}
			row := []string{way.name, door}
			if why := way.doors[door]; why != "" {
				rows = append(rows, append(row, "- "+why+m.anyway()))
				continue
			}
			m.good = way.right(host(way.name == "anonymous", false), door)
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

// cells reads a table, at most so many columns of it.
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
