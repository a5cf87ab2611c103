package roots

import (
	"os"

	"gatehouse/internal/exec/overlay"
	"gatehouse/tool"
)

// View shows folders with changes that are not in them; see package stage.
type View interface {
	// Root returns the view of a folder without links. The caller must not close it.
	Root(real string) (*os.Root, error)
	// Space returns what a child needs to run in the view. loose means that it may outlive the call.
	Space(loose bool) (*overlay.Space, error)
}

// Reals returns the paths of the folders without links.
func (s *Set) Reals() (paths []string) {
	for _, f := range s.folders {
		paths = append(paths, f.real)
	}
	return paths
}

// In returns a set of the same folders as a view shows them. Their paths stay the same.
func (s *Set) In(v View) (*Set, error) {
	n := &Set{guard: s.guard, home: s.home, base: s.base, view: v}
	for _, f := range s.folders {
		root, err := v.Root(f.real)
		if err != nil {
			return nil, err
		}
		g := &folder{name: f.name, path: f.path, real: f.real, above: f.above, fixed: true, lent: true}
		g.now.Store(&opened{root: root})
		n.folders = append(n.folders, g)
	}
	return n, nil
}

// PathOf returns the path of an open folder of the set.
func (s *Set) PathOf(root *os.Root) string {
	if s.view != nil {
		for _, f := range s.folders {
			if f.now.Load().root == root {
				return f.real
			}
		}
	}
	return root.Name()
}

// Folder returns the path of the folder that the place is in.
func (p Place) Folder() string {
	if s, ok := p.roots.(interface{ PathOf(*os.Root) string }); ok {
		return s.PathOf(p.Root)
	}
	return p.Root.Name()
}

// ViewOf returns the view of a call's roots; nil if they are the folders themselves.
func ViewOf(rs tool.Roots) View {
	if s, ok := rs.(*Set); ok {
		return s.view
	}
	return nil
}
