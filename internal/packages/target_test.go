package packages

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// The words by which people and clients start servers become sources.
func TestTargets(t *testing.T) {
	dir := t.TempDir()
	archive := filepath.Join(dir, "server.tgz")
	if err := os.WriteFile(archive, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		words   []string
		source  string
		command string
		args    []string
	}{
		{[]string{"npm:@a/b@1.0.0", "x"}, "npm:@a/b@1.0.0", "", []string{"x"}},
		{[]string{"@a/b"}, "npm:@a/b", "", nil},
		{[]string{"npx", "-y", "@a/b@2", "/data", "-v"}, "npm:@a/b@2", "", []string{"/data", "-v"}},
		{[]string{"npx.cmd", "a-server"}, "npm:a-server", "", nil},
		{[]string{"cmd", "/c", "npx", "-y", "a-server", "x"}, "npm:a-server", "", []string{"x"}},
		{[]string{"npm", "exec", "--yes", "--", "a-server", "x"}, "npm:a-server", "", []string{"x"}},
		{[]string{"pnpm", "dlx", "a-server"}, "npm:a-server", "", nil},
		{[]string{"npx", "-p", "a", "b"}, "command", "npx", []string{"-p", "a", "b"}},
		{[]string{"npx", "./local"}, "command", "npx", []string{"./local"}},
		{[]string{"npm", "run", "x"}, "command", "npm", []string{"run", "x"}},
		{[]string{"command", "npx", "-y", "a"}, "command", "npx", []string{"-y", "a"}},
		{[]string{"uvx", "a-server"}, "pypi:a-server", "", nil},
		{[]string{"uvx", "a-server@1.2", "-v"}, "pypi:a-server==1.2", "", []string{"-v"}},
		{[]string{"uvx", "a-server@latest"}, "pypi:a-server", "", nil},
		{[]string{"uvx", "--from", "a[x]==2", "b", "c"}, "pypi:a[x]==2", "b", []string{"c"}},
		{[]string{"uvx", "--python", "3.12", "--with=pandas", "a", "c"}, "pypi:a,pandas", "", []string{"c"}},
		{[]string{"uv", "tool", "run", "a"}, "pypi:a", "", nil},
		{[]string{"uv", "run", "server.py"}, "command", "uv", []string{"run", "server.py"}},
		{[]string{"pipx", "run", "--spec", "a==1", "b"}, "pypi:a==1", "b", nil},
		{[]string{"command", "uvx", "a"}, "command", "uvx", []string{"a"}},
		{[]string{"/usr/bin/env", "x"}, "command", "/usr/bin/env", []string{"x"}},
		{[]string{dir}, "folder:" + dir, "", nil},
		{[]string{archive, "x"}, "archive:" + archive, "", []string{"x"}},
	} {
		w, err := ParseTarget("up", c.words, nil)
		if err != nil || w.Source.String() != c.source || w.Command != c.command || !slices.Equal(w.Args, c.args) {
			t.Errorf("%q: source %q, command %q, args %q, %v", c.words, w.Source, w.Command, w.Args, err)
		}
	}
	for _, words := range [][]string{nil, {""}, {"npm:"}, {"npm:../x"}, {"npm:-g"}, {"folder:"}, {"x", "${secret:A}"},
		{"uvx", "--from", "git+https://example.com/a", "a"}, {"uvx", "--from", "./a", "a"},
		{"uvx", "--index-url", "x", "a"}, {"uvx"},
		{"uvx", "--from"}} {
		if w, err := ParseTarget("up", words, nil); err == nil {
			t.Errorf("%q became %+v", words, w)
		}
	}
}

// Values that look like secrets leave the record; those of two packages are two.
func TestSecretsOfATargetAreApart(t *testing.T) {
	env := map[string]string{"API_TOKEN": "value-of-it", "MODE": "fast", "OTHER_KEY": "${secret:MINE}",
		"X": "ghp_0123456789abcdefghij"}
	w, err := ParseTarget("up-to", []string{"prog"}, env)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"API_TOKEN": "${secret:UP_TO_API_TOKEN}", "MODE": "fast", "OTHER_KEY": "${secret:MINE}",
		"X": "${secret:UP_TO_X}",
	} {
		if w.Env[name] != want {
			t.Errorf("%s=%s, want %s", name, w.Env[name], want)
		}
	}
	if len(w.Secrets) != 2 || w.Secrets["UP_TO_API_TOKEN"].Reveal() != "value-of-it" ||
		env["API_TOKEN"] != "value-of-it" {
		t.Errorf("kept apart: %v", w.Secrets)
	}
	if got := SecretName("github", "GITHUB_TOKEN"); got != "GITHUB_TOKEN" {
		t.Errorf("named %s", got)
	}
}
