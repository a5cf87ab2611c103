package contextstore_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"gatehouse/internal/access/permit"
	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
	"gatehouse/tool"
)

// shop is a module with an entry of every kind; its handlers record that they ran.
type shop struct {
	name string
	mu   *sync.Mutex
	did  map[string]int
}

func (s *shop) note(what string) { s.mu.Lock(); s.did[what]++; s.mu.Unlock() }

func (s *shop) Close(context.Context) error { return nil }

func (s *shop) Offer(context.Context, module.Audience) (*module.Offer, error) {
	o := &module.Offer{}
	for kind, effects := range map[string]tool.Effects{"look": tool.Reads, "put": tool.Writes, "wipe": tool.Destroys,
		"any": 0} {
		name := s.name + "_" + kind
		o.Tools = append(
			o.Tools,
			tool.New(
				tool.Def{
					Name:        name,
					Description: "Does it.",
					Effects:     effects,
					Aliases:     []string{s.name + ".original." + kind},
				},
				func(context.Context, *tool.Call, struct{}) (tool.Result, error) {
					s.note("tools/call " + name)
					return tool.Result{Content: []tool.Content{tool.Text("done")}}, nil
				},
			),
		)
	}
	read := func(_ context.Context, c *tool.Call) (tool.Result, error) {
		s.note("resources/read " + c.Name)
		return tool.Result{Content: []tool.Content{tool.TextResource(c.Name, "text/plain", "x")}}, nil
	}
	complete := func(context.Context, *tool.Call) (tool.Result, error) {
		return tool.Result{Completion: &tool.Completion{Values: []string{"done"}}}, nil
	}
	watch := func(tool.Caller, string, func(json.RawMessage)) (func(), error) { return func() {}, nil }
	o.Resources = []module.Resource{
		{URI: s.name + "://one", Read: read, Watch: watch},
		{URI: s.name + "://two", Read: read, Watch: watch},
	}
	o.Templates = []module.Resource{{URI: s.name + "://item/{id}", Read: read, Watch: watch, Complete: complete}}
	for _, p := range []string{"greet", "plan"} {
		o.Prompts = append(
			o.Prompts,
			module.Prompt{Name: s.name + "_" + p, Complete: complete, Args: []module.PromptArg{{Name: "a"}},
				Get: func(context.Context, *tool.Call) (tool.Result, error) {
					return tool.Result{Messages: []tool.Message{{Role: "user", Content: tool.Text("done")}}}, nil
				}},
		)
	}
	return o, nil
}

var shops = []string{"red", "blue"}

// answers is a sink that collects the response to one request.
type answers struct {
	mu     sync.Mutex
	notes  []string
	status int
	body   string
}

func (a *answers) Note(m []byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.notes = append(a.notes, string(m))
	return true
}

func (a *answers) Answer(status int, m []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status, a.body = status, string(m)
}
func (a *answers) Drop()   {}
func (a *answers) Detach() {}

// world is a host with random contexts and a random policy.
type world struct {
	t    *testing.T
	r    *rand.Rand
	host *hosttest.Host
	did  map[string]int
	mu   sync.Mutex
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, did: map[string]int{}}
	mods := map[string]module.New{}
	for _, name := range shops {
		mods[name] = func(context.Context, module.Deps) (module.Module, error) {
			return &shop{name, &w.mu, w.did}, nil
		}
	}
	w.host = hosttest.New(t, hosttest.Options{Modules: mods})
	return w
}

func (w *world) one(of ...string) string { return of[w.r.IntN(len(of))] }

func (w *world) some(most int, of ...string) (list []string) {
	for range w.r.IntN(most + 1) {
		list = append(list, w.one(of...))
	}
	return list
}

var (
	toolPatterns = []string{"red_*", "blue_*", "*_look", "*_wipe", "!*_put", "!red_look", "red_any", "*", "!blue_*"}
	uriPatterns  = []string{"red://*", "*://one", "!*://two", "!blue://*", "*item*", "*"}
	roles        = []string{"dev", "staff", "admin"}
)

