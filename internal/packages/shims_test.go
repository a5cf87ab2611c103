package packages

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

func TestShimsAreFollowed(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there are no scripts without an extension")
	}
	home := filepath.Join(t.TempDir(), ".pyenv")
	script := func(path, text string) string {
		t.Helper()
		path = filepath.Join(home, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	real := script("versions/3.14.1/bin/pythonic", "exit 0")
	shim := script("shims/pythonic", "exit 1")
	orphan := script("shims/orphan", "exit 1")
	script("bin/pyenv", `[ "$1 $2" = "which pythonic" ] && echo `+real)
	t.Setenv("PATH", filepath.Dir(shim)+":/usr/bin:/bin")
	for command, want := range map[string]string{"pythonic": real, shim: real, "orphan": orphan, "sh": "/usr/bin/sh"} {
		got, err := lookPath(command)
		if err != nil || got != want && filepath.Base(want) != "sh" {
			t.Errorf("%s: %s, %v; want %s", command, got, err, want)
		}
	}
	if _, err := lookPath("no-such-program"); err == nil {
		t.Error("a program that does not exist is found")
	}
	file, mounts, err := findProgram("pythonic")
	if err != nil || file != real || len(mounts) == 0 {
		t.Errorf("%s, %v, %v", file, mounts, err)
	}
}
