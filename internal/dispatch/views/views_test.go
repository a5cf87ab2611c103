package views

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/access/permit"
	"gatehouse/internal/dispatch/modulehost"
	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/module"
	"gatehouse/tool"
)

// offerSource is a source of offers for tests; offers may differ by audience.
type offerSource struct {
	offers     map[string]*module.Offer
	personal   map[string]func(module.Audience) *module.Offer
	generation uint64
	asked      int
	log        bytes.Buffer
}

func (h *offerSource) collect(_ context.Context, to module.Audience) (all []modulehost.Offered) {
	h.asked++
	for i, name := range sortedKeys(h.offers) {
		all = append(
			all,
			modulehost.Offered{Module: name, Offer: h.offers[name], Generation: h.generation*100 + uint64(i)},
		)
	}
	for i, name := range sortedKeys(h.personal) {
		o := h.personal[name](to)
		o.Personal = true
		all = append(
			all,
			modulehost.Offered{
				Module:     name,
				Offer:      o,
				Generation: hash(to.Principal)<<20 + h.generation*100 + 50 + uint64(i),
			},
		)
	}
	return all
}

func hash(s string) (n uint64) {
	for _, c := range s {
		n = n*131 + uint64(c)
	}
	return n
}

func sortedKeys[V any](m map[string]V) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func (h *offerSource) contexts(r Rules, more ...func(*Options)) *Registry {
	if r.Policy == nil {
		r.Policy = permit.Open(false)
	}
	o := Options{Offers: h.collect, Rules: r, Log: slog.New(slog.NewTextHandler(&h.log, nil))}
	for _, f := range more {
		f(&o)
	}
	return New(o)
}

func named(names ...string) *module.Offer {
	o := &module.Offer{}
	for _, n := range names {
		o.Tools = append(o.Tools, tool.Tool{Def: tool.Def{Name: n, Description: "Tool.", Effects: tool.Reads}})
	}
	return o
}

