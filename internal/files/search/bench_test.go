package search

import (
	"os"
	"testing"

	"gatehouse/internal/files/walk"
)

// The tree is this one; GATEHOUSE_TREE names a larger one.
func BenchmarkSearch(b *testing.B) {
	dir := os.Getenv("GATEHOUSE_TREE")
	if dir == "" {
		dir = "../../.."
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		b.Fatal(err)
	}
	defer root.Close()
	globs, _ := walk.ParseGlobs([]string{"*_test.go"})
	for _, c := range []struct {
		name, pattern string
		how           How
	}{
		{"Glob", "", How{}},
		{"Literal", "errors.New(", How{Literal: true}},
		{"NoHit", "zzqqnot" + "there", How{Literal: true}},
		{"Regexp", `func\s+\w+Handler\(`, How{}},
		{"NoLiteral", `[A-Z]{4,}[0-9]`, How{}},
		{"IgnoreCase", `todo|fixme`, How{IgnoreCase: true}},
	} {
		q := Query{Mode: Names, Globs: globs, Tree: walk.Options{Root: root}}
		if c.pattern != "" {
			q.Mode, q.Pattern, q.Globs = Content, compile(b, c.pattern, c.how), walk.Globs{}
		}
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				if _, err := Run(b.Context(), q); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
