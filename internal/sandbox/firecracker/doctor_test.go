//go:build linux && (amd64 || arm64)

package firecracker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/guest"
)

// script is a program that says what it is told to.
func script(t *testing.T, dir, name, says string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\necho '"+says+"'\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// finding is the one with a name.
func finding(t *testing.T, all []sandbox.Finding, name string) sandbox.Finding {
	t.Helper()
	for _, f := range all {
		if f.Name == name {
			return f
		}
	}
	t.Fatalf("nothing is found out about %s: %+v", name, all)
	return sandbox.Finding{}
}

func TestWhatIsMissingIsNamedWithItsRemedy(t *testing.T) {
	root := os.Geteuid() == 0
	for _, c := range []struct {
		about            string
		binary, jailer   string // what they say of themselves; "" means it is not there
		onlyRoot         bool
		finding, details string
		remedy           string
	}{
		{"no program", "", "", false, nameBinary, "firecracker", "GATEHOUSE_FIRECRACKER"},
		{"a program too old", "Firecracker v1.16.0", "Jailer v1.16.0", false, nameBinary, "older than 1.16.1",
			"do not answer"},
		{"another program", "Hello", "", false, nameBinary, "does not print a version", "GATEHOUSE_FIRECRACKER"},
		{"no jailer", "Firecracker v1.16.1", "", true, nameJailer, "jailer", "beside firecracker"},
		{"a jailer of another release", "Firecracker v1.17.0", "Jailer v1.16.1", true, nameJailer, "1.16.1",
			"same release"},
	} {
		t.Run(c.about, func(t *testing.T) {
			if c.onlyRoot && !root {
				t.Skip("only root has machines in jails")
			}
			dir := t.TempDir()
			t.Setenv("PATH", "/nothing")
			o := Options{Binary: filepath.Join(dir, "firecracker"), Chroot: t.TempDir()}
			if c.binary != "" {
				script(t, dir, "firecracker", c.binary)
			}
			if c.jailer != "" {
				script(t, dir, "jailer", c.jailer)
			}
			d, err := New(o)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			f := finding(t, d.Doctor(t.Context()), c.finding)
			if f.OK || !f.Needed || !strings.Contains(f.Detail, c.details) || !strings.Contains(f.Remedy, c.remedy) {
				t.Errorf("%+v", f)
			}
			_, err = d.Create(t.Context(), sandbox.Spec{})
			if _, ok := errors.AsType[*Missing](err); !ok || !strings.Contains(err.Error(), c.remedy) {
				t.Errorf("create: %v", err)
			}
			if got := d.Capabilities().Tier; got != sandbox.Unknown {
				t.Errorf("it claims to be of the tier %s", got)
			}
		})
	}
}

// nothing is a system that cannot be had.
type nothing struct{ disks }

var errNothing = errors.New("there is nothing")

func (nothing) Vmlinux(context.Context) (string, error) { return "", errNothing }
func (nothing) Initrd(context.Context) (string, error)  { return "", errNothing }
func (nothing) Root(context.Context, *sandbox.Image) (guest.Disk, error) {
	return guest.Disk{}, errNothing
}

func TestAMissingSystemIsNamedWithItsRemedy(t *testing.T) {
	d := faked(t, false)
	d.system = nothing{}
	all := d.Doctor(t.Context())
	for name, remedy := range map[string]string{
		"a kernel":           "GATEHOUSE_KERNEL",
		"a root file system": "GATEHOUSE_ROOTFS",
	} {
		if f := finding(t, all, name); f.OK || !f.Needed || f.Detail != errNothing.Error() ||
			!strings.Contains(f.Remedy, remedy) {
			t.Errorf("%+v", f)
		}
	}
	if f := finding(t, all, nameBinary); !f.OK || !strings.Contains(f.Detail, ": 1.17.0") {
		t.Errorf("%+v", f)
	}
	if _, err := d.Create(t.Context(), sandbox.Spec{}); !errors.Is(err, errNothing) {
		t.Errorf("create: %v", err)
	}
}

func TestAMachineThatDoesNotBootPointsToKVM(t *testing.T) {
	silent := fmt.Errorf("%w after a minute", errSilent)
	if got := remedy(silent); got != remedyBoot {
		t.Errorf("%q", got)
	}
	if got := withRemedy(silent); !errors.Is(got, errSilent) || !strings.Contains(got.Error(), remedyBoot) {
		t.Errorf("%v", got)
	}
	for _, err := range []error{context.Canceled, sandbox.ErrDriverClosed, &Missing{Err: errNothing}, errNothing} {
		if got := remedy(err); got != "" {
			t.Errorf("%v: %q", err, got)
		}
	}
}

func TestReleasesAreInOrder(t *testing.T) {
	for _, c := range []struct {
		a, b release
		want bool
	}{
		{release{1, 16, 0}, oldest, true}, {release{1, 16, 1}, oldest, false}, {release{1, 9, 9}, oldest, true},
		{release{2, 0, 0}, oldest, false}, {release{1, 16, 9}, pauseWorks, true},
		{release{1, 17, 0}, pauseWorks, false},
	} {
		if got := c.a.before(c.b); got != c.want {
			t.Errorf("%s before %s: %v", c.a, c.b, got)
		}
	}
}
