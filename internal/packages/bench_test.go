package packages

import (
	"encoding/json"
	"testing"
)

// BenchmarkRelay is one call of a tool of a child that answers at once, by one caller.
func BenchmarkRelay(b *testing.B) {
	h := openHome(b, Options{})
	h.install(server(b, "up", "good"))
	args := json.RawMessage(`{"text":"hello","n":1}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := h.Call(b.Context(), "up", "raw", args, nil, nil); err != nil {
			b.Fatal(err)
		}
	}
}
