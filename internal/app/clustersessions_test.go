package app

import (
	"encoding/json"
	"strings"
	"testing"

	"gatehouse/internal/mcp/mcpversion"
	"gatehouse/internal/mcp/session"
	"gatehouse/tool"
)

// What another node needs of a session is small, since it is stored for each of them.
func TestTheRecordOfASessionIsSmall(t *testing.T) {
	id := strings.Repeat("x", 10) + "-" + strings.Repeat("y", 36)
	s := session.New(session.Facts{Caller: tool.Caller{
		Principal: "ada.lovelace", ID: strings.Repeat("u", 26), Context: "workshop", Owner: "ada.lovelace/workshop",
		Session: id, Wire: "192.0.2.1:54321", Client: "claude-code/2.1.0", Roles: []string{"admin"},
		Credential: "token " + strings.Repeat("t", 16), Can: ^tool.Abilities(0), Trace: strings.Repeat("0", 55),
	}, Revision: mcpversion.V20251125})
	s.ID = id
	for _, uri := range []string{"gatehouse:///public/processes", "file:///home/ada/work/notes.txt"} {
		s.Remember(uri)
	}
	raw, err := json.Marshal(recordOf(s, strings.Repeat("n", 10)))
	if err != nil {
		t.Fatal(err)
	}
	if len(raw) > 500 {
		t.Errorf("%d bytes, more than 500: %s", len(raw), raw)
	}
	var back sessionRecord
	if err := json.Unmarshal(raw, &back); err != nil || back.Facts.Owner != "ada.lovelace/workshop" || len(back.URIs) != 2 ||
		back.Facts.Session != "" || back.Facts.Revision != mcpversion.V20251125 {
		t.Errorf("it is read as %+v, %v", back, err)
	}
	t.Logf("%d bytes: %s", len(raw), raw)
}
