package schema

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// Limits on the work of the full engine. It cannot be interrupted, so an upper
// bound of the work is computed before it starts.
const (
	maxSteps = 2_000_000 // subschemas tried, over all values
	maxRead  = 128 << 20 // bytes of values read or printed, over all subschemas
	maxWays  = 10_000    // subschemas tried on one value at the top
)

// baseURI is the base of relative references. No schema is loaded from it.
const baseURI = "schema:///root"

// cost holds, for each depth of the value, how many subschemas are tried on one
// value at that depth, at most. The last number also counts for greater depths.
type cost struct{ ways []float64 }

// exceeded reports whether checking a decoded value of size bytes would exceed
// the limits.
func (c cost) exceeded(d *decoder, size int) bool {
	var steps, most float64
	for depth, count := range d.levels[:d.deep+1] {
		if depth < len(c.ways) {
			steps += float64(count) * c.ways[depth]
			most = max(most, c.ways[depth])
		}
	}
	return steps > maxSteps || most*float64(size) > maxRead
}

// costOf estimates the cost of a schema. It refuses references to nothing in the schema, and circular
// references on the same value, because checking them would not end.
func costOf(root *jsonschema.Schema, draft07 bool) (cost, error) {
	g := &graph{
		draft07: draft07,
		places:  map[string]*jsonschema.Schema{},
		anchors: map[string][]*jsonschema.Schema{},
		bases:   map[*jsonschema.Schema]string{},
		weights: map[*jsonschema.Schema][2]float64{},
	}
	base, err := url.Parse(baseURI)
	if err != nil {
		return cost{}, err
	}
	if err := g.index(root, base, ""); err != nil {
		return cost{}, err
	}
	if err := g.order(root); err != nil {
		return cost{}, err
	}
	return g.estimate(root)
}

// graph records which subschemas are tried when a schema is tried: on the same
// value, and on its parts.
type graph struct {
	draft07  bool
	places   map[string]*jsonschema.Schema   // by absolute URI with JSON Pointer or anchor
	anchors  map[string][]*jsonschema.Schema // by the name of a dynamic anchor
	bases    map[*jsonschema.Schema]string
	patterns int                  // size of all patterns
	sorted   []*jsonschema.Schema // each after those it tries on the same value
	edges    map[*jsonschema.Schema]*edges
	weights  map[*jsonschema.Schema][2]float64 // steps of its pattern, and of its patternProperties
}

type edges struct {
	here  []*jsonschema.Schema
	any   []*jsonschema.Schema // tried on any part
	named []*jsonschema.Schema // each tried on one named member
	own   float64              // steps of the schema itself
	parts float64              // steps on each part
}

// index records where a schema and its subschemas are.
func (g *graph) index(s *jsonschema.Schema, base *url.URL, pointer string) error {
	if s == nil {
		return fmt.Errorf("schema: null at %s", pointer)
	}
	if err := g.measure(s, pointer); err != nil {
		return err
	}
	if s.ID != "" && (!g.draft07 || s.Ref == "") {
		id, err := url.Parse(s.ID)
		if err != nil {
			return fmt.Errorf("schema: $id: %w", err)
		}
		if g.draft07 && id.Fragment != "" {
			g.places[base.String()+"#"+id.Fragment] = s
		} else {
			g.places[base.String()+"#"+pointer] = s
			base, pointer = base.ResolveReference(id), ""
			base.Fragment = ""
		}
	}
	g.bases[s] = base.String()
	g.places[base.String()+"#"+pointer] = s
	for _, a := range []string{s.Anchor, s.DynamicAnchor} {
		if a != "" {
			g.places[base.String()+"#"+a] = s
		}
	}
	if a := s.DynamicAnchor; a != "" {
		g.anchors[a] = append(g.anchors[a], s)
	}
	for at, sub := range children(s) {
		if err := g.index(sub, base, pointer+"/"+at); err != nil {
			return err
		}
	}
	return nil
}

// measure counts a schema and the size of its patterns, before these are
// compiled.
func (g *graph) measure(s *jsonschema.Schema, pointer string) error {
	if len(g.bases) >= MaxSubschemas {
		return fmt.Errorf("schema: more than %d subschemas", MaxSubschemas)
	}
	size := 0
	for expr := range s.PatternProperties {
		n, err := patternSize(expr)
		if err != nil {
			return fmt.Errorf("%s/patternProperties: %w", pointer, err)
		}
		size += n
	}
	n, err := patternSize(s.Pattern)
	if err != nil {
		return fmt.Errorf("%s/pattern: %w", pointer, err)
	}
	if g.patterns += size + n; g.patterns > maxPattern+MaxSubschemas { // A schema without a pattern counts as one step.
		return fmt.Errorf("schema: patterns of more than %d steps together: repeat less", maxPattern)
	}
	g.weights[s] = [2]float64{float64(n) / 4, float64(size) / 4}
	return nil
}

