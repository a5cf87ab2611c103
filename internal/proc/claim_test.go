package proc

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestClaim(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	open := func() *os.File {
		t.Helper()
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	first, second := open(), open()
	if err := Claim(first); errors.Is(err, errors.ErrUnsupported) {
		t.Skip("it cannot be told here who has a file")
	} else if err != nil {
		t.Fatal(err)
	}
	if Claim(second) == nil {
		t.Error("two have it")
	}
	first.Close()
	if err := Claim(second); err != nil {
		t.Errorf("nobody else has it any more: %v", err)
	}
}
