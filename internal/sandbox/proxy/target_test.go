package proxy

import (
	"strings"
	"testing"
)

func TestAuthoritiesHaveOneForm(t *testing.T) {
	for text, want := range map[string]string{
		"example.org:443": "example.org:443", "EXAMPLE.org.:80": "example.org:80", "8.8.8.8:53": "8.8.8.8:53",
		"[2600::1]:443":          "[2600::1]:443",
		"[::ffff:127.0.0.1]:443": "127.0.0.1:443", "example.org": "example.org:80", "[2600::1]": "[2600::1]:80",
		"a_b.test:1":         "a_b.test:1",
		"bücher.example:443": "xn--bcher-kva.example:443", "ex。ample.org:443": "ex.ample.org:443",
	} {
		got, err := parseAuthority(text, 80)
		if err != nil || got.String() != want {
			t.Errorf("%q is %s, %v, want %s", text, got, err, want)
		}
	}
}

// tricks are forms of a host that some other reader takes for something else.
var tricks = map[string]string{
	"a NUL byte (the SOCKS5 trick)":      "evil.test\x00.example.org",
	"a NUL byte at the end":              "example.org\x00",
	"a NUL that is encoded":              "evil.test%00.example.org",
	"a carriage return":                  "example.org\r",
	"a line feed and a field":            "example.org\r\nX-Injected: yes",
	"a tab":                              "example.org\tevil.test",
	"a blank":                            "example.org evil.test",
	"a user name":                        "example.org@evil.test",
	"a user name and a password":         "example.org:443@evil.test",
	"a backslash":                        `evil.test\.example.org`,
	"a slash":                            "evil.test/.example.org",
	"a question mark":                    "evil.test?.example.org",
	"a hash":                             "evil.test#.example.org",
	"an encoded dot":                     "example%2eorg",
	"a decimal address":                  "2130706433",
	"an octal address":                   "0177.0.0.1",
	"an octal address in one number":     "017700000001",
	"a hexadecimal address":              "0x7f000001",
	"a hexadecimal part":                 "127.0.0.0x1",
	"a hexadecimal prefix alone":         "127.0.0.0x",
	"a short address":                    "127.1",
	"an address of five parts":           "127.0.0.0.1",
	"an address with leading zeros":      "127.000.000.001",
	"an address with a dot at the end":   "127.0.0.1.",
	"an address in full-width digits":    "１２７.０.０.１",
	"an address in circled digits":       "①②⑦.⓪.⓪.①",
	"an address with ideographic dots":   "127。0。0。1",
	"a name that ends in a number":       "example.1",
	"a zone":                             "fe80::1%25eth0",
	"two dots at the end":                "example.org..",
	"an empty part":                      "example..org",
	"nothing":                            "",
	"a dot":                              ".",
	"a star":                             "*",
	"bad punycode":                       "xn--\x80.org",
	"bytes that are no UTF-8":            "exam\xffple.org",
	"a name that is too long":            strings.Repeat("a.", 127) + "org",
	"a part that is too long":            strings.Repeat("a", 64) + ".org",
	"IPv6 without brackets":              "::1",
	"an IPv6 address that is compatible": "::127.0.0.1",
}

func TestOddHostsAreRefused(t *testing.T) {
	for name, host := range tricks {
		if got, err := cleanName(host); err == nil && !strings.Contains(host, "::") {
			t.Errorf("%s: %q is the name %s", name, host, got)
		}
		if got, err := parseAuthority(host+":443", 0); err == nil {
			t.Errorf("%s: %q is %s", name, host, got)
		}
	}
	for _, text := range []string{"[::1", "[::1]443", "[127.0.0.1]:443", "[example.org]:443",
		"[fe80::1%25eth0]:443", "[fe80::1%eth0]:443", "a:443:443", "a:", "a:0", "a:65536", "a:４４３", "a:+443",
		"a: 443", ":443"} {
		if got, err := parseAuthority(text, 80); err == nil {
			t.Errorf("%q is %s", text, got)
		}
	}
}

func FuzzAuthority(f *testing.F) {
	for _, host := range tricks {
		f.Add(host + ":443")
	}
	f.Add("example.org:443")
	f.Add("[2600::1]:443")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parseAuthority(text, 80)
		if err != nil {
			return
		}
		again, err := parseAuthority(got.String(), 0)
		if err != nil || again != got {
			t.Errorf("%q is %s, and that is %s, %v", text, got, again, err)
		}
		if got.name != "" &&
			(strings.ToLower(got.name) != got.name || strings.ContainsAny(got.name, "\x00\r\n\t @:/\\%[]*")) {
			t.Errorf("%q has the name %q", text, got.name)
		}
	})
}

func FuzzRule(f *testing.F) {
	for _, s := range []string{"example.org", "*.example.org:80-90,443", "10.0.0.0/8:*", "[2001:db8::/32]:1", "*",
		".a", "127.1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parseRule(text, webPorts)
		if err != nil {
			return
		}
		if r.net.IsValid() == (r.self || r.below) {
			t.Errorf("%q names %+v", text, r)
		}
		if r.hasName("") || r.hasName("evil.test") && r.name != "" && !strings.HasSuffix("evil.test", r.name) {
			t.Errorf("%q names too much: %+v", text, r)
		}
	})
}
