package main

import (
	"os"
	"path/filepath"
	"testing"

	"gatehouse/internal/tests/repotest/catalog"
)

func TestPagesOfGoneModulesAreRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "modules")
	if err := writePages(dir, []catalog.Module{{Name: "book"}, {Name: "shelf"}}); err != nil {
		t.Fatal(err)
	}
	if err := writePages(dir, []catalog.Module{{Name: "book"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "book.md")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "shelf.md")); err == nil {
		t.Error("the page of a module that is gone is still there")
	}
}
