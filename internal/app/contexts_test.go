package app

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/config"
	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/tool"
)

// tenant is a client of a running host, with one principal.
type tenant struct {
	t    *testing.T
	pipe *protocol.Pipe
	in   chan json.RawMessage
	next int
	meta string // members of the _meta of each request, each followed by a comma
}

// live starts a host and returns a function that creates its clients.
func live(t *testing.T) (*App, func(name string, roles ...string) *tenant) {
	t.Helper()
	return liveWith(t, Options{})
}

func liveWith(t *testing.T, o Options) (*App, func(name string, roles ...string) *tenant) {
	t.Helper()
	return liveOn(t, settings(t), o)
}

func liveOn(t *testing.T, cfg config.Config, o Options) (*App, func(name string, roles ...string) *tenant) {
	t.Helper()
	a, err := New(t.Context(), cfg, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return a, func(name string, roles ...string) *tenant { return tenantOf(t, a, name, roles...) }
}

// tenantOf returns a client of a running host.
func tenantOf(t *testing.T, a *App, name string, roles ...string) *tenant {
	c := &tenant{t: t, in: make(chan json.RawMessage, 1000)}
	c.pipe = a.engine.Pipe(protocol.Caller{Caller: tool.Caller{Principal: name, Roles: roles}}, func(m []byte) error {
		c.in <- slices.Clone(m)
		return nil
	})
	t.Cleanup(func() { c.pipe.Close(nil) })
	return c
}

func (c *tenant) message() json.RawMessage {
	c.t.Helper()
	select {
	case m := <-c.in:
		return m
	case <-time.After(time.Minute):
		c.t.Fatal("the host says nothing")
		return nil
	}
}

// say sends a request to a context, in a session of its own, and returns the answer.
func (c *tenant) say(in, method, params string) string {
	c.t.Helper()
	c.next++
	if params != "" {
		params += ","
	}
	c.pipe.Receive(
		fmt.Appendf(
			nil,
			`{"jsonrpc":"2.0","id":%d,"method":%q,"params":{%s"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},%s"gatehouse/context":%q}}}`,
			c.next,
			method,
			params,
			c.meta,
			in,
		),
	)
	for {
		m := c.message()
		var r struct{ ID int }
		if json.Unmarshal(m, &r) == nil && r.ID == c.next {
			return string(m)
		}
	}
}

func (c *tenant) call(in, name, args string) string {
	c.t.Helper()
	return c.say(in, "tools/call", fmt.Sprintf(`"name":%q,"arguments":%s`, name, args))
}

// names lists the tools of a context.
func (c *tenant) names(in string) (names []string) {
	c.t.Helper()
	answer := c.say(in, "tools/list", "")
	var r struct {
		Result struct{ Tools []struct{ Name string } }
	}
	if err := json.Unmarshal([]byte(answer), &r); err != nil {
		c.t.Fatal(err)
	}
	for _, one := range r.Result.Tools {
		names = append(names, one.Name)
	}
	return names
}

func expect(t *testing.T, got string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(got, w) {
			t.Errorf("got %s, want %s in it", got, w)
		}
	}
}

//redteam:attack Matters of the whole host are for administrators: an ordinary user enters the administration
func TestOnlyAdministratorsFindTheAdministration(t *testing.T) {
	a, client := live(t)
	admin, eve := client("ann", "admin"), client("eve", "writer")
	for _, method := range []string{"tools/list", "prompts/list", "resources/list", "resources/templates/list",
		"server/discover"} {
		if got, other := eve.say("admin", method, ""), eve.say("nowhere", method, ""); got != strings.Replace(
			other,
			fmt.Sprintf(`"id":%d`, eve.next),
			fmt.Sprintf(`"id":%d`, eve.next-1),
			1,
		) {
			t.Errorf("%s: got %s for the administration, %s for what is not there", method, got, other)
		}
	}
	expect(t, eve.call("admin", "context_list", "{}"), "Context not found")
	for _, in := range []string{"default", "file"} {
		expect(t, admin.call(in, "context_list", "{}"), "unknown tool")
		if slices.ContainsFunc(admin.names(in), func(n string) bool { return strings.HasPrefix(n, "context_") }) {
			t.Errorf("the context %s lists the tools of the administration", in)
		}
	}
	expect(t, admin.call("admin", "context_list", "{}"), `"name":"default"`, `"fixed":true`)
	expect(
		t,
		admin.call("admin", "context_create", `{"name":"admin"}`),
		`denied: the context admin is defined by the host`,
	)
	expect(
		t,
		admin.call("admin", "context_create", `{"name":"file"}`),
		`denied: the context file is defined by the host`,
	)
	expect(t, admin.call("admin", "context_delete", `{"name":"default"}`), `is defined by the host`)
	expect(t, admin.call("admin", "context_create", `{"name":"x","roels":[]}`), `invalid_arguments`, `roels`)
	expect(
		t,
		admin.call("admin", "context_create", `{"name":"x","rules":[{"then":"maybe"}]}`),
		`expected allow, stage, ask`,
		`Nothing was changed`,
	)
	if n := len(a.contextStore.Current().Records); n != 0 {
		t.Errorf("%d contexts were made", n)
	}
}

