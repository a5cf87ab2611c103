package publicstate

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gatehouse/internal/state"
	"gatehouse/module"
	"gatehouse/tool"
)

// See gives the part of the tree at a pointer below /public as far as a caller
// may see it. Its revision is that of what the caller sees.
func (o Options) See(who tool.Caller, at state.Pointer) state.View {
	return o.Tree.See(at, o.sight(who, at))
}

// sight is what a caller sees of the part at a pointer; nil is all of it.
func (o Options) sight(who tool.Caller, at state.Pointer) state.Sight {
	touched := func(own Own) bool { return own.At.Has(at) || at.Has(own.At) }
	if o.Everything(who) || !slices.ContainsFunc(o.Own, touched) {
		return nil
	}
	return func(root any) (any, bool) {
		v, found := at.In(root)
		if !found {
			return nil, false
		}
		for _, own := range o.Own {
			switch {
			case own.At.Has(at) && len(at) > len(own.At):
				// Below the mount: the member it lies in decides.
				key := at[len(own.At)]
				member, _ := at[:len(own.At)+1].In(root)
				part, sees := own.part(who)(key, member)
				if !sees {
					return nil, false
				}
				if v, found = at[len(own.At)+1:].In(part); !found {
					return nil, false
				}
			case at.Has(own.At):
				v = without(v, own.At[len(at):], own.part(who))
			}
		}
		return v, true
	}
}

// part gives what decides how much of each member a caller sees.
func (own Own) part(who tool.Caller) func(key string, member any) (part any, sees bool) {
	if own.Part != nil {
		return own.Part(who)
	}
	sees := own.Sees(who)
	return func(key string, member any) (any, bool) { return member, sees(key, member) }
}

// without copies the way to an object and leaves out the members that are not
// seen. What is not on the way is shared.
func without(v any, way state.Pointer, part func(string, any) (any, bool)) any {
	c, ok := v.(map[string]any)
	if !ok {
		return v
	}
	if len(way) > 0 {
		if child, there := c[way[0]]; there {
			c = maps.Clone(c)
			c[way[0]] = without(child, way[1:], part)
		}
		return c
	}
	seen := make(map[string]any, len(c))
	for key, member := range c {
		if some, sees := part(key, member); sees {
			seen[key] = some
		}
	}
	return seen
}

const proposed = 100 // pointers a completion proposes

// complete proposes the names below the pointer that is being typed, as far as
// the caller sees them.
func (m *shown) complete(_ context.Context, c *tool.Call) (tool.Result, error) {
	var in module.Completing
	if err := json.Unmarshal(c.Args, &in); err != nil {
		return tool.Result{}, err
	}
	parent, part := "", in.Value
	if i := strings.LastIndexByte(part, '/'); i >= 0 {
		parent, part = part[:i+1], part[i+1:]
	}
	found := []string{}
	if at, err := pointerOf(strings.TrimSuffix(PublicURI+"/"+parent, "/")); err == nil {
		for _, name := range names(m.o.See(c.Caller, at).Value) {
			if name = encoded(state.Pointer{name}.String()[1:]); strings.HasPrefix(name, part) {
				found = append(found, parent+name)
			}
		}
	}
	all := len(found)
	found = found[:min(all, proposed)]
	return tool.Result{Completion: &tool.Completion{Values: found, Total: all, More: all > len(found)}}, nil
}

// names are those of an object's members, or the places in an array.
func names(v any) (names []string) {
	switch c := v.(type) {
	case map[string]any:
		return slices.Sorted(maps.Keys(c))
	case []any:
		for i := range c {
			names = append(names, strconv.Itoa(i))
		}
	}
	return names
}
