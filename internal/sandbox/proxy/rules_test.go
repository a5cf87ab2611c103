package proxy

import (
	"net/netip"
	"strings"
	"testing"

	"gatehouse/internal/sandbox"
)

func TestRulesNamePlaces(t *testing.T) {
	for _, c := range []struct {
		rule, target string
		want         bool
	}{
		{"example.org", "example.org:443", true},
		{"example.org", "example.org:80", true},
		{"example.org", "example.org:22", false},
		{"example.org", "www.example.org:443", false},
		{"example.org", "example.org.:443", true},
		{"EXAMPLE.Org.", "eXample.oRG:443", true},
		{"bücher.example", "xn--bcher-kva.example:443", true},
		{"xn--bcher-kva.example", "BÜCHER.example:443", true},
		{"example.org:22", "example.org:22", true},
		{"example.org:22", "example.org:443", false},
		{"example.org:22,8000-8010", "example.org:8005", true},
		{"example.org:*", "example.org:9", true},
		{"*.example.org", "example.org:443", false},
		{"*.example.org", "a.b.example.org:443", true},
		{"*.example.org", "notexample.org:443", false},
		{"*.example.org", "example.org.evil.test:443", false},
		{".example.org", "example.org:443", true},
		{".example.org", "a.example.org:443", true},
		{".example.org", "notexample.org:443", false},
		{"*", "anything.test:443", true},
		{"*", "anything.test:22", false},
		{"*", "8.8.8.8:443", false},
		{"8.8.8.8", "8.8.8.8:443", true},
		{"8.8.0.0/16", "8.8.8.8:443", true},
		{"8.8.0.0/16", "8.9.8.8:443", false},
		{"8.8.0.0/16", "[::ffff:8.8.8.8]:443", true},
		{"[2600::/16]:443", "[2600::1]:443", true},
		{"2600::1", "[2600::1]:443", true},
		{"[2600::1]", "[2600::2]:443", false},
		{"8.8.8.8", "[64:ff9b::808:808]:443", true},
		{"10.0.0.0/8", "10.1.2.3:443", true},
		{"10.1.2.3:5432", "10.1.2.3:5432", true},
		{"0.0.0.0/0", "8.8.8.8:443", true},
		{"0.0.0.0/0", "10.1.2.3:443", false},
		{"0.0.0.0/0", "127.0.0.1:443", false},
		{"0.0.0.0/1", "127.0.0.1:443", false},
		{"127.0.0.0/8", "127.0.0.1:443", true},
		{"::/0", "[::1]:443", false},
		{"169.254.0.0/16", "169.254.1.1:80", true},
		{"169.254.0.0/16", "169.254.169.254:80", false},
		{"169.254.169.254", "169.254.169.254:80", true},
		{"fc00::/7", "[fd00:ec2::254]:80", false},
		{"fd00:ec2::254", "[fd00:ec2::254]:80", true},
	} {
		n := sandbox.Network{Allow: []string{c.rule}, Resolve: names{"": {"93.184.215.14"}}}
		if r, err := parseRule(c.rule, webPorts); err == nil && r.net.IsValid() {
			n.Special = n.Allow
		}
		p, err := newPolicy(n)
		if err != nil {
			t.Errorf("%s: %v", c.rule, err)
			continue
		}
		to, err := parseAuthority(c.target, 0)
		if err != nil {
			t.Errorf("%s: %v", c.target, err)
			continue
		}
		if _, err := p.judge(t.Context(), to, nil); (err == nil) != c.want {
			t.Errorf("%s with the rule %s: %v", c.target, c.rule, err)
		}
	}
}

