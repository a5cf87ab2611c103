//go:build linux && amd64

package qemu

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/internal/sandbox"
)

// What a machine lacks is told once, with what to do about it: by Create and by
// Doctor, and about what is missing, not about something else.
func TestWhatIsMissingIsTold(t *testing.T) {
	program, err := os.Executable() // stands in for QEMU, which is not started
	if err != nil {
		t.Fatal(err)
	}
	empty, odd := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(odd, "vmlinuz-6.1"), []byte("no kernel"), 0o600); err != nil {
		t.Fatal(err)
	}
	const debian = "apt-get install linux-image-cloud-amd64 (Debian)"
	for _, c := range []struct {
		name string
		o    Options
		want []string // in what is told
		not  string
	}{
		{"no QEMU", Options{Program: "/no/such/qemu"},
			[]string{"QEMU was not found", "apt-get install qemu-system-x86"}, "kernel"},
		{
			"no kernel", Options{Program: program, boot: empty},
			[]string{"no kernel for virtual machines was found: " + empty + " has none", debian,
				"GATEHOUSE_KERNEL"}, "qemu-system",
		},
		{
			"no kernel that serves", Options{Program: program, boot: odd},
			[]string{"no kernel for virtual machines was found: " + odd + "/vmlinuz-6.1 is not a kernel", debian},
			"qemu-system",
		},
		{
			"the named one is missing", Options{Program: program, Kernel: "/no/such/kernel"},
			[]string{"the kernel that the settings name cannot be used: open /no/such/kernel: no such file",
				"GATEHOUSE_KERNEL"}, "qemu-system",
		},
		{
			"its modules are missing", Options{Program: program, Kernel: bootable(t), Modules: "/no/such/modules"},
			[]string{"its modules: stat /no/such/modules", "GATEHOUSE_SANDBOX_KERNEL_MODULES"}, "qemu-system",
		},
	} {
		c.o.Folder = t.TempDir()
		d, err := New(c.o)
		if err != nil {
			t.Fatal(err)
		}
		f := d.Doctor(t.Context())[0]
		_, err = d.Create(t.Context(), sandbox.Spec{})
		if err == nil || f.OK {
			t.Fatalf("%s: %+v, %v", c.name, f, err)
		}
		for _, told := range []string{f.Detail + "; " + f.Remedy, err.Error()} {
			for _, w := range c.want {
				if strings.Count(told, w) == 0 || strings.Contains(told, c.not) {
					t.Errorf("%s: %q, want %q in it, and no %q", c.name, told, w, c.not)
				}
			}
			if f.Remedy == "" || strings.Count(told, f.Remedy) != 1 {
				t.Errorf("%s: what to do is not told once: %q", c.name, told)
			}
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

// bootable is a file that says which version of the kernel it is.
func bootable(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "vmlinux")
	if err := os.WriteFile(path, []byte("\x7fELF Linux version 6.1.0-x (builder)"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
