package sandboxtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/internal/sandbox"
)

// Tried returns the driver, which is closed when the test ends. If the driver can make no sandboxes here, Tried
// skips the test with the advice of Doctor.
func Tried(t testing.TB, d sandbox.Driver) {
	t.Helper()
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, f := range d.Doctor(t.Context()) {
		if f.Needed && !f.OK {
			t.Skipf("not run: %s: %s; %s", f.Name, f.Detail, f.Remedy)
		}
	}
}

// Folder returns a folder for a driver that other users may enter. It must be empty when the test ends.
func Folder(t testing.TB) string {
	t.Helper()
	folder := t.TempDir()
	if err := os.Chmod(filepath.Dir(folder), 0o711); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	})
	return folder
}

// Lacks checks a driver whose program is missing: it makes no sandboxes and says what to do about it.
func Lacks(t *testing.T, d sandbox.Driver, remedy string) {
	t.Helper()
	defer d.Close()
	if _, err := d.Create(t.Context(), sandbox.Spec{}); err == nil || !strings.Contains(err.Error(), remedy) {
		t.Errorf("create: %v", err)
	}
	f := d.Doctor(t.Context())
	if len(f) != 1 || f[0].OK || !f[0].Needed || !strings.Contains(f[0].Remedy, remedy) {
		t.Errorf("doctor: %+v", f)
	}
	if got := d.Capabilities().Tier; got != sandbox.Unknown {
		t.Errorf("it claims to be of the tier %s", got)
	}
}
