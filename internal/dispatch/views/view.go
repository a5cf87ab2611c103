package views

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/yosida95/uritemplate/v3"

	"gatehouse/internal/access/permit"
	"gatehouse/internal/dispatch/modulehost"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/schema"
	"gatehouse/module"
	"gatehouse/tool"
)

// View is what one kind of caller sees of one context. It is immutable; a change creates a new one.
type View struct {
	Name     string
	personal bool
	cut      bool     // not every caller of this host gets it
	offers   []uint64 // the generations it was built from
	epoch    atomic.Uint64
	page     int
	tail     Tail
	unsorted bool

	lists     [kinds][]*Entry // in the order in which they are listed
	tools     map[string]*Entry
	aliases   map[string]*Entry // of tools, by names that can be called but are not listed
	prompts   map[string]*Entry
	resources map[string]*Entry
	templates map[string]*Entry
	unlisted  []*Entry          // templates that are in no list
	methods   map[string]*Entry // extension methods
	stamps    [kinds]uint64

	extensions map[string]json.RawMessage
	search     *search // nil if all tools are listed

	catalog     catalog
	programsAsk bool // programs may call tools that ask

	mu    sync.Mutex
	pages map[pageKey][]byte
}

// Entry is one tool, prompt, resource, template or method in a view.
type Entry struct {
	Listed string // its name in this view: a tool's or prompt's name, a URI or a template
	Module string
	Name   string // its name in the module
	Gate   *permit.Gate

	Tool     *tool.Tool
	In, Out  *schema.Schema // of a tool; Out may be nil
	Product  string         // the output member that the tool is called for, a text; "" if it has none
	Text     bool           // the view sends the product and the facts as text, and no structured content
	Unpaged  bool           // tools that page their output return all of it; see tool.Call
	Whole    bool           // the view sends structured content whole, whatever the tool's budget
	InText   []string       // the output members that the text contains
	Headers  []schema.Header
	Resource *module.Resource
	Prompt   *module.Prompt

	shape         *shaped         // what the context changes in its calls; nil if nothing
	describe      string          // the view's own description; "" means the definition's
	input, output json.RawMessage // the schemas as listed
	template      *uritemplate.Template
}

// Kind is a kind of list.
type Kind uint8

const (
	Tools Kind = iota
	Prompts
	Resources
	Templates
	kinds
)

// Tool returns the tool that has this name in the view or, if the view accepts aliases, this alias. A listed name
// takes precedence over an alias. It returns nil if there is none.
func (v *View) Tool(name string) *Entry {
	if e := v.tools[name]; e != nil {
		return e
	}
	return v.aliases[name]
}

// Prompt returns a prompt, or nil.
func (v *View) Prompt(name string) *Entry { return v.prompts[name] }

// Method returns an extension method, or nil.
func (v *View) Method(name string) *Entry { return v.methods[name] }

// maxURI is the longest URI, in bytes, that is matched against templates, because the time of a match can grow
// with the square of its length.
const maxURI = 2 << 10

// Resource returns the entry that a URI names: a resource, or the first template that it matches, with the
// template's variables.
func (v *View) Resource(uri string) (e *Entry, vars map[string]string) {
	if e := v.resources[uri]; e != nil {
		return e, nil
	}
	if len(uri) > maxURI {
		return nil, nil
	}
	for _, list := range [][]*Entry{v.lists[Templates], v.unlisted} {
		for _, e := range list {
			if vars, ok := e.match(uri); ok {
				return e, vars
			}
		}
	}
	return nil, nil
}

// match reports whether a URI matches a template, and with which variables.
func (e *Entry) match(uri string) (vars map[string]string, ok bool) {
	m := e.template.Match(uri)
	if m == nil {
		return nil, false
	}
	vars = make(map[string]string, len(m))
	for name, val := range m {
		vars[name] = val.String()
	}
	return vars, true
}

// Vars returns the variables of a template in a URI that matches it, or none for a resource without a template.
func (e *Entry) Vars(uri string) map[string]string {
	if e.template == nil {
		return nil
	}
	vars, _ := e.match(uri)
	return vars
}

