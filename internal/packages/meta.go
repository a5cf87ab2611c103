package packages

import (
	"encoding/json"
	"slices"
	"strings"

	"gatehouse/internal/mcp/rawjson"
)

// reservedPrefixes are the beginnings of names in _meta that are between a client and this
// host. Credentials are among them.
var reservedPrefixes = []string{"gatehouse/", "io.modelcontextprotocol/"}

// withoutReserved returns what of a _meta may be passed on; nil for nothing.
func withoutReserved(meta json.RawMessage) json.RawMessage {
	if rawjson.Kind(meta) != '{' {
		return nil
	}
	edits, kept := []rawjson.Edit{{Key: "progressToken"}}, 0
	for k := range rawjson.Object(meta) {
		key := string(k)
		between := slices.ContainsFunc(reservedPrefixes, func(o string) bool { return strings.HasPrefix(key, o) })
		switch {
		case between:
			edits = append(edits, rawjson.Edit{Key: key})
		case key != "progressToken":
			kept++
		}
	}
	if kept == 0 {
		return nil
	}
	return rawjson.Splice(meta, edits...)
}

func quote(s string) []byte { return rawjson.AppendString(nil, s) }

func appendMember(b []byte, key string, value []byte) []byte {
	if b[len(b)-1] != '{' {
		b = append(b, ',')
	}
	b = append(rawjson.AppendString(b, key), ':')
	return append(b, value...)
}
