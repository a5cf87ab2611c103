package roots

import (
	"os"
	"path/filepath"
)

// Narrow makes a set of what lies both in this one and in other folders, in
// their order: a folder inside one of ours becomes one itself, ours stays as it
// is inside a larger one, and what does not meet any is left out, as is what is
// no directory. It never reaches further than this set. nil means that nothing
// is left.
//
// What it opens it opens through our roots, and protected names stay
// protected. It is meant for one call: it does not notice that a folder is
// replaced by another. Close it, before this set; folders that are ours stay
// open.
func (s *Set) Narrow(paths []string) *Set {
	n := &Set{guard: s.guard, home: s.home}
	for _, path := range paths {
		if wellFormed(path) != nil || !filepath.IsAbs(path) {
			continue
		}
		path = filepath.Clean(path)
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			continue
		}
		for _, f := range s.folders {
			g := f.within(path, real)
			switch {
			case g == nil:
			case n.has(g):
				g.closeFolder()
			case g.lent:
				g.name = n.unused(f.name, g.path)
				n.folders = append(n.folders, g)
			default:
				g.name = n.unused("", g.path)
				n.folders = append(n.folders, g)
			}
		}
	}
	if len(n.folders) == 0 {
		return nil
	}
	return n
}

// within is what a folder and another one have in common; nil for nothing. path
// is as it was given, real without links.
func (f *folder) within(path, real string) *folder {
	root, err := f.root()
	if err != nil {
		return nil
	}
	if rel, err := filepath.Rel(real, f.real); err == nil && filepath.IsLocal(rel) {
		g := &folder{path: f.path, real: f.real, above: f.above, fixed: true, lent: true}
		g.now.Store(&opened{root: root})
		return g
	}
	rel, err := filepath.Rel(f.real, real)
	if err != nil || !filepath.IsLocal(rel) {
		return nil
	}
	sub, err := root.OpenRoot(rel)
	if err != nil {
		return nil
	}
	g := &folder{path: path, real: real, above: filepath.Join(f.above, rel), fixed: true}
	g.now.Store(&opened{root: sub})
	return g
}

// Above is the name that an open folder of the set has inside of the one it is
// a part of; "" for a whole one. The guard judges names from there.
func (s *Set) Above(root *os.Root) string {
	for _, f := range s.folders {
		if f.above != "" && f.now.Load().root == root {
			return f.above
		}
	}
	return ""
}

// aboveOf asks the roots of a call.
func aboveOf(rs any, root *os.Root) string {
	if s, ok := rs.(interface{ Above(*os.Root) string }); ok {
		return s.Above(root)
	}
	return ""
}
