//go:build linux && (amd64 || arm64)

package gvisor

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/sandboxtest"
)

// built is a runsc: the one that make setup builds, or else one that is
// installed. Where there is none, the test is skipped.
func built(t testing.TB) string {
	t.Helper()
	for _, at := range []string{os.Getenv("GATEHOUSE_RUNSC"), "../../../.tools/" + Program,
		"../../../bin/" + Program, "runsc"} {
		if at == "" {
			continue
		}
		if path, err := exec.LookPath(at); err == nil {
			return path
		}
	}
	t.Skip("not run: there is no runsc; make setup builds one into .tools")
	return ""
}

// driver is one that is closed with the test. A machine where runsc makes no
// sandboxes skips it, with what Doctor says.
func driver(t testing.TB) *Driver {
	t.Helper()
	d, err := New(Options{Runsc: built(t), Folder: sandboxtest.Folder(t)})
	if err != nil {
		t.Fatal(err)
	}
	sandboxtest.Tried(t, d)
	return d
}

//redteam:attack Code in a sandbox is shut in several times: the same with the driver gvisor
func TestSuite(t *testing.T) {
	sandboxtest.Record(t, "gvisor", sandboxtest.Run(t, driver(t)))
}

func TestAMissingProgramIsNamedWithItsRemedy(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for _, asked := range []string{"", "no-such-runsc"} {
		d, err := New(Options{Runsc: asked, Folder: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		sandboxtest.Lacks(t, d, "make runsc")
	}
}

func TestAProgramThatFailsSaysWhy(t *testing.T) {
	program := filepath.Join(t.TempDir(), "runsc")
	script := "#!/bin/sh\nwhile [ $# -gt 0 ]; do [ \"$1\" = --log ] && echo '{\"msg\":\"no space " +
		"left\",\"level\":\"error\"}' >\"$2\"; shift; done; exit 1\n"
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	d, err := New(Options{Runsc: program, Folder: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := d.Create(t.Context(), sandbox.Spec{}); err == nil ||
		!strings.Contains(err.Error(), "runsc: no space left") {
		t.Errorf("%v", err)
	}
	if left, err := os.ReadDir(d.folder); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
