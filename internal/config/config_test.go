package config

import (
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// environment returns a getenv that knows only these variables and a home folder.
func environment(t *testing.T, pairs ...string) func(string) string {
	t.Helper()
	env := map[string]string{"HOME": t.TempDir()}
	for _, p := range pairs {
		name, value, ok := strings.Cut(p, "=")
		if !ok {
			t.Fatalf("%q is not NAME=value", p)
		}
		env[name] = value
	}
	return func(name string) string { return env[name] }
}

func TestAnEmptyEnvironmentIsTheDefault(t *testing.T) {
	c, err := FromEnv(environment(t))
	if err != nil {
		t.Fatal(err)
	}
	if c.Listen.Any() {
		t.Errorf("a listener is open: %+v", c.Listen)
	}
	if c.Listen.HTTP.Host != "127.0.0.1" || c.Listen.HTTP.Port != 3000 {
		t.Errorf("HTTP would listen on %s:%d", c.Listen.HTTP.Host, c.Listen.HTTP.Port)
	}
	if err := c.Validate(); err != nil {
		t.Errorf("the default is not valid: %v", err)
	}
	for _, dir := range []string{c.Folders.Config, c.Folders.Data, c.Folders.Cache, c.Folders.State,
		c.Folders.Runtime} {
		if !filepath.IsAbs(dir) {
			t.Errorf("folder %q is not absolute", dir)
		}
	}
}

func TestTheTransportVariableOpensListeners(t *testing.T) {
	for _, c := range []struct {
		env  []string
		want Listeners
	}{
		{[]string{"GATEHOUSE_TRANSPORT=stdio"}, Listeners{Stdio: true}},
		{[]string{"GATEHOUSE_TRANSPORT=http"}, Listeners{HTTP: HTTP{Open: true}}},
		{[]string{"GATEHOUSE_TRANSPORT=both"}, Listeners{Stdio: true, HTTP: HTTP{Open: true}}},
		{[]string{"GATEHOUSE_TRANSPORT=tcp"}, Listeners{TCP: "127.0.0.1:9100"}},
		{[]string{"GATEHOUSE_TRANSPORT=tcp", "MCP_ADDR=127.0.0.1:7000"}, Listeners{TCP: "127.0.0.1:7000"}},
		{[]string{"GATEHOUSE_TRANSPORT=http", "MCP_ADDR=127.0.0.1:7000"}, Listeners{HTTP: HTTP{Open: true}}},
		{[]string{"MCP_ADDR=:9100"}, Listeners{TCP: "127.0.0.1:9100"}},
		{[]string{"MCP_ADDR=[::1]:0"}, Listeners{TCP: "[::1]:0"}},
	} {
		got, err := FromEnv(environment(t, c.env...))
		if err != nil {
			t.Errorf("%v: %v", c.env, err)
		}
		d := got.Listen
		if d.Stdio != c.want.Stdio || d.HTTP.Open != c.want.HTTP.Open || d.TCP != c.want.TCP || d.Unix != c.want.Unix {
			t.Errorf("%v opens %+v, want %+v", c.env, d, c.want)
		}
	}
	run := t.TempDir()
	got, err := FromEnv(environment(t, "GATEHOUSE_TRANSPORT=unix", "GATEHOUSE_RUNTIME_DIR="+run))
	if want := filepath.Join(run, "gatehouse.sock"); err != nil || got.Listen.Unix != want {
		t.Errorf("unix listens on %q (%v), want %q", got.Listen.Unix, err, want)
	}
}

func TestMistakesNameTheVariableAndWhatWasExpected(t *testing.T) {
	_, err := FromEnv(environment(t,
		"GATEHOUSE_TRANSPORT=pigeon", "GATEHOUSE_HTTP_PORT=70000", "GATEHOUSE_LOG=loud",
		"MCP_ADDR=nowhere", "GATEHOUSE_STATE_DIR=here"))
	if err == nil {
		t.Fatal("no mistake was found")
	}
	for _, want := range []string{
		`GATEHOUSE_TRANSPORT: "pigeon" is not a transport; expected stdio, http, both, tcp or unix`,
		`GATEHOUSE_HTTP_PORT: "70000" is not a port; expected a number from 0 to 65535`,
		`GATEHOUSE_LOG: "loud" is not a level; expected debug, info, warn or error`,
		`MCP_ADDR: "nowhere" is not an address; expected host:port`,
		`GATEHOUSE_STATE_DIR: "here" is not absolute`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing from\n%v", want, err)
		}
	}
}

