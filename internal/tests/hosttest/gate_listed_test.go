package hosttest_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"gatehouse/internal/access/identity"
	"gatehouse/internal/app"
	"gatehouse/internal/config"
	"gatehouse/module"
	"gatehouse/tool"
)

// stall is a module with one entry of each kind, which counts its calls.
type stall struct {
	name string
	did  *atomic.Int64
}

func (s *stall) Close(context.Context) error { return nil }

func (s *stall) Offer(context.Context, module.Audience) (*module.Offer, error) {
	o := &module.Offer{}
	for kind, effects := range map[string]tool.Effects{"look": tool.Reads, "put": tool.Writes, "wipe": tool.Destroys,
		"any": 0} {
		o.Tools = append(
			o.Tools,
			tool.New(tool.Def{Name: s.name + "_" + kind, Description: "Does it.", Effects: effects},
				func(context.Context, *tool.Call, struct{}) (tool.Result, error) {
					s.did.Add(1)
					return tool.Result{Content: []tool.Content{tool.Text("done")}}, nil
				}),
		)
	}
	read := func(_ context.Context, c *tool.Call) (tool.Result, error) {
		s.did.Add(1)
		return tool.Result{Content: []tool.Content{tool.TextResource(c.Name, "text/plain", "x")}}, nil
	}
	complete := func(context.Context, *tool.Call) (tool.Result, error) {
		s.did.Add(1)
		return tool.Result{Completion: &tool.Completion{Values: []string{"done"}}}, nil
	}
	watch := func(tool.Caller, string, func(json.RawMessage)) (func(), error) { return func() {}, nil }
	for _, one := range []string{"one", "two"} {
		o.Resources = append(o.Resources, module.Resource{URI: s.name + "://" + one, Read: read, Watch: watch})
	}
	o.Templates = []module.Resource{{URI: s.name + "://item/{id}", Read: read, Watch: watch, Complete: complete}}
	for _, p := range []string{"greet", "plan"} {
		o.Prompts = append(
			o.Prompts,
			module.Prompt{Name: s.name + "_" + p, Complete: complete, Args: []module.PromptArg{{Name: "a"}},
				Get: func(context.Context, *tool.Call) (tool.Result, error) {
					s.did.Add(1)
					return tool.Result{Messages: []tool.Message{{Role: "user", Content: tool.Text("done")}}}, nil
				}},
		)
	}
	return o, nil
}

var stalls = []string{"red", "blue"}

// fair is a whole host with such modules, random settings, and users with random tokens.
type fair struct {
	*gateHost
	r    *rand.Rand
	did  atomic.Int64
	http *http.Client

	hints int // names that were suggested
}

var fairPeople = map[string][]string{"ann": {"dev"}, "bob": {"staff", "dev"}, "eve": nil, "root2": {"admin"}}

func newFair(t *testing.T) *fair {
	f := &fair{
		gateHost: &gateHost{t: t, cfg: gateSettings(t)},
		http:     &http.Client{Timeout: gateWait, Transport: &http.Transport{}},
	}
	t.Cleanup(f.http.CloseIdleConnections)
	f.cfg.Auth.Required = true
	for _, name := range stalls {
		f.also = append(f.also, app.Module{Name: name, New: func(context.Context, module.Deps) (module.Module, error) {
			return &stall{name, &f.did}, nil
		}})
	}
	f.run("127.0.0.1", false)
	for name, roles := range fairPeople {
		must(t, f.users.AddUser(t.Context(), name, roles, ""))
	}
	return f
}

func (f *fair) one(of ...string) string { return of[f.r.IntN(len(of))] }

func (f *fair) some(most int, of ...string) (list []string) {
	for range f.r.IntN(most + 1) {
		list = append(list, f.one(of...))
	}
	return list
}

