package views

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"

	"gatehouse/internal/dispatch/toolsearch"
	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/tool"
)

// These say which tools a view lists.
const (
	ListAll    = "all"    // every tool; the default
	ListSearch = "search" // the pinned tools, and those that find and call the others
	// ListAuto is ListSearch if the list of all tools is longer than mostListed, for clients that are not known to
	// search themselves.
	ListAuto = "auto"
)

// mostListed is how long a list of tools may be, in bytes, before ListAuto shortens it: some 10,000 tokens.
const mostListed = 40_000

// searchingClients are the names of clients that search the tools of their servers themselves.
var searchingClients = []string{"claude-code", "codex-mcp-client", "codex"}

// SearchModule is the name of the module whose tools find and call other tools. Only views with ListSearch and
// ListAuto contain it.
const SearchModule = "tool"

// The tools of SearchModule that call another tool, which must belong to that class.
const (
	CallRead        = "tool_call_read"
	CallWrite       = "tool_call_write"
	CallDestructive = "tool_call_destructive"
)

// useContext is the tool of SearchModule that changes the context.
const useContext = "context_use"

// CallerOf returns the tool of SearchModule that calls tools with these effects. Effects that are not declared
// count as destructive.
func CallerOf(e tool.Effects) string {
	switch {
	case e == 0 || e&tool.Destroys != 0:
		return CallDestructive
	case e.ReadOnly():
		return CallRead
	}
	return CallWrite
}

// search is the part of a view whose list is shortened.
type search struct {
	always bool     // for every client
	short  []*Entry // what is listed then
	full   []*Entry // what is listed otherwise

	once    sync.Once
	entries []*Entry // of index
	index   *toolsearch.Index
	model   *toolsearch.Model // nil means none
}

// newSearch divides the tools of a view; nil if the view lists all of them. several means that the host has other
// contexts.
func (v *View) newSearch(spec *Spec, several bool, model *toolsearch.Model) *search {
	if spec.List != ListSearch && spec.List != ListAuto {
		return nil
	}
	s := &search{always: spec.List == ListSearch, model: model}
	size := 0
	for _, e := range v.lists[Tools] {
		own := e.Module == SearchModule
		if !own {
			s.full = append(s.full, e)
			size += len(e.toolListing(mcpversion.Latest))
		}
		if own && e.Name == useContext && !several {
			continue
		}
		if own || len(spec.Pinned) > 0 && chosen(spec.Pinned, pathMatch, e.Name, e.Listed) {
			s.short = append(s.short, e)
		}
	}
	if !s.always && size <= mostListed {
		s.short = s.full
	}
	return s
}

// listed returns the entries that a list contains for a client of that name.
func (v *View) listed(k Kind, short bool) []*Entry {
	switch {
	case k != Tools || v.search == nil:
		return v.lists[k]
	case short:
		return v.search.short
	}
	return v.search.full
}

// isShort reports whether a client gets the short list. Clients give their name as name/version.
func (v *View) isShort(client string) bool {
	if v.search == nil || v.search.always {
		return v.search != nil
	}
	name, _, _ := strings.Cut(client, "/")
	return !slices.Contains(searchingClients, name)
}

// Searched reports whether some client gets the short list of this view.
func (v *View) Searched() bool { return v.search != nil }

// Search returns the tools of the view that fit a query best, at most limit, the best first. boost, if it is not
// nil, is what the score of a tool is multiplied with. The tools of SearchModule are not among them.
func (v *View) Search(
	ctx context.Context, query string, limit int, boost func(*Entry) float64,
) (found []*Entry) {
	if v.search == nil {
		return nil
	}
	v.search.once.Do(v.search.build)
	s := v.search
	by := func(i int) float64 { return 1 }
	if boost != nil {
		by = func(i int) float64 { return boost(s.entries[i]) }
	}
	for _, h := range s.index.SearchWith(ctx, s.model, query, limit, by) {
		found = append(found, s.entries[h.Document])
	}
	return found
}

