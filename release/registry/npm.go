// Package registry makes the packages that registries of languages serve: npm's
// and Python's. Both hold the program for one platform and put it into the PATH.
package registry

import (
	_ "embed"
	"encoding/json"
	"path"

	"gatehouse/release/archive"
	"gatehouse/release/product"
)

//go:embed launch.js
var launch []byte

// npm's names of systems and processors.
var (
	npmSystems = map[string]string{"windows": "win32"}
	processors = map[string]string{"amd64": "x64"}
)

func orSame(names map[string]string, name string) string {
	if other, ok := names[name]; ok {
		return other
	}
	return name
}

// npmPackage is the part of package.json that is used here.
type npmPackage struct {
	Name        string            `json:"name"`
	Version     string            `json:"version"`
	Description string            `json:"description"`
	Licence     string            `json:"license"`
	Homepage    string            `json:"homepage"`
	MCPName     string            `json:"mcpName,omitempty"` // by which MCP's registry knows that the package is ours
	OS          []string          `json:"os,omitempty"`
	CPU         []string          `json:"cpu,omitempty"`
	Bin         map[string]string `json:"bin,omitempty"`
	Optional    map[string]string `json:"optionalDependencies,omitempty"`
	Engines     map[string]string `json:"engines,omitempty"`
	Files       []string          `json:"files"`
	Prefer      bool              `json:"preferUnplugged"` // Yarn must not keep a program in an archive
}

// NPM writes the package gatehouse, which has no program, and one for each platform, of
// which npm installs only that of the machine.
func NPM(r *product.Release, licences []byte, level archive.Level) error {
	whole := newNPM(r, product.Name)
	whole.MCPName = r.ServerName()
	whole.Bin = map[string]string{product.Name: "bin/gatehouse.js"}
	whole.Engines = map[string]string{"node": ">=18"}
	whole.Optional = map[string]string{}
	whole.Files = []string{"bin"}
	for _, p := range r.Platforms {
		system, processor := orSame(npmSystems, p.OS), orSame(processors, p.Arch)
		one := newNPM(r, product.Name+"-"+system+"-"+processor)
		one.Description = "The program of the package gatehouse for " + p.OS + " on " + p.Arch
		one.OS, one.CPU, one.Files = []string{system}, []string{processor}, []string{"bin"}
		whole.Optional[one.Name] = r.Version
		program, err := archive.Read("package/bin/"+p.Exe(product.Name), r.Program(product.Name, p), true)
		if err != nil {
			return err
		}
		if err := one.write(r, level, program,
			archive.File{Name: "package/THIRD-PARTY-LICENCES.txt", Mode: 0o644, Body: licences}); err != nil {
			return err
		}
	}
	readme, err := archive.Read("package/README.md", path.Join(r.Source, "README.md"), false)
	if err != nil {
		return err
	}
	return whole.write(r, level, readme, archive.File{Name: "package/bin/gatehouse.js", Mode: 0o755, Body: launch})
}

func newNPM(r *product.Release, name string) *npmPackage {
	return &npmPackage{
		Name: name, Version: r.Version, Description: product.Short, Licence: product.Licence, Homepage: r.Page(),
		Prefer: true,
	}
}

// write writes the package as npm pack does.
func (n *npmPackage) write(r *product.Release, level archive.Level, files ...archive.File) error {
	text, err := json.MarshalIndent(n, "", "  ")
	if err != nil {
		return err
	}
	licence, err := archive.Read("package/LICENSE", path.Join(r.Source, "LICENSE"), false)
	if err != nil {
		return err
	}
	files = append(files, licence, archive.File{Name: "package/package.json", Mode: 0o644, Body: append(text, '\n')})
	return archive.TarGz(r.File("npm-"+n.Name+"-"+r.Version+".tgz"), files, r.Time, level)
}
