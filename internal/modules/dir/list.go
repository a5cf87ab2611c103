package dir

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"

	"gatehouse/internal/files/merged"
	"gatehouse/internal/files/roots"
	"gatehouse/internal/files/walk"
	"gatehouse/tool"
)

type listIn struct {
	Path   string `json:"path" doc:"directory to list" min:"1" names:"path"`
	Depth  int    `json:"depth,omitempty" doc:"levels of a tree" min:"1" max:"100"`
	Glob   string `json:"glob,omitempty" doc:"such as *.go,!*_test.go"`
	Sort   string `json:"sort,omitempty" enum:"name,size,mtime"`
	All    bool   `json:"all,omitempty" doc:"also files ignored by .gitignore"`
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

// Facts returns what the text of a tree does not show, and how to read on.
func (o listOut) Facts() string {
	words := []string{"total=" + strconv.Itoa(o.Total)}
	if o.Ignored > 0 {
		words = append(words, "ignored="+strconv.Itoa(o.Ignored))
	}
	if o.NextCursor != "" {
		words = append(words, "to read on, call again with cursor="+o.NextCursor)
	}
	return tool.Facts(words...)
}

const listHelp = `Lists one directory, sorted by name, 200 entries at a time, or a tree of several levels.

- Give next_cursor as cursor for the next page; it stays valid if entries are added or removed.
- A page ends at about 24 kB, even if limit allows more; a page of a tree ends at 8 kB.
- depth shows that many levels as indented text, with sizes. A directory that contains only one directory is joined
  with it to one path; a directory at the last level shows the number of files below it.
- Entries that .gitignore and .ignore exclude, and .git itself, are only counted unless all is set.
- glob is a list of patterns, ! excludes; one without a slash is matched against the name, ** spans directories.
  With depth it returns the paths of the matching files.
- sort size lists the largest first, mtime the newest; only without depth.
- kind is link, pipe, socket, device or special; files and directories have none. If a link points to a target inside
  the workspace, isDir and size are those of the target.
- Bytes of a name that are not UTF-8 are shown as \xNN; the entry cannot be opened by that name.`

// pageBytes is the approximate length of a page. A name has up to 255 bytes and
// appears twice.
const pageBytes = 24 << 10

// pageEntries is the default of limit. maxUnpaged is the number of entries of a
// result that is not paged; its length in bytes limits it first.
const (
	pageEntries = 200
	maxUnpaged  = 200_000
)

func (m *dirs) listTool() tool.Tool {
	return tool.New(tool.Def{
		Name:        "dir_list",
		Title:       "List a directory",
		Description: "Lists a directory, or with depth a tree of what is below it. next_cursor leads to the next page.",
		Help:        listHelp,
		Effects:     tool.Reads,
		Budget:      -1, // it pages itself
	}, m.listFolder)
}

func (m *dirs) listFolder(ctx context.Context, c *tool.Call, in listIn) (listOut, error) {
	if in.Limit == 0 {
		in.Limit = pageEntries
	}
	most := pageBytes
	if c.Unpaged && in.Depth <= 1 && in.Cursor == "" {
		in.All, most = true, tool.MostUnpaged
		if in.Limit == pageEntries {
			in.Limit = maxUnpaged
		}
	}
	if in.Depth > 1 && in.Sort != "" && in.Sort != "name" {
		return listOut{}, &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: "a tree is sorted by name",
			Next:    "Leave out depth or sort.",
		}
	}
	globs, err := walk.ParseGlobs(walk.SplitGlobs(in.Glob))
	if err != nil {
		return listOut{}, &tool.Refusal{Code: tool.CodeInvalidArguments, Message: err.Error()}
	}
	p, err := roots.Locate(c.Roots, in.Path)
	if err != nil {
		return listOut{}, err
	}
	root, err := p.Dir()
	if err != nil {
		return listOut{}, err
	}
	defer root.Close()
	l := lister{ctx: ctx, in: &in, p: p, root: root, globs: globs, maxBytes: most}
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

// filterOf returns the filter of the ignore files that apply to a directory.
func filterOf(p roots.Place) *walk.Filter {
	q, err := p.Followed(true)
	if err != nil {
		q = p
	}
	return walk.NewFilter(q.Tree(), filepath.ToSlash(q.Name))
}

// lister makes one page of a listing.
type lister struct {
	ctx      context.Context // of the call: a lister lives no longer
	in       *listIn
	p        roots.Place
	root     merged.Folder
	globs    walk.Globs
	filter   *walk.Filter
	maxBytes int // approximate length of a flat page
}

// flat lists the directory itself.
func (l *lister) flat() (listOut, error) {
	after, err := decodeCursor(l.in.Cursor, l.in.Sort)
	if err != nil {
		return listOut{}, err
	}
	ch := selector{root: l.root, filter: l.filter, globs: l.globs, sort: l.in.Sort}
	items, err := ch.first(l.ctx, after, l.in.Limit+1)
	if err != nil {
		return listOut{}, l.p.Refuse(err)
	}
	out := listOut{Entries: []entry{}, Path: l.in.Path, Total: ch.total, Ignored: ch.ignored}
	size := 0
	for i, it := range items {
		if i == l.in.Limit || size > l.maxBytes {
			out.NextCursor = encodeCursor(items[i-1], l.in.Sort)
			break
		}
		e, ok := describeEntry(l.p, l.root, it.name)
		if !ok {
			continue // deleted since the directory was read
		}
		out.Entries = append(out.Entries, e)
		size += len(e.Name) + len(e.Path) + 50
	}
	return out, nil
}

// describeEntry returns one entry, or false if it was deleted.
func describeEntry(p roots.Place, root merged.Folder, name string) (entry, bool) {
	info, err := root.Lstat(name)
	if err != nil {
		return entry{}, false
	}
	e := entry{
		Name: visible(name),
		Path: path.Join(filepath.ToSlash(p.Path), visible(name)),
		Kind: roots.Kind(info.Mode()),
	}
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

// visible returns a name with the bytes that JSON cannot carry as \xNN.
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