// Near returns the name of the tool or prompt of this view that an unknown name most likely meant, or "" if none
// is close. It never names anything that is not in the view.
func (v *View) Near(k Kind, name string) string {
	names := make([]string, len(v.lists[k]))
	for i, e := range v.lists[k] {
		names[i] = e.Listed
	}
	near, _ := schema.Nearest(name, names)
	return near
}

// Template returns the template with this text, or nil.
func (v *View) Template(text string) *Entry { return v.templates[text] }

// Len returns the number of entries of a list.
func (v *View) Len(k Kind) int { return len(v.lists[k]) }

// Shared reports whether every caller of this host gets this view by default.
func (v *View) Shared() bool { return !v.personal && !v.cut }

// Personal reports whether callers of the same cut may get other views.
func (v *View) Personal() bool { return v.personal }

// Extensions returns the values that modules declare for their extensions, by name. The map must not be changed.
func (v *View) Extensions() map[string]json.RawMessage { return v.extensions }

// Entries returns the entries of a kind in their order. The slice must not be changed.
func (v *View) Entries(k Kind) []*Entry { return v.lists[k] }

func (v *View) sameOffers(offers []modulehost.Offered) bool {
	return slices.EqualFunc(v.offers, offers, func(g uint64, o modulehost.Offered) bool { return g == o.Generation })
}

// compile builds a view of what a context chooses from the offers.
func (r *Registry) compile(k key, spec *Spec, offers []modulehost.Offered) *View {
	v := &View{
		Name: spec.Name, page: r.opts.Page, tail: r.opts.Tail, unsorted: spec.Unsorted,
		cut:   k.cut != "" || !k.rules.Policy.Uniform() || spec.Name != k.rules.Default,
		tools: map[string]*Entry{}, prompts: map[string]*Entry{}, resources: map[string]*Entry{},
		templates: map[string]*Entry{}, methods: map[string]*Entry{}, pages: map[pageKey][]byte{},
		extensions: map[string]json.RawMessage{},
	}
	b := builder{r, k.rules.Policy, spec, k.cut, v, k.all, map[string]*Shape{}}
	for i := range spec.Shapes {
		b.shapes[spec.Shapes[i].Tool] = &spec.Shapes[i]
	}
	for _, o := range offers {
		v.offers = append(v.offers, o.Generation)
		v.personal = v.personal || o.Offer.Personal
		if spec.Modules == nil || slices.Contains(spec.Modules, o.Module) || slices.Contains(r.opts.Always, o.Module) {
			b.addModule(o)
		}
	}
	for k := range v.lists {
		if !spec.Unsorted {
			slices.SortFunc(v.lists[k], func(a, b *Entry) int { return cmp.Compare(a.Listed, b.Listed) })
		}
	}
	v.search, v.programsAsk = v.newSearch(spec, len(k.rules.Specs) > 1, r.opts.Model), spec.ProgramsAsk
	for k := range v.lists {
		v.stamps[k] = v.stamp(Kind(k))
	}
	if spec.Aliases || spec.CallAliases {
		v.aliases = aliases(spec, v.lists[Tools])
	}
	return v
}

// aliases returns the names besides the listed one by which tools can be called. An alias that several tools
// declare calls none of them, because the caller cannot know which one would run. A tool that the context renames
// has only its new name.
func aliases(spec *Spec, tools []*Entry) map[string]*Entry {
	all := map[string]*Entry{}
	for _, e := range tools {
		if spec.Rename[e.Name] != "" {
			continue
		}
		for _, name := range e.Tool.Aliases {
			if other, taken := all[name]; taken && other != e {
				all[name] = nil
				continue
			}
			all[name] = e
		}
	}
	return all
}

type builder struct {
	c      *Registry
	policy *permit.Policy
	spec   *Spec
	cut    permit.Cut
	v      *View
	all    bool // also entries that are refused
	shapes map[string]*Shape
}