func TestAContextIsMadeChangedAndRemovedWhileTheHostRuns(t *testing.T) {
	a, client := live(t)
	admin, ann := client("root", "admin"), client("ann", "dev")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "here.txt"), []byte("in the context"), 0o600); err != nil {
		t.Fatal(err)
	}
	facts := a.bus.Follow(t.Context(), "context.*", 100)
	expect(t, ann.say("dev", "tools/list", ""), "Context not found")
	expect(
		t,
		admin.call(
			"admin",
			"context_create",
			`{"name":"dev","modules":["file"],"tools":["file_read"],"roles":["dev"],"known_to":["staff"],
		"roots":[{"path":"`+dir+`"}],"env":{"WHO":"dev team"},
		"rules":[{"names":["file_read"],"when":"args.path == \"secret\"","then":"refuse"}],
		"own_tools":[{"name":"env","description":"Shows a variable.","effects":["reads"],"input":{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]},
			"command":{"path":"printenv","args":["{{name}}"]}}],
		"own_prompts":[{"name":"greet","arguments":[{"name":"who","required":true,"values":["ann","bob"]}],"template":"Greet {{who}}."}]}`,
		),
		`"revision":1`,
	)
	if got := ann.names("dev"); !slices.Equal(
		got,
		[]string{"env", "file_read", "job_cancel", "job_list", "job_wait"},
	) &&
		!slices.Equal(got, []string{"env", "file_read"}) {
		t.Errorf("the context holds %v", got)
	}
	expect(t, client("x", "staff").say("dev", "tools/list", ""), "Context not allowed")
	expect(t, client("x").say("dev", "tools/list", ""), "Context not found")
	expect(t, ann.call("dev", "file_read", `{"path":"here.txt"}`), "in the context")
	expect(t, ann.call("dev", "file_read", `{"path":"secret"}`), "denied")
	expect(t, ann.call("default", "file_read", `{"path":"`+dir+`/here.txt"}`), "outside_root")
	expect(t, ann.call("dev", "env", `{"name":"WHO"}`), `dev team`)
	expect(t, ann.call("dev", "env", `{"name":"GATEHOUSE_CONTEXT"}`), `"text":"dev\n"`)
	expect(t, ann.call("dev", "env", `{"name":"NONE"}`), `"isError":true`, `exit code 1`)
	expect(t, ann.call("dev", "env", `{}`), `invalid_arguments`)
	expect(t, ann.call("default", "env", `{"name":"WHO"}`), "unknown tool")
	expect(t, ann.say("dev", "prompts/get", `"name":"greet","arguments":{"who":"{{who}}"}`), `Greet {{who}}.`)
	expect(t, ann.say("default", "prompts/get", `"name":"greet","arguments":{"who":"x"}`), `unknown prompt`)
	expect(
		t,
		ann.say(
			"dev",
			"completion/complete",
			`"ref":{"type":"ref/prompt","name":"greet"},"argument":{"name":"who","value":"b"}`,
		),
		`"values":["bob"]`,
	)
	expect(t, admin.call("admin", "context_get", `{"name":"dev"}`), `\"by\":\"root\"`, `printenv`)

	expect(t, admin.call("admin", "context_update", `{"name":"dev","revision":9,"tools":["*"]}`), "stale")
	expect(
		t,
		admin.call("admin", "context_update", `{"name":"dev","revision":1,"clear":["own_tools","tools"]}`),
		`\"revision\":2`,
	)
	expect(t, ann.call("dev", "env", `{"name":"WHO"}`), "unknown tool")
	expect(t, ann.call("dev", "file_exists", `{"path":"here.txt"}`), "true")
	expect(t, ann.say("dev", "prompts/get", `"name":"greet","arguments":{"who":"x"}`), `Greet x.`)

	expect(t, admin.call("admin", "context_delete", `{"name":"dev"}`), `\"deleted\":\"dev\"`)
	expect(t, ann.say("dev", "tools/list", ""), "Context not found")
	expect(t, ann.call("dev", "file_read", `{"path":"here.txt"}`), "Context not found")
	var subjects []string
	for f := range facts {
		subjects = append(subjects, f.Subject)
		expect(t, string(f.Data), `"name":"dev"`)
		if len(subjects) == 3 {
			break
		}
	}
	if want := []string{"context.created", "context.changed", "context.removed"}; !slices.Equal(subjects, want) {
		t.Errorf("told %v, want %v", subjects, want)
	}
}

