package registry

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"path"
	"slices"
	"strings"

	"gatehouse/release/archive"
	"gatehouse/release/product"
)

// wheelTags are Python's names of platforms. The programs for Linux are linked with no library,
// so they run with any; the oldest that Go supports is what limits macOS.
var wheelTags = map[product.Platform][]string{
	{OS: "linux", Arch: "amd64"}:   {"manylinux_2_17_x86_64", "manylinux2014_x86_64", "musllinux_1_1_x86_64"},
	{OS: "linux", Arch: "arm64"}:   {"manylinux_2_17_aarch64", "manylinux2014_aarch64", "musllinux_1_1_aarch64"},
	{OS: "darwin", Arch: "amd64"}:  {"macosx_12_0_x86_64"},
	{OS: "darwin", Arch: "arm64"}:  {"macosx_12_0_arm64"},
	{OS: "windows", Arch: "amd64"}: {"win_amd64"},
	{OS: "windows", Arch: "arm64"}: {"win_arm64"},
}

// Wheels writes a wheel for each platform.
func Wheels(r *product.Release, licences []byte, level archive.Level) error {
	for _, p := range r.Platforms {
		tags := wheelTags[p]
		if tags == nil {
			return fmt.Errorf("Python has no name for the platform %s", p)
		}
		if err := wheel(r, p, tags, licences, level); err != nil {
			return err
		}
	}
	return nil
}

func wheel(r *product.Release, p product.Platform, tags []string, licences []byte, level archive.Level) error {
	base := product.Name + "-" + r.Version
	program, err := archive.Read(base+".data/scripts/"+p.Exe(product.Name), r.Program(product.Name, p), true)
	if err != nil {
		return err
	}
	readme, err := archive.Read("", path.Join(r.Source, "README.md"), false)
	if err != nil {
		return err
	}
	licence, err := archive.Read(base+".dist-info/licenses/LICENSE", path.Join(r.Source, "LICENSE"), false)
	if err != nil {
		return err
	}
	about := fmt.Sprintf("Metadata-Version: 2.4\nName: %s\nVersion: %s\nSummary: %s\nLicense-Expression: %s\n"+
		"License-File: LICENSE\nLicense-File: THIRD-PARTY-LICENCES.txt\nProject-URL: Homepage, %s\n"+
		"Requires-Python: >=3.8\n"+
		"Description-Content-Type: text/markdown\n\n<!-- mcp-name: %s -->\n\n%s",
		product.Name, r.Version, product.Short, product.Licence, r.Page(), r.ServerName(), readme.Body)
	form := "Wheel-Version: 1.0\nGenerator: gatehouse-release\nRoot-Is-Purelib: false\n"
	for _, tag := range tags {
		form += "Tag: py3-none-" + tag + "\n"
	}
	files := []archive.File{
		program,
		licence,
		{Name: base + ".dist-info/licenses/THIRD-PARTY-LICENCES.txt", Mode: 0o644, Body: licences},
		{Name: base + ".dist-info/METADATA", Mode: 0o644, Body: []byte(about)},
		{Name: base + ".dist-info/WHEEL", Mode: 0o644, Body: []byte(form)},
	}
	files = append(files, record(base+".dist-info/RECORD", files))
	return archive.Zip(r.File(base+"-py3-none-"+strings.Join(slices.Sorted(slices.Values(tags)), ".")+".whl"), files,
		r.Time, level)
}

// record lists the files of a wheel with their digests.
func record(name string, files []archive.File) archive.File {
	var b strings.Builder
	for _, f := range files {
		sum := sha256.Sum256(f.Body)
		fmt.Fprintf(&b, "%s,sha256=%s,%d\n", f.Name, base64.RawURLEncoding.EncodeToString(sum[:]), len(f.Body))
	}
	fmt.Fprintf(&b, "%s,,\n", name)
	return archive.File{Name: name, Mode: 0o644, Body: []byte(b.String())}
}
