// Command gen writes docs/modules: one page per module, from the module's offer.
//
// It is run by go generate in its own folder, or anywhere below the top of the tree, and removes the pages of
// modules that no longer exist.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"gatehouse/internal/tests/repotest/catalog"
	"gatehouse/internal/tests/repotest/pages"
)

//go:generate go run .

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	top, err := findTop()
	if err != nil {
		return err
	}
	modules, err := catalog.Standard(ctx)
	if err != nil {
		return err
	}
	return writePages(filepath.Join(top, "docs", "modules"), modules)
}

// findTop returns the nearest folder above that contains go.mod.
func findTop() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", fmt.Errorf("no go.mod above %s", dir)
		}
		dir = up
	}
}

// writePages writes one page per module to dir and removes other pages.
func writePages(dir string, modules []catalog.Module) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	kept := map[string]bool{}
	for _, m := range modules {
		text, err := pages.Page(m)
		if err != nil {
			return fmt.Errorf("page of module %s: %w", m.Name, err)
		}
		file := filepath.Join(dir, m.Name+".md")
		kept[file] = true
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.md"))
	if err != nil {
		return err
	}
	for _, file := range files {
		if !kept[file] {
			if err := os.Remove(file); err != nil {
				return err
			}
		}
	}
	return nil
}
