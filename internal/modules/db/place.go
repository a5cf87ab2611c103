package db

import (
	"maps"
	"slices"
	"strconv"

	"gatehouse/internal/state"
	"gatehouse/tool"
)

// placed gives what a tree of values is with a value at a pointer, or without
// what is there. The old one stays as it is; what is not on the way is shared.
func placed(old any, at state.Pointer, value any, remove bool) (any, error) {
	if len(at) == 0 {
		if remove {
			return map[string]any{}, nil
		}
		return value, nil
	}
	switch c := old.(type) {
	case nil:
		return inObject(map[string]any{}, at, value, remove)
	case map[string]any:
		return inObject(maps.Clone(c), at, value, remove)
	case []any:
		return inArray(slices.Clone(c), at, value, remove)
	}
	return nil, tool.Refuse("invalid_arguments", "there is a value at the pointer before %q, which nothing can be put into", at[0])
}

func absent(name string) error {
	return tool.Refuse("not_found", "there is nothing at %q", name)
}

func inObject(c map[string]any, at state.Pointer, value any, remove bool) (any, error) {
	member, there := c[at[0]]
	if remove && !there {
		return nil, absent(at[0])
	}
	if len(at) == 1 && remove {
		delete(c, at[0])
		return c, nil
	}
	now, err := placed(member, at[1:], value, remove)
	c[at[0]] = now
	return c, err
}

func inArray(c []any, at state.Pointer, value any, remove bool) (any, error) {
	if at[0] == "-" && !remove {
		now, err := placed(nil, at[1:], value, false)
		return append(c, now), err
	}
	i, err := strconv.Atoi(at[0])
	if err != nil || i < 0 || i >= len(c) || strconv.Itoa(i) != at[0] {
		return nil, absent(at[0])
	}
	if len(at) == 1 && remove {
		return slices.Delete(c, i, i+1), nil
	}
	c[i], err = placed(c[i], at[1:], value, remove)
	return c, err
}
