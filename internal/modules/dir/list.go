package dir

import (
	"container/heap"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"gatehouse/internal/roots"
	"gatehouse/tool"
)

type listIn struct {
	Path   string `json:"path" doc:"directory to list" min:"1"`
	Limit  int    `json:"limit,omitempty" default:"200" min:"1" max:"1000"`
	Cursor string `json:"cursor,omitempty" doc:"next_cursor of the page before"`
}

type listOut struct {
	Entries    []entry `json:"entries"`
	Path       string  `json:"path"`
	Total      int     `json:"total"`
	NextCursor string  `json:"next_cursor,omitempty"`
}

type entry struct {
	Name  string `json:"name"`
	Path  string `json:"path"`
	IsDir bool   `json:"isDir"`
	Size  int64  `json:"size"`
	Kind  string `json:"kind,omitempty"`
}

const listHelp = `Lists one directory, sorted by name, 200 entries at a time.

- next_cursor, given as cursor, continues; it stays good when entries come and go.
- A page also ends at about 24 kB, however many entries were asked for.
- kind is link, pipe, socket, device or special, and left out for files and directories. Of a link that stays inside
  the workspace, isDir and size are those of what it leads to.
- Bytes of a name that are not UTF-8 are shown as \xNN; such an entry cannot be opened by that name.`

// pageBytes is about how long a page gets. Names may be 255 bytes each and
// come twice.
const pageBytes = 24 << 10

func (m *dirs) listTool() tool.Tool {
	return tool.New(tool.Def{
		Name:        "dir_list",
		Description: "Lists a directory by name, not what is below its directories. next_cursor continues a long one.",
		Help:        listHelp,
		Effects:     tool.Reads,
		Budget:      -1, // it pages itself
	}, m.list)
}

func (m *dirs) list(ctx context.Context, c *tool.Call, in listIn) (listOut, error) {
	if in.Limit == 0 {
		in.Limit = 200
	}
	after, err := decodeCursor(in.Cursor)
	if err != nil {
		return listOut{}, err
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
	names, total, err := firstNames(ctx, root, after, in.Limit+1)
	if err != nil {
		return listOut{}, p.Refuse(err)
	}
	out := listOut{Entries: []entry{}, Path: in.Path, Total: total}
	size := 0
	for i, name := range names {
		if i == in.Limit || size > pageBytes {
			out.NextCursor = encodeCursor(names[i-1])
			break
		}
		e, ok := look(p, root, name)
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

// firstNames returns the n least names after the given one, sorted, and how
// many names there are in all. It holds no more than n and a few.
func firstNames(ctx context.Context, root *os.Root, after string, n int) (names []string, total int, err error) {
	d, err := root.Open(".")
	if err != nil {
		return nil, 0, err
	}
	defer d.Close()
	var least greatestFirst
	for {
		if err := context.Cause(ctx); err != nil {
			return nil, 0, err
		}
		some, err := d.Readdirnames(1024)
		for _, name := range some {
			total++
			switch {
			case name <= after:
			case len(least) < n:
				heap.Push(&least, name)
			case name < least[0]:
				least[0] = name
				heap.Fix(&least, 0)
			}
		}
		if err == io.EOF {
			slices.Sort(least)
			return least, total, nil
		}
		if err != nil {
			return nil, 0, err
		}
	}
}

// greatestFirst is a heap whose top is the first to go.
type greatestFirst []string

func (h greatestFirst) Len() int           { return len(h) }
func (h greatestFirst) Less(i, j int) bool { return h[i] > h[j] }
func (h greatestFirst) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *greatestFirst) Push(x any)        { *h = append(*h, x.(string)) }
func (h *greatestFirst) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
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

// A cursor holds the name of the last entry shown, which may be any bytes.
func encodeCursor(name string) string { return base64.RawURLEncoding.EncodeToString([]byte(name)) }

func decodeCursor(cursor string) (string, error) {
	name, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || len(name) > 4096 {
		return "", &tool.Refusal{Code: "invalid_arguments", Message: "cursor is not one of dir_list's", Next: "Give next_cursor of the page before, or none for the first page."}
	}
	return string(name), nil
}
