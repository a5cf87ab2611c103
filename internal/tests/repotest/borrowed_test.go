package repotest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// required returns the Go modules named in go.mod, direct or not.
func required(t testing.TB) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(top(t), "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "//")
		f := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require"))
		if len(f) == 2 && strings.HasPrefix(f[1], "v") && strings.Contains(f[0], ".") {
			all = append(all, f[0])
		}
	}
	return all
}

// borrowed maps each Go module that is imported to one file that imports it. It reads the imports and not the
// comments of go.mod, which are only right after a tidy.
func borrowed(t testing.TB) map[string]string {
	known := required(t)
	found := map[string]string{}
	for _, s := range sources(t) {
		_, theirs := s.imports()
		for _, p := range theirs {
			owner := ""
			for _, m := range known {
				if within(p, m) && len(m) > len(owner) {
					owner = m
				}
			}
			if owner == "" {
				t.Errorf("%s imports %s, which no module of go.mod holds", s.path, p)
				continue
			}
			found[owner] = s.path
		}
	}
	return found
}

var licences = []string{
	"Apache-2.0",
	"MIT",
	"BSD-2-Clause",
	"BSD-3-Clause",
	"ISC",
	"MPL-2.0",
	"CC0-1.0",
	"Unlicense",
	"0BSD",
}

// licencesSaid returns the licence column of docs/dependencies.md, by module.
func licencesSaid(t testing.TB) map[string]string {
	said := map[string]string{}
	for _, row := range tableRows(t, "docs/dependencies.md") {
		if len(row.cells) != 3 {
			t.Errorf("docs/dependencies.md:%d has %d cells, want module, licence, why", row.line, len(row.cells))
			continue
		}
		if row.cells[2] == "" {
			t.Errorf("docs/dependencies.md:%d does not say why %s is here", row.line, row.cells[0])
		}
		said[strings.Trim(row.cells[0], "`")] = row.cells[1]
	}
	return said
}

func TestEveryDependencyIsAccountedFor(t *testing.T) {
	said := licencesSaid(t)
	used := borrowed(t)
	for m, file := range used {
		licence, ok := said[m]
		if !ok {
			t.Errorf(
				"%s imports %s, which docs/dependencies.md does not list: add a line with its licence and why it is "+
					"worth having",
				file,
				m,
			)
			continue
		}
		for one := range strings.FieldsFuncSeq(licence, func(r rune) bool { return r == ' ' || r == ',' || r == '/' }) {
			if one != "and" && one != "or" && !slices.Contains(licences, one) {
				t.Errorf("docs/dependencies.md: licence %q of %s is none of %s", one, m, strings.Join(licences, ", "))
			}
		}
	}
}

func TestNoDependencyIsLeftBehind(t *testing.T) {
	known := required(t)
	for m := range licencesSaid(t) {
		if !slices.Contains(known, m) {
			t.Errorf("docs/dependencies.md lists %s, which go.mod does not require: take the line out", m)
		}
	}
}

// In pieces, so that this file does not contain what it forbids.
var leaks = []struct {
	what *regexp.Regexp
	why  string
}{
	{
		regexp.MustCompile(`(^|[^\w.\-/}])/` + `(work/(main|shared|\.library)|root/(go|\.cache|\.npm))\b`),
		"a path of one machine means nothing on another",
	},
	{regexp.MustCompile(`/tmp` + `/(lab|bash_jobs)`), "a path of one machine means nothing on another"},
	{regexp.MustCompile(`(^|[^\w.\-/}])/` + `home/(?:[a-z]+)/go/`), "a path of one machine means nothing on another"},
	{
		regexp.MustCompile(`registry` + `\.[a-z0-9-]+\.(org|com|io|net|dev)\b`),
		"which registry serves a package is the business of the machine that builds",
	},
	{
		regexp.MustCompile(`\b(proxy|sum)\.` + `golang\.org`),
		"which registry serves a package is the business of the machine that builds",
	},
	{
		regexp.MustCompile(`\b(pypi\.` + `org|crates\.` + `io|index\.docker\.` + `io|ghcr\.` + `io)\b`),
		"which registry serves a package is the business of the machine that builds",
	},
}

// publicSources are the addresses that packages are searched for and installed from by default, and
// from which a release has the programs of its full image. They occur where the setting is defined,
// in the documents generated from it, and in a lock file.
var publicSources = struct{ files, addresses []string }{
	[]string{
		"internal/packages/settings.go", "docs/settings.md", "docs/gatehouse.schema.json",
		"release/runtimes/others.go", "release/runtimes/lock.json",
	},
	[]string{
		"registry" + ".modelcontextprotocol.io", "pypi." + "org", "crates." + "io", "registry." + "npmjs.org",
		"proxy." + "golang.org", "sum." + "golang.org",
	},
}

const textLimit = 4 << 20 // bytes; larger files are data, not text we wrote

//redteam:attack No telemetry: the program names a machine of its makers
func TestNoMachineIsNamed(t *testing.T) {
	root := top(t)
	for _, name := range tracked(t) {
		info, err := os.Stat(filepath.Join(root, name))
		if err != nil || info.IsDir() || info.Size() > textLimit {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Error(err)
			continue
		}
		n := 0
		for line := range strings.Lines(string(text)) {
			n++
			for _, l := range leaks {
				hit := l.what.FindString(line)
				if slices.Contains(publicSources.files, name) && slices.Contains(publicSources.addresses, hit) {
					continue
				}
				if hit != "" {
					t.Errorf("%s:%d has %q: %s", name, n, strings.TrimSpace(hit), l.why)
				}
			}
		}
	}
}

func TestMachineNamesAreRecognised(t *testing.T) {
	for line, want := range map[string]bool{
		`dir := "/` + `work/main"`:                            true,
		"see /" + "root/go/pkg":                               true,
		"a path like sub/root/x":                              false,
		"https://example.com/work/item":                       false,
		`"resolved": "https://registry` + `.npmjs.org/x.tgz"`: true,
		"the registry. Then":                                  false,
		"GOPROXY=https://proxy." + "golang.org":               true,
	} {
		hit := slices.ContainsFunc(leaks, func(l struct {
			what *regexp.Regexp
			why  string
		}) bool {
			return l.what.MatchString(line)
		})
		if hit != want {
			t.Errorf("%q recognised = %t, want %t", line, hit, want)
		}
	}
}
