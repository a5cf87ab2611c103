package roots

import (
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"gatehouse/tool"
)

// Protected are the names that file tools stay away from unless Options says
// otherwise: secrets are neither read nor written, and what git keeps for
// itself is not written.
func Protected() []string {
	return []string{
		".env", ".env.*", "!.env.example", "!.env.sample", "!.env.template", "!.env.dist", "!.env.defaults",
		"*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx",
		"id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_ecdsa_sk", "id_ed25519_sk",
		".netrc", "_netrc", ".pgpass", ".git-credentials", ".htpasswd",
		".aws/credentials", ".docker/config.json", ".kube/config", ".gnupg/**", ".ssh/**", "!.ssh/known_hosts", "!.ssh/*.pub",
		"write:.git/**",
	}
}

// A Guard keeps tools away from files by their names. It guards against
// accidents and against what a model is talked into, on top of the roots,
// which guard against everything else: it does not know a secret that has
// another name, through a hard link for instance, and no caller who may run
// programs is stopped by it. The nil Guard lets everything pass.
type Guard struct{ patterns []pattern }

type pattern struct {
	parts []string // one per segment, as path.Match wants them, in lower case
	below bool     // it names a directory and all that is in it
	not   bool     // what it names may be touched after all
	write bool     // reading is fine
}

// NewGuard compiles patterns; of none it makes the nil Guard. They are tried in order and the last that fits
// decides. A pattern names files by their last segments, each with * ? and
// [a-z], whatever their case; with /** at its end it names a directory and all
// that is in it. In front, "!" takes back what an earlier one named, and
// "write:" leaves reading alone.
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
				return nil, fmt.Errorf("protect: %q is no pattern", text)
			}
		}
		g.patterns = append(g.patterns, p)
	}
	return g, nil
}

// Refuses reports whether a file of this name, inside a root and without links
// in it, must not be read or, with write, be changed.
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

// ends reports whether the last of parts are those of the pattern.
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

// same matches one segment, most of which are words or the ends of words.
func same(pattern, name string) bool {
	end, starred := strings.CutPrefix(pattern, "*")
	if !strings.ContainsAny(end, `*?[\`) {
		return !starred && end == name || starred && strings.HasSuffix(name, end)
	}
	ok, _ := path.Match(pattern, name)
	return ok
}

// Guard is what keeps tools away from some names in these folders; nil when
// nothing does.
func (s *Set) Guard() *Guard { return s.guard }

// Guarded is p with another guard; nil lets everything pass.
func (p Place) Guarded(g *Guard) Place {
	p.guard = g
	return p
}

// guardOf asks the roots of a call for theirs.
func guardOf(rs tool.Roots) *Guard {
	if s, ok := rs.(interface{ Guard() *Guard }); ok {
		return s.Guard()
	}
	return nil
}

// Refuses reports whether a guard forbids reading what lies below p under a
// name without links.
func (p Place) Refuses(below string) bool {
	return p.guard.Refuses(filepath.Join(p.above, p.Name, below), false)
}

// Locked reports whether a guard forbids changing what lies below p under a
// name without links.
func (p Place) Locked(below string) bool {
	return p.guard.Refuses(filepath.Join(p.above, p.Name, below), true)
}

// MayRead refuses what the guard keeps from being read, also where it is only
// reached through links.
func (p Place) MayRead() error { return p.may(false) }

// MayWrite refuses what the guard keeps from being changed, also where it is
// only reached through links.
func (p Place) MayWrite() error { return p.may(true) }

func (p Place) may(write bool) error {
	if p.guard == nil {
		return nil
	}
	q, err := p.Followed(true)
	if err != nil {
		q = p // whatever is done with it next says what is wrong
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
