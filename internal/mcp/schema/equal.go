package schema

import (
	"strconv"

	"gatehouse/internal/mcp/rawjson"
)

// equalText reports whether two JSON values are equal: numbers by value, and
// objects regardless of the order of their members.
func equalText(a, b []byte) bool {
	kind := rawjson.Kind(a)
	if kind != rawjson.Kind(b) {
		return false
	}
	switch kind {
	case '"':
		if string(a) == string(b) {
			return true
		}
		s, ok := rawjson.Bytes(b)
		return ok && rawjson.Equal(a, string(s))
	case '0':
		return equalNumbers(a, b)
	case '[':
		return equalArrays(a, b)
	case '{':
		return equalObjects(a, b)
	}
	return true // For null, true and false the kinds are equal if the values are.
}

func equalNumbers(a, b []byte) bool {
	if string(a) == string(b) {
		return true
	}
	i, iok := rawjson.Int(a)
	j, jok := rawjson.Int(b)
	if iok || jok {
		return iok && jok && i == j
	}
	f, ferr := strconv.ParseFloat(string(a), 64)
	g, gerr := strconv.ParseFloat(string(b), 64)
	return ferr == nil && gerr == nil && f == g
}

func equalArrays(a, b []byte) bool {
	x, y := rawjson.At(a), rawjson.At(b)
	x.Kind()
	x.Enter()
	y.Kind()
	y.Enter()
	for {
		more := x.More()
		if y.More() != more {
			return false
		}
		if !more {
			return true
		}
		if !equalText(x.Value(), y.Value()) {
			return false
		}
	}
}

func equalObjects(a, b []byte) bool {
	others := map[string][]byte{}
	for key, v := range rawjson.Object(b) {
		others[string(key)] = v
	}
	n := 0
	for key, v := range rawjson.Object(a) {
		other, ok := others[string(key)]
		if n++; !ok || !equalText(v, other) {
			return false
		}
	}
	return n == len(others)
}
