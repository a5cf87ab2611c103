//go:build !race

package newline

import (
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
)

// A line beyond the limit needs no more memory than the window, and no frame shares memory with
// another.
func TestMemory(t *testing.T) {
	endless := io.LimitReader(zeros{}, 256<<20)
	r := NewReader(io.MultiReader(endless, strings.NewReader("\nab\ncd\n")), 1<<20)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := r.Next()
	runtime.ReadMemStats(&after)
	if !errors.Is(err, ErrTooLong) {
		t.Fatalf("got %v, want ErrTooLong", err)
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 16<<20 {
		t.Errorf("a line of 256 MiB with a limit of 1 MiB allocated %d bytes", n)
	}
	first, _ := r.Next()
	second, _ := r.Next()
	copy(first, "xx")
	if string(second) != "cd" {
		t.Error("two frames share memory")
	}
}
