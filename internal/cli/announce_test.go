package cli

import (
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/spf13/cobra"

	"gatehouse/internal/config"
)

// serveSettings returns the settings of gatehouse serve with these arguments and variables.
func serveSettings(t *testing.T, args []string, env map[string]string) (*cobra.Command, []string, *config.Loaded) {
	t.Helper()
	var host hostFlags
	var listen listenerFlags
	var sh shellFlags
	c := &cobra.Command{Use: "serve"}
	listen.register(c.Flags())
	host.register(c.Flags())
	sh.register(c.Flags())
	if err := c.ParseFlags(args); err != nil {
		t.Fatal(args, err)
	}
	w := Environment{Err: io.Discard, Getenv: func(name string) string { return env[name] }}
	l, err := serveConfig(c, w, &host, &listen, &sh, c.Flags().Args())
	if err != nil {
		t.Fatal(args, err)
	}
	return c, c.Flags().Args(), l
}

// TestThePrintedEntryStartsTheSameServer checks that a client with the printed entry starts a server with the same
// restrictions as the one that printed it.
func TestThePrintedEntryStartsTheSameServer(t *testing.T) {
	home, folder := t.TempDir(), t.TempDir()
	file := filepath.Join(home, "other.yaml")
	if err := os.WriteFile(file, []byte("view:\n  read_only: true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		env  map[string]string
	}{
		{args: []string{"--http", "--read-only"}},
		{args: []string{"--http", "-p", "0", "--tools", "file_*,!file_delete", "file", "dir"}},
		{args: []string{"--http", "--modules", "file,dir", "--rate-limit", "3", "--auth-token", "0123456789abcdef"}},
		{args: []string{"shell", "--http", "--allow", "git log*,ls", "--deny", "rm*", "--timeout", "7", "--no-stderr"}},
		{args: []string{"shell", "--http", "--allow", `"git log --format=%h,%s*",ls`}},
		{args: []string{"--http", "--unrestricted", "--context", "filesystem"}},
		{args: []string{"--http", "--config", file}},
		{args: []string{"--http", "-v"}, env: map[string]string{"GATEHOUSE_VIEW_READ_ONLY": "true",
			"GATEHOUSE_CONFIG": file}},
		{env: map[string]string{"GATEHOUSE_TRANSPORT": "http", "GATEHOUSE_LIMITS_RESULT": "5000",
			"GATEHOUSE_AUTH_TOKEN": "0123456789abcdef"}},
	} {
		env := map[string]string{"HOME": home}
		maps.Copy(env, c.env)
		args := c.args
		if !slices.Contains(args, "--unrestricted") {
			args = append([]string{"-d", folder}, args...)
		}
		cmd, modules, want := serveSettings(t, args, env)
		same := sameOnStdio(
			cmd,
			Environment{Getenv: func(name string) string { return env[name] }},
			modules,
			want,
			[]string{folder},
		)
		if _, leaked := same.env["GATEHOUSE_AUTH_TOKEN"]; leaked {
			t.Error("the entry has a token in it")
		}
		if same.args[0] != "serve" {
			t.Fatal(same.args)
		}
		again := map[string]string{"HOME": home}
		maps.Copy(again, same.env)
		_, _, got := serveSettings(t, same.args[1:], again)
		if d := got.Listen; !d.Stdio || d.HTTP.Open || d.TCP != "" || d.Unix != "" {
			t.Errorf("%v: listens at %+v, not at standard input and output alone", same.args, d)
		}
		for what, pair := range map[string][2]any{
			"view": {got.View, want.View}, "folders": {got.Roots, want.Roots}, "modules": {got.Modules, want.Modules},
			"limits": {got.Limits, want.Limits}, "level of the log": {got.Log, want.Log},
		} {
			if !reflect.DeepEqual(pair[0], pair[1]) {
				t.Errorf("%v: %s of the printed %v: got %+v, want %+v", c.args, what, same.args, pair[0], pair[1])
			}
		}
	}
}
