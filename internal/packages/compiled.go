package packages

import (
	"cmp"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// binFolder, in the folder of a program that was built, holds what can be started.
const binFolder = "bin"

// crate has the host's cargo build a crate by its own lock file. The version that was installed before is built again
// unless another one is asked for.
func (p *managedPackage) crate(ctx context.Context, r *Record, dir string, fresh bool) error {
	name, version := r.Source.split()
	if was, ok := p.installedBefore(r, fresh); ok {
		version = cmp.Or(version, crateVersion(was, name))
	}
	const objects = "objects"
	args := []string{"install", "--locked", "--quiet", "--root", dir, "--target-dir", filepath.Join(dir, objects)}
	if version != "" {
		args = append(args, "--version", "="+version)
	}
	step := BuildStep{
		Path: "cargo", Args: append(args, name), Dir: dir, Read: toolchain("cargo", "rustc", "cc"), Hosts: crateHosts,
		Env: registryEnv("cargo_home", "cargo_http_", "cargo_net_", "rustup_"),
	}
	if home := rustupHome(); home != "" { // which has the compiler that cargo of rustup starts
		step.Read, step.Env = append(step.Read, home), append(step.Env, "RUSTUP_HOME="+home)
	}
	err := p.buildPackage(ctx, r, step,
		"Install Rust with cargo by the system's package manager, or give the program as binary, folder or archive.")
	if failed, ok := errors.AsType[*buildError](err); ok {
		return withOutput(fmt.Errorf("cargo cannot install %s: it ended with code %d", r.Source.From, failed.code),
			failed.lastLines(10))
	}
	if err != nil {
		return err
	}
	if r.Version == "" {
		r.Version = shorten(crateVersion(dir, name), 100)
	}
	return os.RemoveAll(filepath.Join(dir, objects))
}

// rustupHome returns the folder of rustup's compilers; "" if there is none.
func rustupHome() string {
	folder := os.Getenv("RUSTUP_HOME")
	if folder == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return ""
		}
		folder = filepath.Join(home, ".rustup")
	}
	if !isFolder(folder) {
		return ""
	}
	return folder
}

func crateHosts(context.Context) (hosts []string, err error) {
	for _, one := range []string{PublicCrates, PublicCratesIndex, PublicCratesFiles} {
		hosts = append(hosts, strings.TrimPrefix(one, "https://"))
	}
	return hosts, nil
}

// crateVersion is the version of a crate that cargo installed into a folder; "" if it is not known.
func crateVersion(dir, name string) string {
	f, err := os.Open(filepath.Join(dir, ".crates2.json"))
	if err != nil {
		return ""
	}
	defer f.Close()
	var all struct {
		Installs map[string]json.RawMessage `json:"installs"` // by "name version (source)"
	}
	if json.NewDecoder(io.LimitReader(f, maxManifest)).Decode(&all) != nil {
		return ""
	}
	for one := range all.Installs {
		if words := strings.Fields(one); len(words) > 1 && words[0] == name {
			return words[1]
		}
	}
	return ""
}

// goProgram has the host's go build a Go program. The version that was installed before is built again unless another
// one is asked for.
func (p *managedPackage) goProgram(ctx context.Context, r *Record, dir string, fresh bool) error {
	name, version := r.Source.split()
	if was, ok := p.installedBefore(r, fresh); ok && (version == "" || version == "latest") {
		version = goVersion(was)
	}
	bin := filepath.Join(dir, binFolder)
	err := p.buildPackage(ctx, r, BuildStep{
		Path: "go", Args: []string{"install", "-trimpath", name + "@" + cmp.Or(version, "latest")}, Dir: dir,
		Env:  append(registryEnv("go"), "GOBIN="+bin, "GOWORK=off"),
		Read: toolchain("go"), Hosts: goHosts,
	}, "Install Go by the system's package manager, or give the program as binary, folder or archive.")
	if failed, ok := errors.AsType[*buildError](err); ok {
		return withOutput(fmt.Errorf("go cannot install %s: it ended with code %d", r.Source.From, failed.code),
			failed.lastLines(10))
	}
	if err == nil && r.Version == "" {
		r.Version = shorten(goVersion(dir), 100)
	}
	return err
}

// goHosts are the proxies of modules and the database of their hashes that go uses.
func goHosts(context.Context) (hosts []string, err error) {
	proxies := cmp.Or(os.Getenv("GOPROXY"), PublicGoProxy)
	for one := range strings.FieldsFuncSeq(proxies, func(c rune) bool { return c == ',' || c == '|' }) {
		if u, err := url.Parse(one); err == nil && u.Host != "" {
			hosts = append(hosts, u.Host)
		}
	}
	return append(hosts, strings.TrimPrefix(PublicGoSums, "https://")), nil
}

// goVersion is the version of the module of the program in a folder; "" if it is not known.
func goVersion(dir string) string {
	names, err := builtPrograms(dir)
	if err != nil || len(names) == 0 {
		return ""
	}
	info, err := buildinfo.ReadFile(filepath.Join(dir, binFolder, names[0]))
	if err != nil {
		return ""
	}
	return info.Main.Version
}

// builtPrograms are the names of the files in the folder of programs, sorted.
func builtPrograms(dir string) (names []string, err error) {
	entries, err := os.ReadDir(filepath.Join(dir, binFolder))
	for _, e := range entries {
		if e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// builtStart returns the program of a crate, a Go module or a single file to start.
func (p *managedPackage) builtStart(r *Record) (s starting, err error) {
	dir := r.program(p.folder())
	names, err := builtPrograms(dir)
	if err != nil {
		return s, err
	}
	name := r.Command
	if runtime.GOOS == "windows" && name != "" && !strings.HasSuffix(name, ".exe") {
		name += ".exe"
	}
	if name == "" {
		wanted := path.Base(r.Source.Name())
		if name, err = chooseProgram(names, wanted); err != nil {
			return s, err
		}
	}
	if !slices.Contains(names, name) {
		return s, invalid("command %q: the package has %s", shorten(name, 100), shorten(strings.Join(names, ", "), 500))
	}
	s.command = filepath.Join(dir, binFolder, name)
	return s, nil
}
