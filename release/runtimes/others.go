package runtimes

import (
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"

	"golang.org/x/mod/semver"
)

const (
	npmRegistry = "https://registry.npmjs.org/"
	pythonIndex = "https://pypi.org/pypi/"
	pythonFiles = "https://files.pythonhosted.org/"
)

// Names of processors in npm's packages and in Python's wheels.
var (
	nodeProcessors  = map[string]string{"amd64": "x64", "arm64": "arm64"}
	wheelProcessors = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}
)

// ResolveOthers returns the newest Node of a line such as 24, npm and uv for a processor.
func ResolveOthers(ctx context.Context, arch, line string) ([]Item, error) {
	node, err := newestOfNPM(ctx, Node, "node-linux-"+nodeProcessors[arch], line)
	if err != nil {
		return nil, err
	}
	npm, err := newestOfNPM(ctx, NPM, "npm", "11") // those after it do not run on each Node of the line
	if err != nil {
		return nil, err
	}
	uv, err := newestWheel(ctx, "uv", "musllinux_1_1_"+wheelProcessors[arch])
	if err != nil {
		return nil, err
	}
	return []Item{node, npm, uv}, nil
}

// newestOfNPM returns the newest version of a package of npm with a major version. It reads the package
// to compare it with the registry's digest.
func newestOfNPM(ctx context.Context, kind, name, major string) (Item, error) {
	text, err := download(ctx, npmRegistry+name, 0)
	if err != nil {
		return Item{}, err
	}
	var doc struct {
		Versions map[string]struct {
			Dist struct{ Integrity string }
		}
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		return Item{}, fmt.Errorf("%s: %w", name, err)
	}
	newest := ""
	for v := range doc.Versions {
		if semver.Major("v"+v) == "v"+major && semver.Prerelease("v"+v) == "" && semver.Compare("v"+v, "v"+newest) > 0 {
			newest = v
		}
	}
	if newest == "" {
		return Item{}, fmt.Errorf("%s has no version %s", name, major)
	}
	address := npmRegistry + name + "/-/" + name + "-" + newest + ".tgz"
	b, err := download(ctx, address, 0)
	if err != nil {
		return Item{}, err
	}
	sum := sha512.Sum512(b)
	if want := doc.Versions[newest].Dist.Integrity; want != "sha512-"+base64.StdEncoding.EncodeToString(sum[:]) {
		return Item{}, fmt.Errorf("%s is not what the registry describes (%s)", address, want)
	}
	return Item{Kind: kind, Name: name, Version: newest, Address: address, SHA256: digest(b), Size: int64(len(b))}, nil
}

// newestWheel returns the file of a Python package's newest version for a platform.
func newestWheel(ctx context.Context, name, platform string) (Item, error) {
	text, err := download(ctx, pythonIndex+name+"/json", 0)
	if err != nil {
		return Item{}, err
	}
	var doc struct {
		Info struct{ Version string }
		URLs []struct {
			Filename, URL string
			Digests       struct{ SHA256 string }
		}
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		return Item{}, fmt.Errorf("%s: %w", name, err)
	}
	for _, f := range doc.URLs {
		if !strings.Contains(strings.TrimSuffix(f.Filename, ".whl")+".", platform+".") {
			continue
		}
		u, err := url.Parse(f.URL)
		if err != nil {
			return Item{}, err
		}
		_, rest, _ := strings.Cut(u.Path, "packages/")
		it := Item{Kind: Wheel, Name: name, Version: doc.Info.Version, SHA256: f.Digests.SHA256,
			Address: pythonFiles + "packages/" + strings.TrimPrefix(rest, "packages/")}
		b, err := download(ctx, it.Address, 0)
		if err != nil {
			return Item{}, err
		}
		if digest(b) != it.SHA256 {
			return Item{}, fmt.Errorf("%s is not what the index describes", it.Address)
		}
		it.Size = int64(len(b))
		return it, nil
	}
	return Item{}, fmt.Errorf("%s %s has no wheel for %s", name, doc.Info.Version, platform)
}
