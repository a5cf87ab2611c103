package app

import (
	"encoding/json"
	"fmt"
	"testing"

	"gatehouse/internal/config"
)

// A client sends the listing to its model on every turn, so its size is a cost. The test measures it in the
// revision that most clients use.
func TestListingsStaySmall(t *testing.T) {
	cfg := settings(t)
	cfg.Contexts = []config.Context{
		{Name: "default"},
		{Name: "files", Modules: []string{"file", "dir", "lang"}, Tools: []string{"!job_*"}},
	}
	_, client := liveOn(t, cfg, Options{})
	for name, most := range map[string]int{"default": 24_000, "files": 12_000} {
		c := client("ann")
		c.pipe.Receive(
			fmt.Appendf(
				nil,
				`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"},"_meta":{"gatehouse/context":%q}}}`,
				name,
			),
		)
		c.message()
		c.pipe.Receive([]byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`))
		c.pipe.Receive([]byte(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`))
		var answer struct{ Result json.RawMessage }
		var list struct {
			Tools      []struct{ Name string }
			NextCursor string
		}
		if err := json.Unmarshal(c.message(), &answer); err != nil || json.Unmarshal(answer.Result, &list) != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d tools, %d bytes", name, len(list.Tools), len(answer.Result))
		if len(answer.Result) > most || len(list.Tools) < 15 || list.NextCursor != "" {
			t.Errorf(
				"%s lists %d tools in %d bytes, want at least 15 in at most %d",
				name,
				len(list.Tools),
				len(answer.Result),
				most,
			)
		}
	}
}
