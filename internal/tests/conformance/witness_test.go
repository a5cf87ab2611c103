package conformance

import (
	"strings"
	"testing"
)

// The judge objects to these messages, so a run without objections has a meaning.
func TestJudgeObjects(t *testing.T) {
	h := needFixture(t)
	j, err := NewJudge(t.Context(), h.tools, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, revision, answers, message string
		fine                             bool
	}{
		{"a result", "2025-11-25", "tools/call", `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`, true},
		{"no content", "2025-11-25", "tools/call", `{"jsonrpc":"2.0","id":1,"result":{}}`, false},
		{"a fraction as default", "2025-11-25", "",
			`{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"message":"?","requestedSchema":{"type":"object","properties":{"n":{"type":"number","default":95.5}}}}}`, true},
		{"a form without properties", "2025-11-25", "",
			`{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{"message":"?","requestedSchema":{"type":"object"}}}`, false},
		{"no resultType", modernRevision, "tools/call", `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}`, false},
		{"a modern result", modernRevision, "tools/call",
			`{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","content":[]}}`, true},
		{"no caching hints", modernRevision, "tools/list",
			`{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","tools":[]}}`, false},
		{"an id of null", modernRevision, "",
			`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no"}}`, false},
		{"no supported versions", modernRevision, "",
			`{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":"no"}}`, false},
		{"a batch", "2025-03-26", "", `[{"jsonrpc":"2.0","id":1,"result":{}}]`, true},
		{"a batch later on", "2025-06-18", "", `[{"jsonrpc":"2.0","id":1,"result":{}}]`, false},
		{"a task", modernRevision, "tools/call",
			`{"jsonrpc":"2.0","id":1,"result":{"resultType":"task","taskId":"0123456789abcdef","status":"working","createdAt":"2026-01-01T00:00:00Z","lastUpdatedAt":"2026-01-01T00:00:00Z","ttlMs":60000}}`, true},
		{"a task with the old names", modernRevision, "tools/call",
			`{"jsonrpc":"2.0","id":1,"result":{"resultType":"task","taskId":"0123456789abcdef","status":"working","createdAt":"2026-01-01T00:00:00Z","lastUpdatedAt":"2026-01-01T00:00:00Z","ttlMs":null,"pollInterval":5}}`, false},
		{"a completed task without result", modernRevision, "tasks/get",
			`{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","taskId":"0123456789abcdef","status":"completed","createdAt":"2026-01-01T00:00:00Z","lastUpdatedAt":"2026-01-01T00:00:00Z","ttlMs":null}}`, false},
		{"not JSON", "2025-11-25", "", `hello`, false},
	} {
		before := len(j.Objections())
		j.See(Sighting{Revision: c.revision, Answers: c.answers, Message: []byte(c.message)})
		if objected := len(j.Objections()) > before; objected == c.fine {
			t.Errorf("%s: objected = %t, want %t", c.name, objected, !c.fine)
		}
	}
	if kinds := strings.Join(j.Kinds(), " "); !strings.Contains(kinds, "CallToolResult") {
		t.Errorf("kinds are %s", kinds)
	}
}
