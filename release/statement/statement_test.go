package statement

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/CycloneDX/cyclonedx-go"

	"gatehouse/release/licence"
	"gatehouse/release/product"
	"gatehouse/release/sign"
)

func made(t *testing.T) *product.Release {
	t.Helper()
	r := &product.Release{
		Address: product.Address, Version: "1.2.3", Commit: strings.Repeat("ab", 20),
		Time: time.Unix(1_700_000_000, 0).UTC(), Dist: t.TempDir(),
	}
	if err := os.WriteFile(r.File("program"), []byte("x"), 0o755); err != nil {
		t.Fatal(err)
	}
	return r
}

var linked = []licence.Module{
	{Path: "std", Version: "1.26.8", IDs: []string{"BSD-3-Clause"}},
	{Path: "example.org/b", Version: "v2.0.0", IDs: []string{"Apache-2.0", "MIT"}},
}

// CycloneDX's own decoder reads the bill of materials, and finds every module.
func TestMaterials(t *testing.T) {
	r := made(t)
	if err := Materials(r, linked); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(r.File(MaterialsName(r)))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var bom cyclonedx.BOM
	if err := cyclonedx.NewBOMDecoder(f, cyclonedx.BOMFileFormatJSON).Decode(&bom); err != nil {
		t.Fatal(err)
	}
	if bom.SpecVersion != cyclonedx.SpecVersion1_6 || bom.Components == nil || len(*bom.Components) != 2 {
		t.Fatalf("%+v, want two components", bom)
	}
	b := (*bom.Components)[1]
	if b.PackageURL != "pkg:golang/example.org/b@v2.0.0" || len(*b.Licenses) != 2 ||
		(*b.Licenses)[1].License.ID != "MIT" {
		t.Errorf("%+v", b)
	}
	if deps := *(*bom.Dependencies)[0].Dependencies; len(deps) != 2 || deps[1] != b.BOMRef {
		t.Errorf("the program depends on %v", deps)
	}
}

// The statement has the digest of every file, the commit and the toolchain.
func TestProvenance(t *testing.T) {
	r := made(t)
	if err := Provenance(r, linked, object{"version": "1.2.3"}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(r.File(ProvenanceName(r)))
	if err != nil {
		t.Fatal(err)
	}
	var s struct {
		Type          string `json:"_type"`
		PredicateType string
		Subject       []struct {
			Name   string
			Digest map[string]string
		}
		Predicate struct {
			BuildDefinition struct {
				ResolvedDependencies []struct{ Digest map[string]string }
			}
		}
	}
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	_, sum, err := sign.Digest(r.File("program"))
	if err != nil {
		t.Fatal(err)
	}
	if s.Type != "https://in-toto.io/Statement/v1" || s.PredicateType != "https://slsa.dev/provenance/v1" ||
		len(s.Subject) != 1 || s.Subject[0].Name != "program" || s.Subject[0].Digest["sha256"] != sum ||
		s.Predicate.BuildDefinition.ResolvedDependencies[0].Digest["gitCommit"] != r.Commit {
		t.Errorf("%s", text)
	}
}