func view(t testing.TB, c *Registry, who tool.Caller) *View {
	t.Helper()
	if who.Context == "" {
		who.Context = c.Default()
	}
	v, err := c.View(context.Background(), &who, c.Cut(who))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func listed(v *View, k Kind) (names []string) {
	for _, e := range v.Entries(k) {
		names = append(names, e.Listed)
	}
	return names
}

func expect[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func TestTenThousandPrincipalsShareOneView(t *testing.T) {
	h := &offerSource{offers: map[string]*module.Offer{"a": named("a_x")}}
	c := h.contexts(Rules{})
	one := view(t, c, tool.Caller{Principal: "first"})
	for i := range 10_000 {
		if view(t, c, tool.Caller{Principal: fmt.Sprint("p", i)}) != one {
			t.Fatalf("principal %d has a view of its own", i)
		}
	}
	expect(t, "views", len(c.views), 1)
	expect(t, "offers asked for", h.asked, 1)
	expect(t, "shared", one.Shared(), true)
	expect(t, "personal", one.Personal(), false)
}

func TestTwoCutsMakeTwoViews(t *testing.T) {
	h := &offerSource{offers: map[string]*module.Offer{"a": named("a_x")}}
	p, err := permit.New(
		permit.Options{
			Default: permit.Allow,
			Rules:   []permit.Rule{{Roles: []string{"guest"}, Names: []string{"a_x"}, Then: permit.Refuse}},
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	c := h.contexts(Rules{Policy: p})
	for i := range 1000 {
		who := tool.Caller{Principal: fmt.Sprint("p", i)}
		if i%2 == 0 {
			who.Roles = []string{"guest", fmt.Sprint("unheard of ", i)}
		}
		expect(t, "tools", len(listed(view(t, c, who), Tools)), i%2)
	}
	expect(t, "views", len(c.views), 2)
}

func TestPersonalOffersMakePersonalViews(t *testing.T) {
	h := &offerSource{
		offers: map[string]*module.Offer{"a": named("a_x")},
		personal: map[string]func(module.Audience) *module.Offer{
			"p": func(to module.Audience) *module.Offer { return named("p_" + to.Principal) },
		},
	}
	c := h.contexts(Rules{})
	for range 2 {
		for _, who := range []string{"ann", "bob", "eve"} {
			v := view(t, c, tool.Caller{Principal: who})
			expect(t, who, fmt.Sprint(listed(v, Tools)), "[a_x p_"+who+"]")
			expect(t, "shared", v.Shared(), false)
			expect(t, "personal", v.Personal(), true)
			if v != view(t, c, tool.Caller{Principal: who}) {
				t.Errorf("%s has another view every time", who)
			}
		}
	}
	if v := view(t, c, tool.Caller{Principal: "ann"}); v.Tool("p_bob") != nil {
		t.Error("ann can call bob's tool")
	}
	h.personal = nil // nothing is personal any more
	h.generation++
	c.Stale()
	if view(t, c, tool.Caller{Principal: "ann"}) != view(t, c, tool.Caller{Principal: "bob"}) {
		t.Error("one view has become two")
	}
}

// A change without effect keeps the view, and its pages.
func TestStaleViewsAreLookedAtAgain(t *testing.T) {
	h := &offerSource{offers: map[string]*module.Offer{"a": named("a_x")}}
	c := h.contexts(Rules{})
	v := view(t, c, tool.Caller{})
	c.Stale()
	if view(t, c, tool.Caller{}) != v {
		t.Error("the same offers make another view")
	}
	h.generation++
	if view(t, c, tool.Caller{}) != v {
		t.Error("the views were rebuilt without Stale")
	}
	c.Stale()
	w := view(t, c, tool.Caller{})
	expect(t, "another view", w != v, true)
	expect(t, "with the same lists", w.Stamp(Tools), v.Stamp(Tools))
	h.offers["a"] = named("a_x", "a_y")
	h.generation++
	c.Stale()
	expect(t, "with another list", view(t, c, tool.Caller{}).Stamp(Tools) != v.Stamp(Tools), true)
	expect(t, "a view that was returned does not change", fmt.Sprint(listed(v, Tools)), "[a_x]")
}

func TestPatterns(t *testing.T) {
	names := []string{"dir_list", "file_edit", "file_read", "file_write", "git_log"}
	for patterns, want := range map[string]string{
		"":                        "dir_list file_edit file_read file_write git_log",
		"file_*":                  "file_edit file_read file_write",
		"!file_*":                 "dir_list git_log",
		"file_* !*_write":         "file_edit file_read",
		"!*_write file_*":         "file_edit file_read",
		"*_list git_???":          "dir_list git_log",
		"!*":                      "",
		"nothing":                 "",
		"[":                       "",
		"![":                      "dir_list file_edit file_read file_write git_log",
		"FILE_*":                  "",
		"file_[er]* !file_[e-f]*": "file_read",
	} {
		spec := Spec{Name: "x", Tools: strings.Fields(patterns)}
		if patterns == "" {
			spec.Tools = nil
		}
		h := &offerSource{offers: map[string]*module.Offer{"m": named(names...)}}
		v := view(t, h.contexts(Rules{Specs: []Spec{spec}}), tool.Caller{})
		expect(t, patterns, strings.Join(listed(v, Tools), " "), want)
		for _, n := range names {
			if (v.Tool(n) != nil) != slices.Contains(strings.Fields(want), n) {
				t.Errorf("%q: %s is listed and not callable, or the reverse", patterns, n)
			}
		}
	}
}

func TestModulesOfAContext(t *testing.T) {
	h := &offerSource{offers: map[string]*module.Offer{"a": named("a_x"), "b": named("b_x"), "z": named("z_x")}}
	c := h.contexts(
		Rules{
			Specs: []Spec{{Name: "all"}, {Name: "some", Modules: []string{"b"}}, {Name: "none", Modules: []string{}}},
		},
		func(o *Options) { o.Always = []string{"z"} },
	)
	for name, want := range map[string]string{"all": "[a_x b_x z_x]", "some": "[b_x z_x]", "none": "[z_x]",
		"": "[a_x b_x z_x]"} {
		expect(t, name, fmt.Sprint(listed(view(t, c, tool.Caller{Context: name}), Tools)), want)
	}
	who := tool.Caller{Context: "nowhere"}
	if _, err := c.View(t.Context(), &who, c.Cut(who)); err != ErrNotFound {
		t.Errorf("got %v", err)
	}
}

// A name of two entries goes to the first; nothing is listed twice.
func TestNamesThatAreTaken(t *testing.T) {
	offer := func(about string) *module.Offer {
		return &module.Offer{
			Tools:     []tool.Tool{{Def: tool.Def{Name: "same", Description: about}}},
			Prompts:   []module.Prompt{{Name: "same", Description: about}},
			Resources: []module.Resource{{URI: "x://same", Description: about}},
			Templates: []module.Resource{{URI: "x://{same}", Description: about}},
			Methods:   map[string]tool.Handler{"x/same": nil},
		}
	}
	h := &offerSource{offers: map[string]*module.Offer{"a": offer("first"), "b": offer("second")}}
	v := view(t, h.contexts(Rules{}), tool.Caller{})
	for k := range kinds {
		expect(t, "entries", v.Len(k), 1)
		p, err := v.Page(k, mcpversion.Latest, "", "")
		if err != nil || bytes.Contains(p, []byte("second")) || !bytes.Contains(p, []byte("first")) {
			t.Errorf("got %s (%v)", p, err)
		}
	}
	expect(t, "tool", v.Tool("same").Module, "a")
	expect(t, "template", v.Template("x://{same}").Module, "a")
	expect(t, "method", v.Method("x/same").Module, "a")
	expect(t, "warned of", strings.Count(h.log.String(), "name is in use"), 5)
}

// Entries that cannot be served are left out, and the others are listed.
func TestToolsThatAreBroken(t *testing.T) {
	o := named("good")
	o.Tools = append(
		o.Tools,
		tool.Tool{Def: tool.Def{Name: "schema", Input: json.RawMessage(`{"type":"nonsense"}`)}},
		tool.Tool{
			Def: tool.Def{
				Name:  "headers",
				Input: json.RawMessage(`{"type":"object","properties":{"a":{"type":"object","x-mcp-header":"A"}}}`),
			},
		},
		tool.Tool{Def: tool.Def{Name: "output", Output: json.RawMessage(`[]`)}},
	)
	o.Templates = []module.Resource{{URI: "x://{"}, {URI: "x://{id}"}}
	h := &offerSource{offers: map[string]*module.Offer{"a": o}}
	v := view(t, h.contexts(Rules{}), tool.Caller{})
	expect(t, "tools", fmt.Sprint(listed(v, Tools)), "[good]")
	expect(t, "templates", fmt.Sprint(listed(v, Templates)), "[x://{id}]")
	expect(t, "told of", strings.Count(h.log.String(), "left out"), 4)
}

// Rules change while the host runs: new views follow, and views that were returned do not change.
func TestRulesThatChange(t *testing.T) {
	h := &offerSource{offers: map[string]*module.Offer{"a": named("a_x", "a_y")}}
	c := h.contexts(Rules{})
	before := view(t, c, tool.Caller{})
	c.Set(
		Rules{
			Specs:  []Spec{{Name: "default", Tools: []string{"a_x"}, Rename: map[string]string{"a_x": "x"}}},
			Policy: permit.Open(false),
		},
	)
	after := view(t, c, tool.Caller{})
	expect(t, "before", fmt.Sprint(listed(before, Tools)), "[a_x a_y]")
	expect(t, "after", fmt.Sprint(listed(after, Tools)), "[x]")
	if after.Tool("a_x") != nil {
		t.Error("a renamed tool answers to its own name")
	}
}

// Whatever the policy and the choice, the listed entries are those that can be called.
func TestListedIsWhatIsFound(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	effects := []tool.Effects{
		0,
		tool.Reads,
		tool.Writes,
		tool.Destroys,
		tool.Reads | tool.OpenWorld,
		tool.Reads | tool.Writes,
	}
	for range 200 {
		o := &module.Offer{}
		for i := range 12 {
			o.Tools = append(
				o.Tools,
				tool.Tool{Def: tool.Def{Name: fmt.Sprintf("m_%c", 'a'+i), Effects: effects[rnd.IntN(len(effects))]}},
			)
		}
		var spec Spec
		for range rnd.IntN(3) {
			p := fmt.Sprintf("m_[%c-%c]", 'a'+rnd.IntN(6), 'f'+rnd.IntN(6))
			if rnd.IntN(2) == 0 {
				p = "!" + p
			}
			spec.Tools = append(spec.Tools, p)
		}
		spec.Name, spec.Style = "x", []Style{Underscore, Dot, Colon}[rnd.IntN(3)]
		policy := permit.Open(rnd.IntN(2) == 0)
		h := &offerSource{offers: map[string]*module.Offer{"m": o}}
		v := view(t, h.contexts(Rules{Specs: []Spec{spec}, Policy: policy}), tool.Caller{})
		found := 0
		for _, e := range v.Entries(Tools) {
			found++
			if v.Tool(e.Listed) != e || e.Gate.Decide(nil, nil).Kind != permit.Allow {
				t.Fatalf("%s is listed and cannot be called", e.Listed)
			}
		}
		expect(t, "callable", len(v.tools), found)
		for i := range 12 {
			for _, wrong := range []string{fmt.Sprintf("m_%c", 'a'+i), fmt.Sprintf("m%cx", 'a'+i),
				fmt.Sprintf("M_%c", 'A'+i)} {
				if near := v.Near(Tools, wrong); near != "" && v.Tool(near) == nil {
					t.Fatalf("%s is suggested for %s and not listed", near, wrong)
				}
			}
		}
		if !slices.IsSorted(listed(v, Tools)) {
			t.Errorf("out of order: %v", listed(v, Tools))
		}
	}
}

func TestNearNames(t *testing.T) {
	o := &module.Offer{}
	for _, name := range []string{"file_read", "file_write", "file_delete"} {
		o.Tools = append(o.Tools, tool.Tool{Def: tool.Def{Name: name, Effects: tool.Reads}})
	}
	h := &offerSource{offers: map[string]*module.Offer{"file": o}}
	v := view(
		t,
		h.contexts(
			Rules{
				Specs:  []Spec{{Name: "x", Style: Dot, Tools: []string{"*", "!file_delete"}}},
				Policy: permit.Open(true),
			},
		),
		tool.Caller{},
	)
	for wrong, want := range map[string]string{
		"file_raed": "file.read", "fileWrite": "file.write", "file_read": "file.read", "file_delete": "",
		"file.deleet": "", "quite_different": "", "": "",
	} {
		expect(t, wrong, v.Near(Tools, wrong), want)
	}
	expect(t, "a prompt", v.Near(Prompts, "file_read"), "")
}

func TestURIsAndTemplates(t *testing.T) {
	o := &module.Offer{
		Resources: []module.Resource{{URI: "x://a/b", Name: "exact"}},
		Templates: []module.Resource{
			{URI: "x://{one}/b", Name: "one"},
			{URI: "x://{+path}", Name: "path"},
			{URI: "y://q{?a,b}", Name: "query"},
		},
	}
	h := &offerSource{offers: map[string]*module.Offer{"m": o}}
	v := view(t, h.contexts(Rules{}), tool.Caller{})
	for uri, want := range map[string]string{
		"x://a/b":                          "exact map[]",
		"x://c/b":                          "path map[path:c/b]", // the first in order that it matches
		"x://a%2Fb/c":                      "path map[path:a/b/c]",
		"y://q?a=1&b=2":                    "query map[a:1 b:2]",
		"y://q":                            "query map[a: b:]",
		"z://a":                            "none",
		"":                                 "none",
		"x://" + strings.Repeat("a", 9000): "none",
		"x://\xff\x00":                     "none",
	} {
		got := "none"
		if e, vars := v.Resource(uri); e != nil {
			got = e.Resource.Name + " " + fmt.Sprint(vars)
		}
		if want == "query map[a: b:]" && got == "query map[]" {
			continue
		}
		if len(uri) > 100 {
			uri = uri[:20] + "..."
		}
		expect(t, uri, got, want)
	}
}

// A hostile URI takes little time, whatever the template.
func FuzzResource(f *testing.F) {
	o := &module.Offer{Templates: []module.Resource{
		{URI: "x://{a}/{b}"}, {URI: "x://{+p*}"}, {URI: "y://{/path*}{?q*}{&r}{#f}"}, {URI: "z://{a:3}{.ext}{;m}"},
	}}
	h := &offerSource{offers: map[string]*module.Offer{"m": o}}
	v := view(f, h.contexts(Rules{}), tool.Caller{})
	for _, s := range []string{"x://a/b", "x://a,b,c", "y:///a/b?q=1&r=2#f", "z://abc.d;m=1", "x://%%%", "x://é"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, uri string) { v.Resource(uri) })
}
