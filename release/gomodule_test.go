package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/release/build"
)

// A proxy of files serves the module with its address: go install builds the program from it, and the
// program of the README is built with it once its imports have the address. The short form resolves and
// unpacks the module, because building it anew takes minutes.
func TestGoModule(t *testing.T) {
	dist := released(t, newRelease)
	top := t.TempDir()
	modules, err := build.Go("..", nil, "env", "GOMODCACHE")
	if err != nil {
		t.Fatal(err)
	}
	// Our module comes from the release, every other from the cache that has built it.
	environment := []string{
		"GOBIN=" + filepath.Join(top, "bin"),
		"GOMODCACHE=" + filepath.Join(top, "modules"),
		"GOPROXY=file://" + filepath.ToSlash(filepath.Join(dist, "go")) + ",file://" +
			filepath.ToSlash(filepath.Join(modules, "cache", "download")),
		"GOFLAGS=-trimpath -modcacherw -mod=mod",
		"GOSUMDB=off",
	}
	if os.Getenv("GATEHOUSE_TEST_ALL") == "" {
		found, err := build.Go(top, environment, "mod", "download", "-json", address+"@latest")
		if err != nil || !strings.Contains(found, `"v`+newVersion+`"`) {
			t.Errorf("%v: %s", err, found)
		}
		program, err := os.ReadFile(filepath.Join(top, "modules", filepath.FromSlash(address)+"@v"+newVersion,
			"cmd/gatehouse/main.go"))
		if err != nil || !strings.Contains(string(program), `"`+address+`/internal/cli"`) {
			t.Errorf("%v: the program imports %s", err, program)
		}
		return
	}
	if _, err := build.Go(top, environment, "install", address+"/cmd/gatehouse@v"+newVersion); err != nil {
		t.Fatal(err)
	}
	runs(t, exec.Command(filepath.Join(top, "bin", here.Exe("gatehouse")), "version"))

	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, program, ok := strings.Cut(string(readme), "```go\n")
	program, _, closed := strings.Cut(program, "```")
	if !ok || !closed {
		t.Fatal("README.md has no Go program")
	}
	program = strings.ReplaceAll(program, `"gatehouse`, `"`+address)
	dir := filepath.Join(top, "example")
	err = errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	for _, words := range [][]string{
		{"mod", "init", "example"},
		{"mod", "edit", "-require=" + address + "@v" + newVersion},
		{"build", "-o", "example", "."},
	} {
		if _, err := build.Go(dir, environment, words...); err != nil {
			t.Fatal(err)
		}
	}
}