// settings returns random contexts and rules.
func (f *fair) settings() config.Config {
	c := f.cfg
	roles := []string{"dev", "staff", "admin"}
	c.View.ReadOnly = f.r.IntN(5) == 0
	c.Contexts = []config.Context{{Name: "default", Tools: f.some(2, "red_*", "!*_put", "*")}}
	for i := range 3 {
		x := config.Context{
			Name: fmt.Sprintf("c%d", i), Tools: f.some(3, "red_*", "blue_*", "*_look", "!*_wipe", "!red_look", "*"),
			Prompts: f.some(
				2,
				"red_*",
				"!*_plan",
				"*",
			), Resources: f.some(2, "red://*", "*://one", "!*://two", "*item*", "*"),
			Style: f.one("", "dot", "colon"), Roles: f.some(1, roles...), Users: f.some(1, "ann", "b*"),
		}
		if f.r.IntN(2) == 0 {
			x.Modules = []string{f.one(stalls...)}
		}
		if f.r.IntN(3) == 0 {
			x.Rename = map[string]string{"red_look": "glance", "blue_greet": "hello"}
		}
		if len(x.Roles)+len(x.Users) > 0 {
			x.KnownTo = f.some(1, roles...)
		}
		c.Contexts = append(c.Contexts, x)
	}
	c.Rules = nil
	for range f.r.IntN(4) {
		c.Rules = append(c.Rules, config.Rule{
			Contexts: f.some(
				1,
				"c*",
				"c1",
			), Names: f.some(1, "blue_*", "*_put", "*://two", "red_greet"), Roles: f.some(1,
				roles...), Principals: f.some(1, "ann", "e*"),
			Effects: f.some(
				1,
				"destroys",
				"writes",
			), Methods: f.some(1, "tools/call", "resources/read", "prompts/get", "*"), Then: f.one("allow", "refuse"),
		})
	}
	return c
}

// entry returns the expected outcome of a request for a context, computed independently of the host.
func entry(c config.Config, who, bound, in string) (status int) {
	if bound != "" && in != "" && in != bound {
		return 404
	}
	for _, name := range []string{in, bound, "default"} {
		if name == "" {
			continue
		}
		i := slices.IndexFunc(c.Contexts, func(x config.Context) bool { return x.Name == name })
		if i < 0 {
			return 404
		}
		x, mine := c.Contexts[i], fairPeople[who]
		any := func(of []string) bool {
			return slices.ContainsFunc(of, func(r string) bool { return slices.Contains(mine, r) })
		}
		named := slices.ContainsFunc(x.Users, func(p string) bool { ok, _ := path.Match(p, who); return ok })
		switch {
		case len(x.Roles)+len(x.Users)+len(x.KnownTo) == 0, any(x.Roles), named:
			return 200
		case any(x.KnownTo):
			return 403
		}
		return 404
	}
	return 200
}

// listedClient is a client with a token, in one era, in one context.
type listedClient struct {
	f                    *fair
	secret, in, era, who string
	byPath               bool
	session              string
}

// ask sends a request and returns its status and answer.
func (g *listedClient) ask(method, params string, name ...string) (int, string) {
	t := g.f.t
	t.Helper()
	url := "http://" + g.f.reach("HTTP", false) + "/mcp"
	if g.byPath {
		url += "/" + g.in
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader(message(1, g.era, method, params, "")))
	must(t, err)
	r.Header = http.Header{
		"Authorization": {"Bearer " + g.secret},
		"Content-Type":  {"application/json"},
		"Accept":        {"application/json, text/event-stream"},
	}
	if g.in != "" && !g.byPath {
		r.Header.Set("X-MCP-Context", g.in)
	}
	switch {
	case g.era == modernEra:
		r.Header["MCP-Protocol-Version"], r.Header["Mcp-Method"] = []string{"2026-07-28"}, []string{method}
		if len(name) > 0 {
			r.Header["Mcp-Name"] = name
		}
	case method != "initialize":
		r.Header.Set("Mcp-Session-Id", g.session)
	}
	res, err := g.f.http.Do(r)
	must(t, err)
	defer res.Body.Close()
	if method == "initialize" {
		g.session = res.Header.Get("Mcp-Session-Id")
	}
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		lines := bufio.NewScanner(res.Body)
		for lines.Scan() {
			if said, ok := strings.CutPrefix(lines.Text(), "data: "); ok && said != "" {
				return res.StatusCode, said // of a subscription, what was taken
			}
		}
		return res.StatusCode, ""
	}
	b, err := io.ReadAll(res.Body)
	must(t, err)
	return res.StatusCode, string(b)
}

