package state

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// On a full disk a change is refused, nothing of it is seen, and what was
// accepted before stays; when there is room again work goes on.
func TestFullDisk(t *testing.T) {
	l, err := OpenFile(filepath.Join(t.TempDir(), "state.db"), FileOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	db, err := l.file.DB()
	if err != nil {
		t.Fatal(err)
	}
	pages := func(n int) {
		if _, err := db.Exec(fmt.Sprintf("PRAGMA max_page_count = %d", n)); err != nil {
			t.Fatal(err)
		}
	}
	tree := New(Options{Log: l})
	m, err := Attach[map[string]string](t.Context(), tree, "/private/m", Durable)
	if err != nil {
		t.Fatal(err)
	}
	pages(30)
	kept := 0
	for {
		if err = Put(t.Context(), m, fmt.Sprint(kept), strings.Repeat("x", 10_000)); err != nil {
			break
		}
		kept++
	}
	if kept == 0 || kept > 30 || !strings.Contains(err.Error(), "full") {
		t.Fatalf("after %d changes: %v", kept, err)
	}
	if v, r, err := m.Get(); err != nil || len(v) != kept || r != uint64(kept) {
		t.Fatalf("%d members at %d, %v", len(v), r, err)
	}
	pages(10_000)
	if err := Put(t.Context(), m, "more", "y"); err != nil {
		t.Fatal(err)
	}
	again, err := Attach[map[string]string](t.Context(), New(Options{Log: l}), "/private/m", Durable)
	if err != nil {
		t.Fatal(err)
	}
	if v, r, _ := again.Get(); len(v) != kept+1 || r != uint64(kept)+1 {
		t.Fatalf("%d members at %d", len(v), r)
	}
}
