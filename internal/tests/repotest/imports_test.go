package repotest

import (
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// position is the unit of a folder and its layer.
type position struct {
	unit
	layer int
	name  string // the unit's own folder, with a /* filled in
}

// find returns the unit of a folder: the one with the longest path.
func find(folder string) (p position, ok bool) {
	for i, layer := range layers {
		for _, u := range layer {
			name, ours := u.holds(folder)
			if ours && (!ok || len(u.path) > len(p.path)) {
				p, ok = position{u, i, name}, true
			}
		}
	}
	return p, ok
}

// holds reports whether a folder is in the unit, and returns the unit's name.
func (r unit) holds(folder string) (name string, ok bool) {
	if r.path == "." {
		return ".", folder == "."
	}
	if parent, each := strings.CutSuffix(r.path, "/*"); each {
		rest, below := strings.CutPrefix(folder, parent+"/")
		child, _, _ := strings.Cut(rest, "/")
		return parent + "/" + child, below
	}
	return r.path, within(folder, r.path)
}

func within(folder, unit string) bool {
	return folder == unit || strings.HasPrefix(folder, unit+"/")
}

func anyWithin(folder string, units []string) bool {
	return slices.ContainsFunc(units, func(u string) bool { return within(folder, u) })
}

// objection returns why one folder may not import another, or "".
func objection(from, to string) string {
	if anyWithin(to, testOnly) {
		if anyWithin(from, testOnly) {
			return ""
		}
		return "that package is for tests and must not be in the product"
	}
	if anyWithin(from, testOnly) {
		return ""
	}
	a, known := find(from)
	if !known {
		return "no layer in internal/tests/repotest/layers_test.go lists " + from + "; add it with a reason"
	}
	b, known := find(to)
	if !known {
		return "no layer in internal/tests/repotest/layers_test.go lists " + to + "; add it with a reason"
	}
	if a.name == b.name {
		return ""
	}
	switch {
	case a.only != nil && !slices.Contains(a.only, b.path), anyWithin(to, a.never):
		return a.why
	case b.layer >= a.layer:
		return "imports point down: " + b.why
	}
	return ""
}

// imports yields the imports of a file; those of this module relative to the top of the tree.
func (s source) imports() (mine, theirs []string) {
	for _, spec := range s.ast.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		switch {
		case err != nil:
		case p == ours:
			mine = append(mine, ".")
		case strings.HasPrefix(p, ours+"/"):
			mine = append(mine, strings.TrimPrefix(p, ours+"/"))
		case strings.Contains(strings.Split(p, "/")[0], "."):
			theirs = append(theirs, p)
		}
	}
	return mine, theirs
}

func TestImportsPointDown(t *testing.T) {
	for _, s := range sources(t) {
		if s.isTest() {
			continue // a test may build a whole host around its package
		}
		mine, theirs := s.imports()
		for _, to := range mine {
			if why := objection(s.folder(), to); why != "" {
				t.Errorf("%s imports %s: %s", s.path, to, why)
			}
		}
		for _, to := range theirs {
			if s.folder() == "tool" || s.folder() == "module" {
				t.Errorf("%s imports %s: the public contracts stand on the standard library alone", s.path, to)
			}
			for m, why := range testOnlyModules {
				if within(to, m) && !anyWithin(s.folder(), testOnly) {
					t.Errorf("%s imports %s: %s", s.path, to, why)
				}
			}
		}
	}
}

func TestEveryPackageHasALayer(t *testing.T) {
	for _, s := range sources(t) {
		if path.Base(s.path) == "doc.go" && len(s.ast.Decls) == 0 && strings.Count(s.path, "/") == 2 {
			continue // the description of a subsystem
		}
		if _, known := find(s.folder()); !known && !anyWithin(s.folder(), testOnly) {
			t.Errorf(
				"%s: no layer in internal/tests/repotest/layers_test.go lists %s; add it with a reason",
				s.path,
				s.folder(),
			)
		}
	}
}

// The table is tested with imports that must be allowed and refused.
func TestTheTableRefuses(t *testing.T) {
	for _, c := range []struct {
		from, to string
		fine     bool
	}{
		{"module", "tool", true},
		{"tool", "module", false},
		{"tool", "internal/mcp/rawjson", false},
		{"module", "internal/mcp/rawjson", false},
		{"internal/dispatch/bus", "tool", true},
		{"internal/dispatch/bus", "internal/dispatch", false},
		{"internal/access/permit", "internal/access/limit", false},
		{"internal/dispatch", "internal/mcp/session", true},
		{"internal/mcp/session", "internal/dispatch", false},
		{"internal/mcp/protocol", "internal/dispatch", true},
		{"internal/mcp/protocol", "internal/modules/file", false},
		{"internal/mcp/protocol", "internal/server/httpserver", false},
		{"internal/server/httpserver", "internal/mcp/protocol", true},
		{"internal/server/httpserver", "internal/mcp/session", true},
		{"internal/server/httpserver", "internal/dispatch", false},
		{"internal/server/httpserver", "internal/server/stdio", false},
		{"internal/modules/file", "tool", true},
		{"internal/modules/file", "internal/files/roots", true},
		{"internal/modules/file", "internal/modules/file/diff", true},
		{"internal/modules/file", "internal/modules/dir", false},
		{"internal/modules/file", "internal/mcp/protocol", false},
		{"internal/modules/file", "internal/mcp/session", false},
		{"internal/modules/file", "internal/dispatch", false},
		{"internal/modules/file", "internal/dispatch/modulehost", false},
		{"internal/dispatch/modulehost", "internal/modules/file", false},
		{"internal/dispatch/modulehost", "internal/dispatch/bus", true},
		{"internal/modules/standard", "internal/modules/file", true},
		{"internal/modules/standard", "internal/dispatch/modulehost", false},
		{"internal/modules/standard", "internal/app", false},
		{"internal/sandbox/pool", "internal/sandbox", true},
		{"internal/app", "internal/modules/standard", true},
		{"internal/app", "internal/cli", false},
		{"internal/app", "internal/tests/hosttest", false},
		{"internal/tests/hosttest", "internal/app", true},
		{".", "internal/app", true},
		{"internal/app", ".", false},
		{"cmd/gatehouse", "internal/cli", true},
		{"cmd/gatehouse", "internal/app", false},
		{"internal/unlisted", "tool", false},
	} {
		if why := objection(c.from, c.to); (why == "") != c.fine {
			t.Errorf("%s imports %s: objection %q, want fine = %t", c.from, c.to, why, c.fine)
		}
	}
}
