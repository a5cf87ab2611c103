//go:build linux && (amd64 || arm64)

package supervisor

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// maxExecutable is the number of files from which the folders of programs are executable as a whole, because each file
// is a rule that the kernel has to be given.
const maxExecutable = 512

// executableFiles returns what Landlock lets a line start, as a second barrier that needs no
// decision of ours: the files of the allow list, the line's own shell, and their loaders; nil, for
// everything, without an allow list. What an entry with a path may mean later, in a folder that the
// line can change, is allowed by that folder. The kernel does not ask Landlock about the file that
// a loader is told to load, nor about files in memory, so it cannot replace the judgement.
func (p *plan) executableFiles(allow []string) []string {
	if len(p.Allow) == 0 || p.Unconfined || p.Learn {
		return nil
	}
	all := slices.Clone(p.Argv[:min(1, len(p.Argv))])
	for _, pattern := range allow {
		if folder := p.changeableFolder(pattern); folder != "" {
			all = append(all, folder)
			continue
		}
		for _, file := range p.lookUp(pattern) {
			if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
				all = append(all, file)
			}
		}
	}
	if len(all) > maxExecutable {
		all = append(slices.DeleteFunc(all, func(f string) bool { return slices.Contains(p.Folders, path.Dir(f)) }),
			p.Folders...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	for _, f := range all {
		if loader := loaderOf(f); loader != "" && !slices.Contains(all, loader) {
			all = append(all, loader)
		}
	}
	return all
}

// changeableFolder returns the folder of the files that a pattern with a path means, if the line can put files there or
// the pattern does not name one folder; else "".
func (p *plan) changeableFolder(pattern string) string {
	if !strings.Contains(pattern, "/") {
		return ""
	}
	folder, _ := path.Split(pattern)
	i := strings.IndexAny(folder, "*?[")
	if i >= 0 {
		folder, _ = path.Split(folder[:i])
	}
	folder = resolve(folder)
	if i >= 0 || slices.ContainsFunc(p.Writable, func(w string) bool { return isWithin(resolve(w), folder) }) {
		return folder
	}
	return ""
}

// loaderOf returns the loader that a program names; "" if it names none.
func loaderOf(name string) string {
	r, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer r.Close()
	e, ok := readELF(r)
	if !ok || e.loader == "" {
		return ""
	}
	return filepath.Clean(strings.TrimRight(e.loader, "\x00"))
}
