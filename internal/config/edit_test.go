package config

import (
	"encoding/json"
	"strings"
	"testing"
)

const edited = `# the host
log:
  level: info # quiet

# where it listens
listen:
  http:
    port: 3000
rules:
  - then: ask
    names: [a]
`

func TestEditChangesOneSettingAndKeepsTheRest(t *testing.T) {
	for _, c := range []struct{ text, path, value, want string }{
		{edited, "log.level", `"debug"`,
			"# the host\nlog:\n  level: debug\n\n# where it listens\nlisten:\n  http:\n    port: 3000\nrules:\n" +
				"  - then: ask\n    names: [a]\n"},
		{edited, "listen.http.host", `"127.0.0.1"`, "    port: 3000\n    host: 127.0.0.1\nrules:"},
		{edited, "approvals.proof", `"none"`, "    names: [a]\napprovals:\n  proof: none\n"},
		{edited, "rules", `[{"then":"allow"},{"then":"refuse","names":["x","y"]}]`,
			"rules:\n  - then: allow\n  - then: refuse"},
		{edited, "listen.http.port", ``, "level: info # quiet\nrules:"},
		{"", "log.level", `"warn"`, "log:\n  level: warn\n"},
		{"# only a comment", "roots.folders", `["/a","/b"]`,
			"# only a comment\nroots:\n  folders:\n    - /a\n    - /b\n"},
		{"log:\n", "log.level", `"warn"`, "log:\n  level: warn\n"},
		{"log: {level: info}\n", "log.format", `"json"`, "log: {level: info, format: json}\n"},
	} {
		var value json.RawMessage
		if c.value != "" {
			value = json.RawMessage(c.value)
		}
		got, err := Edit([]byte(c.text), c.path, value)
		if err != nil || !strings.Contains(string(got), c.want) {
			t.Errorf("%s to %s: got %v and\n%s\nwant\n%s", c.path, c.value, err, got, c.want)
		}
	}
	for _, bad := range []struct{ text, path, value string }{{"a: [", "log.level", `"x"`}, {edited, "log.level", `{`}} {
		if got, err := Edit([]byte(bad.text), bad.path, json.RawMessage(bad.value)); err == nil {
			t.Errorf("%q: got %s, want an error", bad.text, got)
		}
	}
}

func TestListShowsSourcesAndNoSecret(t *testing.T) {
	text := "auth:\n  token: hush-hush-hush-hush\nlog:\n  level: debug\nlisten:\n  http:\n    port: 3001\nrules:\n" +
		"  - then: ask\n    names: [a]\n    remember: 1h\n"
	l, err := Parse(func(name string) string {
		return map[string]string{"HOME": "/home/ann", "GATEHOUSE_HTTP_HOST": "127.0.0.2"}[name]
	}, "f.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(l.List())
	if err != nil || strings.Contains(string(got), "hush") {
		t.Fatalf("got %v, or the list shows a secret: %s", err, got)
	}
	for _, want := range []string{
		`{"path":"auth.token","type":"string","source":"f.yaml:2:3","secret":true`,
		`{"path":"log.level","value":"debug","type":"string","enum":`,
		`{"path":"listen.http.port","value":3001,"type":"integer","source":"f.yaml:7:5"`,
		`{"path":"listen.http.host","value":"127.0.0.2","type":"string","source":"GATEHOUSE_HTTP_HOST"`,
		`{"path":"rules","value":[{"names":["a"],"remember":"1h","then":"ask"}],"type":"array","source":"f.yaml:8:1","live":true`,
	} {
		if !strings.Contains(string(got), want) {
			t.Errorf("the list lacks %s\n%s", want, got)
		}
	}
}
