package hosttest_test

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/access/identity"
	"gatehouse/internal/app"
)

// line is a connection to a TCP listener, without a client library.
type line struct {
	t *testing.T
	net.Conn
	in *bufio.Reader
}

func (g *gateHost) line(t *testing.T) *line {
	t.Helper()
	conn, err := net.Dial("tcp", g.reach(app.TCP, false))
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	must(t, conn.SetDeadline(time.Now().Add(gateWait)))
	return &line{t, conn, bufio.NewReader(conn)}
}

// asks sends a message and reads one.
func (l *line) asks(message string) string {
	l.t.Helper()
	_, err := fmt.Fprintln(l, message)
	must(l.t, err)
	answer, err := l.in.ReadString('\n')
	must(l.t, err)
	return answer
}

const (
	lineAlone = `{"jsonrpc":"2.0","id":1,"method":"%s","params":{%s"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}%s}}}`
	lineInitialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"%s","_meta":{%s}}}`
)

func tokenMember(token string) string { return fmt.Sprintf(`"gatehouse/token":%q`, token) }

// A TCP listener on loopback requires a token of every client, also before anything is configured, in every method
// of every era, and reports where to find one.
//
//redteam:attack Lines over TCP bring a token: messages without a token, with a wrong one, and from other listeners
func TestATCPListenerRequiresAToken(t *testing.T) {
	g := openGate(t, false)
	needed := func(got string) bool {
		return strings.Contains(got, `"code":-32600`) && strings.Contains(got, `params._meta[\"gatehouse/token\"]`) &&
			strings.Contains(got, app.LocalTokenFile(g.cfg.Folders)) && strings.Contains(got, "--insecure")
	}
	for _, method := range []string{"server/discover", "tools/list", "tools/call", "resources/read", "prompts/list",
		"completion/complete", "subscriptions/listen"} {
		if got := g.line(t).asks(fmt.Sprintf(lineAlone, method, `"name":"probe_who",`, "")); !needed(got) {
			t.Errorf("%s: %s", method, got)
		}
	}
	for _, method := range []string{"tools/list", "tools/call", "resources/list", "tasks/list", "logging/setLevel"} {
		if got := g.line(t).asks(`{"jsonrpc":"2.0","id":1,"method":"` + method +
			`","params":{"name":"probe_who"}}`); !strings.Contains(
			got,
			"initialize first",
		) {
			t.Errorf("%s without a handshake: %s", method, got)
		}
	}
	for _, version := range []string{"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"} {
		l := g.line(t)
		if got := l.asks(fmt.Sprintf(lineInitialize, version, "")); !needed(got) {
			t.Errorf("the handshake of %s: %s", version, got)
		}
		if got := l.asks(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"probe_who","arguments":{}}}`); !strings.Contains(
			got,
			`"error"`,
		) ||
			strings.Contains(got, "who=") {
			t.Errorf("a call after a refused handshake of %s: %s", version, got)
		}
	}
}

// Neither an invalid message, nor a batch, nor a wrong token bypasses the check of the token.
//
//redteam:attack Lines over TCP bring a token: tokens in odd places of a message
func TestATCPListenerCannotBeBypassed(t *testing.T) {
	g := openGate(t, false)
	other, _ := openElsewhere(t)
	for name, c := range map[string]struct{ sent, want string }{
		"garbage": {`{"jsonrpc":"2.0","id":1,"method":`, `"code":-32700`},
		"a batch": {`[` + fmt.Sprintf(lineInitialize, "2025-03-26", "") + `]`, `batches exist only`},
		"a batch of calls": {`[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"probe_who"}}]`,
			`batches exist only`},
		"another host's token": {fmt.Sprintf(lineAlone, "tools/call", `"name":"probe_who",`, ","+tokenMember(other)),
			"the token is not valid here"},
		"an empty token": {fmt.Sprintf(lineAlone, "tools/call", `"name":"probe_who",`, ","+tokenMember("")),
			"the token is not valid here"},
		"a token of numbers": {fmt.Sprintf(lineAlone, "tools/call", `"name":"probe_who",`, `,"gatehouse/token":1`),
			"the token is not valid here"},
		"a wrong handshake": {fmt.Sprintf(lineInitialize, "2025-11-25", tokenMember(other)),
			"the token is not valid here"},
		"a token elsewhere": {fmt.Sprintf(lineAlone, "tools/call",
			`"name":"probe_who",`+tokenMember(g.app.LocalToken())+",", ""), "credentials are needed"},
	} {
		if got := g.line(t).asks(c.sent); !strings.Contains(got, c.want) || !strings.Contains(got, `"error"`) ||
			strings.Contains(got, "who=") {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
}

// This user's local token is accepted, and so is a token of a user. It is valid for its message, or for the
// connection whose handshake contained it.
func TestATokenIsAcceptedOverTCP(t *testing.T) {
	g := openGate(t, false)
	tries := func(token, want string) {
		t.Helper()
		alone := g.line(t)
		call := fmt.Sprintf(lineAlone, "tools/call", `"name":"probe_who","arguments":{},`, ",")
		call = strings.Replace(call, ",}}}", ","+tokenMember(token)+"}}}", 1)
		if got := alone.asks(call); !strings.Contains(got, want) {
			t.Errorf("alone: got %s, want %s", got, want)
		}
		if got := alone.asks(fmt.Sprintf(lineAlone, "tools/call", `"name":"probe_who",`, "")); !strings.Contains(
			got,
			"credentials are needed",
		) {
			t.Errorf("the next message, without one: %s", got)
		}
		session := g.line(t)
		if got := session.asks(fmt.Sprintf(lineInitialize, "2025-11-25", tokenMember(token))); !strings.Contains(
			got,
			"serverInfo",
		) {
			t.Errorf("the handshake: %s", got)
		}
		if got := session.asks(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"probe_who","arguments":{}}}`); !strings.Contains(
			got,
			want,
		) {
			t.Errorf("in a session: got %s, want %s", got, want)
		}
	}
	tries(g.app.LocalToken(), "who=")
	must(t, g.users.AddUser(t.Context(), "alice", nil, ""))
	secret, _ := g.token(identity.Token{User: "alice"})
	tries(secret, "who=alice;")
	until(t, "the host has heard of the user", func() bool {
		got := g.line(t).asks(fmt.Sprintf(lineAlone, "tools/list", "", ""))
		if !strings.Contains(got, "credentials are needed") {
			t.Errorf("without a token: %s", got)
		}
		return !strings.Contains(got, "--insecure") // no longer a good idea
	})
}

// With --insecure the listener requires no token. It refuses a wrong token even then.
func TestAnInsecureTCPListenerRequiresNoToken(t *testing.T) {
	g := &gateHost{t: t, cfg: gateSettings(t)}
	g.cfg.Auth.Insecure = true
	g.run("127.0.0.1", false)
	if got := g.line(t).asks(fmt.Sprintf(lineAlone, "tools/call",
		`"name":"probe_who","arguments":{},`, "")); !strings.Contains(
		got,
		"who=anonymous;",
	) {
		t.Errorf("alone: %s", got)
	}
	l := g.line(t)
	if got := l.asks(fmt.Sprintf(lineInitialize, "2025-11-25", "")); !strings.Contains(got, "serverInfo") {
		t.Errorf("the handshake: %s", got)
	}
	if got := l.asks(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"probe_who","arguments":{}}}`); !strings.Contains(
		got,
		"who=anonymous;",
	) {
		t.Errorf("in a session: %s", got)
	}
	if got := g.line(t).asks(fmt.Sprintf(lineAlone, "tools/list", "", ","+tokenMember("wrong"))); !strings.Contains(
		got,
		"the token is not valid here",
	) {
		t.Errorf("a wrong token: %s", got)
	}
}
