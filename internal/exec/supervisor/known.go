//go:build linux && (amd64 || arm64)

package supervisor

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"gatehouse/internal/exec/shellpolicy"

	"golang.org/x/sys/unix"
)

// identity identifies a file as long as it exists.
type identity struct{ Dev, Ino uint64 }

func identityOf(st *unix.Stat_t) identity { return identity{uint64(st.Dev), st.Ino} }

// known is a file that a pattern may mean, at a path by which programs are looked up.
type known struct {
	Path   string // as it is looked up
	ID     identity
	Size   int64
	Denied bool // a deny pattern has its name
}

// systemFolders hold the programs of the system.
var systemFolders = []string{
	"/bin", "/usr/bin", "/usr/local/bin", "/sbin", "/usr/sbin", "/usr/local/sbin", "/snap/bin",
}

// newPlan finds the files that the patterns of a line mean.
func newPlan(s Spec) (*plan, error) {
	p := &plan{Spec: s, Folders: searchFolders(s)}
	p.Allow, p.Deny = absolute(s.Allow, s.Dir), absolute(s.Deny, s.Dir)
	rules, err := shellpolicy.New(p.Allow, p.Deny)
	if err != nil {
		return nil, err
	}
	allow, deny := rules.Programs()
	p.Executable = p.executableFiles(allow)
	for name := range multiCall {
		allow = append(allow, name)
	}
	seen := map[string]int{}
	for i, list := range [][]string{allow, deny} {
		for _, pattern := range list {
			for _, file := range p.lookUp(pattern) {
				if at, ok := seen[file]; ok {
					p.Files[at].Denied = p.Files[at].Denied || i == 1
					continue
				}
				var st unix.Stat_t
				if unix.Stat(file, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
					continue
				}
				seen[file] = len(p.Files)
				p.Files = append(p.Files, known{file, identityOf(&st), st.Size, i == 1})
			}
		}
	}
	return p, nil
}

// searchFolders returns the folders of programs: those of the system and of PATH, except those that the line may
// change.
func searchFolders(s Spec) (all []string) {
	candidates := slices.Clone(systemFolders)
	for _, kv := range s.Env {
		if list, ok := strings.CutPrefix(kv, "PATH="); ok {
			candidates = append(candidates, filepath.SplitList(list)...)
		}
	}
	for _, dir := range candidates {
		real, err := filepath.EvalSymlinks(dir)
		if err != nil || !filepath.IsAbs(dir) || slices.Contains(all, real) ||
			slices.ContainsFunc(s.Writable, func(w string) bool { return isWithin(resolve(w), real) }) {
			continue
		}
		all = append(all, real)
	}
	return all
}

func resolve(p string) string {
	if real, err := filepath.EvalSymlinks(p); err == nil {
		return real
	}
	return filepath.Clean(p)
}

// isWithin reports whether p is dir or below it. Both are clean paths.
func isWithin(dir, p string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}

// absolute completes patterns whose programs have a relative path, and resolves links in the folders of the others.
// What a link leads to is added beside it, because the kernel reports files without links.
func absolute(patterns []string, dir string) (all []string) {
	for _, text := range patterns {
		fields := strings.Fields(text)
		with := max(0, slices.Index(fields, "with:"))
		if len(fields) == 0 {
			continue
		}
		var programs []string
		if with > 0 {
			for _, f := range fields[with+1:] {
				programs = append(programs, forms(f, dir)...)
			}
			fields = fields[:with]
		}
		for _, f := range forms(fields[0], dir) {
			entry := append([]string{f}, fields[1:]...)
			if with > 0 {
				entry = append(append(entry, "with:"), programs...)
			}
			all = append(all, strings.Join(entry, " "))
		}
	}
	return all
}

// forms returns the forms of the program of a pattern.
func forms(program, dir string) []string {
	if !strings.Contains(program, "/") {
		return []string{program}
	}
	if !strings.HasPrefix(program, "/") && !strings.HasPrefix(program, "*") {
		program = path.Join(dir, program)
	}
	all := []string{program}
	if folder, name := path.Split(program); !strings.ContainsAny(folder, "*?[") {
		all = append(all, path.Join(resolve(folder), name))
	}
	return slices.Compact(all)
}

// lookUp returns the files that the program of a pattern may mean now.
func (p *plan) lookUp(pattern string) (files []string) {
	wild := strings.ContainsAny(pattern, "*?[")
	switch {
	case strings.Contains(pattern, "/") && wild:
		files, _ = filepath.Glob(pattern)
	case strings.Contains(pattern, "/"):
		files = []string{pattern}
	case wild:
		for _, dir := range p.Folders {
			entries, _ := os.ReadDir(dir)
			for _, e := range entries {
				if shellpolicy.Matches(pattern, e.Name()) {
					files = append(files, path.Join(dir, e.Name()))
				}
			}
		}
	default:
		for _, dir := range p.Folders {
			files = append(files, path.Join(dir, pattern))
		}
	}
	return files
}
