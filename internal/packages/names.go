package packages

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"
)

const longestName = 64 // characters of a name that every client accepts

// wanted is a name that a tool or prompt of a package would have on this host if no other had it too.
type wanted struct {
	id, own string // the package, and the server's name
	name    string // here
	level   int    // how much of the hash the name ends in; an index of hashSizes
}

// hashSizes are the characters of a hash at the end of a name, of 5 bits each. A server could make names that
// agree in the first sizes; the last is a whole SHA-256.
var hashSizes = []int{0, 8, 16, 52}

// uniqueNames gives each of the tools or prompts of a package a name of its own, with at most
// longestName characters. The names do not depend on the order. A name that several want goes to
// the one whose own name it has unchanged, if that is one only; the others, and names that are too
// long, end in a hash of the package and the own name. No two may have the same own name. Names of
// two packages differ by their ids; see Check.
func uniqueNames(all []wanted) []string {
	names := make([]string, len(all))
	for i := range all {
		if len(all[i].name) > longestName {
			all[i].level = 1
		}
	}
	for again := true; again; {
		again = false
		by := make(map[string][]int, len(all))
		for i := range all {
			names[i] = all[i].hashed()
			by[names[i]] = append(by[names[i]], i)
		}
		for _, same := range by {
			if len(same) == 1 {
				continue
			}
			again = true
			for keeps := keeper(all, same); len(same) > 0; same = same[1:] {
				if same[0] != keeps {
					all[same[0]].level++
				}
			}
		}
	}
	return names
}

// keeper returns which of those with the same name keeps it, or -1: the one with the longest hash, so that no plain
// name can take a hashed one, and without hashes the one whose own name it is.
func keeper(all []wanted, same []int) int {
	found, best := -1, -1
	for _, i := range same {
		rank := 2 * all[i].level
		if rank == 0 && all[i].name == prefix(all[i].id)+"_"+all[i].own {
			rank = 1
		}
		switch {
		case rank > best:
			found, best = i, rank
		case rank == best:
			found = -1
		}
	}
	if best == 0 {
		return -1
	}
	return found
}

// hashed returns the name with as much of the hash as the level says.
func (w wanted) hashed() string {
	if w.level == 0 {
		return w.name
	}
	sum := sha256.Sum256([]byte(w.id + "\x00" + w.own))
	text := strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:]))
	text = text[:hashSizes[w.level]]
	return w.name[:min(len(w.name), longestName-1-len(text))] + "_" + text
}

// nameHere is the name on this host of a tool or prompt of a package, before uniqueNames: the package's and the
// server's. A server whose names begin with the package's already keeps them.
func nameHere(id, own string) string {
	name := wireName(own)
	if !strings.HasPrefix(name, prefix(id)+"_") || name == prefix(id)+"_" {
		name = prefix(id) + "_" + name
	}
	return name
}

// wireName makes a name of letters, digits and _.
func wireName(own string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		return '_'
	}, own)
}
