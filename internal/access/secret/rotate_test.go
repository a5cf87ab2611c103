package secret

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// After a rotation the new key alone decrypts what is written; earlier keys still decrypt what was written before, also
// if the process ended after the key was made.
func TestRotate(t *testing.T) {
	dir := t.TempDir()
	s, logins := In(dir, ""), Logins(dir, "")
	if err := s.Rotate(""); err == nil || !strings.Contains(err.Error(), "no key yet") {
		t.Errorf("a rotation without a key: %v", err)
	}
	set(t, s, "A", "one")
	set(t, logins, "B", "two")
	first, err := s.Recipient()
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := os.ReadFile(filepath.Join(dir, "secrets.age"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Rotate(first, logins); err != nil {
		t.Fatal(err)
	}
	second, err := s.Recipient()
	if err != nil || second == first {
		t.Errorf("the public key stays %s, %v", second, err)
	}
	if err := s.Rotate(first, logins); !errors.Is(err, ErrRotated) {
		t.Errorf("a rotation of a key that was replaced: %v", err)
	}
	expect := func(when string, s *Store, name, value string) {
		t.Helper()
		if got, err := s.Get(name); err != nil || got.Reveal() != value {
			t.Errorf("%s: %s is %q, %v", when, name, got.Reveal(), err)
		}
	}
	expect("rotated", s, "A", "one")
	expect("rotated", logins, "B", "two")

	keys, err := os.ReadFile(filepath.Join(dir, "secrets.key"))
	if err != nil {
		t.Fatal(err)
	}
	all, err := identitiesIn(keys)
	if err != nil || len(all) != 2 {
		t.Fatalf("the file has %d keys, %v", len(all), err)
	}
	for _, name := range []string{"secrets.age", "logins.age"} {
		now, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decrypt(now, all[1:]); err == nil {
			t.Errorf("the earlier key decrypts %s", name)
		}
		if _, err := decrypt(now, all[:1]); err != nil {
			t.Errorf("the new key does not decrypt %s: %v", name, err)
		}
	}

	// The file of before the rotation, as after a crash in its middle, is read, and encrypted anew at its next change.
	if err := os.WriteFile(filepath.Join(dir, "secrets.age"), sealed, 0o600); err != nil {
		t.Fatal(err)
	}
	expect("in the middle", s, "A", "one")
	set(t, s, "C", "three")
	if now, err := os.ReadFile(filepath.Join(dir, "secrets.age")); err != nil {
		t.Error(err)
	} else if _, err := decrypt(now, all[:1]); err != nil {
		t.Errorf("a change after the rotation: %v", err)
	}

	for range mostKeys {
		if err := s.Rotate("", logins); err != nil {
			t.Fatal(err)
		}
	}
	if keys, err = os.ReadFile(filepath.Join(dir, "secrets.key")); err != nil {
		t.Fatal(err)
	}
	if all, err = identitiesIn(keys); err != nil || len(all) != mostKeys || strings.Contains(string(keys), first) {
		t.Errorf("after many rotations there are %d keys, %v", len(all), err)
	}
	expect("after many", s, "C", "three")
}

// sharedFile is a store of another node: the key reaches this one only when it is refreshed.
type sharedFile struct{ from, to string }

func (f sharedFile) Change(string, func([]byte) ([]byte, error)) error { return errors.ErrUnsupported }

func (f sharedFile) Refresh(path string) error {
	raw, err := os.ReadFile(filepath.Join(f.from, filepath.Base(path)))
	if err != nil {
		return fmt.Errorf("refresh: %w", err)
	}
	return os.WriteFile(path, raw, 0o600)
}

// A node that has the secrets which another one has encrypted with a new key before it has that key gets the key.
func TestANewKeyComesAfterItsSecrets(t *testing.T) {
	there, here := t.TempDir(), t.TempDir()
	s := In(there, "")
	set(t, s, "A", "one")
	f := sharedFile{there, here}
	if err := f.Refresh(filepath.Join(here, "secrets.key")); err != nil {
		t.Fatal(err)
	}
	if err := s.Rotate(""); err != nil {
		t.Fatal(err)
	}
	if err := f.Refresh(filepath.Join(here, "secrets.age")); err != nil {
		t.Fatal(err)
	}
	if _, err := In(here, "").Get("A"); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a store of one host decrypts what it has no key for: %v", err)
	}
	if got, err := In(here, "").Share(f).Get("A"); err != nil || got.Reveal() != "one" {
		t.Errorf("got %q, %v", got.Reveal(), err)
	}
}
