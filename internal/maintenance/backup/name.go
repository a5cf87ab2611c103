package backup

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
	"time"
)

// Entry is one backup of a target.
type Entry struct {
	Name    string
	Created time.Time // UTC, in whole seconds
	Size    int64     // bytes
	Own     bool      // whether this host created it
}

const stamp = "20060102T150405Z"

var nameShape = regexp.MustCompile(`^gatehouse-[0-9a-f]{12}-(packages-)?([0-9]{8}T[0-9]{6}Z)-[a-z2-7]{6}\.age$`)

// prefixOf returns the prefix of the names of a host's backups. It is a hash, so that
// names do not disclose the host's id.
func prefixOf(host string) string {
	sum := sha256.Sum256([]byte("backup of " + host))
	return "gatehouse-" + hex.EncodeToString(sum[:6]) + "-"
}

// OfPackages reports whether a name is that of a backup of packages only.
func OfPackages(name string) bool {
	m := nameShape.FindStringSubmatch(name)
	return m != nil && m[1] != ""
}

func newName(host string, at time.Time, packages bool) string {
	prefix := prefixOf(host)
	if packages {
		prefix += "packages-"
	}
	return prefix + at.Format(stamp) + "-" + strings.ToLower(rand.Text()[:6]) + ".age"
}

// createdOf returns the time in the name of a backup, or an error if name is not one.
func createdOf(name string) (time.Time, error) {
	m := nameShape.FindStringSubmatch(name)
	if m == nil {
		return time.Time{}, invalid(
			"%.100q is not the name of a backup; expected one such as "+
				"gatehouse-0123456789ab-20260131T120000Z-abcdef.age",
			name,
		)
	}
	at, err := time.Parse(stamp, m[2])
	if err != nil {
		return time.Time{}, invalid("%q is not the name of a backup: %v", name, err)
	}
	return at, nil
}

// unfinished returns the name of a backup before it is complete.
func unfinished(name string) string { return "." + name + ".part" }

func isUnfinished(name string) bool {
	whole, ok := strings.CutSuffix(strings.TrimPrefix(name, "."), ".part")
	return ok && strings.HasPrefix(name, ".") && nameShape.MatchString(whole)
}
