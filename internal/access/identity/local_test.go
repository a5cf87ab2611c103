package identity

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheLocalToken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "token")
	s := empty(t, "", Options{LocalToken: path})
	if !strings.HasPrefix(s.LocalToken(), "gh_local_") {
		t.Errorf("the token is %q", s.LocalToken())
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v", info, err)
	}
	if again := empty(t, "", Options{LocalToken: path}); again.LocalToken() != s.LocalToken() {
		t.Error("the next start has another token")
	}
	if left, _ := filepath.Glob(path + "*"); len(left) != 1 {
		t.Errorf("beside the file lie %v", left)
	}
	p, d := s.HTTP(request("GET", "/mcp", here, "Authorization: Bearer "+s.LocalToken()))
	if d != nil || !p.Has(Admin) {
		t.Errorf("it gives %+v, %v; want an administrator, as over the socket", p, d)
	}
	if s.MustAuthenticate("0.0.0.0") == nil {
		t.Error("it counts as authentication beyond loopback")
	}
	for _, h := range forwarding {
		if got := outcome(s, request("GET", "/mcp", here,
			"Authorization: Bearer "+s.LocalToken(), h+": x")); got != invalid401 {
			t.Errorf("through a proxy that says %s: %s", h, got)
		}
	}
}

func TestALocalTokenThatIsNoneIsRefused(t *testing.T) {
	for content, mode := range map[string]os.FileMode{
		newSecret(localPrefix): 0o644, "": 0o600, newSecret(tokenPrefix): 0o600, newSecret(localPrefix)[:30]: 0o600,
	} {
		path := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		if _, err := Open("", Options{LocalToken: path}); err == nil || !strings.Contains(err.Error(), "remove it") {
			t.Errorf("%q with mode %v: got %v, want advice", content, mode, err)
		}
	}
	if _, err := Open("", Options{LocalToken: t.TempDir()}); err == nil {
		t.Error("a folder passes for a token")
	}
}

// MustAuthenticate decides which listeners may open.
func TestListenersBeyondLoopbackNeedALogin(t *testing.T) {
	outside := []string{
		"0.0.0.0",
		"::",
		"[::]",
		"192.0.2.1",
		"2001:db8::1",
		"tools.example.com",
		"localhost.example.com",
		"127.0.0.1.example.com",
		"1.1",
		"*",
	}
	inside := []string{"", "127.0.0.1", "127.9.9.9", "localhost", "::1", "[::1]", "::ffff:127.0.0.1"}
	for name, c := range map[string]struct {
		options Options
		user    bool
		refuse  bool
	}{
		"nothing":     {Options{}, false, true},
		"insecure":    {Options{Insecure: true}, false, false},
		"required":    {Options{Mode: Required}, false, false},
		"a user":      {Options{}, true, false},
		"by hand":     {Options{AuthToken: "0123456789abcdef"}, false, false},
		"certificate": {Options{ClientCA: true}, false, false},
		"provider": {Options{OAuth: &OAuth{Issuer: "https://id.example.com", Resource: "https://a.example.com/mcp"}},
			false, false},
	} {
		s := empty(t, "", c.options)
		if c.user {
			add(t, s, "alice", "")
		}
		for _, host := range outside {
			if err := s.MustAuthenticate(host); (err != nil) != c.refuse {
				t.Errorf("%s, %s: got %v", name, host, err)
			} else if err != nil && !strings.Contains(err.Error(), "--insecure") {
				t.Errorf("%s does not say what to do: %v", host, err)
			}
		}
		for _, host := range inside {
			if err := s.MustAuthenticate(host); err != nil {
				t.Errorf("%s, %s: got %v", name, host, err)
			}
		}
	}
}

