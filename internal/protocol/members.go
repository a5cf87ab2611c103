package protocol

import "gatehouse/internal/rawjson"

// members are those of a message's params that are asked for again and again,
// found in one walk. They are raw; one that is absent is nil.
type members struct {
	name, arguments, task        []byte
	requestState, inputResponses []byte

	meta *metaMembers // nil where there is no _meta, as in most calls of the older era
}

// metaMembers are those of _meta.
type metaMembers struct {
	version, caps, client, level []byte // the modern envelope
	context, token               []byte // ours
	progressToken, traceparent   []byte
}

var noMeta metaMembers // never written

// of is what _meta says; nothing where there is none.
func (m *members) of() *metaMembers {
	if m.meta == nil {
		return &noMeta
	}
	return m.meta
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
			m.task = v
		case "requestState":
			m.requestState = v
		case "inputResponses":
			m.inputResponses = v
		}
	}
}

func (m *metaMembers) read(meta []byte) {
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
		case "progressToken":
			m.progressToken = v
		case "traceparent":
			m.traceparent = v
		}
	}
}
