// Package licence finds the licence of everything that is linked into a program,
// and refuses a program with one that is not known to allow it.
package licence

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	classifier "github.com/google/licenseclassifier/v2"
	"github.com/google/licenseclassifier/v2/assets"

	"gatehouse/release/build"
	"gatehouse/release/product"
)

// Module is a Go module that is linked into a program. The Go library is the one with
// the path std.
type Module struct {
	Path    string
	Version string
	Sum     string   // as in go.sum; "" for the Go library
	IDs     []string // SPDX identifiers, sorted
	Text    string   // of all its licence files
}

// allowed are the licences under which a program may be linked and passed on, given
// that their texts go with it.
var allowed = []string{
	"Apache-2.0", "MIT", "MIT-0", "BSD-2-Clause", "BSD-3-Clause", "BSD-3-Clause-LBNL", "BSD-2-Clause-FreeBSD",
	"ISC", "MPL-2.0", "Unlicense", "CC0-1.0", "Zlib", "0BSD", "BlueOak-1.0.0",
}

// Modules returns the modules that are linked into the file of a program, in order of
// their paths. It returns an error that names every module whose licence is missing or
// not allowed. dir is a folder of the module that the program was built in.
func Modules(dir, program string) ([]Module, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, err
	}
	goroot, err := build.Go(dir, nil, "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	all := []Module{{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")}}
	for _, d := range info.Deps {
		if d.Replace != nil {
			d = d.Replace
		}
		all = append(all, Module{Path: d.Path, Version: d.Version, Sum: d.Sum})
	}
	dirs, err := moduleFolders(dir, all[1:])
	if err != nil {
		return nil, err
	}
	dirs = append([]string{goroot}, dirs...)
	var problems []error
	for i := range all {
		if err := all[i].identify(dirs[i]); err != nil {
			problems = append(problems, err)
		}
	}
	return all, errors.Join(problems...)
}

// moduleFolders returns the folders of modules in the module cache.
func moduleFolders(dir string, modules []Module) (dirs []string, err error) {
	args := []string{"mod", "download", "-json"}
	for _, m := range modules {
		args = append(args, m.Path+"@"+m.Version)
	}
	out, err := build.Go(dir, nil, args...)
	if err != nil {
		return nil, err
	}
	found := json.NewDecoder(strings.NewReader(out))
	for range modules {
		var one struct{ Dir string }
		if err := found.Decode(&one); err != nil {
			return nil, fmt.Errorf("read the folders of %d modules: %w", len(modules), err)
		}
		dirs = append(dirs, one.Dir)
	}
	return dirs, nil
}

var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents|unlicense)([.-].*)?$`)

// supplement matches files that go with a licence and need not be one.
var supplement = regexp.MustCompile(`(?i)^(notice|patents)`)

// exceptions are modules that are allowed for a reason of their own.
var exceptions = map[string]struct {
	licence string // that is allowed here
	file    string // that needs no licence of those that are known
	with    string // licence whose text must go with it
	why     string
}{
	"github.com/cloudsoda/sddl": {
		licence: "LGPL-3.0",
		with:    "GPL-3.0",
		why:     "the whole source is published with each release, so that users can link the program with another version",
	},
	"github.com/opencontainers/go-digest": {file: "LICENSE.docs", why: "it is for documents, which are not linked"},
	"modernc.org/memory":                  {file: "LICENSE-LOGO", why: "it is for a picture, which is not linked"},
	"modernc.org/sqlite":                  {file: "LICENSE-SQLITE", why: "it says that SQLite is in the public domain"},
}

// texts knows the texts of licences. Loading it takes a second.
var texts = sync.OnceValues(func() (*classifier.Classifier, error) {
	log.SetOutput(io.Discard) // it logs each text that it loads
	defer log.SetOutput(os.Stderr)
	return assets.DefaultClassifier()
})

// identify reads the licence files of a module's folder. Every file that is a
// licence by its name must have the text of a known one.
func (m *Module) identify(dir string) error {
	known, err := texts()
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	ids := map[string]bool{}
	var text strings.Builder
	for _, e := range entries {
		if !e.Type().IsRegular() || !licenceFile.MatchString(e.Name()) || strings.HasSuffix(e.Name(), ".go") {
			continue
		}
		body, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "%s\n\n", bytes.TrimSpace(body))
		if e.Name() == exceptions[m.Path].file {
			continue
		}
		found := 0
		for _, one := range known.Match(body).Matches {
			if one.MatchType == "License" {
				ids[one.Name] = true
				found++
			}
		}
		if found == 0 && !supplement.MatchString(e.Name()) {
			return fmt.Errorf("%s: %s is not the text of a known licence", m.Path, e.Name())
		}
	}
	m.IDs, m.Text = slices.Sorted(maps.Keys(ids)), text.String()
	if len(m.IDs) == 0 {
		return fmt.Errorf("%s: no licence was found in %s", m.Path, dir)
	}
	if with := exceptions[m.Path].with; with != "" {
		body, err := assets.ReadLicenseFile("License/" + with + "/license.txt")
		if err != nil {
			return err
		}
		m.Text += string(body)
	}
	for _, id := range m.IDs {
		if !slices.Contains(allowed, id) && id != exceptions[m.Path].licence {
			return fmt.Errorf("%s: the licence %s is not among those that are allowed", m.Path, id)
		}
	}
	return nil
}

// Text returns the licences of modules as one text.
func Text(modules []Module) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s contains the following software of others, under the licences that follow each name.\n",
		product.Title)
	for _, m := range modules {
		name := m.Path
		if name == "std" {
			name = "the Go library"
		}
		fmt.Fprintf(&b, "\n%s\n%s %s (%s)\n%[1]s\n\n%[5]s", strings.Repeat("=", 80), name, m.Version,
			strings.Join(m.IDs, " AND "), m.Text)
	}
	return b.Bytes()
}

// Sort sorts modules by their paths, with the Go library first.
func Sort(modules []Module) {
	slices.SortFunc(modules, func(a, b Module) int {
		if (a.Path == "std") != (b.Path == "std") {
			return map[bool]int{true: -1, false: 1}[a.Path == "std"]
		}
		return strings.Compare(a.Path, b.Path)
	})
}