func (s *search) build() {
	var all []toolsearch.Document
	for _, e := range s.full {
		d := &e.Tool.Def
		doc := toolsearch.Document{
			Name: e.Listed, Title: e.title(), Package: e.Module, Description: e.Description(), Aliases: d.Aliases,
		}
		if e.Listed != e.Name {
			doc.Aliases = append([]string{e.Name}, doc.Aliases...)
		}
		var details strings.Builder
		for _, p := range e.Parameters() {
			doc.Parameters = append(doc.Parameters, p.Name)
			details.WriteString(p.Description + " ")
		}
		doc.Details = details.String()
		all = append(all, doc)
	}
	s.entries, s.index = s.full, toolsearch.New(all)
	s.model.Add(s.index, all)
}

// Description returns the description of a tool as the view lists it.
func (e *Entry) Description() string {
	return e.described(e.relayedText("description", e.Tool.Description))
}

func (e *Entry) title() string { return e.relayedText("title", e.Tool.Title) }

// relayedText returns a text of a relayed definition, or else own.
func (e *Entry) relayedText(member, own string) string {
	if e.Tool.Raw == nil {
		return own
	}
	raw, _ := rawjson.Get(e.Tool.Raw, member)
	text, _ := rawjson.String(raw)
	return text
}

// Parameters returns the arguments of a tool in the order of its schema.
func (e *Entry) Parameters() (all []toolsearch.Parameter) {
	properties, _ := rawjson.Get(e.input, "properties")
	var required []string
	if list, ok := rawjson.Get(e.input, "required"); ok {
		json.Unmarshal(list, &required) // what is no list of names requires nothing
	}
	for name, s := range rawjson.Object(properties) {
		p := toolsearch.Parameter{Name: string(name), Required: slices.Contains(required, string(name))}
		if text, ok := rawjson.Get(s, "description"); ok {
			p.Description, _ = rawjson.String(text)
		}
		p.Type = typeOf(s)
		all = append(all, p)
	}
	return all
}

// typeOf returns the type of a schema in a short form, such as string[] or "a"|"b".
func typeOf(s json.RawMessage) string {
	if list, ok := rawjson.Get(s, "enum"); ok && len(list) <= 80 {
		var values []json.RawMessage
		if json.Unmarshal(list, &values) == nil {
			words := make([]string, len(values))
			for i, v := range values {
				words[i] = string(v)
			}
			return strings.Join(words, "|")
		}
	}
	raw, _ := rawjson.Get(s, "type")
	if name, ok := rawjson.String(raw); ok {
		if items, has := rawjson.Get(s, "items"); name == "array" && has {
			if of := typeOf(items); of != "" {
				return of + "[]"
			}
		}
		return name
	}
	var names []string
	json.Unmarshal(raw, &names) // anything else is no type
	return strings.Join(names, "|")
}

// Redirect returns the call that a call of a tool of SearchModule stands for. It returns false if the call is of
// another tool, or if its arguments do not name a tool of the view and of the class; the module then says why.
func (v *View) Redirect(e *Entry, args json.RawMessage) (target *Entry, inner json.RawMessage, ok bool) {
	if v.search == nil || e.Module != SearchModule || !strings.HasPrefix(e.Name, "tool_call_") {
		return nil, nil, false
	}
	raw, _ := rawjson.Get(args, "name")
	name, ok := rawjson.String(raw)
	if !ok {
		return nil, nil, false
	}
	inner, given := rawjson.Get(args, "arguments")
	if !given || rawjson.Kind(inner) == 'n' {
		inner = json.RawMessage("{}")
	}
	target = v.Tool(name)
	if target == nil || target.Module == SearchModule || rawjson.Kind(inner) != '{' ||
		CallerOf(target.Tool.Effects) != e.Name {
		return nil, nil, false
	}
	return target, inner, true
}

