package conformance

import (
	"context"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// suites are the official suites and foreign clients of this package's tests.
// npm keeps registry hosts out of a lock file when
// omit-lockfile-registry-resolved is set.
//
//go:embed npm
var suites embed.FS

// Packages are pinned npm packages: a folder "npm" with package.json, package-lock.json and scripts that use the
// packages.
type Packages struct{ Files fs.FS }

var pinned = Packages{suites}

// Tools is a folder with the pinned npm packages in it.
type Tools struct {
	Dir  string
	Node string // the program that runs them, Node 22 or later
}

// ToolsDir returns the folder for the packages of this source tree. Git ignores it.
func ToolsDir() (string, error) {
	top, err := Top()
	return filepath.Join(top, ".tools", "npm"), err
}

// InstallLine is the command to run if Open fails.
const InstallLine = "go run ./internal/tests/conformance/run install"

// Install installs the packages of the official suites in dir; see
// [Packages.Install].
func Install(ctx context.Context, dir string, log io.Writer) (Tools, error) {
	return pinned.Install(ctx, dir, log)
}

// Open opens the packages of the official suites in dir; see [Packages.Open].
func Open(dir string) (Tools, error) { return pinned.Open(dir) }

// Install installs the pinned packages in dir unless they are there. The output of npm goes to log. It requires npm
// and a registry.
func (p Packages) Install(ctx context.Context, dir string, log io.Writer) (Tools, error) {
	if t, err := p.Open(dir); err == nil {
		return t, nil
	}
	if err := p.write(dir); err != nil {
		return Tools{}, err
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		return Tools{}, errors.New(
			"npm is not installed: install Node with your system's package manager, then run this again",
		)
	}
	cmd := exec.CommandContext(ctx, npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	if err := cmd.Run(); err != nil {
		return Tools{}, fmt.Errorf("npm ci in %s: %w", dir, err)
	}
	stamp, err := p.wanted()
	if err != nil {
		return Tools{}, err
	}
	if err := os.WriteFile(filepath.Join(dir, "installed"), []byte(stamp), 0o644); err != nil {
		return Tools{}, err
	}
	return p.Open(dir)
}

// Open finds the packages that Install put into dir, and writes the current scripts beside them.
func (p Packages) Open(dir string) (Tools, error) {
	want, err := p.wanted()
	if err != nil {
		return Tools{}, err
	}
	have, err := os.ReadFile(filepath.Join(dir, "installed"))
	if err != nil || string(have) != want {
		return Tools{}, fmt.Errorf("the pinned npm packages are not in %s: run %s", dir, InstallLine)
	}
	node, err := findNode(dir)
	if err != nil {
		return Tools{}, err
	}
	return Tools{Dir: dir, Node: node}, p.write(dir)
}

// findNode prefers the Node that came with the packages.
func findNode(dir string) (string, error) {
	arch := map[string]string{"amd64": "x64"}[runtime.GOARCH]
	if arch == "" {
		arch = runtime.GOARCH
	}
	node := filepath.Join(dir, "node_modules", "node-"+runtime.GOOS+"-"+arch, "bin", "node")
	if _, err := os.Stat(node); err == nil {
		return node, nil
	}
	node, err := exec.LookPath("node")
	if err != nil {
		return "", fmt.Errorf(
			"there is no Node for %s/%s among the packages and none installed: install Node 22 or later",
			runtime.GOOS,
			runtime.GOARCH,
		)
	}
	return node, nil
}

// wanted identifies the pinned versions.
func (p Packages) wanted() (string, error) {
	h := sha256.New()
	for _, name := range []string{"npm/package.json", "npm/package-lock.json"} {
		b, err := fs.ReadFile(p.Files, name)
		if err != nil {
			return "", err
		}
		h.Write(b)
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}

// write puts the embedded files into dir.
func (p Packages) write(dir string) error {
	files, err := fs.Sub(p.Files, "npm")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, name), b, 0o644)
	})
}

// Script returns the path of a program in a package, or of a script.
func (t Tools) Script(parts ...string) string {
	return filepath.Join(append([]string{t.Dir}, parts...)...)
}

// Command runs a script with Node, with home as its home folder.
func (t Tools) Command(ctx context.Context, home, script string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, t.Node, append([]string{script}, args...)...)
	cmd.Dir = home
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home, "NO_COLOR=1")
	return cmd
}
