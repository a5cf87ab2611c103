package update

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/blake2b"
)

// The examples that other implementations are held to.
func TestSignaturesOfMinisignAreKnown(t *testing.T) {
	k, err := ParseKey(
		"untrusted comment: minisign public key\nRWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3\n",
	)
	if err != nil {
		t.Fatal(err)
	}
	const whole = "untrusted comment: signature from minisign secret key\n" +
		"RWQf6LRCGA9i59SLOFxz6NxvASXDJeRtuZykwQepbDEGt87ig1BNpWaVWuNrm73YiIiJbq71Wi+dP9eKL8OC351vwIasSSbXxwA=\n" +
		"trusted comment: timestamp:1555779966\tfile:test\n" +
		"QtKMXWyYcwdpZAlPF7tE2ENJkRd1ujvKjlj1m9RtHTBnZPa5WKU5uWRs5GoP5M/VqE81QFuMKI5k/SfNQUaOAA==\n"
	const hashed = "untrusted comment: signature from minisign secret key\n" +
		"RUQf6LRCGA9i559r3g7V1qNyJDApGip8MfqcadIgT9CuhV3EMhHoN1mGTkUidF/z7SrlQgXdy8ofjb7bNJJylDOocrCo8KLzZwo=\n" +
		"trusted comment: timestamp:1556193335\tfile:test\n" +
		"y/rUw2y8/hOUYjZU71eHp/Wo1KZ40fGy2VJEDl34XMJM+TX48Ss/17u3IvIfbVR1FkZZSNCisQbuQY+bHwhEBg==\n"
	for name, s := range map[string]string{"whole": whole, "hashed": hashed} {
		if err := k.Verify([]byte("test"), []byte(s)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for what, bad := range map[string]string{
			"another comment":    strings.Replace(s, "file:test", "file:best", 1),
			"another first line": strings.Replace(s, "untrusted", "trusted", 1),
			"cut":                s[:len(s)/2],
			"nothing":            "",
		} {
			if err := k.Verify([]byte("test"), []byte(bad)); !errors.Is(err, ErrSignature) {
				t.Errorf("%s, %s: %v", name, what, err)
			}
		}
		if err := k.Verify([]byte("Test"), []byte(s)); !errors.Is(err, ErrSignature) {
			t.Errorf("%s, another text: %v", name, err)
		}
	}
	for _, bad := range []string{"", "RW", "not base64!", base64.StdEncoding.EncodeToString(make([]byte, 42))} {
		if _, err := ParseKey(bad); err == nil {
			t.Errorf("%q is a key", bad)
		}
	}
	if err := (Key{}).Verify([]byte("test"), []byte(whole)); err == nil {
		t.Error("no key believes everything")
	}
}

// maker signs releases, as minisign does.
type maker struct {
	id  [8]byte
	key ed25519.PrivateKey
}

func newMaker(t testing.TB) (*maker, Key) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	m := &maker{key: private}
	rand.Read(m.id[:])
	k, err := ParseKey(base64.StdEncoding.EncodeToString(slices.Concat([]byte("Ed"), m.id[:], public)))
	if err != nil {
		t.Fatal(err)
	}
	return m, k
}

func (m *maker) sign(text []byte) []byte {
	sum := blake2b.Sum512(text)
	s := ed25519.Sign(m.key, sum[:])
	const comment = "timestamp:1"
	whole := ed25519.Sign(m.key, append(slices.Clone(s), comment...))
	e := base64.StdEncoding.EncodeToString
	return fmt.Appendf(
		nil,
		"untrusted comment: x\n%s\ntrusted comment: %s\n%s\n",
		e(slices.Concat([]byte("ED"), m.id[:], s)),
		comment,
		e(whole),
	)
}

