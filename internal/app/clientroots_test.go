package app

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/access/identity"
	"gatehouse/internal/config"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/module"
	"gatehouse/tool"
)

// An era is how a client of one generation calls tools and is asked for its roots. says is its answer, and it
// counts how often it was asked.
type era struct {
	name string
	call func(c *tenant, in, name, args string, can bool, says func() string) string
}

var rootsEras = []era{
	{"legacy", callLegacy},
	{"modern", callModern},
}

func callLegacy(c *tenant, _, name, args string, can bool, says func() string) string {
	c.t.Helper()
	if c.next == 0 {
		able := `{}`
		if can {
			able = `{"roots":{}}`
		}
		c.next++
		c.pipe.Receive(
			fmt.Appendf(
				nil,
				`{"jsonrpc":"2.0","id":%d,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":%s,"clientInfo":{"name":"t","version":"1"}}}`,
				c.next,
				able,
			),
		)
		c.message()
		c.pipe.Receive([]byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`))
	}
	c.next++
	c.pipe.Receive(
		fmt.Appendf(
			nil,
			`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":%s}}`,
			c.next,
			name,
			args,
		),
	)
	for {
		m := c.message()
		id, _ := rawjson.Get(m, "id")
		if method, ok := rawjson.Get(m, "method"); !ok && string(id) == fmt.Sprint(c.next) {
			return string(m)
		} else if string(method) == `"roots/list"` {
			c.pipe.Receive(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{"roots":%s}}`, id, says()))
		}
	}
}

func callModern(c *tenant, in, name, args string, can bool, says func() string) string {
	c.t.Helper()
	able, more := `{}`, ""
	if can {
		able = `{"roots":{}}`
	}
	for {
		c.next++
		c.pipe.Receive(
			fmt.Appendf(
				nil,
				`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":%s%s,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":%s,"gatehouse/context":%q}}}`,
				c.next,
				name,
				args,
				more,
				able,
				in,
			),
		)
		m := c.message()
		var r struct {
			Result struct {
				ResultType    string
				RequestState  string
				InputRequests map[string]struct{ Method string }
			}
		}
		if err := json.Unmarshal(m, &r); err != nil {
			c.t.Fatal(err)
		}
		if r.Result.ResultType != "input_required" {
			return string(m)
		}
		answers := map[string]json.RawMessage{}
		for key, q := range r.Result.InputRequests {
			if q.Method != "roots/list" {
				c.t.Fatalf("asked for %s", m)
			}
			answers[key] = json.RawMessage(`{"roots":` + says() + `}`)
		}
		b, err := json.Marshal(answers)
		if err != nil {
			c.t.Fatal(err)
		}
		more = fmt.Sprintf(`,"requestState":%q,"inputResponses":%s`, r.Result.RequestState, b)
	}
}

// announce returns a roots/list result with these folders.
func announce(paths ...string) string {
	list := []map[string]string{}
	for _, p := range paths {
		list = append(list, map[string]string{"uri": "file://" + filepath.ToSlash(p)})
	}
	b, _ := json.Marshal(list) // strings
	return string(b)
}

// A client that lists its roots is restricted to them, now and after a change; a client that cannot list roots has
// all folders of its context.
func TestCallsAreNarrowedToWhatTheClientAnnounces(t *testing.T) {
	for _, e := range rootsEras {
		t.Run(e.name, func(t *testing.T) {
			cfg := settings(t)
			cfg.Roots.Client = true
			dir, beyond := cfg.Roots.Folders[0], t.TempDir()
			for _, name := range []string{"app/a.txt", "app/.env", "lib/b.txt", "with space/c.txt"} {
				putFile(t, "text of "+name, dir, name)
			}
			putFile(t, "secret", beyond, "x.txt")
			c := clientOf(t, cfg)
			now, asked := announce(dir+"/app", beyond), 0
			says := func() string { asked++; return now }
			for _, x := range []struct{ say, args, want string }{
				{"", `{"path":"a.txt"}`, "text of app/a.txt"},
				{"", `{"path":"` + dir + `/app/a.txt"}`, "text of app/a.txt"},
				{"", `{"path":"` + dir + `/lib/b.txt"}`, "outside_root"},
				{"", `{"path":"` + beyond + `/x.txt"}`, "outside_root"},
				{"", `{"path":".env"}`, "denied"},
				{announce(dir + "/with%20space"), `{"path":"c.txt"}`, "text of with space/c.txt"},
				{announce(filepath.Dir(dir)), `{"path":"lib/b.txt"}`, "text of lib/b.txt"},
				{announce(beyond), `{"path":"x.txt"}`, "the client has announced none of the folders"},
				{`[]`, `{"path":"app/a.txt"}`, "the client has announced none of the folders"},
				{`[{"uri":"https://example.com/app"},{"uri":"file://elsewhere` + dir + `"},{"uri":"%"}]`,
					`{"path":"app/a.txt"}`, "the client has announced none of the folders"},
			} {
				if x.say != "" {
					now = x.say
				}
				before := asked
				if got := e.call(c, DefaultContext, "file_read", x.args, true, says); !strings.Contains(got, x.want) ||
					strings.Contains(got, "secret") {
					t.Errorf("%s, of %s: got %s, want %q in it", x.args, now, got, x.want)
				}
				if asked != before+1 {
					t.Errorf("%s: asked %d times", x.args, asked-before)
				}
			}
			mute := func() string { t.Error("a client was asked that cannot answer"); return "[]" }
			other := clientOf(t, cfg)
			if got := e.call(other, DefaultContext, "file_read", `{"path":"lib/b.txt"}`,
				false, mute); !strings.Contains(
				got,
				"text of lib/b.txt",
			) {
				t.Errorf("a client that cannot say: %s", got)
			}
		})
	}
}

// Contexts without this setting ask no client.
func TestNarrowingIsForTheContextsThatWantIt(t *testing.T) {
	cfg := settings(t)
	dir := cfg.Roots.Folders[0]
	putFile(t, "text", dir, "lib/b.txt")
	cfg.Contexts = []config.Context{{Name: "free"}, {Name: "kept", ClientRoots: true}}
	c := clientOf(t, cfg)
	asked := 0
	says := func() string { asked++; return announce(dir + "/app") }
	for in, want := range map[string]string{"free": "text", "kept": "outside_root"} {
		if got := callModern(c, in, "file_read", `{"path":"lib/b.txt"}`, true, says); !strings.Contains(got, want) {
			t.Errorf("%s: got %s, want %q in it", in, got, want)
		}
	}
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
}

// asks is a module whose tools call file_read in the ways that tools can: inside a call, without a call, and in a
// job.
type asks struct{ deps module.Deps }

func (a *asks) Close(context.Context) error { return nil }

func (a *asks) Offer(context.Context, module.Audience) (*module.Offer, error) {
	read := func(ctx context.Context, c *tool.Call) (tool.Result, error) {
		return a.deps.Call(ctx, c, "file_read", c.Args)
	}
	one := func(name string, run tool.Handler) tool.Tool {
		return tool.Tool{
			Def: tool.Def{
				Name:        "asks_" + name,
				Description: "Reads.",
				Effects:     tool.Reads,
				Input:       json.RawMessage(`{"type":"object"}`),
			},
			Run: run,
		}
	}
	return &module.Offer{Tools: []tool.Tool{
		one("inside", read),
		one(
			"nowhere",
			func(_ context.Context, c *tool.Call) (tool.Result, error) { return read(context.Background(), c) },
		),
		one("job", func(ctx context.Context, c *tool.Call) (tool.Result, error) {
			said := make(chan tool.Result, 1)
			failed := make(chan error, 1)
			_, err := a.deps.Job(c, "reading", func(ctx context.Context, c *tool.Call) (tool.Result, error) {
				var in struct{ Path string }
				err := json.Unmarshal(c.Args, &in)
				if err == nil {
					_, _, err = c.Roots.Resolve(in.Path)
				}
				if err != nil {
					failed <- err
					return tool.Result{}, err
				}
				res, err := read(ctx, c)
				if err != nil {
					failed <- err
				} else {
					said <- res
				}
				return res, err
			})
			if err != nil {
				return tool.Result{}, err
			}
			select {
			case res := <-said:
				return res, nil
			case err := <-failed:
				return tool.Result{}, err
			case <-time.After(30 * time.Second):
				return tool.Result{}, tool.Refuse("timeout", "the job did not run")
			}
		}),
	}}, nil
}

// A call that another call makes, and a job, have the folders of the original call; without an original call they
// have none.
//
//redteam:attack Tools run with what the call carries: a call inside a call asks for wider folders
func TestCallsInsideCallsAreNarrowedAlike(t *testing.T) {
	for _, e := range rootsEras {
		t.Run(e.name, func(t *testing.T) {
			cfg := settings(t)
			cfg.Roots.Client = true
			dir := cfg.Roots.Folders[0]
			putFile(t, "text of a", dir, "app/a.txt")
			putFile(t, "text of b", dir, "lib/b.txt")
			a, err := New(
				t.Context(),
				cfg,
				Options{
					Extra: []Module{
						{
							"asks",
							func(_ context.Context, d module.Deps) (module.Module, error) { return &asks{d}, nil },
						},
					},
				},
			)
			if err != nil {
				t.Fatal(err)
			}
			c := clientTo(t, a)
			asked := 0
			says := func() string { asked++; return announce(dir + "/app") }
			for _, x := range []struct{ tool, path, want string }{
				{"inside", "app/a.txt", "text of a"}, {"inside", "lib/b.txt", "outside_root"},
				{"nowhere", "app/a.txt", "outside_root"}, {"nowhere", "lib/b.txt", "outside_root"},
				{"job", "app/a.txt", "text of a"}, {"job", "lib/b.txt", "outside_root"},
			} {
				got := e.call(c, DefaultContext, "asks_"+x.tool, `{"path":"`+dir+"/"+x.path+`"}`, true, says)
				if !strings.Contains(got, x.want) {
					t.Errorf("%s of %s: got %s, want %q in it", x.tool, x.path, got, x.want)
				}
			}
			if asked != 6 {
				t.Errorf("asked %d times for 6 calls", asked)
			}
		})
	}
}

// The folders that a local client announces replace those of the preset filesystem. They change nothing for other
// modules, other clients, writes on read-only hosts, and protected files, or if the settings fix the folders.
func TestAnnouncedFoldersReplaceThoseOfThePreset(t *testing.T) {
	host, mine, other := t.TempDir(), t.TempDir(), t.TempDir()
	putFile(t, "text of the host", host, "a.txt")
	putFile(t, "text of mine", mine, "a.txt")
	putFile(t, "text of other", other, "a.txt")
	putFile(t, "secret", mine, ".env")
	stdio := tool.Caller{Principal: "ann", Local: true, Credential: identity.StdioID}
	socket := tool.Caller{Principal: "ann", Local: true, Credential: "uid:0"}
	remote := tool.Caller{Principal: "ann", Credential: "local"}
	child := socket
	child.Child = true
	path := func(dir, name string) string {
		return fmt.Sprintf(`{"path":%q}`, filepath.ToSlash(filepath.Join(dir, name)))
	}
	for _, c := range []struct {
		name       string
		who        tool.Caller
		any, fixed bool
		narrow     bool
		say        string
		tool, args string
		want       string
	}{
		{name: "stdio", who: stdio, say: announce(mine), tool: "read_text_file", args: path(mine, "a.txt"),
			want: "text of mine"},
		{name: "the first valid one", who: stdio, say: announce(mine+"/gone", mine+"/a.txt", mine, other),
			tool: "read_text_file", args: `{"path":"a.txt"}`, want: "text of mine"},
		{name: "those of the host are gone", who: stdio, say: announce(mine), tool: "read_text_file",
			args: path(host, "a.txt"), want: "outside"},
		{name: "listed", who: stdio, say: announce(mine), tool: "list_allowed_directories", args: `{}`,
			want: filepath.Base(mine)},
		{name: "none is valid", who: stdio, say: announce(mine + "/gone"), tool: "read_text_file",
			args: path(host, "a.txt"), want: "text of the host"},
		{name: "none at all", who: stdio, say: `[]`, tool: "read_text_file", args: path(host, "a.txt"),
			want: "text of the host"},
		{name: "a protected file", who: stdio, say: announce(mine), tool: "read_text_file", args: path(mine, ".env"),
			want: "protected"},
		{name: "another module", who: stdio, say: announce(mine), tool: "file_read", args: path(mine, "a.txt"),
			want: "outside"},
		{name: "kept", who: stdio, fixed: true, say: announce(mine), tool: "read_text_file", args: path(mine, "a.txt"),
			want: "outside"},
		{name: "narrowed", who: stdio, narrow: true, say: announce(mine), tool: "read_text_file",
			args: path(mine, "a.txt"), want: "outside"},
		{name: "remote", who: remote, any: true, say: announce(mine), tool: "read_text_file", args: path(mine, "a.txt"),
			want: "outside"},
		{name: "the daemon's socket", who: socket, any: true, say: announce(mine), tool: "read_text_file",
			args: path(mine, "a.txt"), want: "text of mine"},
		{name: "a daemon that names folders", who: socket, say: announce(mine), tool: "read_text_file",
			args: path(mine, "a.txt"), want: "outside"},
		{name: "a child of the daemon", who: child, any: true, say: announce(mine), tool: "read_text_file",
			args: path(mine, "a.txt"), want: "outside"},
	} {
		for _, e := range rootsEras {
			t.Run(c.name+", "+e.name, func(t *testing.T) {
				cfg := settings(t)
				cfg.Roots.Folders, cfg.Roots.Fixed, cfg.Roots.Client = []string{host}, c.fixed, c.narrow
				cfg.View.Modules = []string{"filesystem"}
				in := "filesystem"
				if c.tool == "file_read" {
					cfg.View.Modules, in = []string{"file"}, DefaultContext
				}
				a, err := New(t.Context(), cfg, Options{AnyFolder: c.any})
				if err != nil {
					t.Fatal(err)
				}
				got := e.call(clientAs(t, a, c.who), in, c.tool, c.args, true, func() string { return c.say })
				if !strings.Contains(got, c.want) || strings.Contains(got, "secret") {
					t.Errorf("got %s, want %q in it", got, c.want)
				}
				if c.tool == "list_allowed_directories" && strings.Contains(got, filepath.Base(host)+`"`) {
					t.Errorf("the folders of the host are listed: %s", got)
				}
			})
		}
	}

	t.Run("changes with what the client says", func(t *testing.T) {
		cfg := settings(t)
		cfg.Roots.Folders, cfg.View.Modules, cfg.View.ReadOnly = []string{host}, []string{"filesystem"}, true
		a, err := New(t.Context(), cfg, Options{})
		if err != nil {
			t.Fatal(err)
		}
		c := clientAs(t, a, stdio)
		for _, now := range []string{mine, other} {
			got := callLegacy(c, "", "read_text_file", `{"path":"a.txt"}`, true, func() string { return announce(now) })
			if want, _ := os.ReadFile(filepath.Join(now, "a.txt")); !strings.Contains(got, string(want)) {
				t.Errorf("got %s, want %q in it", got, want)
			}
		}
		got := callLegacy(
			c,
			"",
			"write_file",
			`{"path":"a.txt","content":"new"}`,
			true,
			func() string { return announce(mine) },
		)
		if text, _ := os.ReadFile(filepath.Join(mine, "a.txt")); string(text) != "text of mine" {
			t.Errorf("a read-only host wrote: %s", got)
		}
	})

	t.Run("a client that answers with an error", func(t *testing.T) {
		cfg := settings(t)
		cfg.Roots.Folders, cfg.View.Modules = []string{host}, []string{"filesystem"}
		a, err := New(t.Context(), cfg, Options{})
		if err != nil {
			t.Fatal(err)
		}
		c := clientAs(t, a, stdio)
		c.pipe.Receive(
			[]byte(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",` +
				`"capabilities":{"roots":{}},"clientInfo":{"name":"t","version":"1"}}}`),
		)
		c.message()
		c.pipe.Receive([]byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`))
		c.pipe.Receive(
			[]byte(
				`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"read_text_file","arguments":{"path":"a.txt"}}}`,
			),
		)
		for {
			m := c.message()
			id, _ := rawjson.Get(m, "id")
			if method, _ := rawjson.Get(m, "method"); string(method) == `"roots/list"` {
				c.pipe.Receive(
					fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no roots"}}`, id),
				)
			} else if string(id) == "2" {
				if !strings.Contains(string(m), "text of the host") {
					t.Errorf("got %s", m)
				}
				return
			}
		}
	})
}
