//go:build unix

package process

import (
	"errors"
	"os"
	"testing"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/sandboxtest"
)

func driver(t *testing.T) *Driver {
	t.Helper()
	d, err := New(Options{Unsafe: true, Folder: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if left, err := os.ReadDir(d.o.Folder); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	})
	return d
}

func TestItHasToBeAskedForByName(t *testing.T) {
	if _, err := New(Options{}); !errors.Is(err, ErrUnsafeNotSet) {
		t.Errorf("%v, want %v", err, ErrUnsafeNotSet)
	}
	d := driver(t)
	if got := d.Capabilities().Tier; got != sandbox.NoIsolation {
		t.Errorf("it claims to be of the tier %s", got)
	}
	for _, f := range d.Doctor(t.Context()) {
		if f.Needed && !f.OK || f.Name == "a wall around the code" && (f.OK || f.Remedy == "") {
			t.Errorf("%+v", f)
		}
	}
}

func TestSuite(t *testing.T) { sandboxtest.Record(t, "process", sandboxtest.Run(t, driver(t))) }
