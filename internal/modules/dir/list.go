package dir

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"

	"gatehouse/internal/files/roots"
	"gatehouse/internal/files/walk"
	"gatehouse/tool"
)

type listIn struct {
	Path   string `json:"path" doc:"directory to list" min:"1" names:"path"`
	Depth  int    `json:"depth,omitempty" doc:"levels, shown as a tree" min:"1" max:"100"`
	Glob   string `json:"glob,omitempty" doc:"such as *.go,!*_test.go"`
	Sort   string `json:"sort,omitempty" enum:"name,size,mtime"`
	All    bool   `json:"all,omitempty" doc:"also what .gitignore leaves out"`
	Limit  int    `json:"limit,omitempty" default:"200" min:"1" max:"1000"`
	Cursor string `json:"cursor,omitempty"`
}

type listOut struct {
	Content    string  `json:"content,omitempty" text:"product"`
	Entries    []entry `json:"entries"`
	Path       string  `json:"path"`
	Total      int     `json:"total"`
	Ignored    int     `json:"ignored,omitempty"`
	NextCursor string  `json:"next_cursor,omitempty"`
}

type entry struct {
	Name  string `json:"name"`
	Path  string `json:"path"`
	IsDir bool   `json:"isDir"`
	Size  int64  `json:"size"`
	Kind  string `json:"kind,omitempty"`
}

// Facts says what a tree does not show and how to read on.
func (o listOut) Facts() string {
	words := []string{"total=" + strconv.Itoa(o.Total)}
	if o.Ignored > 0 {
		words = append(words, "ignored="+strconv.Itoa(o.Ignored))
	}
	if o.NextCursor != "" {
		words = append(words, "to go on, list again with cursor="+o.NextCursor)
	}
	return tool.Facts(words...)
}

const listHelp = `Lists one directory, sorted by name, 200 entries at a time, or a tree of several levels.

- next_cursor, given as cursor, continues; it stays good when entries come and go.
- A page also ends at about 24 kB, however many entries were asked for; a tree's at 8 kB.
- depth shows that many levels as indented text, with sizes; directories that hold one directory alone are written
  as one path, and those at the last level tell how many files are below them.
- What .gitignore and .ignore leave out, and .git itself, is only counted unless all is set.
- glob takes several patterns, ! excludes; one without a slash is matched against the name, ** spans directories.
  With depth it gives the paths of the files that match.
- sort size lists the largest first, mtime the newest; only without depth.
- kind is link, pipe, socket, device or special, and left out for files and directories. Of a link that stays inside
  the workspace, isDir and size are those of what it leads to.
- Bytes of a name that are not UTF-8 are shown as \xNN; such an entry cannot be opened by that name.`

// pageBytes is about how long a page gets. Names may be 255 bytes each and
// come twice.
const pageBytes = 24 << 10

// pageEntries are the entries of a page unless the caller says otherwise.
// mostUnpaged are those of an answer that is not paged, which the bytes limit
// first.
const (
	pageEntries = 200
	mostUnpaged = 200_000
)

func (m *dirs) listTool() tool.Tool {
	return tool.New(tool.Def{
		Name:        "dir_list",
		Title:       "List a directory",
		Description: "Lists a directory by name, or with depth what is below it as a tree. next_cursor continues a long one.",
		Help:        listHelp,
		Effects:     tool.Reads,
		Budget:      -1, // it pages itself
	}, m.list)
}

func (m *dirs) list(ctx context.Context, c *tool.Call, in listIn) (listOut, error) {
	if in.Limit == 0 {
		in.Limit = pageEntries
	}
	most := pageBytes
	if c.Unpaged && in.Depth <= 1 && in.Cursor == "" {
		in.All, most = true, tool.MostUnpaged
		if in.Limit == pageEntries {
			in.Limit = mostUnpaged
		}
	}
	if in.Depth > 1 && in.Sort != "" && in.Sort != "name" {
		return listOut{}, &tool.Refusal{Code: "invalid_arguments", Message: "a tree is sorted by name", Next: "Leave out depth or sort."}
	}
	globs, err := walk.ParseGlobs(walk.SplitGlobs(in.Glob))
	if err != nil {
		return listOut{}, &tool.Refusal{Code: "invalid_arguments", Message: err.Error()}
	}
	p, err := roots.Find(c.Roots, in.Path)
	if err != nil {
		return listOut{}, err
	}
	root, err := p.Dir()
	if err != nil {
		return listOut{}, err
	}
	defer root.Close()
	l := lister{ctx: ctx, in: &in, p: p, root: root, globs: globs, most: most}
	if !in.All {
		l.filter = filterOf(p)
	}
	switch {
	case in.Depth <= 1:
		return l.flat()
	case in.Glob != "":
		return l.matches()
	}
	return l.tree()
}

// filterOf is what the ignore files leave out of a directory.
func filterOf(p roots.Place) *walk.Filter {
	q, err := p.Followed(true)
	if err != nil {
		q = p
	}
	return walk.NewFilter(q.Root, filepath.ToSlash(q.Name))
}

// lister makes one page.
type lister struct {
	ctx    context.Context
	in     *listIn
	p      roots.Place
	root   *os.Root
	globs  walk.Globs
	filter *walk.Filter
	most   int // about how many bytes a flat page gets
}

// flat lists the directory itself.
func (l *lister) flat() (listOut, error) {
	after, err := decodeCursor(l.in.Cursor, l.in.Sort)
	if err != nil {
		return listOut{}, err
	}
	ch := chooser{root: l.root, filter: l.filter, globs: l.globs, sort: l.in.Sort}
	items, err := ch.first(l.ctx, after, l.in.Limit+1)
	if err != nil {
		return listOut{}, l.p.Refuse(err)
	}
	out := listOut{Entries: []entry{}, Path: l.in.Path, Total: ch.total, Ignored: ch.ignored}
	size := 0
	for i, it := range items {
		if i == l.in.Limit || size > l.most {
			out.NextCursor = encodeCursor(items[i-1], l.in.Sort)
			break
		}
		e, ok := look(l.p, l.root, it.name)
		if !ok {
			continue // deleted while we looked
		}
		out.Entries = append(out.Entries, e)
		size += len(e.Name) + len(e.Path) + 50
	}
	return out, nil
}

// look describes one entry.
func look(p roots.Place, root *os.Root, name string) (entry, bool) {
	info, err := root.Lstat(name)
	if err != nil {
		return entry{}, false
	}
	e := entry{Name: visible(name), Path: path.Join(filepath.ToSlash(p.Path), visible(name)), Kind: roots.Kind(info.Mode())}
	if p.Path == "~" || strings.HasPrefix(p.Path, "./") {
		e.Path = strings.TrimSuffix(p.Path, "/") + "/" + e.Name
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		q := p
		q.Name = filepath.Join(p.Name, name)
		if to, err := q.Stat(); err == nil {
			info = to
		}
	}
	e.IsDir = info.IsDir()
	if info.Mode().IsRegular() {
		e.Size = info.Size()
	}
	return e, true
}

// visible is a name as JSON can carry it.
func visible(name string) string {
	if utf8.ValidString(name) {
		return name
	}
	var s strings.Builder
	for len(name) > 0 {
		r, size := utf8.DecodeRuneInString(name)
		if r == utf8.RuneError && size == 1 {
			fmt.Fprintf(&s, `\x%02x`, name[0])
		} else {
			s.WriteString(name[:size])
		}
		name = name[size:]
	}
	return s.String()
}