// A caller's rules open no special address by themselves, and the settings open
// none that no rule of the caller leads to.
//
//redteam:attack A sandbox has no network until it is given one: a caller's rules name loopback, private, metadata and the host's addresses
func TestSpecialAddressesNeedTheSettings(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("93.184.215.14")}
	for _, c := range []struct {
		allow, special, at string
		want               bool
	}{
		{"127.0.0.1:3000", "", "127.0.0.1:3000", false},
		{"127.0.0.0/8:*", "", "127.0.0.1:3000", false},
		{"[::1]:3000", "", "[::1]:3000", false},
		{"10.0.0.5:443", "", "10.0.0.5:443", false},
		{"169.254.169.254", "", "169.254.169.254:80", false},
		{"fd00:ec2::254", "", "[fd00:ec2::254]:80", false},
		{"169.254.1.1", "", "169.254.1.1:80", false},
		{"93.184.215.14", "", "93.184.215.14:443", false},
		{"inner.test", "", "inner.test:443", false},
		{"", "10.0.0.0/8:*", "10.0.0.5:443", false},
		{"example.org", "10.0.0.0/8:*", "10.0.0.5:443", false},
		{"10.0.0.5", "10.0.0.0/8:22", "10.0.0.5:443", false},
		{"10.0.0.5", "0.0.0.0/0:*", "10.0.0.5:443", false},
		{"169.254.169.254", "169.254.0.0/16:*", "169.254.169.254:80", false},
		{"10.0.0.5", "10.0.0.0/8", "10.0.0.5:443", true},
		{"10.0.0.0/8", "10.0.0.5", "10.0.0.5:443", true},
		{"10.0.0.0/8", "10.0.0.5", "10.0.0.6:443", false},
		{"inner.test", "10.0.0.0/8", "inner.test:443", true},
		{"93.184.215.14", "93.184.215.14", "93.184.215.14:443", true},
	} {
		n := sandbox.Network{Resolve: names{"inner.test": {"10.0.0.5"}}}
		if c.allow != "" {
			n.Allow = []string{c.allow}
		}
		if c.special != "" {
			n.Special = []string{c.special}
		}
		p, err := newPolicy(n)
		if err != nil {
			t.Fatal(err)
		}
		to, err := parseAuthority(c.at, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.judge(t.Context(), to, own); (err == nil) != c.want {
			t.Errorf("%s, allowed %q, opened %q: %v", c.at, c.allow, c.special, err)
		}
	}
	if _, err := newPolicy(sandbox.Network{Special: []string{"inner.test"}}); err == nil {
		t.Error("the settings open a name")
	}
}

func TestRulesThatAreNoneAreRefused(t *testing.T) {
	for _, text := range []string{
		"", " ", "a b.test", "http://example.org", "example.org/path", "example.org/tcp", "example.org:/tcp",
		"example.org:443/udp", "user@example.org", "example.org:", "example.org:0",
		"example.org:65536", "example.org:80-70", "example.org:80,,90", "example.org:-1", "example.org:+80",
		"[::1", "[::1]80", "[::1]:",
		"10.1.2.3/8", "10.0.0.0/33", "::ffff:10.0.0.0/104", "0x7f.1", "127.1", "2130706433", "0177.0.0.1",
		"1.2.3.4.5", "fe80::1%eth0",
		"a.*.test", "**.test", "*example.org", "-a.test", "a-.test", "a..test", "..", ".", "exa\x00mple.org",
		"exa\nmple.org", "ex%61mple.org",
		strings.Repeat("a", 64) + ".test", strings.Repeat("a.", 127) + "test", "１２７.0.0.1",
	} {
		if r, err := parseRule(text, webPorts); err == nil {
			t.Errorf("%q is the rule %+v", text, r)
		}
	}
	if _, err := parseRules(make([]string, mostRules+1), webPorts); err == nil {
		t.Error("too many rules were taken")
	}
}

