// Command release makes everything of a release below one folder: programs,
// archives, packages, images, and what they are verified with. The same commit gives
// the same bytes every time.
//
// It needs the go command and its module cache, and no other program. It is a
// Go module of its own, because the product must not depend on what packs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"gatehouse/release/archive"
	"gatehouse/release/build"
	"gatehouse/release/catalog"
	"gatehouse/release/gomodule"
	"gatehouse/release/image"
	"gatehouse/release/licence"
	"gatehouse/release/linux"
	"gatehouse/release/product"
	"gatehouse/release/registry"
	"gatehouse/release/script"
	"gatehouse/release/sign"
	"gatehouse/release/statement"
)

func main() {
	if err := release(os.Args[1:], os.Getenv, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// maker makes one release, step by step.
type maker struct {
	*product.Release
	key     sign.Key
	log     io.Writer
	manual  string // folder of manual pages and completions
	modules []licence.Module
}

func release(args []string, getenv func(string) string, log io.Writer) error {
	f := flag.NewFlagSet("release", flag.ContinueOnError)
	f.SetOutput(log)
	source := f.String("source", "..", "folder with the source")
	dist := f.String("o", "../dist", "folder to write to, which is emptied first")
	address := f.String("address", product.Address, "where the release is published, such as github.com/me/gatehouse")
	version := f.String("version", "", "version (default: that of the source)")
	platforms := f.String("platforms", "", "platforms such as linux/amd64,darwin/arm64 (default: all)")
	helpers := f.Bool("helpers", true, "build gatehouse-runsc and gatehouse-nats")
	full := f.Bool("full", true, "make the image with Python, Node, uv and git, whose parts are downloaded")
	fast := f.Bool("fast", false, "compress little, for tests")
	dirty := f.Bool("dirty", false, "accept files that were changed since the commit")
	if err := f.Parse(args); err != nil {
		return err
	}
	m := &maker{
		Release: &product.Release{Address: *address, Version: *version, Platforms: product.Platforms, Helpers: *helpers,
			Full: *full, Fast: *fast},
		log: log,
	}
	var err error
	if *platforms != "" {
		if m.Platforms, err = product.ParsePlatforms(*platforms); err != nil {
			return err
		}
	}
	if m.key, err = sign.ReadKey(getenv); err != nil {
		return err
	}
	if m.Key = m.key.Public; m.Key == "" {
		fmt.Fprintf(log, "%s is not set: nothing will be signed\n", sign.KeyVariable)
	}
	if m.Source, err = filepath.Abs(*source); err != nil {
		return err
	}
	if err := build.Identify(m.Release, *dirty); err != nil {
		return err
	}
	return m.make(*dist)
}

// make empties dist and fills it.
func (m *maker) make(dist string) (err error) {
	if m.Dist, err = filepath.Abs(dist); err != nil {
		return err
	}
	if err := emptyFolder(m.Dist); err != nil {
		return err
	}
	if m.Work, err = os.MkdirTemp("", "gatehouse-release-*"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(m.Work)) }()
	for _, step := range []struct {
		name string
		run  func() error
	}{
		{"programs", func() error { return build.Programs(m.Release) }},
		{"manual", func() (err error) { m.manual, err = build.Manual(m.Release); return err }},
		{"licences", m.findLicences},
		{"archives", m.archives},
		{"packages", func() error { return linux.Packages(m.Release, m.manual, m.licences()) }},
		{"image", func() error { return image.Write(m.Release, m.licences(), m.level()) }},
		{"full image", m.fullImage},
		{"npm", func() error { return registry.NPM(m.Release, m.licences(), m.level()) }},
		{"wheels", func() error { return registry.Wheels(m.Release, m.licences(), m.level()) }},
		{"catalogues", func() error { return catalog.Write(m.Release, m.licences(), m.level()) }},
		{"materials", func() error { return statement.Materials(m.Release, m.modules) }},
		{"module", func() error { return gomodule.Write(m.Release, m.level()) }},
		{"script", func() error { return script.Write(m.Release) }},
		{"provenance", m.provenance},
		{"signatures", func() error { return sign.Release(m.Release, m.key) }},
	} {
		begin := time.Now()
		if err := step.run(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Fprintf(m.log, "%s %s: %s, %.1f s\n", product.Name, m.Version, step.name, time.Since(begin).Seconds())
	}
	return nil
}

// marker is in each folder that this program has filled, and may therefore empty.
const marker = sign.Sums

// emptyFolder makes an empty folder. It removes an earlier release, and no other files.
func emptyFolder(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, marker)); err != nil && len(entries) > 0 {
		return fmt.Errorf("%s is not empty, and holds no earlier release; remove it", dir)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// findLicences reads the licences of what the programs of all platforms link.
func (m *maker) findLicences() error {
	seen := map[string]bool{}
	for _, p := range m.Platforms {
		found, err := licence.Modules(m.Source, m.Program(product.Name, p))
		if err != nil {
			return err
		}
		for _, one := range found {
			if !seen[one.Path] {
				seen[one.Path] = true
				m.modules = append(m.modules, one)
			}
		}
	}
	licence.Sort(m.modules)
	return nil
}

// archives writes the programs alone, as gatehouse update wants them, and in archives with
// what belongs to them.
func (m *maker) archives() error {
	for _, p := range m.Platforms {
		program, err := archive.Read(p.Exe(product.Name), m.Program(product.Name, p), true)
		if err != nil {
			return err
		}
		if err := os.WriteFile(m.File(p.Exe(m.Base(product.Name, p))), program.Body, 0o755); err != nil {
			return err
		}
		with, err := m.companions()
		if err != nil {
			return err
		}
		if err := m.pack(m.Base(product.Name, p), p, append(with, program)); err != nil {
			return err
		}
		if p.OS != "linux" || !m.Helpers {
			continue
		}
		for _, h := range product.Helpers {
			if err := m.packHelper(h, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// packHelper makes the archive of a helper with the licences of what it links.
func (m *maker) packHelper(h product.Helper, p product.Platform) error {
	program, err := archive.Read(h.Name, m.Program(h.Name, p), true)
	if err != nil {
		return err
	}
	modules, err := licence.Modules(filepath.Join(m.Source, h.Folder), m.Program(h.Name, p))
	if err != nil {
		return err
	}
	texts := archive.File{Name: "THIRD-PARTY-LICENCES.txt", Mode: 0o644, Body: licence.Text(modules)}
	return m.pack(m.Base(h.Name, p), p, []archive.File{program, texts})
}

// companions are the files that go with the program in every archive.
func (m *maker) companions() ([]archive.File, error) {
	all := []archive.File{{Name: "THIRD-PARTY-LICENCES.txt", Mode: 0o644, Body: m.licences()}}
	for _, name := range []string{"LICENSE", "README.md"} {
		f, err := archive.Read(name, filepath.Join(m.Source, name), false)
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	manual, err := archive.ReadFolder("", m.manual)
	return append(all, manual...), err
}

// fullImage keeps what it downloads in the user's folder for caches.
func (m *maker) fullImage() error {
	if !m.Full {
		return nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	return image.WriteFull(context.Background(), m.Release, m.licences(), m.level(),
		filepath.Join(cache, "gatehouse-release"))
}

func (m *maker) provenance() error {
	return statement.Provenance(m.Release, m.modules, map[string]any{
		"address": m.Address, "version": m.Version, "platforms": fmt.Sprint(m.Platforms), "helpers": m.Helpers,
		"full": m.Full, "fast": m.Fast,
	})
}

// licences is the text that goes with every program.
func (m *maker) licences() []byte { return licence.Text(m.modules) }

func (m *maker) level() archive.Level {
	if m.Fast {
		return 1
	}
	return 9
}

// pack writes an archive in the form that the users of a platform expect.
func (m *maker) pack(base string, p product.Platform, files []archive.File) error {
	if p.OS == "windows" {
		return archive.Zip(m.File(base+".zip"), files, m.Time, m.level())
	}
	return archive.TarGz(m.File(base+".tar.gz"), files, m.Time, m.level())
}