// children yields all subschemas with the last parts of their JSON Pointers.
func children(s *jsonschema.Schema) func(func(string, *jsonschema.Schema) bool) {
	return func(yield func(string, *jsonschema.Schema) bool) {
		ok := true
		one := func(at string, sub *jsonschema.Schema) {
			if ok && sub != nil {
				ok = yield(at, sub)
			}
		}
		list := func(at string, subs []*jsonschema.Schema) {
			for i, sub := range subs {
				ok = ok && yield(at+"/"+strconv.Itoa(i), sub)
			}
		}
		table := func(at string, subs map[string]*jsonschema.Schema) {
			for name, sub := range subs {
				ok = ok && yield(at+"/"+strings.NewReplacer("~", "~0", "/", "~1").Replace(name), sub)
			}
		}
		table("$defs", s.Defs)
		table("definitions", s.Definitions)
		table("properties", s.Properties)
		table("patternProperties", s.PatternProperties)
		table("dependentSchemas", s.DependentSchemas)
		table("dependencies", s.DependencySchemas)
		list("prefixItems", s.PrefixItems)
		list("items", s.ItemsArray)
		list("allOf", s.AllOf)
		list("anyOf", s.AnyOf)
		list("oneOf", s.OneOf)
		one("items", s.Items)
		one("additionalItems", s.AdditionalItems)
		one("contains", s.Contains)
		one("unevaluatedItems", s.UnevaluatedItems)
		one("additionalProperties", s.AdditionalProperties)
		one("propertyNames", s.PropertyNames)
		one("unevaluatedProperties", s.UnevaluatedProperties)
		one("not", s.Not)
		one("if", s.If)
		one("then", s.Then)
		one("else", s.Else)
		one("contentSchema", s.ContentSchema)
	}
}

// refer returns the schema of a reference.
func (g *graph) refer(s *jsonschema.Schema, ref string) (*jsonschema.Schema, error) {
	u, err := url.Parse(ref)
	if err != nil {
		return nil, fmt.Errorf("schema: reference %q: %w", clip(ref, 100), err)
	}
	base, err := url.Parse(g.bases[s])
	if err != nil {
		return nil, err
	}
	u = base.ResolveReference(u)
	fragment := u.Fragment
	u.Fragment, u.RawFragment = "", ""
	to := g.places[u.String()+"#"+fragment]
	if to == nil {
		return nil, fmt.Errorf(
			"schema: reference %q is not defined inside the schema, and external schemas are not fetched",
			clip(ref, 100),
		)
	}
	return to, nil
}

// edgesOf returns what is tried when s is tried.
func (g *graph) edgesOf(s *jsonschema.Schema) (*edges, error) {
	weight := g.weights[s]
	e := &edges{own: 1 + float64(len(s.Enum)+len(s.Required)+len(s.Properties))/8 + weight[0], parts: weight[1]}
	for _, ref := range []string{s.Ref, s.DynamicRef} {
		if ref == "" {
			continue
		}
		to, err := g.refer(s, ref)
		if err != nil {
			return nil, err
		}
		e.here = append(e.here, to)
	}
	if g.draft07 && s.Ref != "" {
		return e, nil
	}
	if _, name, ok := strings.Cut(s.DynamicRef, "#"); ok {
		e.here = append(e.here, g.anchors[name]...)
	}
	for at, sub := range children(s) {
		switch keyword, _, _ := strings.Cut(at, "/"); keyword {
		case "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies":
			e.here = append(e.here, sub)
		case "properties":
			e.named = append(e.named, sub)
		case "$defs", "definitions", "contentSchema":
		default:
			e.any = append(e.any, sub)
		}
	}
	return e, nil
}

// order sorts the schemas that can be reached. Each comes after those it tries
// on the same value.
func (g *graph) order(root *jsonschema.Schema) error {
	g.edges = map[*jsonschema.Schema]*edges{}
	todo := []*jsonschema.Schema{root}
	open := map[*jsonschema.Schema]bool{}
	var visit func(s *jsonschema.Schema) error
	visit = func(s *jsonschema.Schema) error {
		if open[s] {
			return fmt.Errorf(
				"schema: a reference leads back to itself without going into the value (%s)",
				clip(s.Ref, 100),
			)
		}
		if g.edges[s] != nil {
			return nil
		}
		e, err := g.edgesOf(s)
		if err != nil {
			return err
		}
		g.edges[s] = e
		open[s] = true
		for _, to := range e.here {
			if err := visit(to); err != nil {
				return err
			}
		}
		open[s] = false
		g.sorted = append(g.sorted, s)
		todo = append(append(todo, e.any...), e.named...)
		return nil
	}
	for len(todo) > 0 {
		s := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if err := visit(s); err != nil {
			return err
		}
	}
	return nil
}

// estimate counts, depth by depth, the steps on one value at that depth below
// the value that a schema is tried on. The steps of members with different names
// do not add up, because they are made on different values.
func (g *graph) estimate(root *jsonschema.Schema) (c cost, err error) {
	var above map[*jsonschema.Schema]float64
	for depth := range MaxDepth + 1 {
		ways := make(map[*jsonschema.Schema]float64, len(g.sorted))
		for _, s := range g.sorted {
			ways[s] = g.edges[s].ways(depth, ways, above)
		}
		c.ways = append(c.ways, ways[root])
		above = ways
		if ways[root] == 0 {
			break
		}
	}
	if c.ways[0] > maxWays {
		return c, fmt.Errorf("schema: combines more than %d subschemas for one value", maxWays)
	}
	return c, nil
}

func (e *edges) ways(depth int, here, above map[*jsonschema.Schema]float64) (n float64) {
	switch depth {
	case 0:
		n = e.own
	case 1:
		n = e.parts
	}
	if depth > 0 {
		for _, s := range e.any {
			n += above[s]
		}
		most := 0.0
		for _, s := range e.named {
			most = max(most, above[s])
		}
		n += most
	}
	for _, s := range e.here {
		n += here[s]
	}
	return min(n, 1e18)
}
