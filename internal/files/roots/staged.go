package roots

import (
	"os"
	"slices"

	"gatehouse/internal/exec/overlay"
	"gatehouse/internal/files/merged"
	"gatehouse/tool"
)

// View shows folders with changes that are not in them; see package stage.
type View interface {
	// Root returns the view of a folder without links. The caller must not close it.
	Root(real string) (*os.Root, error)
	// Layer returns the changes of a folder without links that are kept for file tools alone, and how to release them;
	// nil if the view is a file system.
	Layer(real string) (*merged.Layer, func() error, error)
	// Space returns what a child needs to run in the view. loose means that it may outlive the call.
	Space(loose bool) (*overlay.Space, error)
	// Mount returns a folder or a file of the view, whose path has no links, as a mount for a program that has another
	// root and may outlive the call. The caller closes it.
	Mount(real string, write bool) (*os.File, error)
	// Private returns the path of a folder for what a program writes that is none of the changes, which the caller
	// makes.
	Private(name string) string
}

// Reals returns the paths of the folders without links.
func (s *Set) Reals() (paths []string) {
	for _, f := range s.folders {
		paths = append(paths, f.real)
	}
	return paths
}

// In returns a set of the same folders as a view shows them. Their paths stay the same. changes means that the call may
// change something. The caller closes the set.
func (s *Set) In(v View, changes bool) (*Set, error) {
	n := &Set{guard: s.guard, home: s.home, base: s.base, view: v, changes: changes}
	for _, f := range s.folders {
		g := &folder{name: f.name, path: f.path, real: f.real, above: f.above, fixed: true, lent: true}
		var root *os.Root
		layer, release, err := v.Layer(f.real)
		switch {
		case err != nil:
		case layer != nil:
			root, g.layer, g.release = layer.Upper(), layer, release
		default:
			root, err = v.Root(f.real)
		}
		if err != nil {
			n.Close()
			return nil, err
		}
		g.now.Store(&opened{root: root})
		n.folders = append(n.folders, g)
	}
	return n, nil
}

// PathOf returns the path of an open folder of the set.
func (s *Set) PathOf(root *os.Root) string {
	if s.view != nil {
		for _, f := range s.folders {
			if f.has(root) {
				return f.real
			}
		}
	}
	return root.Name()
}

// setOf returns the set that a call's roots are, or with another guard; nil for roots of another kind.
func setOf(rs tool.Roots) *Set {
	switch rs := rs.(type) {
	case *Set:
		return rs
	case interface{ Unguarded() tool.Roots }:
		return setOf(rs.Unguarded())
	}
	return nil
}

// layerOf returns the layer that a root of a call belongs to, and whether the call may change it; nil for a root that
// is a file system.
func layerOf(rs tool.Roots, root *os.Root) (*merged.Layer, bool) {
	s := setOf(rs)
	if s == nil || s.view == nil {
		return nil, false
	}
	for _, f := range s.folders {
		if f.layer != nil && f.has(root) {
			return f.layer, s.changes
		}
	}
	return nil, false
}

// Layer returns the layer that the place is in, in which file tools alone see the changes of a task; nil if it is in a
// file system.
func (p Place) Layer() *merged.Layer { return p.layer }

// at returns the place with the root that has its name, which has no links in its folders.
func (p Place) at() (Place, error) {
	if p.layer == nil {
		return p, nil
	}
	root, err := p.layer.At(p.Name, p.changes)
	if err != nil {
		return p, p.Refuse(err)
	}
	p.Root = root
	return p, nil
}

// own copies what has the name, before a call moves or deletes it.
func (p Place) own() (Place, error) {
	if p.layer == nil {
		return p, nil
	}
	if err := p.layer.Own(p.Name); err != nil {
		return p, err
	}
	p.Root = p.layer.Upper()
	return p, nil
}

// Tree returns the folder of the workspace that the place is in, to be walked from Name.
func (p Place) Tree() merged.Folder {
	if p.layer != nil {
		if f, err := p.layer.Folder("."); err == nil {
			return f
		}
	}
	return p.Root
}

// InFolderOf reports whether two places are in one folder of the workspace, so that a file can be moved between them.
func (p Place) InFolderOf(q Place) bool {
	return p.Root == q.Root || p.layer != nil && p.layer == q.layer
}

// Folder returns the path of the folder that the place is in.
func (p Place) Folder() string {
	if s := setOf(p.roots); s != nil {
		return s.PathOf(p.Root)
	}
	return p.Root.Name()
}

// ViewOf returns the view of a call's roots in which programs can run; nil if they run in the folders themselves.
func ViewOf(rs tool.Roots) View {
	if s := setOf(rs); s != nil && s.view != nil && !slices.ContainsFunc(s.folders, func(f *folder) bool {
		return f.layer != nil
	}) {
		return s.view
	}
	return nil
}
