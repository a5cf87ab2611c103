package secret

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

func set(t *testing.T, s *Store, name, value string) {
	t.Helper()
	if err := s.Set(name, New(value)); err != nil {
		t.Fatal(err)
	}
}

func TestSecretsAreKeptEncrypted(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "config")
	s := In(dir, "")
	if all, err := s.List(); err != nil || len(all) != 0 {
		t.Fatalf("an empty store holds %v (%v)", all, err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("looking made the folder")
	}
	set(t, s, "GITHUB", plain)
	set(t, s, "mail.pass-1", "other\nlines")
	set(t, s, "GITHUB", plain+"!")
	got, err := In(dir, "").Get("GITHUB")
	if err != nil || got.Reveal() != plain+"!" {
		t.Errorf("got %q, %v", got.Reveal(), err)
	}
	all, err := s.List()
	if err != nil || len(all) != 2 || all[0].Name != "GITHUB" || all[1].Name != "mail.pass-1" || all[0].Set.IsZero() {
		t.Errorf("lists %v, %v", all, err)
	}
	for _, name := range []string{"secrets.age", "secrets.key"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || bytes.Contains(b, []byte("hunter2")) || bytes.Contains(b, []byte("GITHUB")) {
			t.Errorf("%s holds %q (%v)", name, b, err)
		}
		if info, _ := os.Stat(filepath.Join(dir, name)); runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
	}
	if err := s.Remove("GITHUB"); err != nil {
		t.Error(err)
	}
	if _, err := s.Get("GITHUB"); !errors.Is(err, ErrNotFound) {
		t.Errorf("after removing: %v", err)
	}
	if err := s.Remove("GITHUB"); !errors.Is(err, ErrNotFound) {
		t.Errorf("removing twice: %v", err)
	}
}

func TestTheKeyMayLieElsewhere(t *testing.T) {
	dir, key := t.TempDir(), filepath.Join(t.TempDir(), "away", "key")
	set(t, In(dir, key), "A", plain)
	if _, err := os.Stat(filepath.Join(dir, "secrets.key")); err == nil {
		t.Error("there is a key beside the secrets")
	}
	if got, err := In(dir, key).Get("A"); err != nil || got.Reveal() != plain {
		t.Errorf("got %v", err)
	}
}

func TestWhatCannotBeReadIsExplained(t *testing.T) {
	for want, harm := range map[string]func(file, key string) error{
		"the key of the secrets is missing": func(_, key string) error { return os.Remove(key) },
		"holds no key; expected": func(_,
			key string) error {
			return os.WriteFile(key, []byte("AGE-SECRET-KEY-1HUNTER2"), 0o600)
		},
		"can be read by others":            func(_, key string) error { return os.Chmod(key, 0o644) },
		"can be read by others (mode 0640": func(file, _ string) error { return os.Chmod(file, 0o640) },
		"decrypt ":                         func(file, _ string) error { return os.Truncate(file, 150) },
		"did not match any of the recipients": func(_, key string) error {
			if err := os.Remove(key); err != nil {
				return err
			}
			return second(In(filepath.Dir(key), key).newIdentity())
		},
	} {
		t.Run(want, func(t *testing.T) {
			if strings.Contains(want, "others") && runtime.GOOS == "windows" {
				t.Skip("the mode says nothing on Windows")
			}
			dir := t.TempDir()
			s := In(dir, "")
			set(t, s, "A", plain)
			if err := harm(filepath.Join(dir, "secrets.age"), filepath.Join(dir, "secrets.key")); err != nil {
				t.Fatal(err)
			}
			for what, err := range map[string]error{"get": second(s.Get("A")), "set": s.Set("B", New("b")),
				"remove": s.Remove("A"), "list": second(s.List())} {
				if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "HUNTER2") {
					t.Errorf("%s: got %v, want %q", what, err, want)
				}
			}
		})
	}
}

func second[T any](_ T, err error) error { return err }

func TestSeveralWritersLoseNothing(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			if err := In(dir, "").Set(fmt.Sprint("S", i), New("v")); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got, err := In(dir, "").List(); err != nil || len(got) != 8 {
		t.Errorf("%d secrets are there (%v), want 8", len(got), err)
	}
}

func TestNamesAndValuesHaveLimits(t *testing.T) {
	s := In(t.TempDir(), "")
	for _, name := range []string{"", "1A", "a b", "a/b", "a}", strings.Repeat("a", 65), "-a", "ä"} {
		if err := s.Set(name, New("v")); !errors.Is(err, ErrName) {
			t.Errorf("name %q: got %v", name, err)
		}
	}
	for _, n := range []int{0, MaxValue + 1} {
		if err := s.Set("A", New(strings.Repeat("x", n))); err == nil {
			t.Errorf("a value of %d bytes was taken", n)
		}
	}
	if err := s.Set("A", New(strings.Repeat("x", MaxValue))); err != nil {
		t.Error(err)
	}
}

func TestSettingsAreFilled(t *testing.T) {
	s := In(t.TempDir(), "")
	set(t, s, "TOKEN", plain)
	set(t, s, "B", "${secret:TOKEN}")
	got, err := s.Fill(map[string]string{
		"plain": "x ${HOME} $secret", "one": "${secret:TOKEN}", "two": "Bearer ${secret:TOKEN}, ${secret:TOKEN}",
		"text": "${secret:B}",
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"plain": "x ${HOME} $secret", "one": plain, "two": "Bearer " + plain + ", " + plain,
		"text": "${secret:TOKEN}", // a reference inside a secret is not replaced
	} {
		if got[name].Reveal() != want {
			t.Errorf("%s is %q, want %q", name, got[name].Reveal(), want)
		}
	}
	for want, setting := range map[string]string{
		"V: C: there is no such secret; set it with gatehouse secret set C": "${secret:C}",
		"is not closed": "${secret:TOKEN", `name "a b"`: "${secret:a b}",
	} {
		if _, err := s.Fill(map[string]string{"V": setting}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", setting, err, want)
		}
	}
	if names, err := Names("${secret:A}-${secret:B}"); err != nil || len(names) != 2 || names[1] != "B" {
		t.Errorf("names %v, %v", names, err)
	}
}

// For any text, each reference that is found has a valid name, and text without one is returned
// unchanged.
func FuzzReplace(f *testing.F) {
	for _, s := range []string{"", "a", "${secret:A}", "x${secret:A}y${secret:", "${secret:}", "${secret:a}}",
		"$${secret:a}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n := 0
		got, err := replace(s, func(name string) (string, error) {
			n++
			return opening + name + "}", CheckName(name)
		})
		if err == nil && got != s {
			t.Errorf("%q became %q", s, got)
		}
		if err == nil && n != strings.Count(s, opening) {
			t.Errorf("%q has %d references, want %d", s, n, strings.Count(s, opening))
		}
	})
}
