package file

import "gatehouse/internal/files/roots"

// Settings are the settings of files, which the configuration of a host embeds.
// The names that they protect are protected from every tool, in every folder.
type Settings struct {
	Deny    []string `doc:"Names that tools stay away from besides the usual ones (.env, private keys, passwords; writing to .git): such as *.sqlite, secrets/** or, to leave reading alone, write:dist/**."`
	Allow   []string `doc:"Names that may be touched although they are on that list, the same way: .env.test, or write:.git/** for writing to .git."`
	MaxEdit int64    `doc:"Size of the largest file that is edited, before and after; it is held in memory. 0 means 64 MiB." unit:"bytes"`
	MaxCopy int64    `doc:"Size of the largest file that is copied or added to; 0 means 4 GiB." unit:"bytes"`
}

// Protected returns the patterns of names that tools stay away from, for
// roots.NewGuard; nil means the defaults.
func (s Settings) Protected() []string {
	if len(s.Deny)+len(s.Allow) == 0 {
		return nil
	}
	all := append(roots.Protected(), s.Deny...)
	for _, p := range s.Allow {
		all = append(all, "!"+p)
	}
	return all
}
