package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"gatehouse/internal/config"
	"gatehouse/internal/modules/publicstate"
	"gatehouse/module"
	"gatehouse/tool"
)

// shaky is a module that can be made to fail, as if its server were broken.
type shaky struct {
	broken atomic.Bool
	deps   module.Deps
}

func (s *shaky) New(_ context.Context, d module.Deps) (module.Module, error) {
	s.deps = d
	return s, nil
}

func (s *shaky) Offer(context.Context, module.Audience) (*module.Offer, error) {
	if s.broken.Load() {
		return nil, errors.New("cannot open /home/ann/shaky.sock")
	}
	o := &module.Offer{Version: "3.1"}
	for _, name := range []string{"shaky_look", "shaky_push"} {
		o.Tools = append(o.Tools, tool.New(tool.Def{Name: name, Description: "Does nothing.", Effects: tool.Reads},
			func(context.Context, *tool.Call, struct{}) (tool.Result, error) { return tool.Result{}, nil }))
	}
	return o, nil
}

func (s *shaky) Close(context.Context) error { return nil }

func (s *shaky) fail(broken bool) {
	s.broken.Store(broken)
	s.deps.Changed(module.Audience{})
}

// modulesOf reads /public/modules as a caller sees them, in a context.
func (c *tenant) modulesOf(in string) map[string]moduleState {
	c.t.Helper()
	v, _ := c.readPublic(in, publicstate.PublicURI+"/modules")
	b, err := json.Marshal(v)
	if err != nil {
		c.t.Fatal(err)
	}
	var all map[string]moduleState
	if err := json.Unmarshal(b, &all); err != nil {
		c.t.Fatal(err)
	}
	return all
}

// Each caller sees the modules that offer it something, with the tools that it may call under the names of its
// view. If a module fails, only those callers receive a patch, and only administrators the reason.
func TestModulesAreShownAsFarAsTheyMayBeCalled(t *testing.T) {
	cfg := settings(t)
	cfg.Rules = []config.Rule{
		{
			Name:       "file not for ann",
			Modules:    []string{"file"},
			Methods:    []string{"*"},
			Principals: []string{"ann"},
			Then:       "refuse",
		},
		{Name: "no push for ann", Names: []string{"shaky_push"}, Principals: []string{"ann"}, Then: "refuse"},
		{
			Name:       "shaky not for bob",
			Modules:    []string{"shaky"},
			Methods:    []string{"*"},
			Principals: []string{"bob"},
			Then:       "refuse",
		},
	}
	cfg.Contexts = []config.Context{
		{Name: "main", Modules: []string{"file", "shaky"}},
		{Name: "dotted", Modules: []string{"shaky"}, Style: "dot"},
	}
	s := &shaky{}
	a, client := liveOn(t, cfg, Options{Extra: []Module{{"shaky", s.New}}})
	root, ann, bob := client("root", "admin"), client("ann"), client("bob")
	eventually(t, "modules are shown", func() bool { return len(root.modulesOf("main")) > 0 })

	all := root.modulesOf("main")
	for _, name := range []string{"file", "shaky", "lang", resourcesModule, contextModule} {
		if all[name].State != "running" {
			t.Errorf("the administrator is shown %s as %+v", name, all[name])
		}
	}
	if got := all["file"]; got.Version != Version || !slices.Contains(got.Tools, "file_read") {
		t.Errorf("file is %+v", got)
	}
	hers, his := ann.modulesOf("main"), bob.modulesOf("main")
	if got := hers["shaky"]; got.Version != "3.1" || got.State != "running" ||
		!slices.Equal(got.Tools, []string{"shaky_look"}) {
		t.Errorf("ann is shown %+v", got)
	}
	if _, sees := hers["file"]; sees || len(hers["lang"].Tools)+len(hers[contextModule].Tools) > 0 {
		t.Errorf("ann is shown %+v", hers)
	}
	if _, sees := his["shaky"]; sees || !slices.Contains(his["file"].Tools, "file_read") {
		t.Errorf("bob is shown %+v", his)
	}
	if got := ann.modulesOf("dotted")["shaky"].Tools; !slices.Equal(got, []string{"shaky.look"}) {
		t.Errorf("in a view with dots it has %v", got)
	}
	for _, part := range []string{"/shaky", "/shaky/version"} {
		if v, _ := bob.readPublic("main", publicstate.PublicURI+"/modules"+part); v != nil {
			t.Errorf("bob reads %s: %v", part, v)
		}
	}
	if v, _ := ann.readPublic("main", publicstate.PublicURI+"/modules/shaky/tools/1"); v != nil {
		t.Errorf("ann reads the tool she may not call: %v", v)
	}

	uri := publicstate.PublicURI + "/modules"
	root = client("chief", "admin") // has read nothing: after two states the first update requests a new read
	for _, c := range []*tenant{root, ann, bob} {
		c.listen(uri)
	}
	s.fail(true)
	if p := string(ann.note(uri)[publicstate.MetaPatch]); p != `[{"op":"replace","path":"/shaky/state","value":"failed"}]` {
		t.Errorf("ann received %s", p)
	}
	if meta := root.note(uri); !strings.Contains(
		string(meta[publicstate.MetaPatch]),
		`cannot open /home/ann/shaky.sock`,
	) {
		t.Errorf("the administrator received %s", meta)
	}
	s.fail(false)
	if p := string(ann.note(uri)[publicstate.MetaPatch]); p != `[{"op":"replace","path":"/shaky/state","value":"running"}]` {
		t.Errorf("ann received %s", p)
	}
	root.note(uri)
	if err := a.host.Remove("shaky")(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*tenant{root, ann} {
		if p := string(c.note(uri)[publicstate.MetaPatch]); p != `[{"op":"remove","path":"/shaky"}]` {
			t.Errorf("told %s", p)
		}
	}
	if err := a.host.Remove("file")(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p := string(bob.note(uri)[publicstate.MetaPatch]); p != `[{"op":"remove","path":"/file"}]` {
		t.Errorf("bob, who sees no shaky module, received %s", p)
	}
}

// The tools of a package appear and disappear as patches of the module of packages.
func TestToolsOfAPackageAreShownWithTheirModule(t *testing.T) {
	_, client := liveOn(t, ruled(t, "package"), Options{})
	admin, eve, follower := client("root", "admin"), client("eve"), client("frank")
	uri := publicstate.PublicURI + "/modules/" + packageModule
	tools := func(c *tenant) []string { return c.modulesOf("default")[packageModule].Tools }
	eventually(t, "the module is shown", func() bool { return slices.Contains(tools(eve), "package_list") })
	follower.listen(uri)
	admin.wait(admin.result("package_install", packageArgs(t, "up", "good")))
	if p := string(follower.note(uri)[publicstate.MetaPatch]); !strings.Contains(p, `"up_echo"`) {
		t.Errorf("told %s", p)
	}
	if got := fmt.Sprint(tools(admin)); !strings.Contains(got, "up_echo") {
		t.Errorf("the administrator is shown %s", got)
	}
	admin.result("package_stop", `{"id":"up","confirm":"up"}`)
	admin.result("package_remove", `{"id":"up","confirm":"up"}`)
	eventually(t, "they are removed", func() bool {
		return !slices.Contains(tools(eve), "up_echo") && !slices.Contains(tools(admin), "up_echo")
	})
}
