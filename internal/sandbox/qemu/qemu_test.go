//go:build linux && amd64

package qemu

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/sandboxtest"
)

// kernelOfTests is one to boot in tests: that of the system, or a package of
// Debian's that was unpacked among the tools of the repository.
func kernelOfTests(t testing.TB) string {
	t.Helper()
	if named := os.Getenv("GATEHOUSE_KERNEL"); named != "" {
		return named
	}
	found, _ := filepath.Glob("../../../.tools/kernel/boot/vmlinuz-*")
	if len(found) == 0 {
		return ""
	}
	slices.Sort(found)
	path, err := filepath.Abs(found[len(found)-1])
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// driver is one that is closed with the test. A machine without what it needs
// skips it, with what Doctor says.
func driver(t testing.TB, o Options) *Driver {
	t.Helper()
	o.Kernel = kernelOfTests(t)
	if o.Accelerator == "" {
		o.Accelerator = tcg
	}
	if testing.Verbose() {
		o.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	sandboxtest.Tried(t, d)
	return d
}

func TestAMachineRunsAProgramAsSomebodyElse(t *testing.T) {
	d := driver(t, Options{})
	for range 2 {
		s, err := d.Create(t.Context(), sandbox.Spec{})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		p, err := s.Exec(t.Context(), sandbox.Command{
			Argv:    []string{"sh", "-c", "cat && pwd && id -u"},
			Stdin:   bytes.NewReader([]byte("hello\n")),
			Stdout:  &out,
			Timeout: time.Minute,
		})
		if err != nil {
			t.Fatal(err)
		}
		if r, err := p.Wait(); err != nil || r.Outcome != sandbox.OK || out.String() != "hello\n/home/user\n1000\n" {
			t.Errorf("%+v, %v: %q", r, err, out.String())
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if _, err := s.Exec(t.Context(), sandbox.Command{Argv: []string{"true"}}); err == nil {
			t.Error("a closed sandbox ran a program")
		}
	}
}

// The suite takes minutes where processors are emulated.
func TestSuite(t *testing.T) {
	if os.Getenv("GATEHOUSE_TEST_ALL") == "" {
		t.Skip("GATEHOUSE_TEST_ALL=1 gives a machine the whole suite")
	}
	sandboxtest.Record(t, "qemu", sandboxtest.Run(t, driver(t, Options{})))
}

func TestWhatIsMissingIsNamedWithItsRemedy(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for name, c := range map[string]struct {
		options Options
		want    string
	}{
		"no QEMU":      {Options{}, "apt-get install qemu-system-x86"},
		"not a kernel": {Options{Program: "/bin/true", Kernel: "/no/such/kernel"}, "/no/such/kernel"},
	} {
		c.options.Folder = t.TempDir()
		d, err := New(c.options)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Create(t.Context(), sandbox.Spec{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if f := d.Doctor(t.Context()); len(f) != 1 || f[0].OK || !f[0].Needed || f[0].Remedy == "" {
			t.Errorf("%s: %+v", name, f)
		}
		if got := d.Capabilities().Tier; got != sandbox.Unknown {
			t.Errorf("%s: it claims to be of the tier %s", name, got)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// fake is a QEMU that does this instead.
func fake(t *testing.T, script string) *Driver {
	t.Helper()
	dir := t.TempDir()
	program, kernel := filepath.Join(dir, "qemu"), filepath.Join(dir, "vmlinux")
	rootfs := make([]byte, 4096)
	copy(rootfs, "hsqs")
	for path, b := range map[string][]byte{
		program: []byte("#!/bin/sh\n" + script), kernel: []byte("\x7fELF Linux version 6.1.0 (gcc)"),
		filepath.Join(dir, "rootfs"): rootfs,
	} {
		if err := os.WriteFile(path, b, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// The user of QEMU needs access to it.
	for at := dir; at != os.TempDir() && at != "/"; at = filepath.Dir(at) {
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	d, err := New(Options{Program: program, Kernel: kernel, Rootfs: filepath.Join(dir, "rootfs"), Folder: t.TempDir()})
	if err != nil || d.missing != nil {
		t.Fatal(err, d.missing)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func TestAMachineThatDoesNotBootSaysWhatItPrintedLast(t *testing.T) {
	d := fake(t, "echo 'Kernel panic: no room'; exit 1\n")
	d.kvm.requested = tcg
	_, err := d.Create(t.Context(), sandbox.Spec{})
	if err == nil || !strings.Contains(err.Error(), "Kernel panic: no room") {
		t.Errorf("%v", err)
	}
}

func TestKVMThatOpensAndDoesNotBootGivesWay(t *testing.T) {
	d := fake(t, "echo 'KVM internal error'; exit 1\n")
	d.kvm.unavailable = nil // it opens
	chosen, err := d.accelerator(t.Context())
	if err != nil || chosen != tcg || d.kvm.why == nil || !strings.Contains(d.kvm.why.Error(), "KVM internal error") {
		t.Errorf("%s, %v: %v", chosen, err, d.kvm.why)
	}
	if f := d.processor(t.Context()); f.OK || f.Needed || !strings.Contains(f.Detail, "KVM internal error") ||
		f.Remedy == "" {
		t.Errorf("%+v", f)
	}
}

func TestWhoMayUseKVM(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kvm")
	if _, err := reachKVM(file, true); err == nil {
		t.Error("a device that is not there")
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := reachKVM(file, true); err == nil || !strings.Contains(err.Error(), "chgrp kvm") {
		t.Errorf("one that is for its owner alone: %v", err)
	}
	if _, err := reachKVM(file, false); err != nil {
		t.Errorf("where QEMU runs as we do: %v", err)
	}
	if err := os.Chmod(file, 0o666); err != nil {
		t.Fatal(err)
	}
	if groups, err := reachKVM(file, true); err != nil || groups != nil {
		t.Errorf("one that is for all: %v, %v", groups, err)
	}
	if os.Geteuid() != 0 {
		t.Skip("to give it to a group one has to be root")
	}
	if err := errors.Join(os.Chmod(file, 0o660), os.Chown(file, 0, 1234)); err != nil {
		t.Fatal(err)
	}
	if groups, err := reachKVM(file, true); err != nil || !slices.Equal(groups, []uint32{1234}) {
		t.Errorf("one that is for a group: %v, %v", groups, err)
	}
}

func TestTheLastWordsAreKeptAndHarmless(t *testing.T) {
	var c console
	c.Write(bytes.Repeat([]byte("x"), 3*maxConsole))
	c.Write([]byte("\x1b[2J\nlast\xff words\r\n"))
	if got := c.String(); !strings.HasSuffix(got, "[2J | last? words") || len(got) > 2*maxConsole ||
		strings.ContainsAny(got, "\x1b\n\r") {
		t.Errorf("%.100q of %d bytes", got[max(0, len(got)-100):], len(got))
	}
}
