package dir

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/files/roots"
	"gatehouse/internal/files/walk"
	"gatehouse/tool"
)

type sizeIn struct {
	Path string `json:"path" min:"1" names:"path"`
}

type sizeOut struct {
	Content string `json:"content" text:"product"`
	Bytes   int64  `json:"bytes"`
	Files   int64  `json:"files"`
	Dirs    int64  `json:"dirs"`
	Note    string `json:"note,omitempty" text:"facts"`
}

const sizeHelp = `Adds up the sizes of all files below a directory, including ignored files, and lists the largest
entries of the directory itself.

- The size is that of the content; a sparse file uses less space on disk. A file with several hard links counts once.
- Links are not followed. The virtual file systems /proc, /sys and /dev are skipped.
- After 25 s it returns what it has counted so far, and note says so.`

const (
	sizeTime  = 25 * time.Second
	maxShown  = 40        // entries of the directory in the result
	maxLinks  = 1_000_000 // files with several hard links that are remembered
	maxShares = 100_000   // entries of the directory that are counted separately
)

func (m *dirs) sizeTool() tool.Tool {
	return tool.New(tool.Def{
		Name:        "dir_size",
		Title:       "Measure a directory",
		Description: "Adds up the sizes of the files below a directory and lists its largest entries.",
		Help:        sizeHelp,
		Effects:     tool.Reads,
	}, m.size)
}

// share is the part of the sum that one entry of the directory has.
type share struct {
	name         string
	dir          bool
	bytes, files int64
}

// sizeCounter adds up sizes. It is safe for concurrent use.
type sizeCounter struct {
	mu          sync.Mutex
	shares      map[string]*share
	rest        share               // of the entries beyond maxShares
	linked      map[string]struct{} // files with several hard links that were counted
	files, dirs int64
	bytes       int64
}

func (m *dirs) size(ctx context.Context, c *tool.Call, in sizeIn) (sizeOut, error) {
	p, err := roots.Locate(c.Roots, in.Path)
	if err != nil {
		return sizeOut{}, err
	}
	root, err := p.Dir()
	if err != nil {
		return sizeOut{}, err
	}
	defer root.Close()
	ctx, cancel := context.WithTimeout(ctx, sizeTime)
	defer cancel()
	s := &sizeCounter{shares: map[string]*share{}, linked: map[string]struct{}{}}
	o := walk.Options{Root: root, All: true}
	if root.Name() == "/" {
		o.Skip = func(path string, dir bool) bool {
			return dir && (path == "proc" || path == "sys" || path == "dev")
		}
	}
	told := time.Now()
	stats, err := walk.Walk(ctx, o, func(_ int, d *walk.Dir, entries []walk.Entry) {
		if files := s.addEntries(d, entries); c.Peer != nil && files > 10_000 && time.Since(told) > time.Second {
			c.Peer.Progress(float64(files), 0, "files counted")
		}
	})
	late := errors.Is(err, context.DeadlineExceeded)
	if err != nil && !late {
		return sizeOut{}, p.Refuse(err)
	}
	out := sizeOut{Bytes: s.bytes, Files: s.files, Dirs: s.dirs}
	out.Note = sizeNote(stats, late)
	out.Content = s.table(filepath.ToSlash(in.Path), out.Note)
	return out, nil
}

func (s *sizeCounter) addEntries(d *walk.Dir, entries []walk.Entry) (files int64) {
	top, _, _ := strings.Cut(d.Path, "/")
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range entries {
		at := top
		if at == "" {
			at = e.Name
		}
		sh := s.share(at)
		if e.IsDir() {
			s.dirs++
			sh.dir = sh.dir || top == ""
			continue
		}
		n := s.uncountedBytes(e)
		sh.bytes += n
		sh.files++
		sh.dir = sh.dir || top != ""
		s.bytes += n
		s.files++
	}
	return s.files
}

func (s *sizeCounter) share(name string) *share {
	sh := s.shares[name]
	if sh == nil {
		if len(s.shares) >= maxShares {
			return &s.rest
		}
		sh = &share{name: name}
		s.shares[name] = sh
	}
	return sh
}

// uncountedBytes returns the size of a file, or 0 if it was counted under another
// name. s.mu is held.
func (s *sizeCounter) uncountedBytes(e walk.Entry) int64 {
	info, err := e.Info()
	if err != nil || !info.Mode().IsRegular() {
		return 0
	}
	if roots.Links(info) > 1 {
		id := roots.FileID(info)
		if _, counted := s.linked[id]; counted {
			return 0
		}
		if len(s.linked) < maxLinks {
			s.linked[id] = struct{}{}
		}
	}
	return info.Size()
}

// table formats the largest entries, one per line.
func (s *sizeCounter) table(path, note string) string {
	var b strings.Builder
	fmt.Fprintf(
		&b, "%s: %s in %s and %s\n", visible(path), humanSize(s.bytes), plural(s.files, "file", "files"),
		plural(s.dirs, "directory", "directories"),
	)
	all := make([]*share, 0, len(s.shares))
	for _, sh := range s.shares {
		all = append(all, sh)
	}
	slices.SortFunc(
		all, func(a, b *share) int { return cmp.Or(cmp.Compare(b.bytes, a.bytes), strings.Compare(a.name, b.name)) },
	)
	for i, sh := range all {
		if i == maxShown {
			fmt.Fprintf(&b, "[%d smaller entries]\n", len(all)-i)
			break
		}
		if sh.dir {
			fmt.Fprintf(&b, "%7s  %s/ (%s)\n", humanSize(sh.bytes), visible(sh.name), plural(sh.files, "file", "files"))
		} else {
			fmt.Fprintf(&b, "%7s  %s\n", humanSize(sh.bytes), visible(sh.name))
		}
	}
	if note != "" {
		fmt.Fprintf(&b, "[%s]\n", note)
	}
	return b.String()
}

func plural(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func sizeNote(stats walk.Stats, late bool) string {
	var s []string
	if late {
		s = append(s, fmt.Sprintf("stopped after %v; the sums are incomplete", sizeTime))
	}
	if stats.Unreadable > 0 {
		s = append(s, plural(stats.Unreadable, "directory", "directories")+" not readable")
	}
	if stats.TooDeep > 0 {
		s = append(s, plural(stats.TooDeep, "directory", "directories")+" too deep")
	}
	return strings.Join(s, ", ")
}
