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

// See returns the part of the tree at a pointer below /public that a caller may
// see. The revision is that of this part.
func (o Options) See(who tool.Caller, at state.Pointer) state.View {
	return o.Tree.See(at, o.visibility(who, at))
}

// visibility returns what a caller sees of the part at a pointer; nil means all of
// it.
func (o Options) visibility(who tool.Caller, at state.Pointer) state.Sight {
	touched := func(own RestrictedMount) bool { return own.At.Has(at) || at.Has(own.At) }
	if o.SeesAll(who) || !slices.ContainsFunc(o.Restricted, touched) {
		return nil
	}
	return func(root any) (any, bool) {
		v, found := at.In(root)
		if !found {
			return nil, false
		}
		for _, own := range o.Restricted {
			switch {
			case own.At.Has(at) && len(at) > len(own.At):
				// Below the mount, the member that contains it decides.
				key := at[len(own.At)]
				member, _ := at[:len(own.At)+1].In(root)
				part, sees := own.partFor(who)(key, member)
				if !sees {
					return nil, false
				}
				if v, found = at[len(own.At)+1:].In(part); !found {
					return nil, false
				}
			case at.Has(own.At):
				v = filterMembers(v, own.At[len(at):], own.partFor(who))
			}
		}
		return v, true
	}
}

// partFor returns a function that returns how much of a member a caller sees.
func (own RestrictedMount) partFor(who tool.Caller) func(key string, member any) (part any, sees bool) {
	if own.Part != nil {
		return own.Part(who)
	}
	sees := own.Sees(who)
	return func(key string, member any) (any, bool) { return member, sees(key, member) }
}

// filterMembers copies the path to an object and removes the members that the
// caller does not see. Values beside the path are shared.
func filterMembers(v any, way state.Pointer, part func(string, any) (any, bool)) any {
	c, ok := v.(map[string]any)
	if !ok {
		return v
	}
	if len(way) > 0 {
		if child, there := c[way[0]]; there {
			c = maps.Clone(c)
			c[way[0]] = filterMembers(child, way[1:], part)
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

const maxCompletions = 100 // pointers in a completion

// complete proposes the names below the pointer so far, as far as the caller sees
// them.
func (m *publicState) complete(_ context.Context, c *tool.Call) (tool.Result, error) {
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
			if name = encodeURI(state.Pointer{name}.String()[1:]); strings.HasPrefix(name, part) {
				found = append(found, parent+name)
			}
		}
	}
	all := len(found)
	found = found[:min(all, maxCompletions)]
	return tool.Result{Completion: &tool.Completion{Values: found, Total: all, More: all > len(found)}}, nil
}

// names returns the names of an object's members, or the indexes of an array.
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
