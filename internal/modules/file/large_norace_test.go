//go:build !race

package file

import (
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Whatever tool is given a file of 5 GB, or one of a single line of 200 MB, it
// answers soon or says why not, and never holds the file in memory.
func TestNoToolHoldsALargeFile(t *testing.T) {
	h := withTrash(t)
	big, err := os.Create(h.at("big"))
	if err != nil {
		t.Fatal(err)
	}
	defer big.Close()
	const size = 5 << 30
	big.WriteString(numbered(2000))
	if err := big.Truncate(size); err != nil {
		t.Skipf("no file of 5 GB can be made here: %v", err)
	}
	big.WriteAt([]byte("\n"+numbered(1000)), size)
	line, err := os.Create(h.at("line"))
	if err != nil {
		t.Fatal(err)
	}
	defer line.Close()
	chunk := []byte(strings.Repeat("x", 1<<20))
	for range 200 {
		line.Write(chunk)
	}
	line.WriteString("needle")

	const most = 24 << 20 // bytes of memory for one call, in all
	for _, c := range []struct {
		want string // a refusal, or a member that is there
		args []any
	}{
		{"content", []any{"file_read", "path", "big"}},
		{"content", []any{"file_read", "path", "big", "tail", 2}},
		{"content", []any{"file_read", "path", "big", "offset", 1999, "limit", 2}},
		{"content", []any{"file_read", "path", "big", "around", "line 1000"}},
		{"content", []any{"file_read", "paths", []any{"big", "line"}}},
		{"content", []any{"file_read", "path", "line"}},
		{"content", []any{"file_read", "path", "line", "tail", 1}},
		{"size", []any{"file_stat", "path", "big"}},
		{"exists", []any{"file_exists", "path", "line"}},
		{"!too_large", []any{"file_edit", "path", "big", "old_string", "line 7\n", "new_string", "x"}},
		{"!too_large", []any{"file_edit", "path", "line", "old_string", "needle", "new_string", "x"}},
		{"!too_large", []any{"file_copy", "oldPath", "big", "newPath", "copy"}},
		{"!too_large", []any{"file_write", "path", "big", "content", "more", "mode", "append"}},
		{"content", []any{"file_search", "path", "line", "pattern", "needle"}},
		{"content", []any{"file_search", "path", ".", "pattern", "x{3,}needle", "mode", "count"}},
		{"content", []any{"file_search", "pattern", "li*", "mode", "names"}},
	} {
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := time.Now()
		out := h.call(c.args[0].(string), c.args[1:]...)
		runtime.ReadMemStats(&after)
		t.Logf(
			"%v: %d KiB, %v", c.args, (after.TotalAlloc-before.TotalAlloc)>>10,
			time.Since(began).Round(time.Millisecond),
		)
		if used := after.TotalAlloc - before.TotalAlloc; used > most {
			t.Errorf("%v: took %d bytes of memory", c.args, used)
		}
		if strings.HasPrefix(c.want, "!") && out["error"] != c.want ||
			!strings.HasPrefix(c.want, "!") && out[c.want] == nil {
			t.Errorf("%v: got %.300v, want %s", c.args, out, c.want)
		}
	}
	// Writing over it, taking that back and removing it need not hold it either.
	for _, args := range [][]any{
		{"file_write", "path", "line", "content", "short\n"}, {"file_rename", "oldPath", "big", "newPath", "large"},
		{"file_delete", "path", "large"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		out := h.call(args[0].(string), args[1:]...)
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > most || out["error"] != nil {
			t.Errorf("%v: %d bytes, %.300v", args, used, out)
		}
	}
}
