// Package statement says what a release was made of and how: a bill of materials
// (CycloneDX) and a statement of provenance (in-toto, SLSA).
package statement

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"gatehouse/release/licence"
	"gatehouse/release/product"
	"gatehouse/release/sign"
)

type object = map[string]any

// Materials writes the bill of materials: every module that is linked into a program of the
// release, with its licences. It follows CycloneDX 1.6.
func Materials(r *product.Release, modules []licence.Module) error {
	self := "pkg:golang/" + r.Address + "@v" + r.Version
	components := []object{}
	var refs []string
	for _, m := range modules {
		ref := "pkg:golang/" + m.Path + "@" + m.Version
		c := object{"type": "library", "bom-ref": ref, "purl": ref, "name": m.Path, "version": m.Version}
		choices := []object{}
		for _, id := range m.IDs {
			choices = append(choices, object{"license": object{"id": spdx(id)}})
		}
		c["licenses"] = choices
		components = append(components, c)
		refs = append(refs, ref)
	}
	return write(r, MaterialsName(r), object{
		"$schema":      "http://cyclonedx.org/schema/bom-1.6.schema.json",
		"bomFormat":    "CycloneDX",
		"specVersion":  "1.6",
		"serialNumber": "urn:uuid:" + uuidOf(r),
		"version":      1,
		"metadata": object{
			"timestamp": r.Time.Format("2006-01-02T15:04:05Z"),
			"component": object{
				"type": "application", "bom-ref": self, "purl": self, "name": product.Name, "version": r.Version,
				"licenses": []object{{"license": object{"id": product.Licence}}},
			},
		},
		"components":   components,
		"dependencies": []object{{"ref": self, "dependsOn": refs}},
	})
}

// spdx returns the identifier that SPDX uses today.
func spdx(id string) string {
	switch id {
	case "LGPL-3.0":
		return "LGPL-3.0-only"
	}
	return id
}

// uuidOf returns a UUID that is the same for the same commit and version.
func uuidOf(r *product.Release) string {
	h := (r.Commit + strings.Repeat("0", 40))[:32]
	return h[:8] + "-" + h[8:12] + "-5" + h[13:16] + "-8" + h[17:20] + "-" + h[20:32]
}

// MaterialsName returns the file of the bill of materials.
func MaterialsName(r *product.Release) string { return product.Name + "-" + r.Version + ".cdx.json" }

// ProvenanceName returns the file of the statement of provenance.
func ProvenanceName(r *product.Release) string {
	return product.Name + "-" + r.Version + ".provenance.json"
}

// Provenance writes which source and which tools made every file that is in the folder of the release so far. It
// follows in-toto's Statement 1 and SLSA's Provenance 1. It is a claim of the publisher, to whom the
// signature of the checksums ties it: no build service vouches for it.
func Provenance(r *product.Release, modules []licence.Module, arguments object) error {
	subjects := []object{}
	err := filepath.WalkDir(r.Dist, func(at string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(r.Dist, at)
		if err != nil {
			return err
		}
		_, sum, err := sign.Digest(at)
		subjects = append(subjects, object{"name": filepath.ToSlash(name), "digest": object{"sha256": sum}})
		return err
	})
	if err != nil {
		return err
	}
	toolchain := ""
	for _, m := range modules {
		if m.Path == "std" {
			toolchain = "go" + m.Version
		}
	}
	source := "git+" + r.Page()
	return write(r, ProvenanceName(r), object{
		"_type":         "https://in-toto.io/Statement/v1",
		"subject":       subjects,
		"predicateType": "https://slsa.dev/provenance/v1",
		"predicate": object{
			"buildDefinition": object{
				"buildType":          r.Page() + "/make-release/v1",
				"externalParameters": arguments,
				"internalParameters": object{},
				"resolvedDependencies": []object{
					{"uri": source, "digest": object{"gitCommit": r.Commit}},
					{"uri": "pkg:generic/go@" + strings.TrimPrefix(toolchain, "go"), "name": toolchain},
				},
			},
			"runDetails": object{
				"builder":  object{"id": r.Page() + "/publisher"},
				"metadata": object{"invocationId": r.Commit},
			},
		},
	})
}

func write(r *product.Release, name string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(r.File(name), append(text, '\n'), 0o644)
}