func TestLines(t *testing.T) {
	s := newTestService(t, Options{LocalToken: filepath.Join(t.TempDir(), "token")})
	open := empty(t, "", Options{})
	insecure := empty(t, "", Options{Insecure: true})
	fresh := empty(t, "", Options{LocalToken: filepath.Join(t.TempDir(), "token")})
	embedded := empty(t, "", Options{Embedded: true})
	good, _ := newToken(t, s, Token{User: "bob"})
	near, far := netip.MustParseAddr("::ffff:127.0.0.1"), netip.MustParseAddr("192.0.2.7")
	for name, c := range map[string]struct {
		s     *Service
		token string
		from  netip.Addr
		want  string
	}{
		"token from here":       {s, good, near, "bob by token"},
		"token from away":       {s, good, far, "bob by token"},
		"local token from here": {s, s.LocalToken(), near, s.owner + " by local"},
		"local token from away": {s, s.LocalToken(), far, invalid401},
		"local, from nowhere":   {s, s.LocalToken(), netip.Addr{}, invalid401},
		"wrong token":           {s, newSecret(tokenPrefix), near, invalid401},
		"none":                  {s, "", near, unnamed401},
		"none, open":            {open, "", near, unnamed401},
		"none, local token":     {fresh, "", near, unnamed401},
		"local token, open":     {fresh, fresh.LocalToken(), near, fresh.owner + " by local"},
		"none, embedded":        {embedded, "", near, unnamed401},
		"none, embedded, Unix":  {embedded, "", netip.Addr{}, "anonymous by anonymous"},
		"wrong, embedded, Unix": {embedded, "x", netip.Addr{}, invalid401},
		"none, insecure, near":  {insecure, "", near, "anonymous by anonymous"},
		"none, open, away":      {open, "", far, unnamed401},
		"none, from nowhere":    {open, "", netip.Addr{}, unnamed401},
		"wrong, open":           {open, "x", near, invalid401},
		"none, insecure":        {insecure, "", far, "anonymous by anonymous"},
		"wrong, insecure":       {insecure, "x", far, invalid401},
	} {
		p, d := c.s.Line(t.Context(), c.token, c.from)
		got := p.Name + " by " + string(p.Way)
		if d != nil {
			got = "Unauthorized: " + d.Code
		}
		if got != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
		if d != nil && d.Code == "unauthorized" && !strings.Contains(d.Message, MetaToken) {
			t.Errorf("%s: the message does not say where: %s", name, d.Message)
		}
	}
}

// A TCP listener that would refuse every client does not open.
func TestTCPListenersNeedAnExistingToken(t *testing.T) {
	local := filepath.Join(t.TempDir(), "token")
	for name, c := range map[string]struct {
		options    Options
		user       bool
		here, away bool // whether a listener on loopback, or elsewhere, opens
	}{
		"nothing":       {Options{}, false, false, false},
		"embedded":      {Options{Embedded: true}, false, false, false},
		"a local token": {Options{LocalToken: local}, false, true, false},
		"a user":        {Options{}, true, true, true},
		"by hand":       {Options{AuthToken: "0123456789abcdef"}, false, true, true},
		"required":      {Options{Mode: Required}, false, true, true},
		"insecure":      {Options{Insecure: true}, false, true, true},
	} {
		s := empty(t, "", c.options)
		if c.user {
			add(t, s, "alice", "")
		}
		for host, opens := range map[string]bool{"": c.here, "127.0.0.1": c.here, "::1": c.here, "0.0.0.0": c.away,
			"192.0.2.1": c.away} {
			err := s.MustHaveTokens(host)
			if (err == nil) != opens {
				t.Errorf("%s, %q: got %v", name, host, err)
			}
			if err != nil &&
				(!strings.Contains(err.Error(), "--auth-token") || !strings.Contains(err.Error(), "--insecure")) {
				t.Errorf("%s, %q does not say what to do: %v", name, host, err)
			}
		}
	}
}

func TestPeers(t *testing.T) {
	s := newTestService(t, Options{})
	p, ok := s.Peer(uint32(os.Getuid()))
	if !ok || p.Name != s.owner || !p.Has(Admin) || p.Way != Peer {
		t.Errorf("our own user is %+v, %t", p, ok)
	}
	if p := s.Owner(); p.Name != s.owner || len(p.Roles) != 0 || p.Way != Stdio {
		t.Errorf("the owner is %+v", p)
	}
	if p, ok := s.Peer(4_000_000_001); ok {
		t.Errorf("an unknown user is %+v", p)
	}
	name, ok := systemUser("1")
	if !ok || os.Getuid() == 1 {
		t.Skip("there is no other user on this machine to try")
	}
	if p, ok := s.Peer(1); ok {
		t.Errorf("another user of the machine is %+v", p)
	}
	if checkUser(name) != nil {
		t.Skip("the other user's name is no name here")
	}
	add(t, s, name, "", "reader")
	if p, ok := s.Peer(1); !ok || p.Name != name || p.Has(Admin) || !p.Has("reader") {
		t.Errorf("another user that is known here is %+v, %t", p, ok)
	}
}
