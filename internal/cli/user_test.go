package cli

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"gatehouse/internal/access/identity"
)

// home returns a function that runs commands with a data folder of their own.
func home(t *testing.T) func(in string, args ...string) (code int, out, said string) {
	t.Helper()
	env := map[string]string{"GATEHOUSE_DATA_DIR": t.TempDir(), "HOME": t.TempDir()}
	return func(in string, args ...string) (int, string, string) {
		t.Helper()
		var out, said strings.Builder
		code := Run(
			t.Context(),
			args,
			Environment{
				In:     strings.NewReader(in),
				Out:    &out,
				Err:    &said,
				Getenv: func(name string) string { return env[name] },
			},
		)
		return code, out.String(), said.String()
	}
}

func TestUsersFromTheCommandLine(t *testing.T) {
	run := home(t)
	for _, step := range []struct {
		in, line string
		code     int
		out      string // a pattern
		said     string // likewise
	}{
		{"", "user list", 0, `^$`, `no users; add one`},
		{"", "user remove alice", 1, `^$`, `user alice: there is no such user`},
		{"", "user add alice --role writer,admin", 0, `^[A-Z2-7]{26}\n$`, `Added user alice\n.*not shown again`},
		{"correct horse\n", "user add bob --password-stdin", 0, `^$`, `Added user bob\n$`},
		{"", "user add ci --no-password", 0, `^$`, `Added user ci\n$`},
		{"", "user add alice", 1, `^$`, `user alice: that name is taken`},
		{"", "user add Alice", 1, `^$`, `user "Alice": expected`},
		{"short\n", "user add carol --password-stdin", 1, `^$`, `8 to 1024 bytes, this one has 5`},
		{"", "user add carol --password-stdin", 2, `^$`, `no password on standard input`},
		{"x", "user add carol --password-stdin --no-password", 2, `^$`, `exclude each other`},
		{"", "user add", 2, `^$`, `requires NAME, got 0 arguments`},
		{"", "user list", 0, `(?m)^alice +admin,writer +yes +0 .*-\nbob +- +yes .*\nci +- +no `, `^$`},
		{"", "user roles alice reader,admin writer", 0, `^$`, `alice: reader,admin,writer`},
		{"", "user roles bob", 0, `^$`, `bob: -`},
		{"", "user roles carol x", 1, `^$`, `no such user`},
		{"", "user roles", 2, `^$`, `requires NAME and roles`},
		{"new password\n", "user password bob --password-stdin", 0, `^$`, `new password\n$`},
		{"", "user password bob", 0, `^[A-Z2-7]{26}\n$`, `not shown again`},
		{"", "user link ci certificate cn:builder", 0, `^$`, `^$`},
		{"", "user link bob certificate cn:builder", 1, `^$`, `belongs to a user already`},
		{"", "user link bob fax 1", 1, `^$`, `expected certificate or oauth`},
		{"", "user list", 0, `certificate cn:builder`, `^$`},
		{"", "user unlink certificate cn:builder", 0, `^$`, `^$`},
		{"", "user unlink certificate cn:builder", 1, `^$`, `no credential has that id`},
		{"", "user remove bob --to carl", 1, `^$`,
			`--to carl: the user who is to get .* does not exist.*nothing was changed`},
		{"", "user remove bob", 0, `^$`, `Removed user bob\n.*No host of this data folder runs`},
		{"", "user remvoe bob", 2, `^$`, `did you mean remove`},
	} {
		code, out, said := run(step.in, strings.Fields(step.line)...)
		if code != step.code || !regexp.MustCompile(step.out).MatchString(out) ||
			!regexp.MustCompile(step.said).MatchString(said) {
			t.Errorf(
				"%s: exit code %d, out %q, said %q; want %d, %s, %s",
				step.line,
				code,
				out,
				said,
				step.code,
				step.out,
				step.said,
			)
		}
	}
}

func TestUsersAsJSON(t *testing.T) {
	run := home(t)
	decode := func(line string) (list struct {
		Users  []identity.User
		Links  []identity.Link
		Tokens []identity.Token
	}) {
		t.Helper()
		code, out, said := run("", strings.Fields(line)...)
		if err := json.Unmarshal([]byte(out), &list); code != 0 || err != nil {
			t.Fatalf("%d, %v, %s", code, err, said)
		}
		return list
	}
	if l := decode("user list --json"); l.Users == nil || l.Links == nil || len(l.Users)+len(l.Links) != 0 {
		t.Errorf("without users: %+v", l)
	}
	run("", "user", "add", "alice", "--no-password")
	run("", "token", "create", "--name", "laptop")
	if l := decode("user list --json"); len(l.Users) != 1 || l.Users[0].Name != "alice" || l.Users[0].Password ||
		l.Users[0].Tokens != 1 {
		t.Errorf("got %+v", l)
	}
	if l := decode("token list --json"); len(l.Tokens) != 1 || l.Tokens[0].Name != "laptop" ||
		l.Tokens[0].Until.IsZero() {
		t.Errorf("got %+v", l)
	}
}
