package walk

import (
	"bytes"
	"io"
	"os"
	"path"
	"strings"
	"syscall"

	"gatehouse/internal/files/merged"
)

// These are the limits of one ignore file; the rest of a larger one is not read.
const (
	maxRulesBytes = 256 << 10
	maxRules      = 4096
)

// ignoreFiles are the names of ignore files in a directory.
type ignoreFiles uint8

const (
	gitExclude ignoreFiles = 1 << iota
	gitIgnore
	plainIgnore

	allIgnoreFiles = gitExclude | gitIgnore | plainIgnore
)

// Later files override earlier ones.
var ignoreNames = [...]struct {
	bit  ignoreFiles
	seen string // the entry that tells of it
	file string
}{
	{gitExclude, ".git", ".git/info/exclude"},
	{gitIgnore, ".gitignore", ".gitignore"},
	{plainIgnore, ".ignore", ".ignore"},
}

func (f *ignoreFiles) see(name string) {
	if name == "" || name[0] != '.' {
		return
	}
	for _, n := range ignoreNames {
		if n.seen == name {
			*f |= n.bit
		}
	}
}

// isRepository reports whether a name is that of a folder of version control data.
func isRepository(name string) bool {
	switch name {
	case ".git", ".hg", ".svn", ".jj", ".bzr":
		return true
	}
	return false
}

// rules are the ignore rules of one directory, after those of the directories above it. It is immutable.
type rules struct {
	base  string // path of the directory from the start of the walk
	above bool   // the directory is above the start, and base leads from it to the start
	list  []rule
	next  *rules // of the directories above
}

type rule struct {
	keep     bool // "!": do not ignore after all
	dir      bool // directories only
	anchored bool // matched against the path from base, else against the name
	glob     pattern
}

// ignore reports whether an entry is ignored. The last matching rule decides, and the nearest directory comes
// first.
func (r *rules) ignore(rel, name string, isDir func() bool) bool {
	for ; r != nil; r = r.next {
		from := ""
		for i := len(r.list) - 1; i >= 0; i-- {
			l := &r.list[i]
			subject := name
			if l.anchored {
				if from == "" {
					from = r.from(rel)
				}
				subject = from
			}
			if l.glob.match(subject) && (!l.dir || isDir()) {
				return !l.keep
			}
		}
	}
	return false
}

// from returns a path relative to the directory of the rules.
func (r *rules) from(rel string) string {
	switch {
	case r.above:
		return r.base + "/" + rel
	case r.base == "":
		return rel
	}
	return rel[len(r.base)+1:]
}

// Filter reports which entries of one directory are left out by ignore files and by default. A nil Filter leaves
// out nothing. It is immutable.
type Filter struct {
	path  string // of the directory, relative to the one of NewFilter
	rules *rules
}

// NewFilter returns the filter of a directory inside a root, with the ignore files there and above.
func NewFilter(root merged.Folder, dir string) *Filter {
	dir = path.Clean(dir)
	r := rulesAbove(root, dir)
	if d, err := merged.Enter(root, dir); err == nil {
		r = readRules(d, "", r, allIgnoreFiles)
		d.Close()
	}
	return &Filter{rules: r}
}

// Below returns the filter of a subdirectory, which is open as root.
func (f *Filter) Below(name string, root merged.Folder) *Filter {
	if f == nil {
		return nil
	}
	at := path.Join(f.path, name)
	return &Filter{at, readRules(root, at, f.rules, allIgnoreFiles)}
}

// Ignores reports whether an entry is left out. isDir is called only if that matters.
func (f *Filter) Ignores(name string, isDir func() bool) bool {
	if f == nil {
		return false
	}
	if isRepository(name) && isDir() {
		return true
	}
	return f.rules != nil && f.rules.ignore(path.Join(f.path, name), name, isDir)
}

// readRules reads the ignore files of a directory.
func readRules(root merged.Folder, base string, next *rules, files ignoreFiles) *rules {
	var list []rule
	for _, n := range ignoreNames {
		if files&n.bit != 0 {
			list = append(list, parseRules(readSmall(root, n.file))...)
		}
	}
	if len(list) == 0 {
		return next
	}
	return &rules{base: base, list: list, next: next}
}

// rulesAbove reads the ignore files of the directories above the start.
func rulesAbove(root merged.Folder, start string) (r *rules) {
	if start == "." {
		return nil
	}
	parts := strings.Split(start, "/")
	for i := range parts {
		dir, err := merged.Enter(root, path.Join(append([]string{"."}, parts[:i]...)...))
		if err != nil {
			return r
		}
		if n := readRules(dir, strings.Join(parts[i:], "/"), r, allIgnoreFiles); n != r {
			n.above = true
			r = n
		}
		dir.Close()
	}
	return r
}

func readSmall(root merged.Folder, name string) []byte {
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	b, _ := io.ReadAll(io.LimitReader(f, maxRulesBytes))
	return b
}

func parseRules(b []byte) (list []rule) {
	b = bytes.TrimPrefix(b, []byte("\xEF\xBB\xBF"))
	for line := range bytes.Lines(b) {
		if r, ok := parseRule(string(bytes.TrimRight(line, "\r\n"))); ok && len(list) < maxRules {
			list = append(list, r)
		}
	}
	return list
}

func parseRule(line string) (r rule, ok bool) {
	if strings.HasPrefix(line, "#") {
		return r, false
	}
	for strings.HasSuffix(line, " ") && !strings.HasSuffix(line, `\ `) {
		line = line[:len(line)-1]
	}
	line, r.keep = strings.CutPrefix(line, "!")
	line, r.dir = strings.CutSuffix(line, "/")
	if line == "" {
		return r, false
	}
	r.anchored = strings.Contains(line, "/")
	line = strings.TrimPrefix(line, "/")
	if !r.anchored {
		r.glob = compilePart(line)
	} else {
		r.glob = compilePath(line)
	}
	return r, true
}