// record returns a random context.
func (w *world) record(name string) contextstore.Record {
	d := contextstore.Definition{
		Tools: w.some(
			3,
			toolPatterns...), Prompts: w.some(2, "red_*", "!*_plan", "*"), Resources: w.some(2, uriPatterns...),
		Style: w.one("", "dot", "colon"), Aliases: w.r.IntN(4) == 0,
		Roles: w.some(2, roles...), Users: w.some(1, "ann", "b*"),
	}
	if w.r.IntN(2) == 0 {
		d.Modules = w.some(2, shops...)
	}
	if len(d.Roles)+len(d.Users) > 0 {
		d.KnownTo = w.some(1, roles...)
	}
	if w.r.IntN(3) == 0 {
		d.Rename = map[string]string{"red_look": "glance", "blue_greet": "hello"}
	}
	for range w.r.IntN(3) {
		d.Rules = append(d.Rules, contextstore.Rule{
			Names: w.some(
				1,
				"*_look",
				"red_*",
				"*://one",
			), Roles: w.some(1, roles...), Effects: w.some(1, "destroys", "writes"),
			Methods: w.some(
				1,
				"tools/call",
				"resources/read",
				"prompts/get",
				"*",
			), Then: w.one("allow", "refuse", "ask"),
		})
	}
	return contextstore.Record{Name: name, Definition: d}
}

// policy returns a random policy of the host.
func (w *world) policy() permit.Options {
	o := permit.Options{ReadOnly: w.r.IntN(5) == 0, Default: permit.Allow}
	if w.r.IntN(4) == 0 {
		o.Default = permit.Refuse
	}
	for range w.r.IntN(3) {
		o.Rules = append(o.Rules, permit.Rule{
			Contexts: w.some(1, "c*", "c1"), Names: w.some(1, "blue_*", "*_put", "*://two"), Roles: w.some(1, roles...),
			Methods: w.some(
				1,
				"tools/call",
				"resources/read",
				"prompts/get",
				"*",
			), Then: []permit.Kind{permit.Allow, permit.Refuse, permit.AskClient}[w.r.IntN(3)],
		})
	}
	return o
}

func (w *world) caller() tool.Caller {
	return tool.Caller{
		Principal: w.one("ann", "bob", "eve"),
		Roles:     w.some(2, roles...),
		Scopes:    w.some(1, "read", "tools:red_*", "resources:*", "*"),
	}
}

