// Package oidctest runs a real OpenID Connect provider for tests.
package oidctest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

const deadline = time.Minute // until it prints its metadata

// top returns the folder of this repository.
func top(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	t.Fatal("the test does not run in the repository")
	return ""
}

// npm returns the folder of the pinned npm packages, and the Node program installed with them.
// With -short, which does without them, the test is skipped.
func npm(t testing.TB) (folder, node string) {
	t.Helper()
	if testing.Short() {
		t.Skip("with -short nothing is run that needs the pinned npm packages")
	}
	if folder = os.Getenv("GATEHOUSE_TEST_NPM"); folder == "" {
		folder = filepath.Join(top(t), ".tools", "npm")
	}
	if _, err := os.Stat(filepath.Join(folder, "node_modules", "oidc-provider")); err != nil {
		t.Fatalf("oidc-provider is not installed: run go run ./internal/tests/conformance/run install (%v)", err)
	}
	arch := map[string]string{"amd64": "x64"}[runtime.GOARCH]
	if arch == "" {
		arch = runtime.GOARCH
	}
	node = filepath.Join(folder, "node_modules", "node-"+runtime.GOOS+"-"+arch, "bin", "node")
	if _, err := os.Stat(node); err == nil {
		return folder, node
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatal(err)
	}
	return folder, node
}

// Scopes are those that every resource has.
const Scopes = "mcp.read mcp.write"

// Start starts oidc-provider, a certified OpenID Connect provider, for a resource, and returns its
// issuer. Variables are added to its environment. It ends with the test, and its output is logged if
// the test failed. With -short, which does without npm packages, the test is skipped.
func Start(t testing.TB, resource string, variables ...string) (issuer string) {
	t.Helper()
	folder, node := npm(t)
	script := filepath.Join(top(t), "internal", "tests", "oidctest", "testdata", "provider.mjs")
	cmd := exec.Command(node, script, folder, resource, Scopes)
	cmd.Env = append(os.Environ(), variables...)
	var said bytes.Buffer
	cmd.Stderr = &said
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(deadline, func() { cmd.Process.Kill() })
	lines := bufio.NewReader(out)
	line, err := lines.ReadBytes('\n')
	late.Stop()
	t.Cleanup(func() {
		in.Close()
		io.Copy(io.Discard, lines)
		cmd.Wait()
		if t.Failed() {
			t.Logf("the provider said:\n%s", said.String())
		}
	})
	var metadata struct{ Issuer string }
	if err != nil || json.Unmarshal(line, &metadata) != nil {
		t.Fatalf("the provider did not start: %v, %s", err, line)
	}
	return metadata.Issuer
}
