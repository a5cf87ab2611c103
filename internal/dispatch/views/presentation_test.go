package views

import (
	"fmt"
	"strings"
	"testing"

	"gatehouse/internal/access/permit"
	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/module"
	"gatehouse/tool"
)

func TestStylesRenamesAndAliases(t *testing.T) {
	o := named("m_read_all", "other")
	o.Tools[0].Aliases = []string{"package.action.read"}
	o.Prompts = []module.Prompt{{Name: "m_ask", Description: "Own."}}
	for _, c := range []struct {
		spec  Spec
		tools string
	}{
		{Spec{}, "[m_read_all other]"},
		{Spec{Style: Dot}, "[m.read_all other]"},
		{Spec{Style: Colon}, "[m:read_all other]"},
		{Spec{Aliases: true, Style: Dot}, "[other package.action.read]"},
		{Spec{Rename: map[string]string{"m_read_all": "r"}, Aliases: true}, "[other r]"},
		{Spec{Rename: map[string]string{"m_read_all": "other"}}, "[other]"}, // used by the first
	} {
		c.spec.Name = "x"
		h := &offerSource{offers: map[string]*module.Offer{"m": o}}
		v := view(t, h.contexts(Rules{Specs: []Spec{c.spec}}), tool.Caller{})
		expect(t, "tools", fmt.Sprint(listed(v, Tools)), c.tools)
		for _, e := range v.Entries(Tools) {
			if v.Tool(e.Listed) != e || e.Listed != e.Name && v.Tool(e.Name) == e {
				t.Errorf("%s answers to %s as well", e.Name, e.Listed)
			}
		}
	}
	spec := Spec{
		Name:     "x",
		Rename:   map[string]string{"m_ask": "ask"},
		Describe: map[string]string{"m_ask": "Ours.", "other": "Ours too."},
	}
	h := &offerSource{offers: map[string]*module.Offer{"m": o}}
	v := view(t, h.contexts(Rules{Specs: []Spec{spec}}), tool.Caller{})
	for k, want := range map[Kind]string{Prompts: `{"name":"ask","description":"Ours."}`,
		Tools: `"name":"other","description":"Ours too."`} {
		p, err := v.Page(k, mcpversion.V20241105, "", "")
		if err != nil || !strings.Contains(string(p), want) {
			t.Errorf("got %s (%v), want %s", p, err, want)
		}
	}
	if v.Prompt("m_ask") != nil || v.Prompt("ask").Name != "m_ask" {
		t.Error("a renamed prompt answers to its own name, or not to its new one")
	}
}

// In a view with aliases, a tool can be called by each alias that it declares, and is listed once. An alias of two
// tools calls neither.
func TestAliasesThatAreCalled(t *testing.T) {
	o := named("a_one", "a_two", "a_three")
	for i, aliases := range [][]string{{"first.one", "second.one"}, {"first.two", "both", "a_one"},
		{"first.three", "both"}} {
		o.Tools[i].Aliases = aliases
	}
	for _, c := range []struct {
		spec          Spec
		tools, called string
	}{
		{Spec{}, "[a_one a_three a_two]", "a_one=a_one"},
		{Spec{CallAliases: true}, "[a_one a_three a_two]",
			"a_one=a_one first.one=a_one first.three=a_three first.two=a_two second.one=a_one"},
		{Spec{Aliases: true}, "[first.one first.three first.two]",
			"a_one=a_two first.one=a_one first.three=a_three first.two=a_two second.one=a_one"},
		{Spec{Aliases: true, Tools: []string{"a_two"}}, "[first.two]", "a_one=a_two both=a_two first.two=a_two"},
	} {
		c.spec.Name = "x"
		h := &offerSource{offers: map[string]*module.Offer{"a": o}}
		v := view(t, h.contexts(Rules{Specs: []Spec{c.spec}}), tool.Caller{})
		expect(t, "tools", fmt.Sprint(listed(v, Tools)), c.tools)
		var called []string
		for _, name := range []string{"a_one", "both", "first.one", "first.three", "first.two", "second.one"} {
			if e := v.Tool(name); e != nil {
				called = append(called, name+"="+e.Name)
			}
		}
		expect(t, "called", strings.Join(called, " "), c.called)
	}
}

