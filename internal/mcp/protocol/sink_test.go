package protocol_test

import (
	"bytes"
	"sync"
	"testing"

	"gatehouse/internal/mcp/protocol"
	"gatehouse/internal/mcp/rawjson"
	"gatehouse/tool"
)

// keeper is a sink that records its calls and checks the engine's promises: one call at a time, and
// none after the end.
type keeper struct {
	t    testing.TB
	mute bool // it accepts no notification before the answer

	mu       sync.Mutex
	notes    []string
	status   int
	answer   string
	ended    bool
	dropped  bool
	detached int
}

func (k *keeper) enter(what string) (leave func()) {
	if !k.mu.TryLock() {
		k.t.Errorf("%s while another call is under way", what)
		k.mu.Lock()
	}
	if k.ended {
		k.t.Errorf("%s after the end", what)
	}
	return k.mu.Unlock
}

func (k *keeper) Note(msg []byte) bool {
	defer k.enter("Note")()
	if k.mute {
		return false
	}
	k.notes = append(k.notes, string(msg))
	return true
}

func (k *keeper) Answer(status int, msg []byte) {
	defer k.enter("Answer")()
	if err := rawjson.Check(msg, 0); err != nil || bytes.ContainsRune(msg, '\n') {
		k.t.Errorf("no message: %v: %s", err, msg)
	}
	k.ended, k.status, k.answer = true, status, string(msg)
}

func (k *keeper) Drop() {
	defer k.enter("Drop")()
	k.ended, k.dropped = true, true
}

func (k *keeper) Detach() {
	defer k.enter("Detach")()
	k.detached++
}

// over reports whether the request has ended.
func (k *keeper) over() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ended
}

// headers are the headers of an HTTP request.
type headers map[string][]string

func (h headers) get(name string) []string { return h[name] }

// post serves one modern message with headers.
func (h *testHost) post(t testing.TB, head headers, body string) *keeper {
	t.Helper()
	msgs, faults, _ := protocol.Parse([]byte(body))
	if len(faults) > 0 {
		t.Fatalf("%s: %v", body, faults[0])
	}
	k := &keeper{t: t}
	h.Engine.Modern(t.Context(), anybody, &msgs[0], head.get, k)
	return k
}

var anybody = protocol.Caller{Caller: tool.Caller{Principal: "anonymous"}}
