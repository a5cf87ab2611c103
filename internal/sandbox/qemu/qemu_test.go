//go:build linux && amd64

package qemu

import (
	"bytes"
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
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	if d.missing != nil {
		t.Skip(d.missing)
	}
	for _, f := range d.Doctor(t.Context()) {
		if f.Needed && !f.OK {
			t.Skipf("%s: %s; %s", f.Name, f.Detail, f.Remedy)
		}
	}
	return d
}

func TestAMachineRunsAProgramAsSomebodyElse(t *testing.T) {
	d := driver(t, Options{})
	for range 3 {
		began := time.Now()
		s, err := d.Create(t.Context(), sandbox.Spec{})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("made in %v", time.Since(began))
		var out bytes.Buffer
		p, err := s.Exec(t.Context(), sandbox.Command{Argv: []string{"sh", "-c", "cat && pwd && id -u && uname -r && date"}, Stdin: bytes.NewReader([]byte("hello\n")), Stdout: &out, Stderr: &out})
		if err != nil {
			t.Fatal(err)
		}
		if r, err := p.Wait(); err != nil || r.Outcome != sandbox.OK || !strings.HasPrefix(out.String(), "hello\n/home/user\n1000\n") {
			t.Errorf("%+v, %v: %q", r, err, out.String())
		}
		t.Log(out.String())
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestSuite(t *testing.T) {
	sandboxtest.Record(t, "qemu", sandboxtest.Run(t, driver(t, Options{})))
}