// done reports whether a request was executed, by its answer.
func (g *listedClient) done(method, params string, name ...string) bool {
	status, body := g.ask(method, params, name...)
	return status == 200 && strings.Contains(body, `"result":`) && !strings.Contains(body, `"isError":true`)
}

// listed returns the entries of a list.
func (g *listedClient) listed(method, member, name string) (names []string) {
	_, body := g.ask(method, "")
	var r struct {
		Result map[string]json.RawMessage `json:"result"`
	}
	var entries []map[string]any
	if json.Unmarshal([]byte(body), &r) != nil || json.Unmarshal(r.Result[member], &entries) != nil {
		g.f.t.Fatalf("%s: %s", method, body)
	}
	for _, e := range entries {
		names = append(names, fmt.Sprint(e[name]))
	}
	return names
}

// compare compares everything that could be executed with the lists.
func (g *listedClient) compare() (yes, no int) {
	t := g.f.t
	tools, prompts := g.listed("tools/list", "tools", "name"), g.listed("prompts/list", "prompts", "name")
	uris, templates := g.listed(
		"resources/list",
		"resources",
		"uri",
	), g.listed(
		"resources/templates/list",
		"resourceTemplates",
		"uriTemplate",
	)
	hold := func(what string, listed bool, does func() bool) {
		before := g.f.did.Load()
		can := does()
		if can != listed {
			t.Errorf(
				"%s in %q, %s era: %s can be done %t; listed %v %v %v %v",
				g.who,
				g.in,
				g.era,
				what,
				can,
				tools,
				prompts,
				uris,
				templates,
			)
		}
		if ran := g.f.did.Load() != before; ran && !listed {
			t.Errorf("%s in %q, %s era: %s ran, and is not listed", g.who, g.in, g.era, what)
		}
		if can {
			yes++
		} else {
			no++
		}
	}
	for _, s := range stalls {
		names := []string{"glance"}
		for _, kind := range []string{"look", "put", "wipe", "any"} {
			names = append(names, s+"_"+kind, s+"."+kind, s+":"+kind)
		}
		for _, name := range names {
			hold("tool "+name, slices.Contains(tools, name), func() bool {
				return g.done("tools/call", fmt.Sprintf(`"name":%q,"arguments":{}`, name), name)
			})
		}
		for _, name := range []string{s + "_lok", s + "_pu", s + "_wip", s + "_anny", "glanec"} {
			_, body := g.ask("tools/call", fmt.Sprintf(`"name":%q,"arguments":{}`, name), name)
			if _, near, ok := strings.Cut(body, "did you mean "); ok &&
				!slices.Contains(tools, near[:strings.Index(near, "?")]) {
				t.Errorf("%s in %q, %s era: is told of a tool that is not listed: %s", g.who, g.in, g.era, body)
			} else if ok {
				g.f.hints++
			}
		}
		for _, name := range []string{s + "_greet", s + "_plan", s + ".greet", s + ":plan", "hello"} {
			hold(
				"prompt "+name,
				slices.Contains(prompts, name),
				func() bool { return g.done("prompts/get", fmt.Sprintf(`"name":%q`, name), name) },
			)
			hold("completion of "+name, slices.Contains(prompts, name), func() bool {
				return g.done(
					"completion/complete",
					fmt.Sprintf(`"ref":{"type":"ref/prompt","name":%q},"argument":{"name":"a","value":""}`, name),
				)
			})
		}
		for uri, listed := range map[string]bool{
			s + "://one": slices.Contains(uris, s+"://one"), s + "://two": slices.Contains(uris, s+"://two"),
			s + "://item/7": slices.Contains(templates, s+"://item/{id}"),
		} {
			hold(
				"resource "+uri,
				listed,
				func() bool { return g.done("resources/read", fmt.Sprintf(`"uri":%q`, uri), uri) },
			)
			hold("subscription to "+uri, listed, func() bool { return g.subscribed(uri) })
		}
	}
	return yes, no
}

