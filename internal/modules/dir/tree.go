package dir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"sync/atomic"

	"gatehouse/internal/files/merged"
	"gatehouse/internal/files/roots"
	"gatehouse/internal/files/search"
	"gatehouse/internal/files/walk"
)

const (
	treeBytes     = 7600    // of text on a page; with the rest of the message less than 8 kB
	maxCount      = 20_000  // entries that are counted below one directory
	maxCountTotal = 200_000 // entries that are counted for one page
)

// tree returns one page of the levels below the directory.
func (l *lister) tree() (listOut, error) {
	after, err := decodeCursor(l.in.Cursor, "")
	if err != nil {
		return listOut{}, err
	}
	w := treeWriter{lister: l}
	var seen []string
	if after.name != "" {
		seen = strings.Split(after.name, "/")
	}
	err = w.dir(l.root, l.filter, "", 1, seen)
	out := listOut{Entries: []entry{}, Path: l.in.Path, Total: w.lines, Ignored: w.ignored}
	switch {
	case errors.Is(err, errPageFull):
		out.NextCursor = encodeCursor(item{name: w.last}, "")
		fmt.Fprintf(&w.text, "[next cursor=%s]\n", out.NextCursor)
	case err != nil:
		return listOut{}, l.p.Refuse(err)
	}
	if w.ignored > 0 {
		fmt.Fprintf(&w.text, "[%d ignored; all=true shows them]\n", w.ignored)
	}
	if out.Content = w.text.String(); out.Content == "" {
		out.Content = "[empty]\n"
	}
	return out, nil
}

var errPageFull = errors.New("the page is full")

type treeWriter struct {
	*lister
	text    strings.Builder
	lines   int
	ignored int
	counted int64
	last    string // path of the last entry written, relative to the start
}

// dir writes the entries of one directory, open as root. seen is the path to the
// last entry of the previous page.
func (w *treeWriter) dir(root merged.Folder, f *walk.Filter, rel string, level int, seen []string) error {
	ch := selector{root: root, filter: f}
	left := w.in.Limit + 1 - w.lines
	var after item
	if len(seen) > 0 {
		inside, err := w.resume(root, f, rel, level, seen)
		if err != nil {
			return err
		}
		if after.name = seen[0]; inside {
			left = w.in.Limit + 1 - w.lines
		}
	}
	items, err := ch.first(w.ctx, after, max(left, 1))
	if err != nil {
		return err
	}
	w.ignored += ch.ignored
	for _, it := range items {
		if err := w.entry(root, f, rel, level, it.name); err != nil {
			return err
		}
	}
	return nil
}

// resume continues in the directory in which the previous page ended.
func (w *treeWriter) resume(
	root merged.Folder, f *walk.Filter, rel string, level int, seen []string,
) (inside bool, err error) {
	if level >= w.in.Depth || !isDir(root, seen[0]) {
		return false, nil
	}
	sub, names, below, err := w.descend(root, f, seen[0])
	if err != nil {
		return false, nil // deleted since the previous page
	}
	defer sub.Close()
	rest := seen[min(len(names), len(seen)):]
	if len(rest) > 0 {
		fmt.Fprintf(&w.text, "%s%s/ (continued)\n", indent(level), visible(strings.Join(names, "/")))
	}
	return true, w.dir(sub, below, path.Join(rel, strings.Join(names, "/")), level+1, rest)
}

func indent(level int) string { return strings.Repeat(" ", level-1) }

// entry writes one entry and the levels below it.
func (w *treeWriter) entry(root merged.Folder, f *walk.Filter, rel string, level int, name string) error {
	info, err := root.Lstat(name)
	if err != nil {
		return nil // deleted since the directory was read
	}
	line := indent(level) + visible(name)
	if !info.IsDir() {
		if kind := roots.Kind(info.Mode()); kind != "" {
			line += " (" + kind + ")"
		} else {
			line += " " + humanSize(info.Size())
		}
		return w.writeLine(line, path.Join(rel, name))
	}
	sub, names, below, err := w.descend(root, f, name)
	if err != nil {
		return w.writeLine(line+"/ (not readable)", path.Join(rel, name))
	}
	defer sub.Close()
	line = indent(level) + visible(strings.Join(names, "/")) + "/"
	at := path.Join(rel, strings.Join(names, "/"))
	if level >= w.in.Depth {
		return w.writeLine(line+" ("+w.countBelow(sub)+")", at)
	}
	if err := w.writeLine(line, at); err != nil {
		return err
	}
	return w.dir(sub, below, at, level+1, nil)
}

