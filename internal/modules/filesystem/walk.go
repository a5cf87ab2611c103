package filesystem

import (
	"context"
	"io/fs"
	"path"
	"path/filepath"
	"strings"

	"gatehouse/internal/files/merged"
	"gatehouse/internal/files/roots"
	"gatehouse/internal/files/walk"
	"gatehouse/tool"
)

const (
	deepest  = walk.MaxDepth
	maxFound = 10_000 // paths in the result of one search
)

// walker walks a directory in the order of names; the content of a directory
// follows its name.
type walker struct {
	// ctx is that of the one call that walks.
	ctx  context.Context
	p    roots.Place
	path string // as the caller wrote it
	left int    // entries that may still be read
}

// walk calls visit for the entries of a directory; below is its path relative to
// the start. If the entry is a directory, the function that visit returns
// handles its content; nil skips it.
func (w *walker) walk(
	root merged.Folder, below string, depth int, visit func(rel string, e fs.DirEntry) func(merged.Folder) error,
) error {
	if err := context.Cause(w.ctx); err != nil {
		return err
	}
	list, err := readEntries(w.p, root, w.path)
	if err != nil {
		return err
	}
	for _, e := range list {
		if w.left--; w.left < 0 {
			return errTooMany(w.path)
		}
		enter := visit(path.Join(below, e.Name()), e)
		if enter == nil || !e.IsDir() || depth >= deepest {
			continue
		}
		sub, err := merged.Enter(root, e.Name())
		if err != nil {
			continue // deleted, or not readable
		}
		err = enter(sub)
		sub.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

type searchIn struct {
	Path     string   `json:"path" names:"path"`
	Pattern  string   `json:"pattern"`
	Excludes []string `json:"excludePatterns"`
}

func searchFiles(ctx context.Context, c *tool.Call, in searchIn) (tool.Result, error) {
	wanted, err := parsePatterns(in.Pattern)
	if err != nil {
		return tool.Result{}, err
	}
	excluded, err := parsePatterns(in.Excludes...)
	if err != nil {
		return tool.Result{}, err
	}
	p, root, err := openDir(c, in.Path)
	if err != nil {
		return tool.Result{}, err
	}
	defer root.Close()
	if q, err := p.Followed(true); err == nil {
		p = q
	}
	top := filepath.Join(p.Folder(), p.Name)
	w := &walker{ctx: ctx, p: p, path: in.Path, left: maxEntries}
	var found []string
	var look func(merged.Folder, string, int) error
	look = func(dir merged.Folder, below string, depth int) error {
		return w.walk(dir, below, depth, func(rel string, e fs.DirEntry) func(merged.Folder) error {
			if excluded.any(rel) || e.Type()&fs.ModeSymlink != 0 && leavesRoots(p, rel) {
				return nil
			}
			if wanted.any(rel) && len(found) <= maxFound {
				found = append(found, toValidUTF8([]byte(filepath.Join(top, filepath.FromSlash(rel)))))
			}
			return func(sub merged.Folder) error { return look(sub, rel, depth+1) }
		})
	}
	if err := look(root, "", 1); err != nil {
		return tool.Result{}, err
	}
	switch {
	case len(found) == 0:
		return textResult("No matches found")
	case len(found) > maxFound:
		found[maxFound] = "[there are more; search a subdirectory or use a narrower pattern]"
	}
	return textResult(strings.Join(found, "\n"))
}

// leavesRoots reports whether a link points to a missing file or to one outside of
// the roots.
func leavesRoots(p roots.Place, rel string) bool {
	p.Name = filepath.Join(p.Name, filepath.FromSlash(rel))
	_, err := p.Stat()
	return err != nil
}

// patterns are globs that are matched against the whole path relative to the
// start of a walk.
type patterns []walk.Globs

func parsePatterns(texts ...string) (all patterns, err error) {
	for _, t := range texts {
		not := strings.HasPrefix(t, "!")
		one := "/" + strings.TrimPrefix(strings.TrimPrefix(t, "!"), "/")
		if not {
			one = "!" + one
		}
		g, err := walk.ParseGlobs([]string{one})
		if err != nil {
			return nil, refusef("Invalid pattern: %v", err)
		}
		all = append(all, g)
	}
	return all, nil
}

func (ps patterns) any(rel string) bool {
	for _, g := range ps {
		if g.Match(rel, path.Base(rel)) {
			return true
		}
	}
	return false
}

type treeIn struct {
	Path     string   `json:"path" names:"path"`
	Excludes []string `json:"excludePatterns"`
}

// node is one entry of a tree. A directory always has children, possibly none.
type node struct {
	Name     string  `json:"name"`
	Type     string  `json:"type"`
	Children *[]node `json:"children,omitempty"`
}

func directoryTree(ctx context.Context, c *tool.Call, in treeIn) (tool.Result, error) {
	var texts []string
	for _, t := range in.Excludes {
		texts = append(texts, t)
		if !strings.Contains(t, "*") { // a name without a wildcard matches at any depth
			texts = append(texts, "**/"+t, "**/"+t+"/**")
		}
	}
	excluded, err := parsePatterns(texts...)
	if err != nil {
		return tool.Result{}, err
	}
	p, root, err := openDir(c, in.Path)
	if err != nil {
		return tool.Result{}, err
	}
	defer root.Close()
	w := &walker{ctx: ctx, p: p, path: in.Path, left: maxEntries}
	all, err := w.tree(root, "", 1, excluded)
	if err != nil {
		return tool.Result{}, err
	}
	s, err := pretty(all)
	if err != nil {
		return tool.Result{}, err
	}
	if len(s) > maxBytes {
		return tool.Result{}, errTooMany(in.Path)
	}
	return textResult(s)
}

func (w *walker) tree(root merged.Folder, below string, depth int, excluded patterns) ([]node, error) {
	all := []node{}
	err := w.walk(root, below, depth, func(rel string, e fs.DirEntry) func(merged.Folder) error {
		if excluded.any(rel) {
			return nil
		}
		one := node{Name: toValidUTF8([]byte(e.Name())), Type: "file"}
		if e.IsDir() {
			one.Type, one.Children = "directory", &[]node{}
		}
		all = append(all, one)
		children := one.Children
		return func(sub merged.Folder) (err error) {
			*children, err = w.tree(sub, rel, depth+1, excluded)
			return err
		}
	})
	return all, err
}
