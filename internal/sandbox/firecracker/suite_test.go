//go:build linux && (amd64 || arm64)

package firecracker

import (
	"os"
	"testing"

	"gatehouse/internal/sandbox/sandboxtest"
)

// TestSuite is for machines with the real program and KVM. Elsewhere nothing is
// known of the suite, whatever the stand-in does.
func TestSuite(t *testing.T) {
	d, err := New(Options{
		Binary: os.Getenv("GATEHOUSE_FIRECRACKER"),
		Kernel: os.Getenv("GATEHOUSE_KERNEL"),
		Rootfs: os.Getenv("GATEHOUSE_ROOTFS"),
		Chroot: os.Getenv("GATEHOUSE_CHROOT"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	if d.parts.vmm == nil {
		t.Skipf("not run: no firecracker: %v", d.missing)
	}
	for _, f := range d.Doctor(t.Context()) {
		if f.Needed && !f.OK {
			t.Skipf("not run: %s: %s; %s", f.Name, f.Detail, f.Remedy)
		}
	}
	sandboxtest.Record(t, Name, sandboxtest.Run(t, d))
}
