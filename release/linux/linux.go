// Package linux makes the packages of distributions: Debian's, RPM and Alpine's,
// with the units of systemd.
package linux

import (
	"embed"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/apk" // registers the format
	_ "github.com/goreleaser/nfpm/v2/deb" // registers the format
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // registers the format

	"gatehouse/release/product"
)

//go:embed files
var own embed.FS

// Formats are the formats of packages, by the ends of their files.
var Formats = []string{"deb", "rpm", "apk"}

// Packages writes the packages for every platform with Linux. manual is the folder of manual
// pages and completions, licences the text that goes with the program.
func Packages(r *product.Release, manual string, licences []byte) error {
	b := &builder{Release: r, manual: manual, dir: filepath.Join(r.Work, "linux")}
	if err := b.writeFiles(licences); err != nil {
		return err
	}
	for _, p := range r.For("linux") {
		contents, err := b.contents(p)
		if err != nil {
			return err
		}
		for _, format := range Formats {
			if err := b.pack(format, b.info(product.Name, p, format, contents)); err != nil {
				return err
			}
			if !r.Helpers {
				continue
			}
			for _, h := range product.Helpers {
				helper := b.info(h.Name, p, format,
					files.Contents{b.file(r.Program(h.Name, p), "/usr/bin/"+h.Name, 0o755)})
				helper.Description = h.Description
				if err := b.pack(format, helper); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

type builder struct {
	*product.Release
	manual string
	dir    string // of files that packages hold
}

// writeFiles writes the files of all packages to disk, where nfpm reads them.
func (b *builder) writeFiles(licences []byte) error {
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return err
	}
	entries, err := own.ReadDir("files")
	if err != nil {
		return err
	}
	for _, e := range entries {
		body, err := own.ReadFile(path.Join("files", e.Name()))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(b.dir, e.Name()), body, 0o644); err != nil {
			return err
		}
	}
	for _, name := range []string{"gatehouse.service", "gatehouse.socket"} {
		body, err := os.ReadFile(filepath.Join(b.Source, "docs", "systemd", name))
		if err != nil {
			return err
		}
		unit := strings.ReplaceAll(string(body), "%h/.local/bin/", "/usr/bin/")
		if err := os.WriteFile(filepath.Join(b.dir, "user-"+name), []byte(unit), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(b.dir, "copyright"), licences, 0o644)
}

func (b *builder) file(from, to string, mode os.FileMode) *files.Content {
	return &files.Content{
		Source:      from,
		Destination: to,
		FileInfo:    &files.ContentFileInfo{Owner: "root", Group: "root", Mode: mode, MTime: b.Time},
	}
}

// contents are the files of the package gatehouse. Alpine has no systemd.
func (b *builder) contents(p product.Platform) (files.Contents, error) {
	from := func(name string) string { return filepath.Join(b.dir, name) }
	all := files.Contents{
		b.file(b.Program(product.Name, p), "/usr/bin/gatehouse", 0o755),
		b.file(from("copyright"), "/usr/share/doc/gatehouse/copyright", 0o644),
		b.file(filepath.Join(b.Source, "LICENSE"), "/usr/share/doc/gatehouse/LICENSE", 0o644),
	}
	systemd := files.Contents{
		b.file(from("gatehouse.service"), "/usr/lib/systemd/system/gatehouse.service", 0o644),
		b.file(from("user-gatehouse.service"), "/usr/lib/systemd/user/gatehouse.service", 0o644),
		b.file(from("user-gatehouse.socket"), "/usr/lib/systemd/user/gatehouse.socket", 0o644),
		b.file(from("sysusers.conf"), "/usr/lib/sysusers.d/gatehouse.conf", 0o644),
		b.file(from("gatehouse-service"), "/usr/sbin/gatehouse-service", 0o755),
		b.file(from("sandboxes.conf"), "/usr/share/doc/gatehouse/sandboxes.conf", 0o644),
		b.file(from("system.conf"), "/usr/share/doc/gatehouse/system.conf", 0o644),
		b.file(from("gatehouse.yaml"), "/etc/gatehouse/gatehouse.yaml", 0o644),
	}
	systemd[len(systemd)-1].Type = files.TypeConfigNoReplace
	for _, f := range systemd {
		for _, format := range []string{"deb", "rpm"} {
			one := *f
			one.Packager = format
			all = append(all, &one)
		}
	}
	// rpm removes only the folders that a package names.
	for _, dir := range []string{"/etc/gatehouse", "/usr/share/doc/gatehouse"} {
		all = append(all, &files.Content{
			Destination: dir,
			Type:        files.TypeDir,
			Packager:    "rpm",
			FileInfo:    &files.ContentFileInfo{Owner: "root", Group: "root", Mode: 0o755, MTime: b.Time},
		})
	}
	for from, to := range map[string]string{
		"gatehouse.bash": "bash-completion/completions/gatehouse",
		"_gatehouse":     "zsh/site-functions/_gatehouse",
		"gatehouse.fish": "fish/vendor_completions.d/gatehouse.fish",
	} {
		all = append(all, b.file(filepath.Join(b.manual, "completions", from), "/usr/share/"+to, 0o644))
	}
	pages, err := filepath.Glob(filepath.Join(b.manual, "man1", "*.1"))
	if err != nil {
		return nil, err
	}
	for _, page := range pages {
		all = append(all, b.file(page, "/usr/share/man/man1/"+filepath.Base(page), 0o644))
	}
	return all, nil
}

func (b *builder) info(name string, p product.Platform, format string, contents files.Contents) *nfpm.Info {
	host, _, _ := strings.Cut(b.Address, "/")
	i := &nfpm.Info{
		Name:            name,
		Arch:            p.Arch,
		Platform:        p.OS,
		Version:         b.Version,
		Release:         "1",
		Section:         "net",
		Priority:        "optional",
		Maintainer:      product.Maintainer + " <packages@" + host + ">",
		Description:     product.Short + "\n" + product.Long,
		Homepage:        b.Page(),
		License:         product.Licence,
		DisableGlobbing: true,
		MTime:           b.Time,
	}
	i.Contents = contents
	i.Umask = 0o022
	if i.Deb.Compression, i.RPM.Compression = "zstd:19", "zstd:19"; b.Fast {
		i.Deb.Compression, i.RPM.Compression = "zstd:1", "zstd:1"
	}
	i.RPM.BuildHost, i.RPM.Summary = host, product.Short
	if name == product.Name && format != "apk" {
		i.Suggests = []string{product.Runsc, product.NATS}
		i.Recommends = []string{"ca-certificates"}
		i.Scripts = nfpm.Scripts{
			PostInstall: filepath.Join(b.dir, "postinstall"),
			PreRemove:   filepath.Join(b.dir, "preremove"),
			PostRemove:  filepath.Join(b.dir, "postremove"),
		}
	}
	return i
}

// pack writes one package, named as users of its format expect.
func (b *builder) pack(format string, i *nfpm.Info) (err error) {
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	if err := nfpm.PrepareForPackager(i, format); err != nil {
		return fmt.Errorf("%s: %w", format, err)
	}
	to, err := os.Create(b.File(packager.ConventionalFileName(i)))
	if err != nil {
		return err
	}
	defer func() {
		if e := to.Close(); err == nil {
			err = e
		}
	}()
	return packager.Package(i, io.Writer(to))
}
