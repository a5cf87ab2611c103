package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	nethttp "net/http"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/config"
)

// serving runs a host until the test ends.
func serving(t *testing.T, cfg config.Config) *App {
	t.Helper()
	a, err := New(t.Context(), cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return a
}

func body(t *testing.T, resp *nethttp.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// New settings apply to a session that began before them; the session continues, and the client is notified that
// its lists changed.
func TestSessionsOutliveNewSettings(t *testing.T) {
	cfg := settings(t)
	cfg.Listen.HTTP.Open, cfg.Listen.HTTP.Port = true, 0
	a := serving(t, cfg)
	url := a.Listeners()[0].Address
	client := &nethttp.Client{Transport: &nethttp.Transport{}}
	init := ask(t, client, "POST", url, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`)
	session := "Mcp-Session-Id: " + init.Header.Get("Mcp-Session-Id")
	list := func() string {
		return body(t, ask(t, client, "POST", url, `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`, session))
	}
	if got := list(); !strings.Contains(got, `"file_write"`) {
		t.Fatalf("before: %s", got)
	}
	stream := ask(t, client, "GET", url, "", session)

	next := cfg
	next.Rules = []config.Rule{{Effects: []string{"writes"}, Then: "refuse"}}
	next.Limits.Message *= 2
	next.Log.Level = slog.LevelDebug
	live, restart, err := a.Reload(next)
	if err != nil || !slices.Equal(live, []string{"rules", "log.level"}) ||
		!slices.Equal(restart, []string{"limits.message"}) {
		t.Fatalf("reload: %v, live %v, restart %v", err, live, restart)
	}
	first(t, stream, "notifications/tools/list_changed")
	if got := list(); strings.Contains(got, `"file_write"`) || !strings.Contains(got, `"file_read"`) {
		t.Errorf("after: %s", got)
	}

	for want, change := range map[string]func(*config.Config){
		"no module \"attic\"": func(c *config.Config) {
			c.Contexts = []config.Context{{Name: "a",
				Modules: []string{"attic"}}}
		},
		`no context "attic"`: func(c *config.Config) { c.View.Context = "attic" },
		"when": func(c *config.Config) {
			c.Rules = []config.Rule{{When: "nobody.knows",
				Then: "allow"}}
		},
	} {
		bad := cfg
		change(&bad)
		_, _, err := a.Reload(bad)
		if _, ok := errors.AsType[*SettingError](err); !ok || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want a SettingError with %q", err, want)
		}
	}
	if got := list(); strings.Contains(got, `"file_write"`) {
		t.Error("settings with a mistake changed something")
	}
	if live, restart, err := a.Reload(next); err != nil || live != nil ||
		!slices.Equal(restart, []string{"limits.message"}) {
		t.Errorf("the same again: %v, live %v, restart %v", err, live, restart)
	}
}

// The contexts of the settings replace those a host has by default.
func TestContextsOfTheSettings(t *testing.T) {
	cfg := settings(t)
	cfg.Listen.HTTP.Open, cfg.Listen.HTTP.Port = true, 0
	cfg.Contexts = []config.Context{
		{
			Name:    "reading",
			Modules: []string{"file"},
			Tools:   []string{"file_read"},
			Rename:  map[string]string{"file_read": "look"},
		},
		{Name: "closed", Users: []string{"ann"}, KnownTo: []string{"staff"}},
	}
	a := serving(t, cfg)
	url := a.Listeners()[0].Address
	client := &nethttp.Client{Transport: &nethttp.Transport{}}
	for path, want := range map[string]string{"": `"look"`, "/reading": `"look"`, "/closed": "Context not found",
		"/default": "Context not found", "/file": "Context not found"} {
		got := body(
			t,
			ask(t, client, "POST", url+path, `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{`+
				`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`,
				"Mcp-Protocol-Version: 2026-07-28", "Mcp-Method: tools/list"),
		)
		if !strings.Contains(got, want) || strings.Contains(got, "file_write") {
			t.Errorf("%q answers %s, want %s", path, got, want)
		}
	}
}

// CheckSettings reports what no host can do before a host is started.
func TestMistakesOfContexts(t *testing.T) {
	for name, c := range map[string]struct {
		context string
		rename  map[string]string
		want    string
	}{
		"an unknown context": {"nope", nil, `there is no context "nope"; expected one of one`},
		"the first context":  {"one", nil, ""},
		"a name of another tool": {"", map[string]string{"file_read": "file_write"},
			"file_write is the name of another tool"},
		"a name that is given away": {"", map[string]string{"file_read": "file_write", "file_write": "put"}, ""},
		"a free name":               {"", map[string]string{"file_read": "read"}, ""},
	} {
		cfg := settings(t)
		cfg.View.Context = c.context
		cfg.Contexts = []config.Context{{Name: "one", Modules: []string{"file"}, Rename: c.rename}}
		err := CheckSettings(cfg)
		if got := fmt.Sprint(err); c.want == "" && err != nil || c.want != "" && !strings.Contains(got, c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// The instructions that a client receives fit the content of its view, and the default view has a greeting.
func TestWhatAClientIsTold(t *testing.T) {
	_, client := live(t)
	ann, root := client("ann"), client("root", "admin")
	for in, paths := range map[string]bool{"default": true, "file": true} {
		if got := ann.say(in, "server/discover", ""); strings.Contains(got, "Relative paths") != paths {
			t.Errorf("%s: %s", in, got)
		}
	}
	if got := root.say("admin", "server/discover", ""); strings.Contains(got, "Relative paths") ||
		!strings.Contains(got, "Long results") {
		t.Errorf("admin: %s", got)
	}
	expect(
		t,
		ann.say("default", "prompts/list", ""),
		`"name":"greeting"`,
		`"arguments":[{"name":"name"`,
		`"required":true`,
	)
	expect(t, ann.say("default", "prompts/get", `"name":"greeting","arguments":{"name":"Zoë"}`), "Zoë", `"role":"user"`)
	if got := ann.say("file", "prompts/list", ""); strings.Contains(got, "greeting") {
		t.Errorf("the prompt is in another view: %s", got)
	}
}

// What a preset says of itself fits its tools: paths of the sandbox preset are inside sandboxes, the results of presets
// that send everything are not cut, and the call that is proposed at the start succeeds.
func TestPresetsSayWhatFitsThem(t *testing.T) {
	for name, want := range map[string]struct {
		paths, long bool
		example     string
	}{
		"filesystem": {paths: true, example: "list_directory path=."},
		"core":       {paths: true, example: "dir_list path=."},
		"sandbox":    {long: true, example: "list_sandboxes"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := settings(t)
			cfg.View.Modules = []string{name}
			a, client := liveOn(t, cfg, Options{})
			c := client("root", "admin")
			got := c.say(name, "server/discover", "")
			if strings.Contains(got, "Relative paths") != want.paths || strings.Contains(got, "Long results") != want.long {
				t.Errorf("instructions: %s", got)
			}
			if got := a.Example(); got != want.example {
				t.Fatalf("proposes %q, want %q", got, want.example)
			}
			tool, args, found := strings.Cut(want.example, " path=")
			text := `{}`
			if found {
				text = fmt.Sprintf(`{"path":%q}`, args)
			}
			if r := c.toolResult(name, tool, text); r.IsError {
				t.Errorf("%s: %s", want.example, r.Content)
			}
		})
	}
}
