package statelogtest

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
)

// Random returns a value that differs from v in some places, or completely. It has members with names that need
// escaping, nulls, empty containers, and arrays that grow, shrink and shift. It does not change v.
func Random(r *rand.Rand, v any) any { return change(r, v, 0) }

const deepest = 4

func change(r *rand.Rand, v any, depth int) any {
	if r.IntN(12) == 0 || v == nil {
		return fresh(r, depth)
	}
	switch c := v.(type) {
	case map[string]any:
		return changeObject(r, c, depth)
	case []any:
		return changeArray(r, c, depth)
	}
	return fresh(r, depth)
}

func changeObject(r *rand.Rand, c map[string]any, depth int) any {
	c = maps.Clone(c)
	for range 1 + r.IntN(3) {
		k := name(r)
		switch old, there := c[k]; {
		case there && r.IntN(3) == 0:
			delete(c, k)
		case there:
			c[k] = change(r, old, depth+1)
		default:
			c[k] = fresh(r, depth+1)
		}
	}
	return c
}

func changeArray(r *rand.Rand, c []any, depth int) any {
	c = slices.Clone(c)
	for range 1 + r.IntN(3) {
		n := len(c)
		switch k := r.IntN(6); {
		case k == 0 && n > 0:
			c = c[1:]
		case k == 1 && n > 0:
			i := r.IntN(n)
			c = slices.Delete(c, i, i+1)
		case k == 2 && n > 0:
			i := r.IntN(n)
			c[i] = change(r, c[i], depth+1)
		case k == 3:
			c = slices.Insert(c, r.IntN(n+1), fresh(r, depth+1))
		default:
			c = append(c, fresh(r, depth+1))
		}
	}
	return c[max(0, len(c)-20):]
}

func name(r *rand.Rand) string {
	odd := []string{"", "/", "~", "~1", "a/b", "0", "-", "é", "m~0n"}
	if n := r.IntN(24); n < len(odd) {
		return odd[n]
	}
	return fmt.Sprintf("k%d", r.IntN(8))
}

func fresh(r *rand.Rand, depth int) any {
	kinds := 8
	if depth >= deepest {
		kinds = 6
	}
	switch r.IntN(kinds) {
	case 0:
		return nil
	case 1:
		return r.IntN(2) == 0
	case 2:
		return json.Number(fmt.Sprint(r.IntN(5)))
	case 3:
		return json.Number("12345678901234567890.5")
	case 4, 5:
		return fmt.Sprint("text <", r.IntN(4), ">")
	case 6:
		c := map[string]any{}
		for range r.IntN(4) {
			c[name(r)] = fresh(r, depth+1)
		}
		return c
	}
	c := []any{}
	for range r.IntN(4) {
		c = append(c, fresh(r, depth+1))
	}
	return c
}
