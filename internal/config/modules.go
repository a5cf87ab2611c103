package config

import (
	"fmt"

	"gatehouse/internal/roots"
)

// Modules are what single modules are told.
type Modules struct {
	File Files `doc:"Files. What is protected by its name is so for every tool, in every folder."`
}

// Files are what the file module is told, and which names are protected in the
// folders.
type Files struct {
	Deny    []string `doc:"Names that tools stay away from besides the usual ones (.env, private keys, passwords; writing to .git): such as *.sqlite, secrets/** or, to leave reading alone, write:dist/**."`
	Allow   []string `doc:"Names that may be touched although they are on that list, the same way: .env.test, or write:.git/** for writing to .git."`
	MaxEdit int64    `doc:"Size of the largest file that is edited, before and after; it is held in memory. 0 means 64 MiB." unit:"bytes"`
	MaxCopy int64    `doc:"Size of the largest file that is copied or added to; 0 means 4 GiB." unit:"bytes"`
}

// Protect are the names that tools stay away from, as roots.NewGuard takes
// them; nil means the usual ones.
func (f Files) Protect() []string {
	if len(f.Deny)+len(f.Allow) == 0 {
		return nil
	}
	all := append(roots.Protected(), f.Deny...)
	for _, p := range f.Allow {
		all = append(all, "!"+p)
	}
	return all
}

func (m Modules) validate(w *wrong) {
	f := m.File
	w.names("modules.file.deny", f.Deny)
	w.names("modules.file.allow", f.Allow)
	atLeast(w, "modules.file.max_edit", "largest file to edit", f.MaxEdit, 0)
	atLeast(w, "modules.file.max_copy", "largest file to copy", f.MaxCopy, 0)
}

func (w *wrong) names(at string, list []string) {
	for i, p := range list {
		if _, err := roots.NewGuard([]string{p}); err != nil || p[0] == '!' {
			w.add(fmt.Sprintf("%s[%d]", at, i), "%q is no pattern of names; expected one such as .env, *.key, secrets/** or write:dist/**", p)
		}
	}
}