func TestResourcesOfAContext(t *testing.T) {
	o := &module.Offer{
		Resources: []module.Resource{{URI: "a://x/y"}, {URI: "a://z"}, {URI: "b://x"}},
		Templates: []module.Resource{{URI: "a://{id}"}, {URI: "b://{+path}/end"}},
		Prompts:   []module.Prompt{{Name: "p_one"}, {Name: "q_one"}},
	}
	for patterns, want := range map[string]string{
		"":                "a://x/y a://z b://x a://{id} b://{+path}/end",
		"a://*":           "a://x/y a://z a://{id}",
		"!a://*":          "b://x b://{+path}/end",
		"*x*":             "a://x/y b://x",
		"a://z":           "a://z",
		"*":               "a://x/y a://z b://x a://{id} b://{+path}/end",
		"*://*/end *y !a": "a://x/y b://{+path}/end",
		"a":               "",
	} {
		spec := Spec{Name: "x", Resources: strings.Fields(patterns), Prompts: []string{"p_*"}}
		if patterns == "" {
			spec.Resources = nil
		}
		h := &offerSource{offers: map[string]*module.Offer{"m": o}}
		v := view(t, h.contexts(Rules{Specs: []Spec{spec}}), tool.Caller{})
		expect(t, patterns, strings.Join(append(listed(v, Resources), listed(v, Templates)...), " "), want)
		expect(t, "prompts", fmt.Sprint(listed(v, Prompts)), "[p_one]")
	}
}

// A caller who may not use a context learns that it exists only if it may know of it.
func TestEntering(t *testing.T) {
	p, err := permit.New(permit.Options{Default: permit.Allow, Access: []permit.Access{
		{Context: "secret", Roles: []string{"in"}, KnownTo: []string{"near"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	h := &offerSource{offers: map[string]*module.Offer{"m": named("m_x")}}
	c := h.contexts(Rules{Specs: []Spec{{Name: "open"}, {Name: "secret"}}, Policy: p})
	for role, want := range map[string]struct {
		err  error
		open string
	}{"in": {nil, "[open secret]"}, "near": {ErrForbidden, "[open]"}, "far": {ErrNotFound, "[open]"}} {
		who := tool.Caller{Principal: "p", Context: "secret", Roles: []string{role}}
		if _, err := c.View(t.Context(), &who, c.Cut(who)); err != want.err {
			t.Errorf("%s: got %v, want %v", role, err, want.err)
		}
		var names []string
		for _, s := range c.Open(who) {
			names = append(names, s.Name)
		}
		expect(t, role, fmt.Sprint(names), want.open)
		_, found := c.Defined(t.Context(), who, "m_x")
		expect(t, role+" finds the tool", found, want.err == nil)
		expect(t, role+" has names", len(c.ToolNames(t.Context(), who)) > 0, want.err == nil)
	}
}

// A relayed entry keeps unknown members; its name is the view's.
func TestRelayedEntries(t *testing.T) {
	raw := func(s string) []byte { return []byte(s) }
	o := &module.Offer{
		Tools: []tool.Tool{
			{
				Def: tool.Def{
					Name: "m_t",
					Raw: raw(
						`{"vendor":[1,{"b":1e99}],"name":"theirs","inputSchema":{"type":"object"},"outputSchema":{"type":"object"}}`,
					),
				},
			},
		},
		Prompts:   []module.Prompt{{Name: "m_p", Raw: raw(`{"name":"theirs","x":1}`)}},
		Resources: []module.Resource{{URI: "m://r", Raw: raw(`{"uri":"theirs://r","name":"r","x":1}`)}},
		Templates: []module.Resource{{URI: "m://{t}", Raw: raw(`{"uriTemplate":"theirs://{t}","name":"t","x":1}`)}},
	}
	h := &offerSource{offers: map[string]*module.Offer{"m": o}}
	v := view(t, h.contexts(Rules{}), tool.Caller{})
	for k, want := range map[Kind]string{
		Tools:     `{"tools":[{"vendor":[1,{"b":1e99}],"name":"m_t","inputSchema":{"type":"object"},"outputSchema":{"type":"object"}}]}`,
		Prompts:   `{"prompts":[{"name":"m_p","x":1}]}`,
		Resources: `{"resources":[{"uri":"m://r","name":"r","x":1}]}`,
		Templates: `{"resourceTemplates":[{"uriTemplate":"m://{t}","name":"t","x":1}]}`,
	} {
		for r := mcpversion.V20241105; r <= mcpversion.Latest; r++ {
			p, err := v.Page(k, r, "", "")
			if err != nil || string(p) != want {
				t.Errorf("%v: got %s (%v), want %s", r, p, err, want)
			}
		}
	}
}
