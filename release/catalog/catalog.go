// Package catalog makes what the catalogues of package managers and of MCP list a
// release by: a formula for Homebrew, manifests for Scoop and winget, a flake for Nix,
// an agent for launchd, MCP's server.json, and bundles for desktop clients.
package catalog

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"gatehouse/release/archive"
	"gatehouse/release/product"
	"gatehouse/release/sign"
)

// Write writes every catalogue's files. The archives of the release must be there. A catalogue
// of a system that the release has no programs for is left out.
func Write(r *product.Release, licences []byte, level archive.Level) error {
	w := &writer{Release: r, licences: licences, level: level}
	for _, step := range []func() error{w.homebrew, w.scoop, w.winget, w.flake, w.launchd, w.bundles, w.server} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

type writer struct {
	*product.Release
	licences []byte
	level    archive.Level
	bundled  []bundled
}

// archiveOf returns the name and the digest of the archive for p.
func (w *writer) archiveOf(p product.Platform) (name, sum string, err error) {
	name = w.Base(product.Name, p) + ".tar.gz"
	if p.OS == "windows" {
		name = w.Base(product.Name, p) + ".zip"
	}
	_, sum, err = sign.Digest(w.File(name))
	return name, sum, err
}

func (w *writer) text(name, format string, args ...any) error {
	at := w.File(name)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	return os.WriteFile(at, fmt.Appendf(nil, format, args...), 0o644)
}

func (w *writer) json(name string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return w.text(name, "%s\n", text)
}

// homebrew writes a formula, which installs what the archives hold.
func (w *writer) homebrew() error {
	systems := map[string]string{"darwin": "macos", "linux": "linux"}
	processors := map[string]string{"amd64": "intel", "arm64": "arm"}
	var sources strings.Builder
	for _, p := range w.Platforms {
		if systems[p.OS] == "" {
			continue
		}
		name, sum, err := w.archiveOf(p)
		if err != nil {
			return err
		}
		fmt.Fprintf(&sources, "  on_%s do\n    on_%s do\n      url \"%s/%s\"\n      sha256 \"%s\"\n    end\n  end\n",
			systems[p.OS], processors[p.Arch], w.Download(), name, sum)
	}
	if sources.Len() == 0 {
		return nil
	}
	return w.text("homebrew/gatehouse.rb", `class Gatehouse < Formula
  desc "%s"
  homepage "%s"
  version "%s"
  license "%s"

%s
  def install
    bin.install "gatehouse"
    man1.install Dir["man1/*.1"]
    bash_completion.install "completions/gatehouse.bash" => "gatehouse"
    zsh_completion.install "completions/_gatehouse"
    fish_completion.install "completions/gatehouse.fish"
  end

  service do
    run [opt_bin/"gatehouse", "daemon", "run"]
    keep_alive successful_exit: false
    working_dir Dir.home
    error_log_path var/"log/gatehouse.log"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/gatehouse version")
  end
end
`, product.Short, w.Page(), w.Version, product.Licence, sources.String())
}

// scoop writes the manifest of a bucket.
func (w *writer) scoop() error {
	type source struct {
		URL  string `json:"url"`
		Hash string `json:"hash"`
	}
	names := map[string]string{"amd64": "64bit", "arm64": "arm64"}
	all := map[string]source{}
	for _, p := range w.For("windows") {
		name, sum, err := w.archiveOf(p)
		if err != nil {
			return err
		}
		all[names[p.Arch]] = source{w.Download() + "/" + name, sum}
	}
	if len(all) == 0 {
		return nil
	}
	return w.json("scoop/gatehouse.json", struct {
		Version      string            `json:"version"`
		Description  string            `json:"description"`
		Homepage     string            `json:"homepage"`
		Licence      string            `json:"license"`
		Architecture map[string]source `json:"architecture"`
		Bin          string            `json:"bin"`
	}{w.Version, product.Short, w.Page(), product.Licence, all, "gatehouse.exe"})
}

// winget writes the three manifests that winget wants of a version.
func (w *writer) winget() error {
	var installers strings.Builder
	names := map[string]string{"amd64": "x64", "arm64": "arm64"}
	for _, p := range w.For("windows") {
		name, sum, err := w.archiveOf(p)
		if err != nil {
			return err
		}
		fmt.Fprintf(&installers, "- Architecture: %s\n  InstallerUrl: %s/%s\n  InstallerSha256: %s\n",
			names[p.Arch], w.Download(), name, strings.ToUpper(sum))
	}
	if installers.Len() == 0 {
		return nil
	}
	const id, schema = "Gatehouse.Gatehouse", "1.9.0"
	head := fmt.Sprintf("PackageIdentifier: %s\nPackageVersion: %s\n", id, w.Version)
	write := func(kind, ending, body string) error {
		return w.text(
			"winget/"+id+ending+".yaml",
			"# yaml-language-server: $schema=https://aka.ms/winget-manifest.%s.%s.schema.json\n\n"+
				"%s%sManifestType: %[1]s\nManifestVersion: %[2]s\n",
			kind,
			schema,
			head,
			body,
		)
	}
	if err := write("version", "", "DefaultLocale: en-US\n"); err != nil {
		return err
	}
	if err := write("installer", ".installer",
		"InstallerType: zip\nNestedInstallerType: portable\nNestedInstallerFiles:\n"+
			"- RelativeFilePath: gatehouse.exe\n  PortableCommandAlias: gatehouse\nInstallers:\n"+
			installers.String()); err != nil {
		return err
	}
	return write("defaultLocale", ".locale.en-US", fmt.Sprintf("PackageLocale: en-US\nPublisher: %s\nPackageName: %s\n"+
		"License: %s\nShortDescription: %s\nPackageUrl: %s\n", product.Maintainer, product.Title, product.Licence,
		product.Short, w.Page()))
}

// flake writes a flake, which takes the programs of the release.
func (w *writer) flake() error {
	systems := map[string]string{"linux": "linux", "darwin": "darwin"}
	processors := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}
	var sources strings.Builder
	for _, p := range w.Platforms {
		if systems[p.OS] == "" {
			continue
		}
		name, sum, err := w.archiveOf(p)
		if err != nil {
			return err
		}
		fmt.Fprintf(&sources, "        %s-%s = {\n          url = \"%s/%s\";\n          sha256 = \"%s\";\n        };\n",
			processors[p.Arch], p.OS, w.Download(), name, sum)
	}
	if sources.Len() == 0 {
		return nil
	}
	return w.text("nix/flake.nix", `{
  description = "%s";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs =
    { self, nixpkgs }:
    let
      sources = {
%s      };
      package =
        system:
        let
          pkgs = nixpkgs.legacyPackages.${system};
        in
        pkgs.stdenvNoCC.mkDerivation {
          pname = "gatehouse";
          version = "%s";
          src = pkgs.fetchurl sources.${system};
          sourceRoot = ".";
          nativeBuildInputs = [ pkgs.installShellFiles ];
          installPhase = ''
            install -Dm755 gatehouse $out/bin/gatehouse
            installManPage man1/*.1
            installShellCompletion completions/gatehouse.bash completions/gatehouse.fish completions/_gatehouse
          '';
          meta = {
            description = "%s";
            homepage = "%s";
            license = pkgs.lib.licenses.asl20;
            mainProgram = "gatehouse";
          };
        };
    in
    {
      packages = nixpkgs.lib.genAttrs (builtins.attrNames sources) (system: {
        default = package system;
      });
    };
}
`, product.Short, sources.String(), w.Version, product.Short, w.Page())
}

// launchd writes an agent that runs the daemon of a user of macOS.
func (w *writer) launchd() error {
	if len(w.For("darwin")) == 0 {
		return nil
	}
	return w.text("launchd/gatehouse.plist", `<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<!-- Copy it to ~/Library/LaunchAgents, then: launchctl load ~/Library/LaunchAgents/gatehouse.plist -->
<plist version="1.0">
<dict>
	<key>Label</key>
	<string>%s</string>
	<key>ProgramArguments</key>
	<array>
		<string>/usr/local/bin/gatehouse</string>
		<string>daemon</string>
		<string>run</string>
	</array>
	<key>RunAtLoad</key>
	<true/>
	<key>KeepAlive</key>
	<dict>
		<key>SuccessfulExit</key>
		<false/>
	</dict>
	<key>ProcessType</key>
	<string>Background</string>
</dict>
</plist>
`, strings.ReplaceAll(w.ServerName(), "/", "."))
}