func (g *listedClient) subscribed(uri string) bool {
	if g.era == legacyEra {
		return g.done("resources/subscribe", fmt.Sprintf(`"uri":%q`, uri))
	}
	_, body := g.ask("subscriptions/listen", fmt.Sprintf(`"notifications":{"resourceSubscriptions":[%q]}`, uri))
	return strings.Contains(body, uri)
}

// On a whole host with random tokens: what is listed can be executed, and nothing else runs. A caller who may not
// enter a context gets the same text whatever it requests.
//
//redteam:attack One function says yes: tools that are not listed are called
func TestWhatIsListedIsWhatATokenCanDo(t *testing.T) {
	f := newFair(t)
	seeds := uint64(25)
	if os.Getenv("GATEHOUSE_TEST_ALL") != "" {
		seeds = 500
	}
	yes, no, turned := 0, 0, 0
	for seed := range seeds {
		f.r = rand.New(rand.NewPCG(seed, 7))
		c := f.settings()
		if _, _, err := f.app.Reload(c); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			who, bound := f.one("ann", "bob", "eve", "root2"), ""
			if f.r.IntN(3) == 0 {
				bound = f.one("c0", "c1", "c2", "default", "gone")
			}
			secret, id := f.token(
				identity.Token{
					User:    who,
					Context: bound,
					Scopes:  f.some(2, "read", "tools:red_*", "resources:*", "prompts:*_plan", "tools:*", "*"),
				},
			)
			for _, in := range []string{"", "c0", "c1", "c2", "admin2"} {
				for _, era := range gateEras {
					g := &listedClient{f: f, secret: secret, in: in, era: era, who: who,
						byPath: in != "" && f.r.IntN(2) == 0}
					if want := entry(c, who, bound, in); want != 200 {
						turned++
						g.turnedAway(want)
						continue
					}
					if era == legacyEra {
						if status, body := g.ask("initialize", handshake); status != 200 {
							t.Errorf("%s bound to %q in %q: %d %s", who, bound, in, status, body)
							continue
						}
					}
					y, n := g.compare()
					yes, no = yes+y, no+n
				}
			}
			must(t, f.users.RevokeToken(t.Context(), id))
		}
		if t.Failed() {
			t.Fatalf("with seed %d: %+v %+v", seed, c.Contexts, c.Rules)
		}
	}
	t.Logf("%d things could be done, %d not, %d times there was no way in", yes, no, turned)
	if yes < 500 || no < 500 || turned < 50 || f.hints < 50 {
		t.Error("chance has tried too little")
	}
}

func (g *listedClient) turnedAway(status int) {
	says := map[int]string{404: "Context not found", 403: "Context not allowed"}[status]
	requests := map[string]string{"initialize": handshake}
	if g.era == modernEra {
		requests = map[string]string{
			"tools/list":          "",
			"prompts/list":        "",
			"resources/list":      "",
			"server/discover":     "",
			"completion/complete": `"ref":{"type":"ref/prompt","name":"red_greet"},"argument":{"name":"a","value":""}`,
		}
	}
	for method, params := range requests {
		got, body := g.ask(method, params)
		if want := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":%q}}`, says); got != status ||
			body != want {
			g.f.t.Errorf("%s in %q, %s: %d %s, want %d %s", g.who, g.in, method, got, body, status, want)
		}
	}
}
