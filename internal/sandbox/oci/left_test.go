//go:build linux && (amd64 || arm64)

package oci

import (
	"bytes"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/sandboxtest"
)

// small is what every runtime is tried with, also those that do not get the
// whole suite. It gives the container's name, which its group has too.
func small(t *testing.T, d *Driver) string {
	s, err := d.Create(t.Context(), sandbox.Spec{Limits: sandbox.Limits{MemoryMiB: 64}})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	p, err := s.Exec(t.Context(), sandbox.Command{
		Argv:   []string{"sh", "-c", "cat; id -u; hostname; head -c 300m /dev/zero | tail >/dev/null"},
		Stdin:  strings.NewReader("hello\n"),
		Stdout: &out,
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.Wait()
	if want := "hello\n1000\nsandbox\n"; err != nil || !d.users.Single && out.String() != want {
		t.Errorf("%+v, %v: %.100q, want %q", r, err, out.String(), want)
	}
	if d.groups.Enforcement("memory") != sandbox.NotEnforced && r.Outcome != sandbox.OutOfMemory {
		t.Errorf("300 MiB of 64: %+v", r)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	return s.(*instance).id
}

func TestNothingIsLeftBehind(t *testing.T) {
	for _, runtime := range runtimes {
		t.Run(runtime, func(t *testing.T) {
			d := driver(t, runtime)
			var names []string
			sandboxtest.LeavesNothing(t, 3, func() { names = append(names, small(t, d)) }, func() []string {
				return append(leftIn(d.folder), sandboxtest.Groups(names...)...)
			})
		})
	}
}

// leftIn is what sandboxes left in the folder of their driver.
func leftIn(folder string) []string {
	bundles, _ := filepath.Glob(filepath.Join(folder, prefix+"*"))
	states, _ := filepath.Glob(filepath.Join(folder, "state", "*"))
	return append(bundles, states...)
}

const (
	markVariable    = "SANDBOX_MARK"
	runtimeVariable = "SANDBOX_RUNTIME"
	pausedVariable  = "SANDBOX_PAUSED" // set when the sandbox is to be paused
)

// This is the other process of TestAHostThatIsKilledLeavesNothing.
func TestHostOfTheOther(t *testing.T) {
	mark := os.Getenv(markVariable)
	if mark == "" {
		t.Skip("it is for another test")
	}
	d, err := New(Options{Runtime: os.Getenv(runtimeVariable)})
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.Create(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	sandboxtest.Busy(t, s, mark, os.Getenv(pausedVariable) != "")
	sandboxtest.AwaitDeath()
}

func TestAHostThatIsKilledLeavesNothing(t *testing.T) {
	for _, runtime := range runtimes {
		for name, paused := range map[string]string{"running": "", "paused": "yes"} {
			t.Run(runtime+" "+name, func(t *testing.T) { killed(t, runtime, paused) })
		}
	}
}

func killed(t *testing.T, runtime, paused string) {
	driver(t, runtime)
	folder := t.TempDir()
	if err := os.Chmod(filepath.Dir(folder), 0o711); err != nil {
		t.Fatal(err)
	}
	mark := rand.Text()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run", "^TestHostOfTheOther$")
	cmd.Env = append(os.Environ(), markVariable+"="+mark, pausedVariable+"="+paused, runtimeVariable+"="+runtime,
		"TMPDIR="+folder)
	var names []string
	groups := sandboxtest.KillHost(t, cmd, func() []string {
		bundles, _ := filepath.Glob(filepath.Join(folder, prefix+"*", prefix+"*"))
		for _, bundle := range bundles {
			names = append(names, filepath.Base(bundle))
		}
		return []string{mark, folder}
	})
	if len(names) != 1 {
		t.Errorf("the other host has the containers %q, want one", names)
	}
	d, err := New(Options{Runtime: runtime, Folder: folder}) // the next host takes the rest away
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if left := append(sandboxtest.Groups(append(names, groups)...), leftIn(d.folder)...); len(left) > 0 {
		t.Errorf("%q is left", left)
	}
	if all, err := os.ReadDir(folder); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
}