// Resources that a context defines are listed, read, completed and subscribed to by the callers of that context
// alone and under its rules.
func TestAContextDefinesResources(t *testing.T) {
	_, client := live(t)
	admin, ann := client("root", "admin"), client("ann")
	dir := t.TempDir()
	notes := filepath.Join(dir, "build.md")
	if err := os.WriteFile(notes, []byte("# Build"), 0o600); err != nil {
		t.Fatal(err)
	}
	expect(
		t,
		admin.call(
			"admin",
			"context_create",
			`{"name":"dev","modules":["file"],"resources":["nothing:*"],"roots":[{"path":"`+dir+`"}],"env":{"WHO":"dev team"},
		"rules":[{"methods":["resources/read"],"names":["team://secret"],"then":"refuse"}],
		"own_resources":[{"uri":"team://motd","name":"motd","title":"The day","description":"Of the day.","mime_type":"text/markdown","text":"one"},
			{"uri":"team://secret","name":"secret","text":"hidden"},
			{"uri":"team://notes/{topic}","name":"notes","file":"{{topic}}.md","variables":[{"name":"topic","values":["build","release"]}]},
			{"uri":"team://env/{name}","name":"env","command":{"path":"printenv","args":["{{name}}"]}}]}`,
		),
		"a path cannot begin with a variable",
	)
	define := func(text string) string {
		return `"own_resources":[{"uri":"team://motd","name":"motd","title":"The day","description":"Of the day.","mime_type":"text/markdown","text":"` + text + `"},
			{"uri":"team://secret","name":"secret","text":"hidden"},
			{"uri":"team://notes/{topic}","name":"notes","file":"./{{topic}}.md","variables":[{"name":"topic","values":["build","release"]}]},
			{"uri":"team://env/{name}","name":"env","command":{"path":"printenv","args":["{{name}}"]}}]}`
	}
	expect(
		t,
		admin.call(
			"admin",
			"context_create",
			`{"name":"dev","modules":["file"],"resources":["nothing:*"],"roots":[{"path":"`+dir+`"}],"env":{"WHO":"dev team"},
		"rules":[{"methods":["resources/read"],"names":["team://secret"],"then":"refuse"}],`+define(
				"one",
			),
		),
		`"revision":1`,
	)

	listed := ann.say("dev", "resources/list", "") + ann.say("dev", "resources/templates/list", "")
	expect(
		t,
		listed,
		`"uri":"team://motd"`,
		`"title":"The day"`,
		`"description":"Of the day."`,
		`"mimeType":"text/markdown"`,
		`"uriTemplate":"team://notes/{topic}"`,
		`"uriTemplate":"team://env/{name}"`,
	)
	for _, other := range []string{"team://secret", "file://", "gatehouse:///public"} {
		if strings.Contains(listed, other) {
			t.Errorf("%s is listed: %s", other, listed)
		}
	}
	expect(t, ann.say("dev", "resources/read", `"uri":"team://motd"`), `"text":"one"`, `"mimeType":"text/markdown"`)
	expect(t, ann.say("dev", "resources/read", `"uri":"team://notes/build"`), `"text":"# Build"`)
	expect(t, ann.say("dev", "resources/read", `"uri":"team://notes/none"`), `"error"`, "not_found")
	expect(t, ann.say("dev", "resources/read", `"uri":"team://env/WHO"`), "dev team")
	expect(t, ann.say("dev", "resources/read", `"uri":"team://env/NONE"`), `"error"`, "exit code 1")
	expect(t, ann.say("dev", "resources/read", `"uri":"team://secret"`), `"error"`, "not found")
	expect(t, ann.say("default", "resources/read", `"uri":"team://motd"`), `"error"`, "not found")
	expect(
		t,
		ann.say(
			"dev",
			"completion/complete",
			`"ref":{"type":"ref/resource","uri":"team://notes/{topic}"},"argument":{"name":"topic","value":"b"}`,
		),
		`"values":["build"]`,
	)
	older := client("ann")
	older.pipe.Receive(
		[]byte(
			`{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"},"_meta":{"gatehouse/context":"dev"}}}`,
		),
	)
	older.message()
	older.pipe.Receive([]byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`))
	for uri, want := range map[string]string{
		"team://motd": `"result":{}`, "team://notes/build": `"result":{}`, "team://notes/none": `"error"`,
		"team://secret": `"error"`,
	} {
		older.pipe.Receive(
			fmt.Appendf(nil, `{"jsonrpc":"2.0","id":"sub","method":"resources/subscribe","params":{"uri":%q}}`, uri),
		)
		expect(t, string(older.message()), want)
	}
	updated := func(uri string) {
		t.Helper()
		for {
			if m := string(older.message()); strings.Contains(m, "notifications/resources/updated") {
				expect(t, m, uri)
				return
			}
		}
	}
	if err := os.WriteFile(notes, []byte("# Build again"), 0o600); err != nil {
		t.Fatal(err)
	}
	updated("team://notes/build")
	expect(t, admin.call("admin", "context_update", `{"name":"dev",`+define("two")), `\"revision\":2`)
	updated("team://motd")
	expect(t, ann.say("dev", "resources/read", `"uri":"team://motd"`), `"text":"two"`)
	expect(t, admin.call("admin", "context_update", `{"name":"dev","clear":["own_resources"]}`), `\"revision\":3`)
	expect(t, ann.say("dev", "resources/read", `"uri":"team://motd"`), `"error"`, "not found")
}

// Changes that the command line writes reach running sessions within a second.
func TestTheHostFollowsTheCommandLine(t *testing.T) {
	a, client := live(t)
	cli, err := contextstore.Open(ContextsFile(a.cfg.Folders), contextstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer cli.Close()
	if _, err := cli.Create(contextstore.Record{Name: "notes",
		Definition: contextstore.Definition{Tools: []string{"file_read"}}}, "cli"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	ann := client("ann")
	for strings.Contains(ann.say("notes", "tools/list", ""), "Context not found") {
		if time.Since(began) > time.Minute {
			t.Fatal("the context does not come")
		}
	}
	t.Logf("there after %v", time.Since(began))

	bob := client("bob")
	bob.pipe.Receive(
		[]byte(
			`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"},"_meta":{"gatehouse/context":"notes"}}}`,
		),
	)
	bob.message()
	bob.pipe.Receive([]byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`))
	bob.pipe.Receive([]byte(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`))
	bob.message()
	if _, err := cli.Update("notes", "cli",
		func(r *contextstore.Record) error { r.Tools = []string{"file_*"}; return nil }); err != nil {
		t.Fatal(err)
	}
	expect(t, string(bob.message()), "notifications/tools/list_changed")
	if err := cli.Delete("notes"); err != nil {
		t.Fatal(err)
	}
	expect(t, string(bob.message()), "list_changed")
}

// Contexts are created and removed while they are used. No context offers tools of another one, and nothing
// remains of removed contexts.
func TestContextsComeAndGoUnderUse(t *testing.T) {
	a, client := live(t)
	admin := client("root", "admin")
	var all sync.WaitGroup
	stop := make(chan struct{})
	for i := range 3 {
		c := client("user")
		all.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				in := fmt.Sprintf("c%d", (n+i)%3)
				for _, name := range c.names(in) {
					if strings.HasPrefix(name, "own") && name != "own_"+in {
						t.Errorf("%s holds %s", in, name)
					}
				}
				got := c.call(in, "own_"+in, "{}")
				if !strings.Contains(got, "Context not found") && !strings.Contains(got, "unknown tool") &&
					!strings.Contains(got, `"text":"`+in) &&
					!strings.Contains(got, "not offered") &&
					!strings.Contains(got, "not available at the moment") &&
					!strings.Contains(got, "no longer offered") {
					t.Errorf("%s: %s", in, got)
				}
			}
		})
	}
	for round := range 15 {
		for i := range 3 {
			name := fmt.Sprintf("c%d", i)
			admin.call(
				"admin",
				"context_create",
				`{"name":"`+name+`","modules":[],"own_tools":[{"name":"own_`+name+
					`","description":"Says it.","command":{"path":"printenv","args":["GATEHOUSE_CONTEXT"]}}]}`,
			)
		}
		for i := range 3 {
			if (round+i)%2 == 0 {
				admin.call("admin", "context_delete", fmt.Sprintf(`{"name":"c%d"}`, i))
			}
		}
	}
	close(stop)
	all.Wait()
	for i := range 3 {
		admin.call("admin", "context_delete", fmt.Sprintf(`{"name":"c%d"}`, i))
	}
	eventually(t, "the modules of removed contexts are closed", func() bool {
		return !slices.ContainsFunc(a.host.Names(), func(n string) bool { return strings.HasPrefix(n, "own-") })
	})
}