// release writes a release of a version into a folder.
func (m *maker) release(t testing.TB, dir, version, program string, change func(*Release)) {
	t.Helper()
	sum := sha256.Sum256([]byte(program))
	r := Release{Version: version, Released: time.Unix(1_700_000_000, 0), Notes: "better", Files: []File{
		{OS: "plan9", Arch: "mips", Name: "other", Size: 1, SHA256: strings.Repeat("0", 64)},
		{
			OS:     runtime.GOOS,
			Arch:   runtime.GOARCH,
			Name:   "gatehouse-" + version,
			Size:   int64(len(program)),
			SHA256: hex.EncodeToString(sum[:]),
		},
	}}
	if change != nil {
		change(&r)
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"manifest.json": text, "manifest.json.minisig": m.sign(text),
		"gatehouse-" + version: []byte(program)} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// machine has a program of version 1.0.0 that can be replaced. A program is a
// text here: what it says it is.
func machine(t *testing.T, source string, k Key) *Updater {
	t.Helper()
	program := filepath.Join(t.TempDir(), "gatehouse")
	if err := os.WriteFile(program, []byte("1.0.0"), 0o755); err != nil {
		t.Fatal(err)
	}
	return New(
		Options{
			Source:  source,
			Key:     k,
			Current: "1.0.0",
			Program: program,
			Try: func(_ context.Context, path string) (string, error) {
				b, err := os.ReadFile(path)
				if info, e := os.Stat(path); e != nil || info.Mode().Perm()&0o100 == 0 && runtime.GOOS != "windows" {
					return "", errors.New("it cannot be run")
				}
				if strings.HasPrefix(string(b), "broken") {
					return "", errors.New("it crashes")
				}
				return strings.TrimSpace(string(b)), err
			},
		},
	)
}

func (u *Updater) holds(t *testing.T, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	entries, err := os.ReadDir(filepath.Dir(u.o.Program))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(filepath.Dir(u.o.Program), e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		got[e.Name()] = string(b)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("there is %v, want %v", got, want)
	}
}

func TestAProgramIsReplacedAndBroughtBack(t *testing.T) {
	m, k := newMaker(t)
	dir := t.TempDir()
	m.release(t, dir, "1.2.0", "1.2.0", nil)
	served := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer served.Close()
	for name, source := range map[string]string{"folder": dir, "web": served.URL} {
		t.Run(name, func(t *testing.T) {
			u := machine(t, source, k)
			if r, newer, err := u.Check(t.Context()); err != nil || !newer || r.Version != "1.2.0" ||
				r.Notes != "better" {
				t.Fatal(r, newer, err)
			}
			if _, err := u.Rollback(t.Context()); !errors.Is(err, ErrNoPrior) {
				t.Errorf("got %v", err)
			}
			var phases []string
			if _, err := u.Apply(t.Context(), func(phase string, done, total int64) {
				if !slices.Contains(phases, phase) {
					phases = append(phases, phase)
				}
			}); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(phases, []string{PhaseCheck, PhaseDownload, PhaseTry, PhaseReplace}) {
				t.Errorf("phases %v", phases)
			}
			u.holds(t, map[string]string{"gatehouse": "1.2.0", "gatehouse.previous": "1.0.0"})
			if info, err := os.Stat(u.o.Program); err != nil ||
				info.Mode().Perm() != 0o755 && runtime.GOOS != "windows" {
				t.Errorf("%v, %v", info.Mode(), err)
			}
			if _, err := u.Apply(t.Context(), nil); !errors.Is(err, ErrWaiting) {
				t.Errorf("twice: %v", err)
			}
			if v := u.Prior(t.Context()); v != "1.0.0" {
				t.Errorf("prior %q", v)
			}
			for _, want := range []string{"1.0.0", "1.2.0"} { // the second undoes the first
				if v, err := u.Rollback(t.Context()); err != nil || v != want {
					t.Fatal(v, err)
				}
				other := map[string]string{"1.0.0": "1.2.0", "1.2.0": "1.0.0"}[want]
				u.holds(t, map[string]string{"gatehouse": want, "gatehouse.previous": other})
			}
		})
	}
}

func TestAnInterruptedRollbackGoesOn(t *testing.T) {
	_, k := newMaker(t)
	u := machine(t, t.TempDir(), k)
	if err := os.WriteFile(u.o.Program+".back", []byte("0.9.0"), 0o755); err != nil {
		t.Fatal(err)
	}
	if v, err := u.Rollback(t.Context()); err != nil || v != "0.9.0" {
		t.Fatal(v, err)
	}
	u.holds(t, map[string]string{"gatehouse": "0.9.0", "gatehouse.previous": "1.0.0"})
}

// Whatever is wrong with a release, the program stays.
//
//redteam:attack A program is replaced by what its makers signed: releases with other keys, digests, names and older versions
func TestWhatIsNotRightChangesNothing(t *testing.T) {
	m, k := newMaker(t)
	other, _ := newMaker(t)
	for want, spoil := range map[string]func(dir string){
		"no such file":       func(dir string) { os.Remove(filepath.Join(dir, "manifest.json")) },
		"read the signature": func(dir string) { os.Remove(filepath.Join(dir, "manifest.json.minisig")) },
		"it was made with the key": func(dir string) {
			other.release(t, dir, "1.2.0", "1.2.0", nil)
		},
		"not that of the key": func(dir string) {
			b, _ := os.ReadFile(filepath.Join(dir, "manifest.json"))
			os.WriteFile(filepath.Join(dir, "manifest.json"), append(b, ' '), 0o600)
		},
		"has another size or digest": func(dir string) {
			os.WriteFile(filepath.Join(dir, "gatehouse-1.2.0"),
				[]byte("9.9.9"), 0o600)
		},
		"more than 5 bytes": func(dir string) {
			os.WriteFile(filepath.Join(dir, "gatehouse-1.2.0"),
				[]byte("1.2.0 and more"), 0o600)
		},
		"no newer release":  func(dir string) { m.release(t, dir, "1.0.0", "1.0.0", nil) },
		"there is no newer": func(dir string) { m.release(t, dir, "0.9.9", "0.9.9", nil) },
		"no program for this machine": func(dir string) {
			m.release(t, dir, "1.2.0", "1.2.0", func(r *Release) { r.Files = r.Files[:1] })
		},
		"does not run on this machine: it crashes": func(dir string) { m.release(t, dir, "1.2.0", "broken", nil) },
		"reports version \"1.1.0\"":                func(dir string) { m.release(t, dir, "1.2.0", "1.1.0", nil) },
		"is not a version":                         func(dir string) { m.release(t, dir, "new", "new", nil) },
		"is not a valid name": func(dir string) {
			m.release(t, dir, "1.2.0", "1.2.0", func(r *Release) { r.Files[1].Name = "../gatehouse" })
		},
		"size of 1073741825 bytes": func(dir string) {
			m.release(t, dir, "1.2.0", "1.2.0", func(r *Release) { r.Files[1].Size = maxProgram + 1 })
		},
		"decode the manifest": func(dir string) {
			os.WriteFile(filepath.Join(dir, "manifest.json"), []byte("[]"), 0o600)
			os.WriteFile(filepath.Join(dir, "manifest.json.minisig"), m.sign([]byte("[]")), 0o600)
		},
	} {
		t.Run(want, func(t *testing.T) {
			dir := t.TempDir()
			m.release(t, dir, "1.2.0", "1.2.0", nil)
			spoil(dir)
			u := machine(t, dir, k)
			if _, err := u.Apply(t.Context(), nil); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
			u.holds(t, map[string]string{"gatehouse": "1.0.0"})
		})
	}
}

func TestAnInterruptedUpdateLeavesNothing(t *testing.T) {
	m, k := newMaker(t)
	dir := t.TempDir()
	m.release(t, dir, "1.2.0", strings.Repeat("1.2.0 ", 1<<20), nil)
	u := machine(t, dir, k)
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := u.Apply(ctx, func(phase string, _, _ int64) {
		if phase == PhaseDownload {
			cancel()
		}
	}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	u.holds(t, map[string]string{"gatehouse": "1.0.0"})
}

func TestSources(t *testing.T) {
	for _, good := range []string{"https://example.com/releases", "http://127.0.0.1:8080", "http://[::1]/x",
		"http://localhost/x", t.TempDir()} {
		if err := CheckSource(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", "releases", "http://example.com", "ftp://example.com", "https://",
		"https://me:it@example.com", "https://example.com/?x=y"} {
		if err := CheckSource(bad); err == nil {
			t.Errorf("%q is a source", bad)
		}
	}
	_, k := newMaker(t)
	away := httptest.NewServer(http.RedirectHandler("http://192.0.2.1/x", http.StatusFound))
	defer away.Close()
	if _, _, err := machine(t, away.URL, k).Check(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "not allowed") {
		t.Errorf("got %v", err)
	}
	if _, _, err := machine(t, "", k).Check(t.Context()); err == nil || !strings.Contains(err.Error(), "no source") {
		t.Errorf("got %v", err)
	}
}

func TestVersionsAreOrdered(t *testing.T) {
	inOrder := []string{
		"0.0.9",
		"0.1.0-alpha",
		"0.1.0-alpha.1",
		"0.1.0-alpha.beta",
		"0.1.0-beta.2",
		"0.1.0-beta.11",
		"v0.1.0",
		"0.1.1",
		"0.10.0",
		"1.0.0",
		"2.0.0+build.1",
	}
	for i, a := range inOrder {
		for j, b := range inOrder {
			got, err := Compare(a, b)
			if err != nil || (got < 0) != (i < j) || (got == 0) != (i == j) {
				t.Errorf("%s and %s: %d, %v", a, b, got, err)
			}
		}
	}
	for _, bad := range []string{"", "1", "1.2", "1.2.3.4", "1.2.x", "-1.2.3", "1.2.3-", "1.2.3 ",
		"01.2.3", "vv1.2.3"} {
		if _, err := Compare(bad, "1.0.0"); err == nil {
			t.Errorf("%q is a version", bad)
		}
	}
}

func FuzzVerify(f *testing.F) {
	m, k := newMaker(f)
	text := []byte("signed")
	good := m.sign(text)
	f.Add(good)
	f.Add([]byte("untrusted comment: \nAAAA\ntrusted comment: \nAAAA"))
	f.Fuzz(func(t *testing.T, signature []byte) {
		if err := k.Verify(text, signature); err == nil {
			// Only the remark and the ends of lines may differ.
			a, b := strings.Fields(string(signature)), strings.Fields(string(good))
			if len(b) < 4 || a[len(a)-1] != b[len(b)-1] {
				t.Errorf("believed %q", signature)
			}
		}
		if err := k.Verify([]byte("other"), signature); err == nil {
			t.Errorf("believed %q of another text", signature)
		}
	})
}
