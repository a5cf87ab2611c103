package permit

import (
	"slices"
	"strings"

	"gatehouse/tool"
)

// Cut is the part of a caller that a policy depends on: callers with the same cut see the same view. It
// is readable text: roles, scopes and the matching patterns of principals, sorted.
type Cut string

// Cut returns the cut of a caller. It contains only roles and names that some rule mentions, so that
// 10,000 principals with two roles make two views.
func (p *Policy) Cut(c tool.Caller) Cut {
	if len(p.roles) == 0 && len(p.principals) == 0 && len(c.Scopes) == 0 {
		return ""
	}
	var b strings.Builder
	part := func(mark byte, words []string) {
		slices.Sort(words)
		for _, w := range slices.Compact(words) {
			b.WriteByte(mark)
			b.WriteString(escape.Replace(w))
			b.WriteByte('\n')
		}
	}
	var roles, fit []string
	for _, r := range c.Roles {
		if p.roles[r] {
			roles = append(roles, r)
		}
	}
	for _, pat := range p.principals {
		if matches([]string{pat}, c.Principal) {
			fit = append(fit, pat)
		}
	}
	part('r', roles)
	part('s', slices.Clone(c.Scopes))
	part('p', fit)
	return Cut(b.String())
}

// Uniform reports whether no rule distinguishes callers, so that all callers without scopes see the
// same.
func (p *Policy) Uniform() bool { return len(p.roles) == 0 && len(p.principals) == 0 }

var (
	escape   = strings.NewReplacer("\\", "\\\\", "\n", "\\n")
	unescape = strings.NewReplacer("\\\\", "\\", "\\n", "\n")
)

// who is a parsed cut.
type who struct{ roles, scopes, principals []string }

func (c Cut) parseCut() (w who) {
	for line := range strings.Lines(string(c)) {
		word := unescape.Replace(strings.TrimSuffix(line[1:], "\n"))
		switch line[0] {
		case 'r':
			w.roles = append(w.roles, word)
		case 's':
			w.scopes = append(w.scopes, word)
		case 'p':
			w.principals = append(w.principals, word)
		}
	}
	return w
}

func (w who) hasRole(any []string) bool {
	return slices.ContainsFunc(any, func(r string) bool { return slices.Contains(w.roles, r) })
}

// isOneOf reports whether one of the patterns matches the principal.
func (p *Policy) isOneOf(w who, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(pat string) bool { return slices.Contains(w.principals, pat) })
}

// Entry states whether a caller may enter a context.
type Entry uint8

const (
	Unknown   Entry = iota // the context does not exist for this caller
	Forbidden              // the caller may see that it exists, but not enter
	Welcome
)

// Enter decides whether a caller with this cut may enter a context. A context without an Access is open
// to all callers.
func (p *Policy) Enter(cut Cut, context string) Entry {
	i := slices.IndexFunc(p.opts.Access, func(a Access) bool { return a.Context == context })
	if i < 0 {
		return Welcome
	}
	a, w := &p.opts.Access[i], cut.parseCut()
	switch {
	case len(a.Roles) == 0 && len(a.Users) == 0 && len(a.KnownTo) == 0:
		return Welcome
	case w.hasRole(a.Roles), p.isOneOf(w, a.Users):
		return Welcome
	case w.hasRole(a.KnownTo):
		return Forbidden
	}
	return Unknown
}
