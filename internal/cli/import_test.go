package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"gatehouse/internal/cli/clientconfig"
)

func testImporter(t *testing.T, env map[string]string) (*importer, *bytes.Buffer) {
	t.Helper()
	out := new(bytes.Buffer)
	w := Environment{Out: out, Err: out, Getenv: func(name string) string { return env[name] }}
	return &importer{
		connector: &connector{changer: changer{w: w}}, flags: new(importFlags), taken: map[string]bool{},
	}, out
}

// What looks like a secret is in the secrets of a package alone: not in its
// record, and not in what is shown.
//
//redteam:attack Keys stay here: the servers of a client are taken over
func TestImportKeepsSecrets(t *testing.T) {
	m, out := testImporter(t, map[string]string{"FROM_ENV": "secret-of-the-environment"})
	from := clientconfig.Source{Client: clientconfig.FindClient("cursor"), File: "/x/mcp.json"}
	wishes := m.wishes(from, []clientconfig.Server{{
		Name: "git hub", Command: "npx", Args: []string{"-y", "github-server@1.0.0", "stdio"},
		Env: map[string]string{
			"GITHUB_TOKEN": "ghp_0123456789abcdefghij", "API_KEY": "${env:FROM_ENV}", "MODE": "fast",
		},
	}})
	if len(wishes) != 1 {
		t.Fatalf("got %+v: %s", wishes, out)
	}
	wish := wishes[0].wish
	shown := out.String() + fmt.Sprintf("%+v", wish.Record)
	for _, value := range []string{"ghp_0123456789abcdefghij", "secret-of-the-environment"} {
		if strings.Contains(shown, value) {
			t.Errorf("%s is in %s", value, shown)
		}
	}
	if got := wish.Secrets["GIT_HUB_GITHUB_TOKEN"].Reveal(); got != "ghp_0123456789abcdefghij" {
		t.Errorf("the secret is %q", got)
	}
	if got := wish.Secrets["GIT_HUB_API_KEY"].Reveal(); got != "secret-of-the-environment" {
		t.Errorf("the secret of the environment is %q", got)
	}
	if wish.ID != "git-hub" || wish.Source.String() != "npm:github-server@1.0.0" || wish.Env["MODE"] != "fast" ||
		wish.Env["GITHUB_TOKEN"] != "${secret:GIT_HUB_GITHUB_TOKEN}" {
		t.Errorf("got %+v", wish.Record)
	}
}

func TestPackageIDs(t *testing.T) {
	m, _ := testImporter(t, nil)
	for _, one := range []struct{ name, want string }{
		{"memory", "memory"},
		{"memory", "memory-2"},
		{"My Server (new)", "my-server-new"},
		{"@scope/name", "scope-name"},
		{"2nd", "server-2nd"},
		{"日本", "server"},
		{strings.Repeat("a", 40), strings.Repeat("a", 29)},
		{strings.Repeat("a", 40), strings.Repeat("a", 29) + "-2"},
	} {
		got := m.packageID(one.name)
		if got != one.want {
			t.Errorf("%q becomes %q, want %q", one.name, got, one.want)
		}
		m.taken[got] = true
	}
}
