//go:build linux && (amd64 || arm64)

package gvisor

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/sandboxtest"
)

// says is what a shell in a sandbox prints.
func says(t *testing.T, b sandbox.Sandbox, script string) string {
	t.Helper()
	var out bytes.Buffer
	p, err := b.Exec(t.Context(), sandbox.Command{Argv: []string{"sh", "-c", script}, Stdout: &out, Stderr: &out})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := p.Wait(); err != nil || r.Outcome != sandbox.OK {
		t.Errorf("%s: %+v, %v: %s", script, r, err, out.String())
	}
	return strings.TrimSpace(out.String())
}

// small is what is made and goes again: a sandbox that ends while it stands
// still, and where there can be one, another that went on from it.
func small(t *testing.T, d *Driver) {
	t.Helper()
	b, err := d.Create(t.Context(), sandbox.Spec{Limits: sandbox.Limits{MemoryMiB: 64}})
	if err != nil {
		t.Fatal(err)
	}
	if got := says(t, b, "id -u; hostname"); got != "1000\nsandbox" {
		t.Errorf("%q", got)
	}
	if k, ok := b.(sandbox.Snapshotter); ok {
		s, err := k.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c, err := s.Create(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := b.(sandbox.Pausable).Pause(t.Context()); err != nil {
		t.Error(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

func TestNothingIsLeftBehind(t *testing.T) {
	d := driver(t)
	sandboxtest.LeavesNothing(t, 2, func() { small(t, d) }, func() []string { return leftIn(d.folder) })
}

// leftIn is what sandboxes left in the folder of their driver.
func leftIn(folder string) (all []string) {
	for _, kind := range []string{"root-*", "snapshot-*", prefix + "*", "state/*"} {
		found, _ := filepath.Glob(filepath.Join(folder, kind))
		all = append(all, found...)
	}
	if sandboxtest.Runs(folder) {
		all = append(all, "a process")
	}
	return all
}

const stillVariable = "SANDBOX_STILL"

// This is the other process of TestAHostThatIsKilledLeavesNothing.
func TestHostOfTheOther(t *testing.T) {
	how := os.Getenv(stillVariable)
	if how == "" {
		t.Skip("it is for another test")
	}
	d, err := New(Options{Runsc: built(t)})
	if err != nil {
		t.Fatal(err)
	}
	b, err := d.Create(t.Context(), sandbox.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	sandboxtest.Busy(t, b, "", how == "still")
	sandboxtest.AwaitDeath()
}

func TestAHostThatIsKilledLeavesNothing(t *testing.T) {
	built(t)
	for _, how := range []string{"running", "still"} {
		t.Run(how, func(t *testing.T) { killed(t, how) })
	}
}

func killed(t *testing.T, how string) {
	folder := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-test.run", "^TestHostOfTheOther$")
	cmd.Env = append(os.Environ(), stillVariable+"="+how, "TMPDIR="+folder)
	groups := sandboxtest.KillHost(t, cmd, func() []string { return []string{folder} })
	d, err := New(Options{Folder: folder}) // the next host takes the rest away
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if left := sandboxtest.Groups(groups); len(left) > 0 || sandboxtest.Runs(folder) {
		t.Errorf("%q is left", left)
	}
	if all, err := os.ReadDir(folder); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
}

func TestWhatAKilledHostLeftIsSweptAway(t *testing.T) {
	sandboxtest.Sweeps(t, prefix, func(parent string) (sandbox.Driver, error) { return New(Options{Folder: parent}) })
}