func (b builder) addModule(o modulehost.Offered) {
	if o.Module == SearchModule && b.spec.List != ListSearch && b.spec.List != ListAuto {
		return
	}
	for i := range o.Offer.Tools {
		b.tool(o.Module, &o.Offer.Tools[i])
	}
	for i := range o.Offer.Resources {
		r := &o.Offer.Resources[i]
		if !chosen(b.spec.Resources, wildcard, r.URI) {
			continue
		}
		e := &Entry{Listed: r.URI, Module: o.Module, Name: r.URI, Resource: r}
		b.addEntry(Resources, b.v.resources, e, "resources/read", tool.Reads)
	}
	for i := range o.Offer.Templates {
		b.template(o.Module, &o.Offer.Templates[i])
	}
	for i := range o.Offer.Prompts {
		p := &o.Offer.Prompts[i]
		if !chosen(b.spec.Prompts, pathMatch, p.Name) {
			continue
		}
		e := &Entry{
			Listed:   b.renamed(p.Name),
			Module:   o.Module,
			Name:     p.Name,
			Prompt:   p,
			describe: b.spec.Describe[p.Name],
		}
		b.addEntry(Prompts, b.v.prompts, e, "prompts/get", tool.Reads)
	}
	for name, ext := range o.Offer.Extensions {
		if _, taken := b.v.extensions[name]; !taken {
			b.v.extensions[name] = ext
		}
	}
	for name := range o.Offer.Methods {
		e := &Entry{Listed: name, Module: o.Module, Name: name}
		if e.Gate = b.gate(e, name, 0); e.Gate.Listed() && b.free(b.v.methods, e) {
			b.v.methods[name] = e
		}
	}
}

func (b builder) gate(e *Entry, method string, eff tool.Effects) *permit.Gate {
	return b.policy.Gate(b.cut, permit.Op{
		Context: b.spec.Name, Method: method, Module: e.Module, Name: e.Name, Effects: eff, Tool: e.Tool,
	})
}

// addEntry lists an entry unless it is refused for all arguments. If two entries have the same name, the first is
// listed.
func (b builder) addEntry(k Kind, byName map[string]*Entry, e *Entry, method string, eff tool.Effects) {
	if e.Gate = b.gate(e, method, eff); !e.Gate.Listed() && !b.all {
		return
	}
	if b.free(byName, e) {
		byName[e.Listed] = e
		b.v.lists[k] = append(b.v.lists[k], e)
	}
}

func (b builder) free(byName map[string]*Entry, e *Entry) bool {
	first := byName[e.Listed]
	if first != nil {
		b.c.opts.Log.Warn("name is in use, entry left out", "name", e.Listed, "module", e.Module, "by", first.Module)
	}
	return first == nil
}

func (b builder) template(mod string, r *module.Resource) {
	if !chosen(b.spec.Resources, wildcard, r.URI) {
		return
	}
	t, err := uritemplate.New(r.URI)
	if err != nil {
		b.c.opts.Log.Error("template left out", "module", mod, "template", r.URI, "err", err)
		return
	}
	e := &Entry{Listed: r.URI, Module: mod, Name: r.URI, Resource: r, template: t}
	if r.Unlisted {
		if e.Gate = b.gate(e, "resources/read", tool.Reads); e.Gate.Listed() {
			b.v.unlisted = append(b.v.unlisted, e)
		}
		return
	}
	b.addEntry(Templates, b.v.templates, e, "resources/read", tool.Reads)
}

func (b builder) tool(mod string, t *tool.Tool) {
	names := []string{t.Name}
	if b.spec.Aliases {
		names = append(names, t.Aliases...)
	}
	if !chosen(b.spec.Tools, pathMatch, names...) {
		return
	}
	e := &Entry{
		Listed:   b.toolName(mod, t),
		Module:   mod,
		Name:     t.Name,
		Tool:     t,
		Unpaged:  b.spec.Unpaged,
		describe: b.spec.Describe[t.Name],
	}
	if err := e.compileSchemas(&b.c.schemas, b.spec.Results); err != nil {
		b.c.opts.Log.Error("tool left out", "module", mod, "tool", t.Name, "err", err)
		return
	}
	if s := b.shapes[t.Name]; s != nil {
		if err := e.applyShape(&b.c.schemas, s); err != nil {
			b.c.opts.Log.Error("tool left out", "context", b.spec.Name, "tool", t.Name, "err",
				fmt.Errorf("its shape: %w", err))
			return
		}
	}
	b.addEntry(Tools, b.v.tools, e, "tools/call", t.Effects)
}

