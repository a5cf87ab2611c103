//go:build linux && (amd64 || arm64)

package bundle

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAVersionIsOneLine(t *testing.T) {
	program := filepath.Join(t.TempDir(), "runtime")
	if err := os.WriteFile(program,
		[]byte("#!/bin/sh\n[ \"$1\" = --version ] && echo && echo 'runtime 1.2' && echo 'spec 3'\n"),
		0o700); err != nil {
		t.Fatal(err)
	}
	if got, err := VersionOf(t.Context(), program); got != "runtime 1.2" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := VersionOf(t.Context(), "/bin/false"); err == nil ||
		!strings.Contains(err.Error(), "/bin/false --version") {
		t.Errorf("a program that fails: %v", err)
	}
}

func TestWordsAreOneShortLine(t *testing.T) {
	if got := OneLine(" no\tsuch\n\ncontainer \n"); got != "no such container" {
		t.Errorf("got %q", got)
	}
	if got := OneLine(strings.Repeat("x", 1<<20)); len(got) != maxOneLine {
		t.Errorf("%d bytes", len(got))
	}
}
