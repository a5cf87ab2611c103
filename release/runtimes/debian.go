package runtimes

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/ulikunitz/xz"
)

// DebianBase is where Debian's mirrors are found.
const DebianBase = "https://deb.debian.org"

// archives are the parts of a suite: of all that have a package, the newest version counts.
func archives(suite string) map[string]string {
	return map[string]string{
		suite:               DebianBase + "/debian",
		suite + "-updates":  DebianBase + "/debian",
		suite + "-security": DebianBase + "/debian-security",
	}
}

// unneeded are packages of which only the scripts of other packages make use.
var unneeded = []string{
	"adduser",
	"debconf",
	"dpkg",
	"init-system-helpers",
	"install-info",
	"passwd",
	"sensible-utils",
	"ucf",
}

// debianPackage is a paragraph of an index of packages.
type debianPackage struct {
	item     Item
	depends  []string // each one or several names, separated by |
	provides []string
}

// ResolveDebian returns the newest packages of a suite that have these names, and those that they depend
// on, in the order of their names. Keyring is Debian's, which signs the indexes.
func ResolveDebian(
	ctx context.Context,
	suite, arch string,
	keyring openpgp.EntityList,
	names []string,
) ([]Item, error) {
	index := map[string]debianPackage{}
	for part, base := range archives(suite) {
		text, err := packagesOf(ctx, base, part, arch, keyring)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", part, err)
		}
		for _, p := range parseIndex(base, text) {
			old, ok := index[p.item.Name]
			if !ok || compareVersions(p.item.Version, old.item.Version) > 0 {
				index[p.item.Name] = p
			}
		}
	}
	return closure(index, names)
}

// closure follows dependencies.
func closure(index map[string]debianPackage, names []string) ([]Item, error) {
	provided := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(index)) {
		for _, virtual := range index[name].provides {
			provided[virtual] = append(provided[virtual], name)
		}
	}
	chosen := map[string]Item{}
	for queue := slices.Clone(names); len(queue) > 0; queue = queue[1:] {
		name, err := choose(index, provided, chosen, queue[0])
		if err != nil {
			return nil, err
		}
		if _, ok := chosen[name]; ok || slices.Contains(unneeded, name) {
			continue
		}
		chosen[name] = index[name].item
		queue = append(queue, index[name].depends...)
	}
	return slices.SortedFunc(maps.Values(chosen), func(a, b Item) int { return cmp.Compare(a.Name, b.Name) }), nil
}

// choose returns the package for a dependency: one that was chosen already, or else the first that there is.
func choose(index map[string]debianPackage, provided map[string][]string, chosen map[string]Item, dependency string) (
	string, error) {
	var there []string
	for name := range strings.SplitSeq(dependency, "|") {
		if _, ok := index[name]; ok {
			there = append(there, name)
		}
		there = append(there, provided[name]...)
	}
	for _, name := range there {
		if _, ok := chosen[name]; ok || slices.Contains(unneeded, name) {
			return name, nil
		}
	}
	if len(there) == 0 {
		return "", fmt.Errorf("no package is, or provides, %s", dependency)
	}
	return there[0], nil
}

// packagesOf returns an index of packages, whose digest stands in a file with Debian's signature.
func packagesOf(ctx context.Context, base, part, arch string, keyring openpgp.EntityList) (string, error) {
	dir := base + "/dists/" + part
	signed, err := download(ctx, dir+"/InRelease", 0)
	if err != nil {
		return "", err
	}
	block, _ := clearsign.Decode(signed)
	if block == nil {
		return "", errors.New("InRelease is not signed")
	}
	if _, err := block.VerifySignature(keyring, nil); err != nil {
		return "", fmt.Errorf("InRelease: %w", err)
	}
	name := "main/binary-" + arch + "/Packages.xz"
	want := ""
	_, digests, _ := strings.Cut("\n"+string(block.Plaintext), "\nSHA256:")
	for line := range strings.Lines(digests) {
		if f := strings.Fields(line); len(f) == 3 && f[2] == name {
			want = f[0]
		}
	}
	packed, err := download(ctx, dir+"/"+name, 0)
	if err != nil {
		return "", err
	}
	if digest(packed) != want {
		return "", fmt.Errorf("%s has not the digest that InRelease names", name)
	}
	r, err := xz.NewReader(bytes.NewReader(packed))
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(r)
	return string(text), err
}

