//go:build linux && (amd64 || arm64)

package firecracker

import (
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/sandboxtest"
)

const (
	markVariable   = "SANDBOX_MARK"
	chrootVariable = "SANDBOX_CHROOT"
	jailedVariable = "SANDBOX_JAILED"
)

// This is the other process of TestAHostThatIsKilledLeavesNothing.
func TestHostOfTheOther(t *testing.T) {
	mark := os.Getenv(markVariable)
	if mark == "" {
		t.Skip("it is for another test")
	}
	d := fakedAt(t, os.Getenv(chrootVariable), os.Getenv(jailedVariable) != "")
	for _, paused := range []bool{false, true} {
		d.parts.vmm.version = oldest // whose process stands when it is paused
		b := made(t, d, sandbox.Spec{})
		sandboxtest.Busy(t, b, mark, paused)
	}
	sandboxtest.AwaitDeath()
}

func TestAHostThatIsKilledLeavesNothing(t *testing.T) {
	for name, jailed := range map[string]string{"jailed": "yes", "unjailed": ""} {
		t.Run(name, func(t *testing.T) { killed(t, jailed) })
	}
}

func killed(t *testing.T, jailed string) {
	faked(t, jailed != "") // or it is skipped
	folder, mark := t.TempDir(), rand.Text()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run", "^TestHostOfTheOther$")
	cmd.Env = append(os.Environ(), markVariable+"="+mark, chrootVariable+"="+folder, jailedVariable+"="+jailed,
		"TMPDIR="+t.TempDir())
	var jails []string
	sandboxtest.KillHost(t, cmd, func() []string {
		words := []string{mark}
		jails, _ = filepath.Glob(filepath.Join(folder, prefix+"*", "firecracker", "*"))
		for _, jail := range jails {
			words = append(words, filepath.Base(jail))
		}
		return words
	})
	if len(jails) != 2 {
		t.Errorf("the other host has the jails %q, want two", jails)
	}
	d, err := New(Options{Chroot: folder}) // the next host takes the rest away
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, jail := range jails {
		if _, err := os.Stat(jail); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", jail, err)
		}
	}
}
