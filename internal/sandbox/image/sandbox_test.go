//go:build linux && (amd64 || arm64)

package image

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/namespaces"
	"gatehouse/internal/sandbox/sandboxtest"
)

// says is a program that needs nothing of its system and tells what it sees.
const says = `package main

import (
	"fmt"
	"os"
)

func main() {
	motd, err := os.ReadFile("/etc/motd")
	_, hidden := os.ReadFile("/etc/shadow")
	wrote := os.WriteFile("/etc/motd", nil, 0o644)
	_, host := os.Stat("/usr/bin")
	fmt.Println(string(motd), err, wrote != nil, os.IsNotExist(host))
	fmt.Println(os.Getuid(), os.IsPermission(hidden))
}
`

// staticProgram builds a program that stands alone.
func staticProgram(t *testing.T, source string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", "says", "main.go")
	build.Dir, build.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GO111MODULE=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Skipf("no program can be built here: %v\n%s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(dir, "says"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestAPulledImageRunsInASandbox(t *testing.T) {
	d, err := namespaces.New(namespaces.Options{})
	if err != nil {
		t.Fatal(err)
	}
	sandboxtest.Tried(t, d)
	reg := serve(t)
	ref, _ := reg.push(t, "v1", imageOf(t,
		layerOf(t, "gzip", file{name: "opt/bin/says", says: staticProgram(t, says)}),
		layerOf(t, "zstd", file{name: "etc/motd", says: "hello from the image", mode: 0o644},
			file{name: "etc/shadow", says: "x", mode: 0o600})))
	img, release, err := reg.store(t, Options{}).Get(t.Context(), ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	s, err := d.Create(t.Context(), sandbox.Spec{Image: img})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var out bytes.Buffer
	p, err := s.Exec(t.Context(), sandbox.Command{Argv: []string{"says"}, Stdout: &out, Stderr: &out})
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.Wait()
	if err != nil || r.Outcome != sandbox.OK {
		t.Fatalf("%+v, %v: %s", r, err, &out)
	}
	seen, who, _ := strings.Cut(strings.TrimSpace(out.String()), "\n")
	if want := "hello from the image <nil> true true"; seen != want {
		t.Errorf("got %q, want %q", seen, want)
	}
	// Where there is one user only, the image's files are the code's own and
	// being read-only is what holds it back.
	if want := "1000 true"; d.Capabilities().OwnUsers && who != want {
		t.Errorf("got %q, want %q", who, want)
	}
}
