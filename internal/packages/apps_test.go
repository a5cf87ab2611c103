package packages

import (
	"encoding/json"
	"testing"
)

// The address of a tool's user interface is that under which a client can read it here; of a server
// that is run alone it stays.
func TestAddressesOfApps(t *testing.T) {
	const tool = `{"name":"a","inputSchema":{"type":"object"},"_meta":{"x":1,"ui":{"resourceUri":"ui://app/1","y":2},"ui/resourceUri":"ui://app/1"}}`
	const here = `{"name":"a","inputSchema":{"type":"object"},"_meta":{"x":1,"ui":{"resourceUri":"package://up/ui://app/1","y":2},` +
		`"ui/resourceUri":"package://up/ui://app/1","gatehouse/origin":{"package":"up","name":"a"}}}`
	const other = `{"name":"b","inputSchema":{"type":"object"},"_meta":{"gatehouse/origin":{"package":"x","name":"a"}}}`
	const otherHere = `{"name":"b","inputSchema":{"type":"object"},"_meta":{"gatehouse/origin":{"package":"up","name":"b"}}}`
	for own, want := range map[bool][]string{false: {here, otherHere}, true: {tool, other}} {
		got, left := makeTools(naming{id: "up", own: own}, []json.RawMessage{[]byte(tool), []byte(other)})
		for i, w := range want {
			if len(got) != len(want) || string(got[i].Raw) != w {
				t.Errorf("alone %v: got %s (%v), want %s", own, got[i].Raw, left, w)
			}
		}
	}
	got, _ := makeTools(naming{id: "up"}, []json.RawMessage{[]byte(other)})
	if want := `{"name":"b","inputSchema":{"type":"object"},"_meta":{}}`; len(got) != 1 || string(got[0].Raw) != want {
		t.Errorf("a server names another package: %s", got[0].Raw)
	}
}