// toolName returns the name of a tool in the view: the name it was renamed to, else the alias it declares if the
// view lists aliases, else its own name in the view's style.
func (b builder) toolName(mod string, t *tool.Tool) string {
	if n := b.spec.Rename[t.Name]; n != "" {
		return n
	}
	if b.spec.Aliases && len(t.Aliases) > 0 {
		return t.Aliases[0]
	}
	short, prefixed := strings.CutPrefix(t.Name, mod+"_")
	switch {
	case prefixed && b.spec.Style == Dot:
		return mod + "." + short
	case prefixed && b.spec.Style == Colon:
		return mod + ":" + short
	}
	return t.Name
}

func (b builder) renamed(name string) string {
	if n := b.spec.Rename[name]; n != "" {
		return n
	}
	return name
}

// Chosen reports whether the patterns of a Spec choose a tool of that name.
func Chosen(patterns []string, name string) bool { return chosen(patterns, pathMatch, name) }

// chosen applies patterns: those with "!" exclude; of the others, if there are any, one must match. It is enough
// that one of the entry's names does.
func chosen(patterns []string, match func(pattern, name string) bool, names ...string) bool {
	fits := func(pattern string) bool {
		return slices.ContainsFunc(names, func(n string) bool { return match(pattern, n) })
	}
	wanted, yes := false, false
	for _, p := range patterns {
		if no, ok := strings.CutPrefix(p, "!"); ok {
			if fits(no) {
				return false
			}
			continue
		}
		wanted = true
		yes = yes || fits(p)
	}
	return yes || !wanted
}

func pathMatch(pattern, name string) bool {
	ok, _ := path.Match(pattern, name)
	return ok
}

// wildcard matches a URI: * matches any characters, including slashes.
func wildcard(pattern, uri string) bool {
	head, rest, more := strings.Cut(pattern, "*")
	if !more {
		return pattern == uri
	}
	uri, ok := strings.CutPrefix(uri, head)
	if !ok {
		return false
	}
	for i := range len(uri) + 1 {
		if wildcard(rest, uri[i:]) {
			return true
		}
	}
	return false
}

var anyObject = json.RawMessage(`{"type":"object"}`)

// compileSchemas reads the schemas of the definition: Go types, JSON, or a relayed listing entry.
// A view of texts lists no output schema of a tool that produces text, because clients check a result against the
// listed schema.
func (e *Entry) compileSchemas(by *compiler, results string) (err error) {
	d := &e.Tool.Def
	e.input, e.output = d.Input, d.Output
	switch {
	case d.Raw != nil:
		if in, ok := rawjson.Get(d.Raw, "inputSchema"); ok {
			e.input = in
		}
		if out, ok := rawjson.Get(d.Raw, "outputSchema"); ok {
			e.output = out
		}
	case d.In != nil:
		if e.input == nil {
			if e.input, err = schema.For(d.In); err != nil {
				return err
			}
		}
		if d.Out != nil && e.output == nil {
			if e.output, err = schema.ForOutput(d.Out); err != nil {
				return err
			}
			e.Product, _ = schema.Product(d.Out)
		}
	}
	e.Whole = results == Structured
	if e.input == nil {
		e.input = json.RawMessage(`{"type":"object","properties":{}}`)
	}
	if e.In, err = by.compile(e.input); err != nil && d.Raw != nil {
		e.In, err = by.compile(anyObject) // its server checks the arguments, by a schema that may be of another dialect
	}
	if err != nil {
		return err
	}
	if e.output != nil {
		if e.Out, err = by.compile(e.output); err != nil && d.Raw == nil {
			return err
		}
	}
	if e.Text = e.Product != "" && results != Structured; e.Text {
		e.output, e.InText = nil, schema.InText(d.Out)
	}
	if e.Headers, err = e.In.Headers(); d.Raw != nil {
		return nil // a client that minds leaves the tool out
	}
	return err
}

// compiler caches validators by their text, because the same offer is built into many views.
type compiler struct {
	mu sync.Mutex
	by map[string]*schema.Schema
}

func (c *compiler) compile(raw json.RawMessage) (*schema.Schema, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.by[string(raw)]; s != nil {
		return s, nil
	}
	s, err := schema.Compile(raw)
	if err != nil {
		return nil, err
	}
	if c.by == nil || len(c.by) >= 20_000 {
		c.by = make(map[string]*schema.Schema)
	}
	c.by[string(raw)] = s
	return s, nil
}