// A stored context can be the default for callers who name none.
func TestAContextOfTheBookAsDefault(t *testing.T) {
	cfg := settings(t)
	store, err := contextstore.Open(ContextsFile(cfg.Folders), contextstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Create(contextstore.Record{Name: "notes",
		Definition: contextstore.Definition{Tools: []string{"file_read"}}}, ""); err != nil {
		t.Fatal(err)
	}
	store.Close()
	cfg.View.Context = "notes"
	a, err := New(t.Context(), cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got := a.views.Default(); got != "notes" {
		t.Errorf("the default is %q", got)
	}
	a.abandon()
}

// If the folders of a context cannot be opened, the context has no folders; it does not fall back to the host's.
func TestAContextWhoseFoldersAreGoneHasNone(t *testing.T) {
	_, client := live(t)
	admin, ann := client("root", "admin"), client("ann")
	gone := filepath.Join(t.TempDir(), "gone")
	admin.call("admin", "context_create", `{"name":"lost","roots":[{"path":"`+gone+`"}]}`)
	expect(t, ann.call("lost", "file_exists", `{"path":"."}`), "outside_root", "this context has no folders")
	if err := os.Mkdir(gone, 0o700); err != nil {
		t.Fatal(err)
	}
	admin.call("admin", "context_update", `{"name":"lost","description":"now it is there"}`)
	expect(t, ann.call("lost", "file_exists", `{"path":"."}`), `"exists":true`)
}

// A context that a command creates is available at once and is recorded once in the ledger, by the command.
func TestContextsOfACommand(t *testing.T) {
	a, client := live(t)
	ann, admin := client("ann"), client("root", "admin")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	facts := a.bus.Follow(ctx, "context.*", 100)
	command, err := contextstore.Open(ContextsFile(a.cfg.Folders), contextstore.Options{Fixed: ReservedContext})
	if err != nil {
		t.Fatal(err)
	}
	defer command.Close()
	for i := range 10 {
		name := fmt.Sprintf("made%d", i)
		if _, err := command.Create(contextstore.Record{Name: name}, "command line"); err != nil {
			t.Fatal(err)
		}
		if got := ann.say(name, "tools/list", ""); strings.Contains(got, "not found") {
			t.Fatalf("%s, a moment after it was made: %s", name, got)
		}
	}
	if err := command.Delete("made3"); err != nil {
		t.Fatal(err)
	}
	admin.call("admin", "context_create", `{"name":"ours"}`)
	admin.call("admin", "context_delete", `{"name":"ours"}`)
	got := map[string]bool{}
	for f := range facts {
		var d struct{ Name string }
		if err := json.Unmarshal(f.Data, &d); err != nil {
			t.Fatal(err)
		}
		if got[f.Subject+" "+d.Name] = f.Kept; d.Name == "ours" && f.Subject == "context.removed" {
			stop()
		}
	}
	for what, kept := range map[string]bool{"context.created made3": true, "context.removed made3": true,
		"context.created ours": false, "context.removed ours": false} {
		if is, known := got[what]; !known || is != kept {
			t.Errorf("%s: told %v, kept by another %v, want %v", what, known, is, kept)
		}
	}
}