// ask sends one request to a context, which is named in a random way.
func (w *world) ask(who tool.Caller, in, method, params string) (int, string) {
	a := &answers{}
	caller := protocol.Caller{Caller: who}
	meta := ""
	switch w.r.IntN(3) {
	case 0:
		caller.Context = in
	case 1:
		caller.Bound = in
	case 2:
		meta = fmt.Sprintf(`,"gatehouse/context":%q`, in)
	}
	if params != "" {
		params += ","
	}
	frame := `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{` + params +
		`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}` + meta + `}}}`
	msgs, faults, _ := protocol.Parse([]byte(frame))
	if len(faults) > 0 {
		w.t.Fatal(faults[0].Message, frame)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	w.host.Engine.Modern(ctx, caller, &msgs[0], nil, a)
	a.mu.Lock()
	defer a.mu.Unlock()
	if method == "subscriptions/listen" && a.body == "" {
		return 200, strings.Join(a.notes, "")
	}
	return a.status, a.body
}

// listed returns the names of a kind that a caller can list.
func (w *world) listed(who tool.Caller, in, method, member, name string) []string {
	_, body := w.ask(who, in, method, "")
	var r struct {
		Result map[string]json.RawMessage `json:"result"`
	}
	var entries []map[string]any
	if json.Unmarshal([]byte(body), &r) != nil || json.Unmarshal(r.Result[member], &entries) != nil {
		w.t.Fatalf("%s: %s", method, body)
	}
	var names []string
	for _, e := range entries {
		names = append(names, fmt.Sprint(e[name]))
	}
	return names
}

// known returns all names that an entry of a shop could have.
func known(kind string, s string) (names []string) {
	switch kind {
	case "tool":
		for _, k := range []string{"look", "put", "wipe", "any"} {
			names = append(names, s+"_"+k, s+"."+k, s+":"+k, s+".original."+k)
		}
		names = append(names, "glance")
	case "prompt":
		names = []string{s + "_greet", s + "_plan", "hello"}
	}
	return names
}

// check compares everything that one caller can do in one context with what is listed.
func (w *world) check(who tool.Caller, in string) {
	t := w.t
	bad := func(format string, args ...any) {
		t.Errorf("%+v in %s: %s", who, in, fmt.Sprintf(format, args...))
	}
	can := func(method, params, no string) bool {
		status, body := w.ask(who, in, method, params)
		refused := strings.Contains(body, no) || strings.Contains(body, "denied")
		if !refused && status >= 400 {
			bad("%s %s: %d %s", method, params, status, body)
		}
		return !refused
	}
	tools := w.listed(who, in, "tools/list", "tools", "name")
	prompts := w.listed(who, in, "prompts/list", "prompts", "name")
	uris := w.listed(who, in, "resources/list", "resources", "uri")
	templates := w.listed(who, in, "resources/templates/list", "resourceTemplates", "uriTemplate")
	for _, s := range shops {
		for _, name := range known("tool", s) {
			is := slices.Contains(tools, name)
			if before, kind, original := strings.Cut(name, ".original."); original && in == contextstore.Admin {
				is = slices.Contains(tools, before+"_"+kind) // it accepts the aliases of the tools it lists
			}
			if yes := can("tools/call", fmt.Sprintf(`"name":%q,"arguments":{}`, name), "unknown tool"); yes != is {
				bad("tool %s: callable %t, listed %v", name, yes, tools)
			}
		}
		for _, name := range known("prompt", s) {
			isListed := slices.Contains(prompts, name)
			if yes := can("prompts/get", fmt.Sprintf(`"name":%q`, name), "unknown prompt"); yes != isListed {
				bad("prompt %s: can be got %t, listed %v", name, yes, prompts)
			}
			_, body := w.ask(
				who,
				in,
				"completion/complete",
				fmt.Sprintf(`"ref":{"type":"ref/prompt","name":%q},"argument":{"name":"a","value":""}`, name),
			)
			if yes := strings.Contains(body, `"values":["done"]`); yes != isListed {
				bad("prompt %s: completed %t, listed %v: %s", name, yes, prompts, body)
			}
		}
		for uri, isListed := range map[string]bool{
			s + "://one": slices.Contains(uris, s+"://one"), s + "://two": slices.Contains(uris, s+"://two"),
			s + "://item/7": slices.Contains(templates, s+"://item/{id}"),
		} {
			if yes := can("resources/read", fmt.Sprintf(`"uri":%q`, uri), "not found"); yes != isListed {
				bad("resource %s: readable %t, listed %v %v", uri, yes, uris, templates)
			}
			_, ack := w.ask(
				who,
				in,
				"subscriptions/listen",
				fmt.Sprintf(`"notifications":{"resourceSubscriptions":[%q]}`, uri),
			)
			if yes := strings.Contains(ack, uri); yes != isListed {
				bad("resource %s: subscribed %t, listed %v %v: %s", uri, yes, uris, templates, ack)
			}
		}
		_, body := w.ask(
			who,
			in,
			"completion/complete",
			fmt.Sprintf(`"ref":{"type":"ref/resource","uri":"%s://item/{id}"},"argument":{"name":"id","value":""}`, s),
		)
		if yes := strings.Contains(body, `"values":["done"]`); yes != slices.Contains(templates, s+"://item/{id}") {
			bad("template of %s: completed %t, listed %v", s, yes, templates)
		}
	}
}

// everything holds one request of every kind.
var everything = map[string]string{
	"tools/list": "", "prompts/list": "", "resources/list": "", "resources/templates/list": "", "server/discover": "",
	"tools/call": `"name":"red_look","arguments":{}`, "prompts/get": `"name":"red_greet"`,
	"resources/read":       `"uri":"red://one"`,
	"completion/complete":  `"ref":{"type":"ref/prompt","name":"red_greet"},"argument":{"name":"a","value":""}`,
	"subscriptions/listen": `"notifications":{"toolsListChanged":true}`, "tasks/get": `"taskId":"x"`, "no/such": "",
}

// The context is that of the credential's binding or else of the listener or else of the message or else the
// default.
func TestWhichContextIsMeant(t *testing.T) {
	w := newWorld(t)
	f := contextstore.Fixed{
		Specs:   []views.Spec{{Name: "default", Tools: []string{"none"}}},
		Policy:  permit.Options{Default: permit.Allow},
		Modules: shops,
	}
	var records []contextstore.Record
	for _, name := range []string{"bound", "door", "meta"} {
		records = append(records, contextstore.Record{Name: name, Definition: contextstore.Definition{
			Tools: []string{"red_look"}, Rename: map[string]string{"red_look": "in_" + name}}})
	}
	rules, err := f.With(records)
	if err != nil {
		t.Fatal(err)
	}
	w.host.Views.Set(rules)
	for _, c := range []struct{ bound, door, meta, want string }{
		{"", "", "", `"tools":[]`},
		{"", "", "meta", "in_meta"},
		{"", "door", "meta", "in_door"},
		{"", "door", "", "in_door"},
		{"bound", "", "", "in_bound"},
		{"bound", "bound", "meta", "in_bound"},
		{"bound", "door", "", "Context not found"}, // a context that the binding does not allow is not found
		{"bound", "", "meta", "Context not found"},
		{"bound", "", "bound", "in_bound"},
	} {
		a := &answers{}
		frame := `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}`
		if c.meta != "" {
			frame += `,"gatehouse/context":"` + c.meta + `"`
		}
		msgs, _, _ := protocol.Parse([]byte(frame + `}}}`))
		who := protocol.Caller{Caller: tool.Caller{Principal: "ann", Context: c.door}, Bound: c.bound}
		w.host.Engine.Modern(t.Context(), who, &msgs[0], nil, a)
		if !strings.Contains(a.body, c.want) {
			t.Errorf("%+v: got %s", c, a.body)
		}
	}
}

// Ten thousand principals with two roles cause two views.
func TestTenThousandPrincipalsMakeTwoViews(t *testing.T) {
	w := newWorld(t)
	w.r = rand.New(rand.NewPCG(1, 1))
	f := contextstore.Fixed{
		Specs: []views.Spec{{Name: "default"}}, Modules: shops,
		Policy: permit.Options{
			Default: permit.Allow,
			Rules:   []permit.Rule{{Roles: []string{"guest"}, Effects: tool.Destroys, Then: permit.Refuse}},
		},
	}
	rules, err := f.With([]contextstore.Record{{Name: "dev"}})
	if err != nil {
		t.Fatal(err)
	}
	w.host.Views.Set(rules)
	views := map[*views.View]int{}
	pages := map[string]int{}
	for i := range 10_000 {
		who := tool.Caller{
			Principal: fmt.Sprintf("user%d", i),
			Context:   "dev",
			Roles:     []string{[]string{"guest", "member"}[i%2], "team" + fmt.Sprint(i)},
		}
		v, err := w.host.Views.View(t.Context(), &who, w.host.Views.Cut(who))
		if err != nil {
			t.Fatal(err)
		}
		views[v]++
		if i%10 < 2 {
			_, body := w.ask(who, "dev", "tools/list", "")
			pages[body]++
		}
	}
	if len(views) != 2 || len(pages) != 2 {
		t.Errorf("%d views and %d listings, want two of each", len(views), len(pages))
	}
}
