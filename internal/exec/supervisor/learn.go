package supervisor

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"
)

// AllowList returns the allow patterns that the programs of a line need, which ran with Spec.Learn:
// one for each program that the line itself started, with those that ran below it.
func AllowList(programs []Program) (patterns []string) {
	with := map[string][]string{}
	for _, p := range programs {
		names := []string{p.Name}
		if p.Script != "" {
			names = append(names, filepath.Base(p.Path)) // what runs a script is needed as well
		}
		entry := cmp.Or(p.Scope, p.Name)
		if entry == "" {
			continue
		}
		if with[entry] == nil {
			with[entry] = []string{}
		}
		for _, name := range names {
			if name != entry && !slices.Contains(with[entry], name) {
				with[entry] = append(with[entry], name)
			}
		}
	}
	for entry, below := range with {
		slices.Sort(below)
		if len(below) > 0 {
			entry += " with: " + strings.Join(below, " ")
		}
		patterns = append(patterns, entry)
	}
	slices.Sort(patterns)
	return patterns
}