// parseIndex reads the paragraphs of an index.
func parseIndex(base, text string) (all []debianPackage) {
	fields := map[string]string{}
	add := func() {
		if fields["Package"] != "" {
			all = append(all, newDebianPackage(base, fields))
		}
		clear(fields)
	}
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if line == "" {
			add()
		} else if name, value, ok := strings.Cut(line, ":"); ok && line[0] != ' ' {
			fields[name] = strings.TrimSpace(value)
		}
	}
	add()
	return all
}

func newDebianPackage(base string, fields map[string]string) debianPackage {
	size, _ := strconv.ParseInt(fields["Size"], 10, 64)
	p := debianPackage{item: Item{Kind: Deb, Name: fields["Package"], Version: fields["Version"],
		Address: base + "/" + path.Clean(fields["Filename"]), SHA256: fields["SHA256"], Size: size}}
	for _, field := range []string{fields["Pre-Depends"], fields["Depends"]} {
		p.depends = append(p.depends, dependencies(field)...)
	}
	p.provides = dependencies(fields["Provides"])
	return p
}

// dependencies returns the names of a field, without versions and processors.
func dependencies(field string) (all []string) {
	for one := range strings.SplitSeq(field, ",") {
		var names []string
		for alternative := range strings.SplitSeq(one, "|") {
			name, _, _ := strings.Cut(strings.TrimSpace(alternative), " ")
			if name, _, _ = strings.Cut(name, ":"); name != "" {
				names = append(names, name)
			}
		}
		if len(names) > 0 {
			all = append(all, strings.Join(names, "|"))
		}
	}
	return all
}

// compareVersions orders versions of Debian's packages as deb-version(7) does.
func compareVersions(a, b string) int {
	ea, va, ra := splitVersion(a)
	eb, vb, rb := splitVersion(b)
	return cmp.Or(cmp.Compare(ea, eb), compareParts(va, vb), compareParts(ra, rb))
}

// splitVersion returns the epoch, the version of the program and that of the package.
func splitVersion(v string) (epoch int, upstream, revision string) {
	if before, after, ok := strings.Cut(v, ":"); ok {
		epoch, _ = strconv.Atoi(before)
		v = after
	}
	if i := strings.LastIndexByte(v, '-'); i >= 0 {
		return epoch, v[:i], v[i+1:]
	}
	return epoch, v, ""
}

// compareParts compares runs of other characters and runs of digits by turns.
func compareParts(a, b string) int {
	for a != "" || b != "" {
		na, nb := otherRun(a), otherRun(b)
		for i := range max(na, nb) {
			if c := cmp.Compare(weight(a[:na], i), weight(b[:nb], i)); c != 0 {
				return c
			}
		}
		a, b = a[na:], b[nb:]
		da, db := len(a)-len(strings.TrimLeft(a, "0123456789")), len(b)-len(strings.TrimLeft(b, "0123456789"))
		x, y := strings.TrimLeft(a[:da], "0"), strings.TrimLeft(b[:db], "0")
		if c := cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y)); c != 0 {
			return c
		}
		a, b = a[da:], b[db:]
	}
	return 0
}

func otherRun(s string) int {
	if i := strings.IndexAny(s, "0123456789"); i >= 0 {
		return i
	}
	return len(s)
}

// weight returns how a character sorts: a tilde before the end, letters before all others.
func weight(s string, i int) int {
	switch {
	case i >= len(s):
		return 0
	case s[i] == '~':
		return -1
	case s[i] >= 'A' && s[i] <= 'Z' || s[i] >= 'a' && s[i] <= 'z':
		return int(s[i])
	}
	return int(s[i]) + 256
}
