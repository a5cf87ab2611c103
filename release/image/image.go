// Package image makes the container images of a release: each an index for all
// processors, in the layout of OCI, without a daemon.
//
// The usual image holds the program, the roots of certificates, a user and nothing else:
// no shell, no package manager, no library. The full image has beside them what packages
// of other people's servers run with: Python, Node, uv, git and a shell.
package image

import (
	"bytes"
	"context"
	"encoding/pem"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"

	"gatehouse/release/archive"
	"gatehouse/release/product"
	"gatehouse/release/runtimes"
)

// User is the number of the image's user and group.
const User = "65532"

// Name returns the file of the image in a release: an archive of an OCI layout, as podman
// load, docker load and skopeo read it.
func Name(r *product.Release) string { return product.Name + "-" + r.Version + "-oci.tar" }

// FullName returns the file of the full image.
func FullName(r *product.Release) string { return product.Name + "-" + r.Version + "-full-oci.tar" }

// Write writes the image, if there is a program for Linux.
func Write(r *product.Release, licences []byte, level archive.Level) error {
	none := func(string) ([]archive.File, error) { return nil, nil }
	return write(r, r.Version, Name(r), licences, level, none)
}

// WriteFull writes the full image, if there is a program for Linux. It downloads what is not in cache, a folder.
func WriteFull(ctx context.Context, r *product.Release, licences []byte, level archive.Level, cache string) error {
	lock, err := runtimes.ReadLock()
	if err != nil {
		return err
	}
	return write(r, r.Version+"-full", FullName(r), licences, level, func(arch string) ([]archive.File, error) {
		return lock.Files(ctx, arch, cache)
	})
}

// write writes an image with what more returns for a processor.
func write(r *product.Release, tag, name string, licences []byte, level archive.Level,
	more func(arch string) ([]archive.File, error)) error {
	platforms := r.For("linux")
	if len(platforms) == 0 {
		return nil
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range platforms {
		runtime, err := more(p.Arch)
		if err != nil {
			return err
		}
		image, err := build(r, p, licences, level, runtime)
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: p.OS, Architecture: p.Arch}},
		})
	}
	index = mutate.Annotations(index, annotations(r)).(v1.ImageIndex)
	whole := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), mutate.IndexAddendum{
		Add:        index,
		Descriptor: v1.Descriptor{Annotations: map[string]string{"org.opencontainers.image.ref.name": tag}},
	})
	dir := filepath.Join(r.Work, "image-"+tag)
	if _, err := layout.Write(dir, whole); err != nil {
		return err
	}
	files, err := archive.ReadFolder("", dir)
	if err != nil {
		return err
	}
	to, err := os.Create(r.File(name))
	if err != nil {
		return err
	}
	defer to.Close()
	return archive.Tar(to, files, r.Time)
}

func annotations(r *product.Release) map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":       product.Title,
		"org.opencontainers.image.description": product.Short,
		"org.opencontainers.image.version":     r.Version,
		"org.opencontainers.image.revision":    r.Commit,
		"org.opencontainers.image.created":     r.Time.Format("2006-01-02T15:04:05Z"),
		"org.opencontainers.image.licenses":    product.Licence,
		"org.opencontainers.image.url":         r.Page(),
	}
}

func build(r *product.Release, p product.Platform, licences []byte, level archive.Level, runtime []archive.File) (
	v1.Image, error) {
	program, err := archive.Read("usr/bin/gatehouse", r.Program(product.Name, p), true)
	if err != nil {
		return nil, err
	}
	var layers []v1.Layer
	env := []string{"PATH=/usr/bin", "HOME=/data"}
	if len(runtime) > 0 {
		l, err := layer(r, runtime, level)
		if err != nil {
			return nil, err
		}
		layers = append(layers, l)
		env = append(env, "LANG=C.UTF-8", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt")
	}
	system, err := layer(r, systemFiles(licences), level)
	if err != nil {
		return nil, err
	}
	own, err := layer(r, []archive.File{program}, level)
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{
		OS:           p.OS,
		Architecture: p.Arch,
		Created:      v1.Time{Time: r.Time},
		Author:       product.Maintainer,
		RootFS:       v1.RootFS{Type: "layers"},
		Config: v1.Config{
			User:       User + ":" + User,
			Entrypoint: []string{"/usr/bin/gatehouse"},
			Cmd:        []string{"serve", "-d", "/work"},
			Env:        env,
			WorkingDir: "/work",
			Volumes:    map[string]struct{}{"/data": {}, "/work": {}},
			Labels:     annotations(r),
		},
	})
	if err != nil {
		return nil, err
	}
	for _, l := range append(layers, system, own) {
		addendum := mutate.Addendum{
			Layer:     l,
			MediaType: types.OCILayer,
			History:   v1.History{Created: v1.Time{Time: r.Time}, CreatedBy: "make release"},
		}
		if image, err = mutate.Append(image, addendum); err != nil {
			return nil, err
		}
	}
	return mutate.Annotations(image, annotations(r)).(v1.Image), nil
}

func layer(r *product.Release, files []archive.File, level archive.Level) (v1.Layer, error) {
	var b bytes.Buffer
	if err := archive.TarGzTo(&b, files, r.Time, level); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
}

// systemFiles are everything but the program.
func systemFiles(licences []byte) []archive.File {
	text := func(name, body string) archive.File {
		return archive.File{Name: name, Mode: 0o644, Body: []byte(body)}
	}
	return []archive.File{
		{Name: "data/", Mode: 0o777 | fs.ModeSticky}, // a volume of any user
		{Name: "tmp/", Mode: 0o777 | fs.ModeSticky},
		{Name: "work/", Mode: 0o755},
		text("etc/passwd", "root:x:0:0:root:/:/nonexistent\n"+
			"gatehouse:x:"+User+":"+User+":Gatehouse:/data:/nonexistent\n"),
		text("etc/group", "root:x:0:\ngatehouse:x:"+User+":\n"),
		text("etc/nsswitch.conf", "hosts: files dns\n"),
		text("etc/ssl/certs/ca-certificates.crt", roots()),
		text("usr/share/doc/gatehouse/copyright", string(licences)),
	}
}

// roots are the certificates of Mozilla's authorities, as the Go team publishes them, except
// those that are trusted with conditions that the file has no words for.
func roots() string {
	var b bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			b.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}))
		}
	}
	return b.String()
}
