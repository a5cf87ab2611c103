package catalog

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/packages"
)

// wishOf makes a package of one entry of packages in a server.json, or of its remotes.
func wishOf(t *testing.T, what string, given map[string][]string) (packages.Wish, error) {
	t.Helper()
	e, err := parseServer(json.RawMessage(`{"name":"io.github.ann/x","version":"1",` + what + `}`))
	if err != nil {
		t.Fatal(err)
	}
	var p *Package
	if len(e.Packages) > 0 {
		if p, err = e.Installable(func(string) bool { return true }); err != nil {
			return packages.Wish{}, err
		}
	}
	return e.Wish("x", p, func(in Input) ([]string, secret.Text, bool, error) {
		values, ok := given[in.Label()]
		if in.Secret && ok {
			return nil, secret.New(strings.Join(values, ",")), true, nil
		}
		return values, secret.Text{}, ok, nil
	})
}

// Everything that a server.json says of how a package is started becomes a record.
func TestPackagesOfServerJSON(t *testing.T) {
	hash := strings.Repeat("a", 64)
	stdio := `"transport":{"type":"stdio"}`
	for _, c := range []struct {
		what   string
		given  map[string][]string
		source string
		args   []string
		env    map[string]string
	}{
		{what: `{"registryType":"npm","identifier":"@a/b","version":"1.0.0","runtimeHint":"npx",
			"runtimeArguments":[{"type":"positional","value":"-y"}],` + stdio + `}`, source: "npm:@a/b@1.0.0"},
		{what: `{"registryType":"pypi","identifier":"a-b","version":"1.0","runtimeHint":"uvx","runtimeArguments":[
			{"type":"named","name":"--with","value":"pandas==2.2.3"}],` + stdio + `}`, source: "pypi:a-b==1.0,pandas==2.2.3"},
		{what: `{"registryType":"cargo","identifier":"a-b","version":"1.0.0",` + stdio + `}`,
			source: "crate:a-b@1.0.0"},
		{what: `{"registryType":"mcpb","identifier":"https://example.com/a.mcpb","fileSha256":"` + hash +
			`",` + stdio + `}`,
			source: "mcpb:https://example.com/a.mcpb#sha256=" + hash},
		{
			what: `{"registryType":"npm","identifier":"a","version":"1.0.0",` + stdio + `,"packageArguments":[
				{"type":"positional","valueHint":"folder","isRequired":true,"isRepeated":true,"format":"filepath"},
				{"type":"named","name":"--level","choices":["low","high"],"default":"low"},
				{"type":"named","name":"--url","value":"https://{host}/{path}","variables":{"host":{"isRequired":true},"path":{"default":"v1"}}},
				{"type":"named","name":"--none","value":"{gone}","variables":{"gone":{}}},
				{"type":"positional","value":"{kept}"}],
				"environmentVariables":[{"name":"KEY","isSecret":true,"isRequired":true},{"name":"AUTH","value":"Bearer {token}",
				"variables":{"token":{"isSecret":true,"isRequired":true}}},{"name":"N","format":"number","default":"3"}]}`,
			given: map[string][]string{"folder": {"/a", "/b"}, "--level": {"high"}, "host": {"h"}, "KEY": {"k"},
				"token": {"t"}},
			source: "npm:a@1.0.0", args: []string{"/a", "/b", "--level=high", "--url=https://h/v1", "{kept}"},
			env: map[string]string{"KEY": "${secret:X_KEY}=k", "AUTH": "${secret:X_AUTH}=Bearer t", "N": "3"},
		},
	} {
		w, err := wishOf(t, `"packages":[`+c.what+`]`, c.given)
		if err != nil {
			t.Errorf("%s: %v", c.what, err)
			continue
		}
		for name, value := range w.Env {
			if secrets, _ := secret.Names(value); len(secrets) > 0 {
				w.Env[name] += "=" + w.Secrets[secrets[0]].Reveal()
			}
		}
		if w.Source.String() != c.source || !slices.Equal(w.Args, c.args) || fmt.Sprint(w.Env) != fmt.Sprint(c.env) {
			t.Errorf("%s: %s %q %v", c.what, w.Source, w.Args, w.Env)
		}
	}
}

// An address with variables and headers becomes a remote server.
func TestRemotesOfServerJSON(t *testing.T) {
	w, err := wishOf(
		t,
		`"remotes":[{"type":"streamable-http","url":"https://{tenant}.example.com/mcp","variables":{"tenant":
		{"isRequired":true,"choices":["eu","us"]}},"headers":[{"name":"Authorization","value":"Bearer {key}",
		"variables":{"key":{"isRequired":true,"isSecret":true}}},{"name":"X-Mode","default":"a"}]}]`,
		map[string][]string{"tenant": {"eu"}, "key": {"k"}},
	)
	if err != nil || w.Source.String() != "url:https://eu.example.com/mcp" || w.Headers["X-Mode"] != "a" ||
		w.Headers["Authorization"] != "${secret:X_AUTHORIZATION}" ||
		w.Secrets["X_AUTHORIZATION"].Reveal() != "Bearer k" {
		t.Errorf("%+v, %v", w, err)
	}
}

// What cannot be had, and what a publisher may not say, is refused by its name.
func TestRefusedServerJSON(t *testing.T) {
	stdio := `"transport":{"type":"stdio"}`
	npm := func(more string) string {
		return `{"registryType":"npm","identifier":"a","version":"1",` + stdio + more + `}`
	}
	image := func(words string) string {
		return `{"registryType":"oci","identifier":"example.com/a:1",` + stdio + `,"runtimeArguments":[` + words + `]}`
	}
	for what, want := range map[string]string{
		`{"registryType":"nuget","identifier":"A.B","version":"1",` + stdio + `}`:               "a nuget package",
		`{"registryType":"npm","identifier":"a","transport":{"type":"sse"}}`:                    "over sse cannot be installed",
		`{"registryType":"mcpb","identifier":"https://example.com/a",` + stdio + `}`:            "fileSha256",
		`{"registryType":"npm","identifier":"--prefix=/",` + stdio + `}`:                        "expected npm:",
		npm(`,"registryBaseUrl":"https://npm.example.com"`):                                     "registryBaseUrl",
		npm(`,"runtimeArguments":[{"type":"named","name":"--prefix","value":"/"}]`):             "--prefix has no counterpart",
		npm(`,"environmentVariables":[{"name":"X","value":"${secret:GITHUB}"}]`):                "refers to variables of this host",
		npm(`,"environmentVariables":[{"name":"X","default":"${secret:GITHUB}"}]`):              "refers to variables of this host",
		npm(`,"packageArguments":[{"type":"named","name":"--key","isSecret":true}]`):            "every user of the machine could see",
		npm(`,"packageArguments":[{"type":"named","name":"--m","choices":["a"]}]`):              "expected one of a",
		npm(`,"packageArguments":[{"type":"positional","valueHint":"need","isRequired":true}]`): "need is required",
		image(`{"type":"named","name":"--privileged","value":"true"}`):                          "--privileged",
		image(`{"type":"named","name":"-v","value":"../x:/y"}`):                                 "-v ../x:/y",
		image(`{"type":"named","name":"--network","value":"container:x"}`):                      "--network container:x",
		image(`{"type":"named","name":"--device","value":"/dev/kmsg"}`):                         "--device",
	} {
		_, err := wishOf(t, `"packages":[`+what+`]`, map[string][]string{"--key": {"k"}, "--m": {"b"}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", what, err, want)
		}
	}
}
