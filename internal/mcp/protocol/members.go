package protocol

import "gatehouse/internal/mcp/rawjson"

// members are the frequently used members of a message's params, found in one pass. They are raw; an
// absent one is nil.
type members struct {
	name, arguments []byte

	rare *rareMembers // nil if there are none, as in most calls of the older era
}

// rareMembers are the members of params that most calls do not have.
type rareMembers struct {
	task, requestState, inputResponses []byte

	// Of _meta.
	version, caps, client, level []byte // the modern envelope
	context, token               []byte // extensions of this server
	results                      []byte // extensions of this server: see metaResults
	progressToken, traceparent   []byte
}

var noneRare rareMembers // never written

// of returns the rare members; all of them are absent if m has none.
func (m *members) of() *rareMembers {
	if m.rare == nil {
		return &noneRare
	}
	return m.rare
}

// more allocates the rare members.
func (m *members) more() *rareMembers {
	if m.rare == nil {
		m.rare = &rareMembers{}
	}
	return m.rare
}

func (m *members) ofParams(params []byte) (meta []byte) {
	w := rawjson.Walk(params)
	for {
		key, v, ok := w.Next()
		if !ok {
			return meta
		}
		switch string(key) {
		case "_meta":
			meta = v
		case "name":
			m.name = v
		case "arguments":
			m.arguments = v
		case "task":
			m.more().task = v
		case "requestState":
			m.more().requestState = v
		case "inputResponses":
			m.more().inputResponses = v
		}
	}
}

func (m *rareMembers) readMeta(meta []byte) {
	w := rawjson.Walk(meta)
	for {
		key, v, ok := w.Next()
		if !ok {
			return
		}
		switch string(key) {
		case metaVersion:
			m.version = v
		case metaCaps:
			m.caps = v
		case metaClient:
			m.client = v
		case metaLevel:
			m.level = v
		case metaContext:
			m.context = v
		case metaToken:
			m.token = v
		case metaResults:
			m.results = v
		case "progressToken":
			m.progressToken = v
		case "traceparent":
			m.traceparent = v
		}
	}
}
