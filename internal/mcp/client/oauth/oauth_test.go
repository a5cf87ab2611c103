package oauth

import (
	"maps"
	"net/url"
	"testing"
)

func TestChallengesAreParsed(t *testing.T) {
	for header, want := range map[string]map[string]string{
		`Bearer error="insufficient_scope", scope="a b", resource_metadata="https://x/y"`: {
			"error": "insufficient_scope", "scope": "a b", "resource_metadata": "https://x/y",
		},
		`bearer scope=a,error=invalid_token`: {"scope": "a", "error": "invalid_token"},
		`Bearer realm="a \"quoted\", name", scope="x"`: {
			"realm": `a "quoted", name`, "scope": "x",
		},
		`Bearer scope="first", scope="second"`: {"scope": "first"},
		`Basic realm="x"`:                      {},
		`Bearer scope="open`:                   {"scope": "open"},
		`Bearer ,,,`:                           {},
	} {
		if got := parseChallenge([]string{header}); !maps.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", header, got, want)
		}
	}
}

// A token is requested only for a resource that the server's address is a part of.
func TestAResourceCoversAServer(t *testing.T) {
	const server = "https://mcp.example.com/a/mcp"
	for resource, want := range map[string]bool{
		server: true, "https://mcp.example.com": true, "https://mcp.example.com/": true,
		"https://mcp.example.com/a":  true,
		"https://MCP.example.com/a/": true, "http://mcp.example.com/a/mcp": false,
		"https://mcp.example.com/a/mc": false,
		"https://mcp.example.com/b":    false, "https://evil.example.com/a/mcp": false, "": false,
		"mcp.example.com":                   false,
		"https://mcp.example.com:444/a/mcp": false,
	} {
		if got := covers(resource, server); got != want {
			t.Errorf("%q: %v", resource, got)
		}
	}
}

// An authorization response of another request or issuer is refused (RFC 9207).
func TestForeignResponsesAreRefused(t *testing.T) {
	const issuer = "https://as.example.com"
	for back, want := range map[string]bool{
		"code=c&state=s": true,
		"code=c&state=s&iss=https://as.example.com":       true,
		"code=c&state=other":                              false,
		"code=c":                                          false,
		"state=s":                                         false,
		"error=access_denied&state=s":                     false,
		"code=c&state=s&iss=https://as.example.com/":      false,
		"code=c&state=s&iss=https://AS.example.com":       false,
		"code=c&state=s&iss=https://evil.example.com":     false,
		"error=access_denied&state=s&iss=https://x.local": false,
	} {
		q, err := url.ParseQuery(back)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := checkCallback(q, "s", &serverMetadata{Issuer: issuer}); (err == nil) != want {
			t.Errorf("%s: %v", back, err)
		}
	}
	q := url.Values{"code": {"c"}, "state": {"s"}}
	if _, err := checkCallback(q, "s", &serverMetadata{Issuer: issuer, SendsIssuer: true}); err == nil {
		t.Error("a response without the issuer that the server promises is accepted")
	}
}