// SearchTools returns the tools of a caller's view that fit a query best, at most limit, the best first. Those that
// the principal called lately rank higher.
func (r *Registry) SearchTools(ctx context.Context, who tool.Caller, query string, limit int) []toolsearch.Tool {
	v, err := r.View(ctx, &who, r.Cut(who))
	if err != nil {
		return nil
	}
	used := r.used.usesOf(who.Principal)
	var all []toolsearch.Tool
	boost := func(e *Entry) float64 { return 1 + usedBoost*float64(used[e.Name]) }
	for _, e := range v.Search(ctx, query, limit, boost) {
		all = append(all, e.forCaller())
	}
	return all
}

// Catalog returns what programs of a caller can call: all tools of its view but those that find and call others.
func (r *Registry) Catalog(ctx context.Context, who tool.Caller) (toolsearch.Catalog, error) {
	v, err := r.View(ctx, &who, r.Cut(who))
	if err != nil {
		return toolsearch.Catalog{}, err
	}
	v.catalog.once.Do(func() {
		for _, e := range v.lists[Tools] {
			if e.Module == SearchModule {
				continue
			}
			t := e.forCaller()
			if e.Out != nil {
				t.Output = e.Out.Raw()
			}
			v.catalog.tools = append(v.catalog.tools, t)
		}
	})
	return toolsearch.Catalog{Tools: v.catalog.tools, Asks: v.programsAsk, Version: v}, nil
}

// catalog holds what programs can call, which is listed when the first one starts.
type catalog struct {
	once  sync.Once
	tools []toolsearch.Tool
}

// Contexts returns the names of the contexts that a caller may enter, sorted.
func (r *Registry) Contexts(ctx context.Context, who tool.Caller) []string {
	var names []string
	for _, spec := range r.rules.Load().Specs {
		in := who
		in.Context = spec.Name
		if _, err := r.View(ctx, &in, r.Cut(in)); err == nil {
			names = append(names, spec.Name)
		}
	}
	slices.Sort(names)
	return names
}

// FindTool returns the tool of that name in a caller's view, and if there is none the most similar name.
func (r *Registry) FindTool(ctx context.Context, who tool.Caller, name string) (toolsearch.Tool, string, bool) {
	v, err := r.View(ctx, &who, r.Cut(who))
	if err != nil {
		return toolsearch.Tool{}, "", false
	}
	if e := v.Tool(name); e != nil {
		return e.forCaller(), "", true
	}
	return toolsearch.Tool{}, v.Near(Tools, name), false
}

func (e *Entry) forCaller() toolsearch.Tool {
	return toolsearch.Tool{
		Name: e.Listed, Title: e.title(), Description: e.Description(), Caller: CallerOf(e.Tool.Effects),
		Parameters: e.Parameters(), Input: e.input,
	}
}

// Used records that a principal has called a tool of a view that is searched.
func (r *Registry) Used(principal string, e *Entry) { r.used.countUse(principal, e.Name) }

const (
	usedBoost      = 0.1 // for each of the last calls
	mostUsed       = 8   // calls that are remembered of a principal
	mostPrincipals = 1000
)

// usage remembers which tools principals called last. It is safe for concurrent use.
type usage struct {
	mu sync.Mutex
	by map[string][]string
}

func (u *usage) countUse(principal, name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.by == nil || len(u.by) >= mostPrincipals && u.by[principal] == nil {
		u.by = map[string][]string{}
	}
	last := append(u.by[principal], name)
	u.by[principal] = last[max(0, len(last)-mostUsed):]
}

// usesOf returns how often a principal called tools lately, by name.
func (u *usage) usesOf(principal string) map[string]int {
	u.mu.Lock()
	defer u.mu.Unlock()
	counts := map[string]int{}
	for _, name := range u.by[principal] {
		counts[name]++
	}
	return counts
}
