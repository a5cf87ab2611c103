package app

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/config"
	"gatehouse/internal/modules/publicstate"
	"gatehouse/internal/state"
	"gatehouse/module"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

// readPublic reads a resource as a client does, and returns its JSON and its revision, or "" if it is refused.
func (c *tenant) readPublic(in, uri string) (value any, revision string) {
	c.t.Helper()
	answer := c.say(in, "resources/read", fmt.Sprintf(`"uri":%q`, uri))
	var r struct {
		Result struct {
			Contents []struct{ Text, MimeType string }
			Meta     struct {
				Revision string `json:"gatehouse/revision"`
			} `json:"_meta"`
		}
	}
	if err := json.Unmarshal([]byte(answer), &r); err != nil {
		c.t.Fatal(err)
	}
	if len(r.Result.Contents) == 0 {
		return nil, ""
	}
	if err := json.Unmarshal([]byte(r.Result.Contents[0].Text), &value); err != nil {
		c.t.Fatalf("%s: %v", answer, err)
	}
	return value, r.Result.Meta.Revision
}

func members(v any) []string {
	m, _ := v.(map[string]any)
	return slices.Sorted(maps.Keys(m))
}

// eventually waits for a condition that events bring about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func (c *tenant) handshake() {
	c.t.Helper()
	c.pipe.Receive(
		[]byte(
			`{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"probe","version":"1"}}}`,
		),
	)
	c.message()
	c.pipe.Receive([]byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`))
}

func TestPublicTreeSaysWhatThisHostIs(t *testing.T) {
	a, client := live(t)
	ann := client("ann")
	eventually(t, "running", func() bool {
		v, _ := ann.readPublic("default", publicstate.PublicURI+"/serverInfo/status/state")
		return v == "running"
	})
	v, revision := ann.readPublic("default", publicstate.PublicURI)
	for _, name := range []string{"contexts", "jobs", "processes", "serverInfo", "sessions", "ui"} {
		if !slices.Contains(members(v), name) || revision == "" {
			t.Fatalf("%v at %q, without %s", members(v), revision, name)
		}
	}
	info := v.(map[string]any)["serverInfo"].(map[string]any)
	if id, _ := info["id"].(string); !strings.HasPrefix(id, "host_") || info["name"] != "gatehouse" ||
		info["version"] != Version {
		t.Errorf("it is %v", info)
	}
	for _, uri := range []string{"gatehouse:///publicX", "gatehouse:///private", "gatehouse:///private/host",
		"gatehouse:///public/../private/host", "gatehouse:///public/%2E%2E/private", "gatehouse:///public/nothing"} {
		if v, _ := ann.readPublic("default", uri); v != nil {
			t.Errorf("%s is %v", uri, v)
		}
	}
	// The id of the host is the same after a restart.
	b, err := New(t.Context(), a.cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer b.abandon()
	if other, _, _ := b.tree.self.Get(); other.ID != info["id"] {
		t.Errorf("another start is %v, the first was %v", other.ID, info["id"])
	}
}

func TestEveryoneSeesTheirOwnSessionsAndContexts(t *testing.T) {
	_, client := live(t)
	admin, ann, bob, nobody := client("root", "admin"), client("ann"), client("bob"), client("anonymous")
	for _, c := range []*tenant{ann, bob, nobody} {
		c.handshake()
	}
	sessions := func(c *tenant) []string {
		v, _ := c.readPublic("default", publicstate.PublicURI+"/sessions")
		return members(v)
	}
	eventually(t, "three sessions", func() bool { return len(sessions(admin)) == 3 })
	if len(sessions(ann)) != 1 || len(sessions(bob)) != 1 || len(sessions(nobody)) != 0 {
		t.Fatalf("ann sees %v, bob %v, nobody %v", sessions(ann), sessions(bob), sessions(nobody))
	}
	bobs := publicstate.PublicURI + "/sessions/" + sessions(bob)[0]
	if v, _ := ann.readPublic("default", bobs); v != nil {
		t.Errorf("ann reads bob's session: %v", v)
	}
	if v, _ := bob.readPublic("default", bobs+"/client"); v != "probe/1" {
		t.Errorf("bob's client is %v", v)
	}
	got := ann.say(
		"default",
		"completion/complete",
		fmt.Sprintf(
			`"ref":{"type":"ref/resource","uri":%q},"argument":{"name":"pointer","value":"sessions/"}`,
			publicstate.PublicTemplate,
		),
	)
	expect(t, got, `"values":["sessions/`+sessions(ann)[0]+`"]`)
	bob.pipe.Close(nil)
	eventually(t, "bob's session has ended", func() bool { return len(sessions(admin)) == 2 })

	all, _ := admin.readPublic("default", publicstate.PublicURI+"/contexts")
	hers, _ := ann.readPublic("default", publicstate.PublicURI+"/contexts")
	if !slices.Contains(members(all), "admin") || slices.Contains(members(hers), "admin") ||
		!slices.Contains(members(hers), "default") {
		t.Fatalf("contexts of the administrator %v, of ann %v", members(all), members(hers))
	}
	admin.call("admin", "context_create", `{"name":"dev","roles":["dev"]}`)
	admin.call("admin", "context_create", `{"name":"open"}`)
	eventually(t, "new contexts", func() bool {
		all, _ := admin.readPublic("default", publicstate.PublicURI+"/contexts")
		hers, _ := ann.readPublic("default", publicstate.PublicURI+"/contexts")
		return slices.Contains(members(all), "dev") && slices.Contains(members(hers), "open") &&
			!slices.Contains(members(hers), "dev")
	})
}

// note waits for an update of a resource, and returns its _meta.
func (c *tenant) note(uri string) (meta map[string]json.RawMessage) {
	c.t.Helper()
	for {
		var n struct {
			Method string
			Params struct {
				URI  string
				Meta map[string]json.RawMessage `json:"_meta"`
			}
		}
		if err := json.Unmarshal(c.message(), &n); err == nil && n.Method == "notifications/resources/updated" &&
			n.Params.URI == uri {
			return n.Params.Meta
		}
	}
}

func (c *tenant) listen(uri string) {
	c.t.Helper()
	c.pipe.Receive(
		fmt.Appendf(
			nil,
			`{"jsonrpc":"2.0","id":"ear","method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":[%q]},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`,
			uri,
		),
	)
	for !strings.Contains(string(c.message()), "notifications/subscriptions/acknowledged") {
	}
}

// Clients of both eras are notified of the same change, with the patch that leads to the value that a read
// returns.
func TestBothErasAreToldOfTheSameChange(t *testing.T) {
	a, client := live(t)
	older, modern := client("root", "admin"), client("root", "admin")
	older.handshake()
	uri := publicstate.PublicURI + "/tests"
	things, err := state.Attach[map[string]int](t.Context(), a.tree.state, "/public/tests", state.Live)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := things.Set(t.Context(), map[string]int{"n": 0}); err != nil {
		t.Fatal(err)
	}
	older.pipe.Receive(
		fmt.Appendf(nil, `{"jsonrpc":"2.0","id":"sub","method":"resources/subscribe","params":{"uri":%q}}`, uri),
	)
	expect(t, string(older.message()), `"id":"sub","result":{}`)
	modern.listen(uri)
	seen := a.tree.state.Read(state.Pointer{"public", "tests"})
	many := map[string]int{"n": 1} // ten thousand nodes are one update
	for i := range 10_000 {
		many[fmt.Sprint(i)] = i
	}
	if _, err := things.Set(t.Context(), many); err != nil {
		t.Fatal(err)
	}
	now := a.tree.state.Read(state.Pointer{"public", "tests"})
	want, _ := now.JSON()
	for era, c := range map[string]*tenant{"legacy": older, "modern": modern} {
		meta := c.note(uri)
		p, err := state.DecodePatch(meta[publicstate.MetaPatch])
		if err != nil {
			t.Fatal(err)
		}
		v, err := state.Apply(seen.Value, p)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := state.View{Value: v}.JSON()
		if string(got) != string(want) || string(meta[publicstate.MetaRevision]) != fmt.Sprintf("%q", now.Revision) ||
			string(meta[publicstate.MetaFrom]) != fmt.Sprintf("%q", seen.Revision) {
			t.Errorf(
				"%s: from %s to %s, want from %s to %s",
				era,
				meta[publicstate.MetaFrom],
				meta[publicstate.MetaRevision],
				seen.Revision,
				now.Revision,
			)
		}
	}
	// No client is notified twice, and a client that has unsubscribed is not notified at all.
	older.pipe.Receive(
		fmt.Appendf(nil, `{"jsonrpc":"2.0","id":"un","method":"resources/unsubscribe","params":{"uri":%q}}`, uri),
	)
	expect(t, string(older.message()), `"id":"un","result":{}`)
	if err := state.Put(t.Context(), things, "n", 2); err != nil {
		t.Fatal(err)
	}
	if meta := modern.note(uri); string(meta[publicstate.MetaPatch]) != `[{"op":"replace","path":"/n","value":2}]` {
		t.Errorf("told %s", meta[publicstate.MetaPatch])
	}
	older.pipe.Receive([]byte(`{"jsonrpc":"2.0","id":"p","method":"ping"}`))
	expect(t, string(older.message()), `"id":"p"`)
}

func TestPromptFitsTheView(t *testing.T) {
	_, client := live(t)
	ann := client("ann")
	got := ann.say("file", "resources/read", `"uri":"gatehouse:///mcp/system-prompt"`)
	expect(
		t,
		got,
		"gatehouse "+Version,
		"context file as ann",
		"- file: ",
		"file_read",
		"the following can destroy data: ",
		"text/plain",
	)
	if strings.Contains(got, "lang_") || strings.Contains(got, "admin") {
		t.Errorf("it mentions something that does not exist: %s", got)
	}
}

// Events that are wrong, arrive out of order or not at all change nothing in the tree, because the module is asked
// which processes run.
func TestProcessesAreListedByTheirModule(t *testing.T) {
	cfg := settings(t)
	cfg.View.Modules = append(cfg.View.Modules, "process")
	a, client := liveOn(t, cfg, Options{})
	admin := client("root", "admin")
	publish := func(subject string, data string) {
		a.publish(subject, json.RawMessage(data))
	}
	ids := func(of string) []string {
		v, _ := admin.readPublic("default", publicstate.PublicURI+"/"+of)
		return members(v)
	}
	id, _ := admin.result("process_start", `{"command":"sleep","args":["1000"]}`)["id"].(string)
	eventually(t, "one process", func() bool { return slices.Equal(ids("processes"), []string{id}) })
	publish("module.process.process.exited", `{"id":"`+id+`","owner":"root/default"}`)
	publish("module.process.process.started", `{"id":"invented","owner":"root/default","command":"true","pid":1}`)
	publish("session.ended", `{"session":"unknown"}`)
	publish("session.ended", `{"client":"unknown/1","revision":"2025-11-25"}`)
	publish("session.created", `not json`)
	second, _ := admin.result("process_start", `{"command":"sleep","args":["1000"]}`)["id"].(string)
	want := []string{id, second}
	slices.Sort(want)
	eventually(t, "the two processes that run", func() bool { return slices.Equal(ids("processes"), want) })
	for _, one := range want {
		admin.result("process_kill", `{"id":"`+one+`"}`)
	}
	eventually(t, "no process", func() bool { return len(ids("processes")) == 0 })
	if got := ids("sessions"); len(got) != 0 {
		t.Errorf("sessions %v", got)
	}
}

// After a tool that requests it the caller's subscriptions are brought up to date at once, even if only the
// revision has changed.
func TestToolsThatSync(t *testing.T) {
	touch := func(name string, sync bool) tool.Tool {
		return tool.New(
			tool.Def{Name: "touch_" + name, Description: "Changes nothing.", Effects: tool.Reads, Sync: sync},
			func(context.Context, *tool.Call, struct{}) (tool.Result, error) {
				return tool.Result{Content: []tool.Content{tool.Text("done")}}, nil
			},
		)
	}
	offer := &module.Offer{Tools: []tool.Tool{touch("silently", false), touch("sync", true)}}
	a, client := liveWith(t, Options{Extra: []Module{{"touch", moduletest.Fixed(offer)}}})
	eventually(
		t,
		"calls are followed",
		func() bool { return a.bus.(interface{ Followed(string) bool }).Followed("call.finished") },
	)
	root := client("root", "admin")
	uri := publicstate.PublicURI + "/contexts"
	root.listen(uri)
	for _, name := range []string{"touch_silently", "touch_sync"} {
		root.pipe.Receive(
			fmt.Appendf(
				nil,
				`{"jsonrpc":"2.0","id":%q,"method":"tools/call","params":{"name":%q,"arguments":{},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`,
				name,
				name,
			),
		)
	}
	meta := root.note(uri)
	if string(meta[publicstate.MetaPatch]) != "[]" ||
		string(meta[publicstate.MetaFrom]) != string(meta[publicstate.MetaRevision]) {
		t.Errorf("told %s", meta)
	}
	if _, err := a.tree.contexts.Set(t.Context(), map[string]contextState{}); err != nil {
		t.Fatal(err)
	}
	if meta := root.note(uri); string(meta[publicstate.MetaPatch]) == "[]" {
		t.Error("told twice")
	}
}

// If no tool requests it, calls are not followed.
func TestCallsAreFollowedOnlyForTools(t *testing.T) {
	a, client := live(t)
	root := client("root", "admin")
	eventually(t, "running", func() bool {
		v, _ := root.readPublic("default", publicstate.PublicURI+"/serverInfo/status/state")
		return v == "running"
	})
	if a.bus.(interface{ Followed(string) bool }).Followed("call.finished") {
		t.Error("calls are followed")
	}
}

// A client that reads a resource and subscribes only after it has changed is notified of that change, even if
// another client of its context follows the same resource already. Calls of a tool that syncs notify no other
// client.
func TestFollowersDoNotShare(t *testing.T) {
	touch := tool.New(tool.Def{Name: "touch", Description: "Changes nothing.", Effects: tool.Reads, Sync: true},
		func(context.Context, *tool.Call, struct{}) (tool.Result, error) {
			return tool.Result{Content: []tool.Content{tool.Text("done")}}, nil
		})
	a, client := liveWith(
		t,
		Options{Extra: []Module{{"touch", moduletest.Fixed(&module.Offer{Tools: []tool.Tool{touch}})}}},
	)
	eventually(
		t,
		"calls are followed",
		func() bool { return a.bus.(interface{ Followed(string) bool }).Followed("call.finished") },
	)
	uri := publicstate.PublicURI + "/tests"
	things, err := state.Attach[map[string]int](t.Context(), a.tree.state, "/public/tests", state.Live)
	if err != nil {
		t.Fatal(err)
	}
	put := func(n int) {
		t.Helper()
		if _, err := things.Set(t.Context(), map[string]int{"n": n}); err != nil {
			t.Fatal(err)
		}
	}
	subscribe := func(c *tenant) {
		t.Helper()
		c.pipe.Receive(
			fmt.Appendf(nil, `{"jsonrpc":"2.0","id":"sub","method":"resources/subscribe","params":{"uri":%q}}`, uri),
		)
		expect(t, string(c.message()), `"id":"sub","result":{}`)
	}
	put(0)
	ann, bob := client("ann"), client("bob")
	older, modern := client("carl"), client("dora")
	ann.handshake()
	older.handshake()
	subscribe(ann)
	bob.listen(uri)
	read := func(c *tenant, id string, meta string) string {
		t.Helper()
		c.pipe.Receive(
			fmt.Appendf(
				nil,
				`{"jsonrpc":"2.0","id":%q,"method":"resources/read","params":{"uri":%q%s}}`,
				id,
				uri,
				meta,
			),
		)
		var r struct {
			Result struct {
				Meta map[string]json.RawMessage `json:"_meta"`
			}
		}
		if err := json.Unmarshal(c.message(), &r); err != nil {
			t.Fatal(err)
		}
		return string(r.Result.Meta[publicstate.MetaRevision])
	}
	seen := map[*tenant]string{
		older: read(older, "r", ""),
		modern: read(
			modern,
			"r",
			`,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`,
		),
	}
	put(1)
	for _, c := range []*tenant{ann, bob} { // notified, so that nothing of theirs is pending
		if meta := c.note(uri); string(meta[publicstate.MetaPatch]) != `[{"op":"replace","path":"/n","value":1}]` {
			t.Fatalf("told %s", meta)
		}
	}
	subscribe(older)
	modern.listen(uri)
	for c, from := range seen {
		meta := c.note(uri)
		if string(meta[publicstate.MetaPatch]) != `[{"op":"replace","path":"/n","value":1}]` ||
			string(meta[publicstate.MetaFrom]) != from {
			t.Errorf("the client that read %s received %s", from, meta)
		}
	}
	for i := range 20 {
		modern.pipe.Receive(
			fmt.Appendf(
				nil,
				`{"jsonrpc":"2.0","id":"call %d","method":"tools/call","params":{"name":"touch","arguments":{},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`,
				i,
			),
		)
	}
	modern.note(uri)
	put(2)
	for _, c := range []*tenant{ann, bob, older} {
		if meta := c.note(uri); string(meta[publicstate.MetaPatch]) != `[{"op":"replace","path":"/n","value":2}]` {
			t.Errorf("another caller received %s", meta)
		}
	}
}

// Callers who are not administrators get patches of the part they see.
func TestPatchesForThoseWhoSeeAPart(t *testing.T) {
	cfg := settings(t)
	cfg.View.Modules = append(cfg.View.Modules, "process")
	_, client := liveOn(t, cfg, Options{})
	ann, bob := client("ann"), client("bob")
	uri := publicstate.PublicURI + "/processes"
	ann.listen(uri)
	bob.listen(uri)
	of := func(v *tenant) string {
		id, _ := v.result("process_start", `{"command":"sleep","args":["1000"]}`)["id"].(string)
		return id
	}
	p1 := of(ann)
	if meta := ann.note(uri); !strings.Contains(string(meta[publicstate.MetaPatch]), `"op":"add","path":"/`+p1+`"`) {
		t.Errorf("ann received %s", meta)
	}
	p2 := of(bob)
	if meta := bob.note(uri); !strings.Contains(string(meta[publicstate.MetaPatch]), `"path":"/`+p2+`"`) ||
		strings.Contains(string(meta[publicstate.MetaPatch]), p1) {
		t.Errorf("bob received %s", meta)
	}
	got := ann.say("default", "resources/list", "")
	expect(
		t,
		got,
		`"uri":"gatehouse:///public"`,
		`"uri":"gatehouse:///public/serverInfo"`,
		`"uri":"gatehouse:///public/packageData"`,
		`"uri":"gatehouse:///mcp/system-prompt"`,
	)
}

// A caller who is no administrator receives patches of the packages whose tools it may call.
func TestPatchesOfPackages(t *testing.T) {
	_, client := liveOn(t, ruled(t, "package"), Options{})
	admin, eve := client("ann", "admin"), client("eve")
	uri := publicstate.PublicURI + "/packageData"
	eve.listen(uri)
	admin.wait(admin.result("package_install", packageArgs(t, "up", "good")))
	if meta := eve.note(uri); !strings.Contains(string(meta[publicstate.MetaPatch]), `"path":"/up"`) {
		t.Errorf("eve received %s", meta)
	}
}

// Whether a client may subscribe to a file does not depend on the names of the tools in its view, or on which
// tools are in it.
func TestFilesAreFollowedInEveryView(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.txt")
	for _, name := range []string{"a.txt", ".env"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("1"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg := settings(t)
	cfg.Contexts = []config.Context{
		{Name: "dotted", Modules: []string{"file"}, Style: "dot", Roots: []string{dir}},
		{
			Name:    "renamed",
			Modules: []string{"file"},
			Rename:  map[string]string{"file_stat": "stat"},
			Roots:   []string{dir},
		},
		{Name: "few", Modules: []string{"file"}, Tools: []string{"file_read"}, Roots: []string{dir}},
		{Name: "none", Modules: []string{"file"}, Resources: []string{"gatehouse:*"}, Roots: []string{dir}},
	}
	a, _ := liveOn(t, cfg, Options{})
	uri := "file://" + filepath.ToSlash(path)
	for _, in := range []string{"dotted", "renamed", "few", "none"} {
		older, modern := tenantOf(t, a, "ann"), tenantOf(t, a, "ann")
		older.pipe.Receive(
			fmt.Appendf(
				nil,
				`{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"probe","version":"1"},"_meta":{"gatehouse/context":%q}}}`,
				in,
			),
		)
		older.message()
		older.pipe.Receive(
			fmt.Appendf(nil, `{"jsonrpc":"2.0","id":"sub","method":"resources/subscribe","params":{"uri":%q}}`, uri),
		)
		answer := string(older.message())
		modern.pipe.Receive(
			fmt.Appendf(
				nil,
				`{"jsonrpc":"2.0","id":"ear","method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":[%q,%q]},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"gatehouse/context":%q}}}`,
				uri,
				"file://"+filepath.ToSlash(filepath.Join(dir, ".env")),
				in,
			),
		)
		promised := string(modern.message())
		if strings.Contains(promised, ".env") {
			t.Errorf("%s: a protected file is followed: %s", in, promised)
		}
		if in == "none" {
			if !strings.Contains(answer, `"error"`) || strings.Contains(promised, "a.txt") {
				t.Errorf("a view without files follows them: %s, %s", answer, promised)
			}
			continue
		}
		expect(t, answer, `"id":"sub","result":{}`)
		expect(t, promised, `"resourceSubscriptions":["`+uri+`"]`)
		if err := os.WriteFile(path, []byte(in), 0o600); err != nil {
			t.Fatal(err)
		}
		older.note(uri)
		modern.note(uri)
	}
}

// When the host stops, clients that follow its status are notified, and a subscription that listens ends with the
// result that the protocol requires.
func TestFollowersAreToldOfTheEnd(t *testing.T) {
	a, err := New(t.Context(), settings(t), Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	older, modern := tenantOf(t, a, "ann"), tenantOf(t, a, "bob")
	uri := publicstate.PublicURI + "/serverInfo/status/state"
	eventually(t, "running", func() bool {
		v, _ := older.readPublic("default", uri)
		return v == "running"
	})
	older.handshake()
	older.pipe.Receive(
		fmt.Appendf(nil, `{"jsonrpc":"2.0","id":"sub","method":"resources/subscribe","params":{"uri":%q}}`, uri),
	)
	expect(t, string(older.message()), `"id":"sub","result":{}`)
	modern.listen(uri)
	stop()
	for _, c := range []*tenant{older, modern} {
		if meta := c.note(uri); !strings.Contains(string(meta[publicstate.MetaPatch]), `"stopping"`) {
			t.Errorf("told %s", meta)
		}
	}
	expect(t, string(modern.message()), `"id":"ear"`, `"resultType":"complete"`)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
