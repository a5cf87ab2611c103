package housekeeping

import (
	"slices"
	"strconv"
	"strings"
	"testing"
)

// place says where a folder belongs.
type place struct {
	room
	floor int
	name  string // the room's own folder, with a /* filled in
}

// find says which room a folder belongs to: the one with the longest path.
func find(folder string) (p place, ok bool) {
	for i, floor := range floors {
		for _, r := range floor {
			name, ours := r.holds(folder)
			if ours && (!ok || len(r.path) > len(p.path)) {
				p, ok = place{r, i, name}, true
			}
		}
	}
	return p, ok
}

// holds reports whether a folder lies in the room, and the room's name.
func (r room) holds(folder string) (name string, ok bool) {
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

func within(folder, room string) bool {
	return folder == room || strings.HasPrefix(folder, room+"/")
}

func anyWithin(folder string, rooms []string) bool {
	return slices.ContainsFunc(rooms, func(r string) bool { return within(folder, r) })
}

// objection says why one folder may not import another, or "".
func objection(from, to string) string {
	if anyWithin(to, testOnly) {
		if anyWithin(from, testOnly) {
			return ""
		}
		return "that room is for tests and must not be in the product"
	}
	if anyWithin(from, testOnly) {
		return ""
	}
	a, known := find(from)
	if !known {
		return "no floor in internal/housekeeping/rooms_test.go lists " + from + "; give the room its place and a reason"
	}
	b, known := find(to)
	if !known {
		return "no floor in internal/housekeeping/rooms_test.go lists " + to + "; give the room its place and a reason"
	}
	if a.name == b.name {
		return ""
	}
	switch {
	case a.only != nil && !slices.Contains(a.only, b.path), anyWithin(to, a.never):
		return a.why
	case b.floor >= a.floor:
		return "imports point down: " + b.why
	}
	return ""
}

// imports yields what a file imports, ours relative to the top of the tree.
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
			continue // a test may put its room into a whole house
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

func TestEveryRoomHasAFloor(t *testing.T) {
	for _, s := range sources(t) {
		if _, known := find(s.folder()); !known && !anyWithin(s.folder(), testOnly) {
			t.Errorf("%s: no floor in internal/housekeeping/rooms_test.go lists %s; give the room its place and a reason", s.path, s.folder())
		}
	}
}

// The table itself is tried with imports that must and must not be.
func TestTheTableObjects(t *testing.T) {
	for _, c := range []struct {
		from, to string
		fine     bool
	}{
		{"module", "tool", true},
		{"tool", "module", false},
		{"tool", "internal/rawjson", false},
		{"module", "internal/rawjson", false},
		{"internal/bus", "tool", true},
		{"internal/bus", "internal/calls", false},
		{"internal/permit", "internal/limit", false},
		{"internal/calls", "internal/session", true},
		{"internal/session", "internal/calls", false},
		{"internal/protocol", "internal/calls", true},
		{"internal/protocol", "internal/modules/file", false},
		{"internal/protocol", "internal/transport/http", false},
		{"internal/transport/http", "internal/protocol", true},
		{"internal/transport/http", "internal/session", true},
		{"internal/transport/http", "internal/calls", false},
		{"internal/transport/http", "internal/transport/stdio", false},
		{"internal/modules/file", "tool", true},
		{"internal/modules/file", "internal/roots", true},
		{"internal/modules/file", "internal/modules/file/diff", true},
		{"internal/modules/file", "internal/modules/dir", false},
		{"internal/modules/file", "internal/protocol", false},
		{"internal/modules/file", "internal/session", false},
		{"internal/modules/file", "internal/calls", false},
		{"internal/modules/file", "internal/modules", false},
		{"internal/modules", "internal/modules/file", false},
		{"internal/modules", "internal/bus", true},
		{"internal/modules/standard", "internal/modules/file", true},
		{"internal/modules/standard", "internal/modules", false},
		{"internal/modules/standard", "internal/app", false},
		{"internal/sandbox/pool", "internal/sandbox", true},
		{"internal/app", "internal/modules/standard", true},
		{"internal/app", "internal/cli", false},
		{"internal/app", "internal/hosttest", false},
		{"internal/hosttest", "internal/app", true},
		{".", "internal/app", true},
		{"internal/app", ".", false},
		{"cmd/gatehouse", "internal/cli", true},
		{"cmd/gatehouse", "internal/app", false},
		{"internal/attic", "tool", false},
	} {
		if why := objection(c.from, c.to); (why == "") != c.fine {
			t.Errorf("%s imports %s: objection %q, want fine = %t", c.from, c.to, why, c.fine)
		}
	}
}
