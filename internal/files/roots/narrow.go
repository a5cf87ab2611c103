package roots

import (
	"os"
	"path/filepath"
)

// Narrow returns the intersection of this set and other folders, in the order of those: a folder inside one of this
// set becomes a folder of its own, a folder of this set inside a larger one stays as it is, and others and those
// that are not directories are left out. The result never reaches further than this set. nil means that nothing is
// left.
//
// It opens folders through the roots of this set, and protected names stay protected. It is meant for one call,
// because it does not notice that a folder is replaced. Close it before this set; the folders of this set stay
// open.
func (s *Set) Narrow(paths []string) *Set {
	n := &Set{guard: s.guard, home: s.home, view: s.view, changes: s.changes}
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

// within returns the intersection of two folders, or nil. path is the path as given, real the one without links.
func (f *folder) within(path, real string) *folder {
	root, err := f.root()
	if err != nil {
		return nil
	}
	if rel, err := filepath.Rel(real, f.real); err == nil && filepath.IsLocal(rel) {
		g := &folder{path: f.path, real: f.real, above: f.above, fixed: true, lent: true, layer: f.layer}
		g.now.Store(&opened{root: root})
		return g
	}
	rel, err := filepath.Rel(f.real, real)
	if err != nil || !filepath.IsLocal(rel) {
		return nil
	}
	if f.layer != nil {
		part, err := f.layer.Part(rel)
		if err != nil {
			return nil
		}
		g := &folder{path: path, real: real, above: filepath.Join(f.above, rel), fixed: true, layer: part,
			release: part.ClosePart}
		g.now.Store(&opened{root: part.Upper()})
		return g
	}
	sub, err := root.OpenRoot(rel)
	if err != nil {
		return nil
	}
	g := &folder{path: path, real: real, above: filepath.Join(f.above, rel), fixed: true}
	g.now.Store(&opened{root: sub})
	return g
}

// Above returns the name of an open folder of the set within the folder that it is a part of; "" for a whole
// folder. The guard checks names relative to the latter.
func (s *Set) Above(root *os.Root) string {
	for _, f := range s.folders {
		if f.above != "" && f.has(root) {
			return f.above
		}
	}
	return ""
}

// aboveOf returns Above of a call's roots.
func aboveOf(rs any, root *os.Root) string {
	if s, ok := rs.(interface{ Above(*os.Root) string }); ok {
		return s.Above(root)
	}
	return ""
}
