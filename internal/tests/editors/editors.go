// Package editors installs the language servers and agents that the tests of the editor modules drive.
//
// They are npm packages, pinned in the npm folder, and gopls; Install puts them below .tools. Only tests use this
// package.
package editors

import (
	"context"
	"embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"gatehouse/internal/tests/conformance"
)

//go:embed npm
var files embed.FS

var pinned = conformance.Packages{Files: files}

// gopls is the version of the Go language server.
const gopls = "golang.org/x/tools/gopls@v0.23.0"

func dir() (string, error) {
	top, err := conformance.Top()
	return filepath.Join(top, ".tools", "editors"), err
}

// Install installs the programs below .tools unless they are there. The output of npm and Go goes to log. It requires
// npm, Go and their registries.
func Install(ctx context.Context, log io.Writer) error {
	dir, err := dir()
	if err != nil {
		return err
	}
	if _, err := pinned.Install(ctx, dir, log); err != nil {
		return err
	}
	stamp := filepath.Join(dir, "gopls.installed")
	if have, err := os.ReadFile(stamp); err == nil && string(have) == gopls {
		return nil
	}
	cmd := exec.CommandContext(ctx, "go", "install", gopls)
	cmd.Env = append(os.Environ(), "GOBIN="+dir, "GOFLAGS=")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go install %s: %w", gopls, err)
	}
	return os.WriteFile(stamp, []byte(gopls), 0o644)
}

// Tools are the installed programs.
type Tools struct{ conformance.Tools }

// Open returns the programs that Install has installed. It skips the test in the short form, in which nothing is run
// that needs a registry, unless they are there, and fails it otherwise.
func Open(t testing.TB) Tools {
	t.Helper()
	dir, err := dir()
	if err != nil {
		t.Fatal(err)
	}
	tools, err := pinned.Open(dir)
	if err != nil {
		if testing.Short() {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	return Tools{tools}
}

// Servers are the settings of the language servers.
func (t Tools) Servers() []string {
	npm := func(parts ...string) string {
		return t.Node + " " + filepath.Join(append([]string{t.Dir, "node_modules"}, parts...)...)
	}
	return []string{
		"go=" + filepath.Join(t.Dir, "gopls"),
		"typescript=" + npm("typescript-language-server", "lib", "cli.mjs") + " --stdio",
		"python=" + npm("pyright", "langserver.index.js") + " --stdio",
	}
}

// Agent is the setting of an agent of the Agent Client Protocol, the script npm/agent.mjs.
func (t Tools) Agent() string { return "fixture=" + t.Node + " " + filepath.Join(t.Dir, "agent.mjs") }
