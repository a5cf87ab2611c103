package packages

import (
	"encoding/json"
	"testing"
)

// The address of a tool's user interface is that under which a client can read it here; of a server that is run alone it
// stays.
func TestAddressesOfApps(t *testing.T) {
	const tool = `{"name":"a","inputSchema":{"type":"object"},"_meta":{"x":1,"ui":{"resourceUri":"ui://app/1","y":2},"ui/resourceUri":"ui://app/1"}}`
	const here = `{"name":"a","inputSchema":{"type":"object"},"_meta":{"x":1,"ui":{"resourceUri":"package://up/ui://app/1","y":2},` +
		`"ui/resourceUri":"package://up/ui://app/1"}}`
	const other = `{"name":"b","inputSchema":{"type":"object"},"_meta":{"ui":{"resourceUri":"https://a"}}}`
	for own, want := range map[bool][]string{false: {here, other}, true: {tool, other}} {
		got, left := makeTools(naming{id: "up", own: own}, []json.RawMessage{[]byte(tool), []byte(other)})
		for i, w := range want {
			if len(got) != len(want) || string(got[i].Raw) != w {
				t.Errorf("alone %v: got %s (%v), want %s", own, got[i].Raw, left, w)
			}
		}
	}
}