// descend opens a directory. While a directory contains only one directory, it
// opens that instead. names is the path to the directory it returns.
func (w *treeWriter) descend(
	root merged.Folder, f *walk.Filter, name string,
) (sub merged.Folder, names []string, below *walk.Filter, err error) {
	if sub, err = merged.Enter(root, name+"/."); err != nil {
		return nil, nil, nil, err
	}
	names, below = []string{name}, f.Below(name, sub)
	for len(names) < 20 {
		ch := selector{root: sub, filter: below}
		items, err := ch.first(w.ctx, item{}, 2)
		if err != nil || len(items) != 1 || ch.ignored > 0 || !isDir(sub, items[0].name) {
			break
		}
		next, err := merged.Enter(sub, items[0].name)
		if err != nil {
			break
		}
		sub.Close()
		sub, below = next, below.Below(items[0].name, next)
		names = append(names, items[0].name)
	}
	return sub, names, below, nil
}

func (w *treeWriter) writeLine(line, at string) error {
	if w.lines == w.in.Limit || w.lines > 0 && w.text.Len()+len(line) > treeBytes {
		return errPageFull
	}
	w.text.WriteString(line + "\n")
	w.lines++
	w.last = at
	return nil
}

// countBelow returns how many files are below a directory, as text. It stops
// counting at maxCount and at maxCountTotal.
func (w *treeWriter) countBelow(root merged.Folder) string {
	if w.counted > maxCountTotal {
		return countEntries(root)
	}
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	var files, all atomic.Int64
	_, err := walk.Walk(ctx, walk.Options{Root: root, All: w.in.All}, func(_ int, _ *walk.Dir, entries []walk.Entry) {
		n := int64(0)
		for _, e := range entries {
			if !e.IsDir() {
				n++
			}
		}
		files.Add(n)
		if all.Add(int64(len(entries))) > maxCount {
			cancel()
		}
	})
	w.counted += all.Load()
	plus := ""
	if err != nil {
		plus = "+"
	}
	if files.Load() == 1 {
		return "1" + plus + " file"
	}
	return fmt.Sprintf("%d%s files", files.Load(), plus)
}

// countEntries returns the number of entries of a directory itself, as text.
func countEntries(root merged.Folder) string {
	d, err := merged.List(root)
	if err != nil {
		return "not readable"
	}
	defer d.Close()
	n := 0
	for n < maxCount {
		names, err := d.Readdirnames(1024)
		n += len(names)
		if err == io.EOF {
			return fmt.Sprintf("%d entries", n)
		}
		if err != nil {
			return "not readable"
		}
	}
	return fmt.Sprintf("%d+ entries", n)
}

// matches lists the paths of the files that match the glob.
func (l *lister) matches() (listOut, error) {
	after, err := decodeCursor(l.in.Cursor, "")
	if err != nil {
		return listOut{}, err
	}
	q := search.Query{Mode: search.Names, Globs: l.globs, Limit: l.in.Limit, After: search.Key{Path: after.name},
		Tree: walk.Options{Root: l.root, Depth: l.in.Depth, All: l.in.All}}
	res, err := search.Run(l.ctx, q)
	if err != nil {
		return listOut{}, l.p.Refuse(err)
	}
	out := listOut{Entries: []entry{}, Path: l.in.Path, Total: int(res.Matched), Ignored: int(res.Tree.Ignored)}
	var b strings.Builder
	for i, f := range res.Files {
		if i > 0 && b.Len()+len(f.Path) > treeBytes {
			res.More = true
			break
		}
		b.WriteString(visible(f.Path) + "\n")
		after.name = f.Path
	}
	if res.More {
		out.NextCursor = encodeCursor(after, "")
		fmt.Fprintf(&b, "[%d files; next cursor=%s]\n", out.Total, out.NextCursor)
	}
	if out.Content = b.String(); out.Content == "" {
		out.Content = "[no file matches]\n"
	}
	return out, nil
}

// humanSize formats a size with a unit, in few characters.
func humanSize(n int64) string {
	const units = "kMGTPE"
	if n < 1000 {
		return fmt.Sprint(n)
	}
	f := float64(n)
	unit := -1
	for f >= 1000 && unit+1 < len(units) {
		f /= 1000
		unit++
	}
	if f < 10 {
		return fmt.Sprintf("%.1f%c", f, units[unit])
	}
	return fmt.Sprintf("%.0f%c", f, units[unit])
}
