package db

import (
	"maps"
	"slices"
	"strconv"

	"gatehouse/internal/state"
	"gatehouse/tool"
)

// setAt returns a tree of values with the value at a pointer replaced or removed.
// It does not change the old tree; values beside the path are shared.
func setAt(old any, at state.Pointer, value any, remove bool) (any, error) {
	if len(at) == 0 {
		if remove {
			return map[string]any{}, nil
		}
		return value, nil
	}
	switch c := old.(type) {
	case nil:
		return setInObject(map[string]any{}, at, value, remove)
	case map[string]any:
		return setInObject(maps.Clone(c), at, value, remove)
	case []any:
		return setInArray(slices.Clone(c), at, value, remove)
	}
	return nil, tool.Refuse(
		tool.CodeInvalidArguments, "the value before %q in the pointer is neither an object nor an array", at[0],
	)
}

func errNotFound(name string) error {
	return tool.Refuse(tool.CodeNotFound, "there is no value at %q", name)
}

func setInObject(c map[string]any, at state.Pointer, value any, remove bool) (any, error) {
	member, there := c[at[0]]
	if remove && !there {
		return nil, errNotFound(at[0])
	}
	if len(at) == 1 && remove {
		delete(c, at[0])
		return c, nil
	}
	now, err := setAt(member, at[1:], value, remove)
	c[at[0]] = now
	return c, err
}

func setInArray(c []any, at state.Pointer, value any, remove bool) (any, error) {
	if at[0] == "-" && !remove {
		now, err := setAt(nil, at[1:], value, false)
		return append(c, now), err
	}
	i, err := strconv.Atoi(at[0])
	if err != nil || i < 0 || i >= len(c) || strconv.Itoa(i) != at[0] {
		return nil, errNotFound(at[0])
	}
	if len(at) == 1 && remove {
		return slices.Delete(c, i, i+1), nil
	}
	c[i], err = setAt(c[i], at[1:], value, remove)
	return c, err
}
