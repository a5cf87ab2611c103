// Package conformance runs the official conformance suites and the clients of others against this server, over
// every kind of listener.
//
// Nothing here is part of the product. The suites and clients are npm packages, pinned in the npm folder and
// installed below .tools by Install. The server is fixtureserver, one process for all of them.
package conformance

import (
	"fmt"
	"os"
	"path/filepath"
)

// Top returns the folder of go.mod, found from the working directory upwards.
func Top() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", fmt.Errorf("no go.mod above the working directory: run this inside the source tree")
		}
		dir = up
	}
}