func TestLevels(t *testing.T) {
	for s, want := range map[string]slog.Level{
		"debug": slog.LevelDebug, "INFO": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
	} {
		c, err := FromEnv(environment(t, "GATEHOUSE_LOG="+s))
		if err != nil || c.Log.Level != want {
			t.Errorf("%s is %v (%v), want %v", s, c.Log.Level, err, want)
		}
	}
}

func TestValidateReportsEverythingAtOnce(t *testing.T) {
	c := Default()
	c.Listen.HTTP = HTTP{
		Open:    true,
		Port:    -1,
		Origins: []string{"*", "https://a.example", "https://a.example/x", "a.example"},
	}
	c.Limits.Message = 3
	c.Sessions.Max = 0
	err := c.Validate()
	if err == nil {
		t.Fatal("nothing was found")
	}
	for _, want := range []string{"port -1", "host is empty", `"https://a.example/x"`, `"a.example"`,
		"message limit is 3", "sessions at once is 0"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing from\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), `"https://a.example"`) {
		t.Errorf("a good origin is refused:\n%v", err)
	}
}

func TestFoldersFollowThePlatform(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the paths below are not absolute on Windows")
	}
	none := func(string) string { return "" }
	xdg := func(name string) string {
		return map[string]string{"XDG_STATE_HOME": "/s", "XDG_RUNTIME_DIR": "/r", "XDG_CACHE_HOME": "relative"}[name]
	}
	for _, c := range []struct {
		goos string
		env  func(string) string
		want [5]string // config, data, cache, state, runtime
	}{
		{"linux", none, [5]string{"/h/.config/gatehouse", "/h/.local/share/gatehouse", "/h/.cache/gatehouse",
			"/h/.local/state/gatehouse", ""}},
		{"linux", xdg, [5]string{"/h/.config/gatehouse", "/h/.local/share/gatehouse", "/h/.cache/gatehouse",
			"/s/gatehouse", "/r/gatehouse"}},
		{"darwin", xdg, [5]string{"/h/Library/Application Support/gatehouse",
			"/h/Library/Application Support/gatehouse/data", "/h/Library/Caches/gatehouse",
			"/h/Library/Application Support/gatehouse/state", ""}},
		{"windows", none, [5]string{"/h/AppData/Roaming/gatehouse", "/h/AppData/Local/gatehouse/data",
			"/h/AppData/Local/gatehouse/cache", "/h/AppData/Local/gatehouse/state", "/h/AppData/Local/gatehouse/run"}},
	} {
		for i, p := range platform(c.goos) {
			want := c.want[i]
			got := p.resolve(c.env, "/h")
			if want == "" {
				if !strings.HasPrefix(got, os.TempDir()) {
					t.Errorf("%s: %s is %q, want a folder of its own below %s", c.goos, p.ours, got, os.TempDir())
				}
			} else if got != want {
				t.Errorf("%s: %s is %q, want %q", c.goos, p.ours, got, want)
			}
		}
	}
}

//redteam:attack Loopback by default: addresses and names that only look like loopback
func TestLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"127.0.0.1": true, "127.9.9.9": true, "::1": true, "localhost": true, "::ffff:127.0.0.1": true,
		"0.0.0.0": false, "::": false, "192.168.1.2": false, "localhost.evil.example": false, "": false,
	} {
		if got := Loopback(host); got != want {
			t.Errorf("Loopback(%q) = %t, want %t", host, got, want)
		}
	}
}
