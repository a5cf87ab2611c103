package calls

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"gatehouse/internal/rawjson"
	"gatehouse/tool"
)

// metaCut is the member of _meta that says where all of an output can be read
// of which only a part is there.
const metaCut = "gatehouse/cut"

// shortenOutput cuts structured output, the bulk member apart, to its budget:
// whole elements off the end of what is longest, so that it is still JSON and
// still fits its schema. A note says what is missing and where all of it is.
// What cannot be cut that way is refused; the call has run then, and the
// refusal says so.
func (c *Calls) shortenOutput(r *Request, res *Result, budget int) error {
	whole := res.Structured
	if len(whole) <= budget {
		return nil
	}
	rest := "all of it could not be kept"
	uri := ""
	if h, err := c.opts.Spool.Put(r.Facts.Owner, "application/json", whole); err == nil {
		uri = SpoolURI + h
		rest = "read " + uri + " for all of it"
	} else {
		c.opts.Log.Warn("spool refuses a long result", "call", r.ID, "err", err)
	}
	short, cuts, ok := shorten(whole, budget)
	if ok && r.Entry.Out != nil {
		ok = r.Entry.Out.Check(short) == nil
	}
	if !ok {
		return &tool.Refusal{
			Code:    "too_large",
			Message: fmt.Sprintf("the call has run; its result has %d bytes, %d fit in an answer, and it cannot be cut", len(whole), budget),
			Next:    strings.ToUpper(rest[:1]) + rest[1:] + ", or ask for less.",
		}
	}
	res.Structured, res.Full = short, short
	if res.HasBulk {
		res.Full = rawjson.Splice(short, rawjson.Edit{Key: r.Entry.Bulk, Value: rawjson.AppendString(nil, res.Bulk)})
	}
	res.Content = append(res.Content, tool.Text(fmt.Sprintf("[cut to %d of %d bytes: %s; %s]", len(short), len(whole), strings.Join(cuts, ", "), rest)))
	if uri != "" {
		res.Meta = withCut(res.Meta, uri)
	}
	return nil
}

// withCut adds to a handler's _meta without changing its map.
func withCut(meta map[string]json.RawMessage, uri string) map[string]json.RawMessage {
	all := make(map[string]json.RawMessage, len(meta)+1)
	maps.Copy(all, meta)
	all[metaCut] = rawjson.AppendString(nil, uri)
	return all
}

// Limits of shorten.
const (
	mostCuts   = 16 // values that are cut
	leastNode  = 64 // bytes of a value that is worth cutting
	manyInside = 32 // members that make an object a table, whose members are alike
	deepest    = 16 // objects inside objects that are looked into
)

// shorten cuts values of a JSON text until it fits, the longest first, and says
// what was cut. It reports false when that is not enough.
func shorten(v []byte, budget int) (short []byte, cuts []string, ok bool) {
	for range mostCuts {
		over := len(v) - budget
		if over <= 0 {
			return v, cuts, true
		}
		var s search
		s.look(v, nil, 0)
		n := s.leaf
		if len(n.v) < max(leastNode, over/8) && len(s.table.v) > len(n.v) {
			n = s.table
		}
		if len(n.v) < leastNode {
			return nil, nil, false
		}
		part, said := cutValue(n.v, len(n.v)-over)
		name := strings.Join(n.path, ".")
		if name == "" {
			name = "it"
		}
		cuts = append(cuts, name+" "+said)
		v = replace(v, n.path, part)
	}
	return v, cuts, len(v) <= budget
}

// search finds what is longest in a JSON text.
type search struct {
	leaf, table node // an array or a string; an object with many members
}

// node is a value, and the members that lead to it.
type node struct {
	v    []byte
	path []string
}

func (s *search) look(v []byte, path []string, depth int) {
	switch rawjson.Kind(v) {
	case '[', '"':
		if len(v) > len(s.leaf.v) {
			s.leaf = node{v, append([]string(nil), path...)}
		}
	case '{':
		if depth >= deepest {
			return
		}
		count := 0
		for key, inner := range rawjson.Object(v) {
			count++
			if len(inner) >= leastNode {
				s.look(inner, append(path, string(key)), depth+1)
			}
		}
		if count >= manyInside && len(v) > len(s.table.v) {
			s.table = node{v, append([]string(nil), path...)}
		}
	}
}

// replace puts another value where a path leads.
func replace(v []byte, path []string, part []byte) []byte {
	if len(path) == 0 {
		return part
	}
	inner, _ := rawjson.Get(v, path[0])
	return rawjson.Splice(v, rawjson.Edit{Key: path[0], Value: replace(inner, path[1:], part)})
}

// cutValue keeps the beginning of an array, an object or a string, at most so
// many bytes where that is more than nothing, and says how much it is.
func cutValue(v []byte, most int) (part []byte, said string) {
	kept, all := 0, 0
	add := func(pieces ...[]byte) {
		size := 2 // a comma, and the bracket at the end
		for _, p := range pieces {
			size += len(p)
		}
		if all++; kept < all-1 || len(part)+size > most {
			return
		}
		if kept++; kept > 1 {
			part = append(part, ',')
		}
		for _, p := range pieces {
			part = append(part, p...)
		}
	}
	switch rawjson.Kind(v) {
	case '[':
		part = []byte{'['}
		for e := range rawjson.Elements(v) {
			add(e)
		}
		part = append(part, ']')
	case '{':
		part = []byte{'{'}
		for key, e := range rawjson.Object(v) {
			add(rawjson.AppendString(nil, string(key)), []byte{':'}, e)
		}
		part = append(part, '}')
	default:
		text, _ := rawjson.String(v)
		n := lineEnd(text, max(0, most-len(v)+len(text))) // as if escapes were all in what goes
		return rawjson.AppendString(nil, text[:n]), fmt.Sprintf("holds %d of %d bytes", n, len(text))
	}
	return part, fmt.Sprintf("holds %d of %d", kept, all)
}
