package cli

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/modules/administration"
)

func TestTokensFromTheCommandLine(t *testing.T) {
	run := home(t)
	const secret = `^gh_[a-z2-7]{38}\n$`
	for _, step := range []struct {
		line string
		code int
		out  string // a pattern
		said string // likewise
	}{
		{"token list", 0, `^$`, `There are no tokens`},
		{"token create", 1, `^$`, `add one with gatehouse user add NAME`},
		{"token revoke t_x", 1, `^$`, `token t_x: no credential has that id`},
		{"user add alice --no-password", 0, ``, ``},
		{"token create", 0, secret, `Token t_[a-z2-7]{16} of user alice, expires 20`},
		{"user add ci --no-password", 0, ``, ``},
		{"token create", 2, `^$`, `--user: there are 2 users: name the token's user`},
		{"token create --user carol", 1, `^$`, `user carol: there is no such user`},
		{"token create --user ci --context nope", 2, `^$`,
			`no context "nope"; expected one of default.*gatehouse context create nope`},
		{"context create dev", 0, ``, ``},
		{"token create --user ci --name build --context dev --scope read,tools:file_* --expires never", 0, secret,
			`of user ci, never expires`},
		{"token create --user ci --scope everything", 2, `^$`, `--scope: scope "everything": expected`},
		{"token create --user ci --expires soon", 2, `^$`, `"soon" is not a duration`},
		{"token create ci", 2, `^$`, `takes no arguments`},
		{"token list", 0, `(?m)^t_\w+ +alice +- +- +- +20\d\d-.* +never\nt_\w+ +ci +build +dev +read,tools:file_\* +never +never\n`, `^$`},
		{"token list --user alice", 0, `^ID.*\nt_\w+ +alice.*\n$`, `^$`},
		{"token revoke", 2, `^$`, `requires the ID of a token`},
	} {
		code, out, said := run("", strings.Fields(step.line)...)
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
	_, out, _ := run("", "token", "list", "--user", "ci")
	id := regexp.MustCompile(`t_\w+`).FindString(out)
	if code, _, said := run("", "token", "revoke", id); code != 0 || !strings.Contains(said, "Revoked token "+id) {
		t.Errorf("revoking: %d, %s", code, said)
	}
	if _, out, said := run("", "token", "list", "--user", "ci"); out != "" {
		t.Errorf("after revoking: %s, %s", out, said)
	}
}

func TestExpiries(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"1s": time.Second, "12h": 12 * time.Hour, "1h30m": 90 * time.Minute, "30d": 720 * time.Hour,
		"8w": 8 * 168 * time.Hour,
		"0d": -1, "-1d": -1, "d": -1, "1.5d": -1, "": -1, "30": -1, "99999999999d": -1, "forever": -1, "500ms": -1,
		"1y": -1, "3 d": -1,
	} {
		got, err := administration.ParseExpiry(text, now)
		if (err != nil) != (want < 0) || err == nil && got.Sub(now) != want {
			t.Errorf("%q: got %v, %v", text, got, err)
		}
	}
	if got, err := administration.ParseExpiry("never", now); err != nil || !got.IsZero() {
		t.Errorf("never is %v, %v", got, err)
	}
}

// TestATokenIsBoundToAContextThatThereIs checks that a token can be bound only to an existing context, of any
// kind.
func TestATokenIsBoundToAContextThatThereIs(t *testing.T) {
	run := home(t)
	run("", "user", "add", "ci", "--no-password")
	for line, want := range map[string]int{
		"token create --context default": 0, "token create --context admin": 0, "token create --context shell": 0,
		"token create --context nope": 2, "token create --context nope --any-context": 0,
	} {
		if code, _, said := run("", strings.Fields(line)...); code != want {
			t.Errorf("%s: %d %s, want %d", line, code, said, want)
		}
	}
}
