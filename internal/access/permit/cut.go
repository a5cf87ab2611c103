package permit

import (
	"slices"
	"strings"

	"gatehouse/tool"
)

// Cut is what of a caller matters to a policy: two callers with the same cut
// see the same view, for any principal. It can be read: roles, scopes and the
// patterns of principals that fit, sorted.
type Cut string

// Cut says what of a caller matters. Only roles and names that some rule
// mentions are in it, so that 10,000 principals with two roles make two views.
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

// Uniform reports whether no rule tells one caller from another: whatever is
// seen, everyone without scopes sees the same.
func (p *Policy) Uniform() bool { return len(p.roles) == 0 && len(p.principals) == 0 }

var (
	escape   = strings.NewReplacer("\\", "\\\\", "\n", "\\n")
	unescape = strings.NewReplacer("\\\\", "\\", "\\n", "\n")
)

// who is a cut, read.
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

// isOneOf reports whether one of the patterns fits the principal.
func (p *Policy) isOneOf(w who, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(pat string) bool { return slices.Contains(w.principals, pat) })
}

// Entry is whether a caller may enter a context.
type Entry uint8

const (
	Unknown   Entry = iota // to this caller the context does not exist
	Forbidden              // the caller may know of it, and not enter
	Welcome
)

// Enter decides whether a caller with this cut may enter a context. A context
// without an Access is open to everyone.
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
