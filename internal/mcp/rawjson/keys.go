package rawjson

import "bytes"

// span is the position of a member name between its quotes.
type span struct {
	from, to int
	escaped  bool
}

// keyStack holds the names of the members read so far in each open object, the innermost last. It
// stores positions instead of slices, and the first few of them inside itself, so that the common case
// needs no heap memory.
type keyStack struct {
	few  [32]span
	more []span
	n    int
}

func (k *keyStack) push(s span) {
	if k.n < len(k.few) {
		k.few[k.n] = s
	} else {
		k.more = append(k.more[:k.n-len(k.few)], s)
	}
	k.n++
}

func (k *keyStack) at(i int) span {
	if i < len(k.few) {
		return k.few[i]
	}
	return k.more[i-len(k.few)]
}

// spill copies the names of the innermost object into a map.
func (c *checker) spill(base int) map[string]struct{} {
	many := make(map[string]struct{}, 4*smallObject)
	for i := base; i < c.keys.n; i++ {
		many[c.decodeString(c.keys.at(i))] = struct{}{}
	}
	return many
}

// seen adds a name of the innermost object and reports whether it was present.
func (c *checker) seen(key span, base int, many map[string]struct{}) bool {
	if many != nil {
		before := len(many)
		many[c.decodeString(key)] = struct{}{}
		return len(many) == before
	}
	raw := c.b[key.from:key.to]
	for i := base; i < c.keys.n; i++ {
		k := c.keys.at(i)
		old := c.b[k.from:k.to]
		if bytes.Equal(old, raw) || (k.escaped || key.escaped) && decodesTo(old, c.decodeString(key)) {
			return true
		}
	}
	c.keys.push(key)
	return false
}

func (c *checker) decodeString(s span) string {
	raw := c.b[s.from:s.to]
	if s.escaped {
		raw, _ = appendDecoded(nil, raw)
	}
	return string(raw)
}
