package roots

import (
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"gatehouse/tool"
)

// Protected returns the default patterns of names that file tools must not touch: secrets are neither read nor
// written, and the files of git are not written.
func Protected() []string {
	return []string{
		".env", ".env.*", "!.env.example", "!.env.sample", "!.env.template", "!.env.dist", "!.env.defaults",
		"*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx",
		"id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_ecdsa_sk", "id_ed25519_sk",
		".netrc", "_netrc", ".pgpass", ".git-credentials", ".htpasswd",
		".aws/credentials", ".docker/config.json", ".kube/config", ".gnupg/**", ".ssh/**", "!.ssh/known_hosts",
		"!.ssh/*.pub",
		"write:.git/**",
	}
}

// A Guard keeps tools away from files by their names. It protects against accidents and prompt injection, in
// addition to the roots. It does not recognize a secret under another name, for instance a hard link, and does not
// stop callers who may run programs. A nil Guard allows everything.
type Guard struct{ patterns []pattern }

type pattern struct {
	parts []string // one per path segment, in the syntax of path.Match, in lower case
	below bool     // matches a directory and everything in it
	not   bool     // allows what it matches
	write bool     // forbids only writing
}

// NewGuard compiles patterns; without any it returns nil. The last pattern that matches decides. A pattern matches
// the last segments of a path, each with * ? and [a-z], ignoring case. With /** at its end it matches a directory
// and everything in it. The prefix "!" allows what earlier patterns forbid, and the prefix "write:" forbids only
// writing.
func NewGuard(patterns []string) (*Guard, error) {
	if len(patterns) == 0 {
		return nil, nil
	}
	g := &Guard{}
	for _, text := range patterns {
		p := pattern{}
		rest := strings.ToLower(text)
		rest, p.not = strings.CutPrefix(rest, "!")
		rest, p.write = strings.CutPrefix(rest, "write:")
		rest, p.below = strings.CutSuffix(rest, "/**")
		p.parts = strings.Split(strings.TrimPrefix(rest, "**/"), "/")
		for _, part := range p.parts {
			if _, err := path.Match(part, ""); err != nil || part == "" || part == "**" {
				return nil, fmt.Errorf("protect: %q is not a pattern", text)
			}
		}
		g.patterns = append(g.patterns, p)
	}
	return g, nil
}

// Refuses reports whether a file must not be read or, with write, not be changed. name is relative to a root and
// contains no links.
func (g *Guard) Refuses(name string, write bool) bool {
	if g == nil || name == "." {
		return false
	}
	parts := strings.Split(strings.ToLower(filepath.ToSlash(name)), "/")
	refused := false
	for _, p := range g.patterns {
		if (write || !p.write) && refused == p.not && p.fits(parts) {
			refused = !p.not
		}
	}
	return refused
}

func (p *pattern) fits(parts []string) bool {
	if !p.below {
		return p.ends(parts)
	}
	for n := len(p.parts); n <= len(parts); n++ {
		if p.ends(parts[:n]) {
			return true
		}
	}
	return false
}

// ends reports whether parts end with the segments of the pattern.
func (p *pattern) ends(parts []string) bool {
	skip := len(parts) - len(p.parts)
	if skip < 0 {
		return false
	}
	for i, part := range p.parts {
		if !same(part, parts[skip+i]) {
			return false
		}
	}
	return true
}

// same matches one segment. Most segments are words or ends of words.
func same(pattern, name string) bool {
	end, starred := strings.CutPrefix(pattern, "*")
	if !strings.ContainsAny(end, `*?[\`) {
		return !starred && end == name || starred && strings.HasSuffix(name, end)
	}
	ok, _ := path.Match(pattern, name)
	return ok
}

// Guard returns the guard of these folders; nil if there is none.
func (s *Set) Guard() *Guard { return s.guard }

// Guarded returns p with another guard; nil allows everything.
func (p Place) Guarded(g *Guard) Place {
	p.guard = g
	return p
}

// guardOf returns the guard of a call's roots.
func guardOf(rs tool.Roots) *Guard {
	if s, ok := rs.(interface{ Guard() *Guard }); ok {
		return s.Guard()
	}
	return nil
}

// Refuses reports whether a guard forbids reading a name below p. The name contains no links.
func (p Place) Refuses(below string) bool {
	return p.guard.Refuses(filepath.Join(p.above, p.Name, below), false)
}

// Locked reports whether a guard forbids changing a name below p. The name contains no links.
func (p Place) Locked(below string) bool {
	return p.guard.Refuses(filepath.Join(p.above, p.Name, below), true)
}

// MayRead returns an error if the guard forbids reading the file, also if links lead to it.
func (p Place) MayRead() error { return p.may(false) }

// MayWrite returns an error if the guard forbids changing the file, also if links lead to it.
func (p Place) MayWrite() error { return p.may(true) }

func (p Place) may(write bool) error {
	if p.guard == nil {
		return nil
	}
	q, err := p.Followed(true)
	if err != nil {
		q = p // the operation on it will report the error
	}
	name, leads := filepath.Join(p.above, p.Name), filepath.Join(q.above, q.Name)
	if !p.guard.Refuses(name, write) && (leads == name || !p.guard.Refuses(leads, write)) {
		return nil
	}
	return p.isProtected(write)
}

func (p Place) isProtected(write bool) error {
	verb := "read"
	if write {
		verb = "changed"
	}
	return &tool.Refusal{
		Code:    tool.CodeDenied,
		Message: quote(p.Path) + " is protected by its name and is not " + verb,
		Next:    "Ask the person to do it, or to take the name off the server's list of protected names.",
	}
}
