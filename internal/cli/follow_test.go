package cli

import (
	"encoding/json"
	"testing"

	"gatehouse/internal/mcp/client"
)

// TestWhatIsSaidWhenAJobBegins checks that the reason why a call waits is printed, if the server gives one.
func TestWhatIsSaidWhenAJobBegins(t *testing.T) {
	for result, want := range map[string]string{
		`{"content":[{"type":"text","text":"waits for an operator's approval, ap_1, as job j1\nCall job_wait"}],"_meta":{"gatehouse/job":"j1"}}`: "waits for an operator's approval, ap_1, as job j1",
		`{"content":[{"type":"text","text":"{}"}],"structuredContent":{"job":"j1"},"_meta":{"gatehouse/job":"j1"}}`:                              "the call continues as job j1",
		`{"_meta":{"gatehouse/job":"j1"}}`: "the call continues as job j1",
	} {
		var r client.Result
		if err := json.Unmarshal([]byte(result), &r); err != nil {
			t.Fatal(err)
		}
		if got := begun(&r); got != want {
			t.Errorf("%s: got %q", result, got)
		}
	}
}
