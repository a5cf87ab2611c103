package protocol

import (
	"io"
	"slices"
	"strconv"

	"gatehouse/internal/mcp/rawjson"
)

// digestJSON writes a JSON value to a hash, so that two texts of the same value have the same digest,
// independent of the order of members and of white space. Numbers are compared as text.
func digestJSON(w io.Writer, v []byte) {
	switch rawjson.Kind(v) {
	case '{':
		type member struct {
			key string
			val []byte
		}
		var ms []member
		for k, val := range rawjson.Object(v) {
			ms = append(ms, member{string(k), val})
		}
		slices.SortFunc(ms, func(a, b member) int {
			if a.key < b.key {
				return -1
			}
			return 1
		})
		io.WriteString(w, "{")
		for _, m := range ms {
			digestText(w, m.key)
			digestJSON(w, m.val)
		}
		io.WriteString(w, "}")
	case '[':
		io.WriteString(w, "[")
		for el := range rawjson.Elements(v) {
			digestJSON(w, el)
			io.WriteString(w, ",")
		}
		io.WriteString(w, "]")
	case '"':
		s, _ := rawjson.String(v)
		digestText(w, s)
	default:
		w.Write(rawjson.Compact(nil, v))
	}
}

func digestText(w io.Writer, s string) {
	io.WriteString(w, `"`+strconv.Itoa(len(s))+":")
	io.WriteString(w, s)
}