func TestWhatDeniesCountsFirst(t *testing.T) {
	p, err := newPolicy(sandbox.Network{
		Allow:   []string{"*:*", "8.0.0.0/8", "10.0.0.0/8"},
		Special: []string{"10.0.0.0/8"},
		Deny:    []string{".evil.test", "8.8.8.0/24", "mail.test:25", "10.0.0.1"},
		Resolve: names{"": {"93.184.215.14"}, "dns.test": {"8.8.8.8"}, "both.test": {"8.8.8.8", "1.1.1.1"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for target, want := range map[string]string{
		"good.test:443": "", "evil.test:443": "denied by the rule .evil.test",
		"a.evil.test:22": "denied by the rule .evil.test",
		"EVIL.test.:443": "denied", "mail.test:25": "denied by the rule mail.test:25", "mail.test:443": "",
		"8.8.8.8:443": "denied by the rule 8.8.8.0/24",
		"8.8.4.4:443": "", "dns.test:443": "leads to 8.8.8.8, which is denied",
		"10.0.0.1:80": "denied by the rule 10.0.0.1", "10.0.0.2:80": "",
		"[64:ff9b::808:808]:443": "denied", "[::ffff:8.8.8.8]:443": "denied",
	} {
		to, err := parseAuthority(target, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = p.judge(t.Context(), to, nil)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", target, err, want)
		}
	}
	v, err := p.judge(t.Context(), target{name: "both.test", port: 443}, nil)
	if want := netip.MustParseAddrPort("1.1.1.1:443"); err != nil || len(v.at) != 1 || v.at[0] != want {
		t.Errorf("of two addresses, one of them denied: %v, %v", v.at, err)
	}
}

func TestNothingIsAllowedByItself(t *testing.T) {
	p, err := newPolicy(sandbox.Network{Resolve: names{"": {"93.184.215.14"}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, to := range []target{{name: "example.org", port: 443}, {addr: netip.MustParseAddr("8.8.8.8"), port: 443}} {
		if _, err := p.judge(t.Context(), to, nil); err == nil ||
			!strings.Contains(err.Error(), "this sandbox has no network") {
			t.Errorf("%s: %v", to, err)
		}
	}
}

// A question to a name server can carry out what the answer does not matter for.
func TestNamesThatAreNotAllowedAreNotResolved(t *testing.T) {
	p, err := newPolicy(sandbox.Network{
		Allow:   []string{"example.org", "8.8.8.8"},
		Deny:    []string{"b.example.org"},
		Resolve: names{},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"secret.evil.test", "b.example.org", "example.org.evil.test"} {
		_, err := p.judge(t.Context(), target{name: name, port: 443}, nil)
		if err == nil || strings.Contains(err.Error(), "resolved") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAddressesThatAreNotPublicHaveToBeNamed(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("93.184.215.14")}
	p, err := newPolicy(sandbox.Network{Allow: []string{"*:*", "0.0.0.0/0", "::/0"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []string{
		"0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.0.1",
		"168.63.129.16", "169.254.169.254", "169.254.170.2",
		"172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1", "192.168.1.1", "198.18.0.1", "198.51.100.7",
		"203.0.113.9", "224.0.0.251", "239.1.1.1",
		"240.0.0.1", "255.255.255.255", "93.184.215.14", "::", "::1", "::7f00:1", "::ffff:127.0.0.1",
		"::ffff:0:7f00:1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
		"64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1", "2002:7f00:1::", "2002:a9fe:a9fe::1", "3fff::1",
		"5f00::1", "fc00::1", "fd00:ec2::254", "fd20:ce::254",
		"fe80::1", "febf::1", "fec0::1", "ff02::1", "::ffff:93.184.215.14", "fe80::1%eth0", "64:ff9b::5db8:d70e",
	} {
		at := netip.MustParseAddr(a)
		if _, err := p.byAddress(target{name: "example.org", port: 443}, at, "*", own); err == nil {
			t.Errorf("%s is reached by a name", a)
		}
		if _, err := p.byAddress(target{addr: at, port: 443}, at, "", own); err == nil {
			t.Errorf("%s is reached by a rule for every address", a)
		}
	}
	for _, a := range []string{"8.8.8.8", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "64:ff9b::808:808"} {
		if _, err := p.byAddress(target{name: "example.org", port: 443}, netip.MustParseAddr(a), "*", own); err != nil {
			t.Error(err)
		}
	}
}
