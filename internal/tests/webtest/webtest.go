// Package webtest uses the pages of a host as people do, in a real browser, and checks their types.
package webtest

import (
	"context"
	"embed"
	"io"
	"io/fs"
	"path/filepath"

	"gatehouse/internal/tests/conformance"
)

//go:embed npm
var files embed.FS

// servers are servers of MCP Apps, with what they need.
//
//go:embed apps
var servers embed.FS

var pinned = conformance.Packages{Files: files}

func dir() (string, error) {
	top, err := conformance.Top()
	return filepath.Join(top, ".tools", "webtest"), err
}

// Install installs the compiler and the checker of the tests below .tools unless they are there. The output of npm
// goes to log.
func Install(ctx context.Context, log io.Writer) error {
	dir, err := dir()
	if err != nil {
		return err
	}
	if _, err = pinned.Install(ctx, dir, log); err != nil {
		return err
	}
	apps, err := pinnedApps()
	if err != nil {
		return err
	}
	_, err = apps.Install(ctx, dir+"-apps", log)
	return err
}

func pinnedApps() (conformance.Packages, error) {
	folder, err := fs.Sub(servers, "apps")
	return conformance.Packages{Files: folder}, err
}

// Apps returns the servers of MCP Apps that Install has installed.
func Apps() (conformance.Tools, error) {
	dir, err := dir()
	if err != nil {
		return conformance.Tools{}, err
	}
	apps, err := pinnedApps()
	if err != nil {
		return conformance.Tools{}, err
	}
	return apps.Open(dir + "-apps")
}

// Open returns what Install has installed.
func Open() (conformance.Tools, error) {
	dir, err := dir()
	if err != nil {
		return conformance.Tools{}, err
	}
	return pinned.Open(dir)
}
