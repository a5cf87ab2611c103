package catalog

import (
	"archive/zip"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/google/jsonschema-go/jsonschema"

	"gatehouse/release/product"
)

// catalogues writes the catalogues of a release whose programs are small files.
func catalogues(t *testing.T, address string) *product.Release {
	t.Helper()
	r := &product.Release{
		Address:   address,
		Version:   "1.2.3",
		Commit:    strings.Repeat("ab", 20),
		Time:      time.Unix(1_700_000_000, 0).UTC(),
		Dist:      t.TempDir(),
		Work:      t.TempDir(),
		Platforms: product.Platforms,
	}
	for _, p := range r.Platforms {
		ending := ".tar.gz"
		if p.OS == "windows" {
			ending = ".zip"
		}
		for _, name := range []string{r.Program(product.Name, p), r.File(r.Base(product.Name, p) + ending)} {
			err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(p.String()), 0o755))
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := Write(r, []byte("licences"), 1); err != nil {
		t.Fatal(err)
	}
	return r
}

// parse has a program parse a file. Without the program the test is skipped, and with CI set it fails.
func parse(t *testing.T, file string, words ...string) {
	t.Helper()
	if _, err := exec.LookPath(words[0]); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("%s is not installed; make setup installs it", words[0])
		}
		t.Skipf("%s is not installed", words[0])
	}
	if out, err := exec.Command(words[0], append(words[1:], file)...).CombinedOutput(); err != nil {
		t.Errorf("%s refuses %s: %v: %s", words[0], file, err, out)
	}
}

func TestFormula(t *testing.T) {
	r := catalogues(t, product.Address)
	file := r.File("homebrew/gatehouse.rb")
	parse(t, file, "ruby", "-c")
	// Homebrew's own methods, as far as a formula calls them: what it says of each platform.
	program := `
		class Formula
		  def self.test; end
		  def self.method_missing(name, *args, &block)
		    puts "#{name} #{args.join(" ")}" if [:url, :sha256, :version, :license].include?(name)
		    instance_eval(&block) if block && name.to_s.start_with?("on_")
		  end
		end
		load ARGV[0]`
	out, err := exec.Command("ruby", "-e", program, file).CombinedOutput()
	if err != nil || strings.Count(string(out),
		"url https://"+product.Address+"/releases/download/v1.2.3/gatehouse-1.2.3-") != 4 ||
		strings.Count(string(out), "\nsha256 ") != 4 || !strings.Contains(string(out), "version 1.2.3") {
		t.Errorf("the formula says %s (%v)", out, err)
	}
}

func TestFlake(t *testing.T) {
	parse(t, catalogues(t, product.Address).File("nix/flake.nix"), "nix-instantiate", "--parse")
}

// Python's parser of property lists stands in for launchd, which is on macOS only.
func TestPropertyList(t *testing.T) {
	file := catalogues(t, product.Address).File("launchd/gatehouse.plist")
	parse(t, file, "python3", "-c", "import plistlib, sys\n"+
		"p = plistlib.load(open(sys.argv[1], 'rb'))\nassert p['ProgramArguments'][1:] == ['daemon', "+
		"'run'] and p['RunAtLoad'] is True, p")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for d := xml.NewDecoder(strings.NewReader(string(text))); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// Neither Scoop nor winget runs here: every key is one of those that they document, and every
// digest is that of the archive.
func TestManifestsForWindows(t *testing.T) {
	r := catalogues(t, product.Address)
	var scoop struct {
		Version, Description, Homepage, License, Bin string
		Architecture                                 map[string]struct{ URL, Hash string }
	}
	f, err := os.Open(r.File("scoop/gatehouse.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d := json.NewDecoder(f)
	d.DisallowUnknownFields()
	if err := d.Decode(&scoop); err != nil || scoop.Bin != "gatehouse.exe" || len(scoop.Architecture) != 2 ||
		len(scoop.Architecture["arm64"].Hash) != 64 {
		t.Errorf("%+v (%v)", scoop, err)
	}
	for name, want := range map[string][]string{
		"":              {"DefaultLocale"},
		".installer":    {"InstallerType", "NestedInstallerType", "NestedInstallerFiles", "Installers"},
		".locale.en-US": {"PackageLocale", "Publisher", "PackageName", "License", "ShortDescription", "PackageUrl"},
	} {
		text, err := os.ReadFile(r.File("winget/Gatehouse.Gatehouse" + name + ".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		if err := yaml.Unmarshal(text, &m); err != nil {
			t.Fatal(err)
		}
		for _, key := range append(want, "PackageIdentifier", "PackageVersion", "ManifestType", "ManifestVersion") {
			if m[key] == nil {
				t.Errorf("winget's manifest%s has no %s", name, key)
			}
			delete(m, key)
		}
		if len(m) > 0 {
			t.Errorf("winget's manifest%s has %v", name, m)
		}
	}
}

// server.json matches the schema that MCP's registry publishes, which is here without its examples.
func TestServerFile(t *testing.T) {
	for _, address := range []string{product.Address, "github.com/me/gatehouse"} {
		text, err := os.ReadFile(catalogues(t, address).File("server.json"))
		if err != nil {
			t.Fatal(err)
		}
		rules, err := os.ReadFile("../testdata/server.schema.json")
		if err != nil {
			t.Fatal(err)
		}
		var schema jsonschema.Schema
		if err := json.Unmarshal(rules, &schema); err != nil {
			t.Fatal(err)
		}
		schema.ID = ""
		resolved, err := schema.Resolve(nil)
		if err != nil {
			t.Fatal(err)
		}
		var server map[string]any
		if err := json.Unmarshal(text, &server); err != nil {
			t.Fatal(err)
		}
		if err := resolved.Validate(server); err != nil {
			t.Errorf("%v: %s", err, text)
		}
		delete(server, "name")
		if resolved.Validate(server) == nil {
			t.Error("the schema accepts a server without a name")
		}
	}
}

// Each bundle holds the program that its manifest names. make verify-release has the official program
// check the manifest.
func TestBundles(t *testing.T) {
	r := catalogues(t, product.Address)
	for _, p := range r.Platforms {
		z, err := zip.OpenReader(r.File(r.Base(product.Name, p) + ".mcpb"))
		if err != nil {
			t.Fatal(err)
		}
		defer z.Close()
		var manifest struct {
			Server struct {
				Entry string `json:"entry_point"`
			}
		}
		text, err := z.Open("manifest.json")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(body, &manifest); err != nil {
			t.Fatal(err)
		}
		program, err := z.Open(manifest.Server.Entry)
		if err != nil {
			t.Fatal(err)
		}
		if info, err := program.Stat(); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s has the mode %v (%v)", manifest.Server.Entry, info.Mode(), err)
		}
		if os.Getenv("GATEHOUSE_TEST_ALL") == "" {
			continue
		}
		dir := t.TempDir()
		file := filepath.Join(dir, "manifest.json")
		if err := os.WriteFile(file, body, 0o644); err != nil {
			t.Fatal(err)
		}
		check := exec.Command("npm", "exec", "--yes", "--package", "@anthropic-ai/mcpb@2.1.2", "--", "mcpb", "validate",
			file)
		check.Dir = dir
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", p, err, out)
		}
	}
}
