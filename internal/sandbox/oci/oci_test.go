//go:build linux && (amd64 || arm64)

package oci

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/sandboxtest"
)

// driver is one that is closed with the test. A machine without the runtime, or
// where it makes no containers, skips it, with what Doctor says.
func driver(t testing.TB, runtime string) *Driver {
	t.Helper()
	if _, err := exec.LookPath(runtime); err != nil {
		t.Skipf("%v; %s", err, remedyMissing)
	}
	d, err := New(Options{Runtime: runtime, Folder: sandboxtest.Folder(t)})
	if err != nil {
		t.Fatal(err)
	}
	sandboxtest.Tried(t, d)
	return d
}

// The first runtime there is gets the whole suite; the others too where there is
// time for all.
//
//redteam:attack Code in a sandbox is shut in several times: the same with the driver oci
func TestSuite(t *testing.T) {
	tried := false
	for _, runtime := range runtimes {
		t.Run(runtime, func(t *testing.T) {
			d := driver(t, runtime)
			if tried && os.Getenv("GATEHOUSE_TEST_ALL") == "" {
				t.Skip("another runtime had the whole suite; GATEHOUSE_TEST_ALL=1 gives it to every one")
			}
			tried = true
			sandboxtest.Record(t, "oci", sandboxtest.Run(t, d))
		})
	}
}

func TestAMissingRuntimeIsNamedWithItsRemedy(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for _, asked := range []string{"", "no-such-runtime"} {
		d, err := New(Options{Runtime: asked, Folder: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		sandboxtest.Lacks(t, d, "apt-get install crun")
	}
}

func TestARuntimeThatFailsSaysWhy(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "crun")
	script := "#!/bin/sh\nwhile [ $# -gt 0 ]; do [ \"$1\" = --log ] && echo 'no space left' >\"$2\"; shift; done; exit 1\n"
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	d, err := New(Options{Runtime: program, Folder: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := d.Create(t.Context(), sandbox.Spec{}); err == nil ||
		!strings.Contains(err.Error(), "crun: no space left") {
		t.Errorf("%v", err)
	}
	if left, err := os.ReadDir(d.folder); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestOldRuntimesAreNamed(t *testing.T) {
	for version, want := range map[string]bool{
		"runc version 1.1.5+ds1": true, "runc version 1.2.7": true, "runc version 1.2.8": false,
		"runc version 1.3.2": true, "runc version 1.3.3": false,
		"runc version 1.4.0-rc.3": false, "runc version 2.0.0": false, "crun version 1.8.1": false,
	} {
		if got := outdated(version) != ""; got != want {
			t.Errorf("%s: %v, want %v", version, got, want)
		}
	}
}

func TestWhatAKilledHostLeftIsSweptAway(t *testing.T) {
	sandboxtest.Sweeps(t, prefix, func(parent string) (sandbox.Driver, error) { return New(Options{Folder: parent}) })
}
