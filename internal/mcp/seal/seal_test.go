package seal

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	now   = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	later = now.Add(time.Hour)
)

func TestOpensWhatItSealed(t *testing.T) {
	r := Ephemeral()
	for _, plain := range []string{"", "x", strings.Repeat("long ", 5000)} {
		got, err := r.Open("state", []byte("alice"), r.Seal("state", []byte("alice"), []byte(plain), later), now)
		if err != nil || string(got) != plain {
			t.Errorf("sealed %d bytes, got %d, %v", len(plain), len(got), err)
		}
	}
}

//redteam:attack State that clients carry is sealed: sealed state of another owner, call and time
func TestRefusesEverythingElse(t *testing.T) {
	r := Ephemeral()
	token := r.Seal("state", []byte("alice"), []byte("secret"), later)
	raw, _ := base64.RawURLEncoding.DecodeString(token)
	// The last character holds two bits that are not part of the value.
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := strings.IndexByte(alphabet, token[len(token)-1])
	loose := token[:len(token)-1] + string(alphabet[last|1])
	if again, _ := base64.RawURLEncoding.DecodeString(loose); loose == token || !bytes.Equal(again, raw) {
		t.Fatal("the loose spelling does not mean the same bytes")
	}
	for _, c := range []struct {
		name, purpose, bind, token string
		ring                       *Ring
		now                        time.Time
		want                       error
	}{
		{"other purpose", "cursor", "alice", token, r, now, ErrAltered},
		{"purpose and binding shifted", "statea", "lice", token, r, now, ErrAltered},
		{"other binding", "state", "bob", token, r, now, ErrAltered},
		{"unknown key", "state", "alice", token, Ephemeral(), now, ErrAltered},
		{"cut short", "state", "alice", token[:len(token)-4], r, now, ErrAltered},
		{"longer", "state", "alice", token + "AAAA", r, now, ErrAltered},
		{"empty", "state", "alice", "", r, now, ErrAltered},
		{"standard alphabet", "state", "alice", base64.RawStdEncoding.EncodeToString(raw) + "+", r, now, ErrAltered},
		{"padded", "state", "alice", base64.URLEncoding.EncodeToString(raw) + "=", r, now, ErrAltered},
		{"not canonical", "state", "alice", loose, r, now, ErrAltered},
		{"line end inside", "state", "alice", token[:8] + "\n" + token[8:], r, now, ErrAltered},
		{"too long to look at", "state", "alice", strings.Repeat("A", MaxToken+1), r, now, ErrAltered},
		{"at its end", "state", "alice", token, r, later, ErrExpired},
		{"expired in 1970", "p", "", r.Seal("p", nil, nil, time.UnixMilli(0)), r, now, ErrExpired},
		{"expired for another", "state", "bob", token, r, later, ErrAltered},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.ring.Open(c.purpose, []byte(c.bind), c.token, c.now)
			if got != nil || err != c.want {
				t.Errorf("got %q, %v, want %v", got, err, c.want)
			}
		})
	}
}

// A token that was sealed before the clock was set back is not valid for longer.
//
//redteam:attack State that clients carry is sealed: the clock is set back, so that sealed state outlives its mark of use
func TestSealedStateDoesNotOutliveAClockSetBack(t *testing.T) {
	r := Ephemeral()
	token := r.Seal("state", nil, []byte("x"), later)
	for _, c := range []struct {
		off  time.Duration
		want error
	}{{0, nil}, {59 * time.Minute, nil}, {-time.Second, ErrExpired}, {-48 * time.Hour, ErrExpired},
		{time.Hour, ErrExpired}} {
		if _, err := r.OpenWithin("state", nil, token, now.Add(c.off), later.Sub(now)); err != c.want {
			t.Errorf("%v later: got %v, want %v", c.off, err, c.want)
		}
	}
}

//redteam:attack State that clients carry is sealed: any bit of a sealed state is changed
func TestFlippingAnyBitFails(t *testing.T) {
	r := Ephemeral()
	token := r.Seal("state", []byte("alice"), []byte("secret"), later)
	flip := func(b []byte, open func([]byte)) {
		for i := range b {
			for bit := range 8 {
				b[i] ^= 1 << bit
				open(b)
				b[i] ^= 1 << bit
			}
		}
	}
	flip([]byte(token), func(b []byte) {
		if got, err := r.Open("state", []byte("alice"), string(b), now); err != ErrAltered {
			t.Fatalf("text %q opened: %q, %v", b, got, err)
		}
	})
	raw, _ := text.DecodeString(token)
	flip(raw, func(b []byte) {
		if got, err := r.Open("state", []byte("alice"), text.EncodeToString(b), now); err != ErrAltered {
			t.Fatalf("bytes %x opened: %q, %v", b, got, err)
		}
	})
	if _, err := r.Open("state", []byte("alice"), token, now); err != nil {
		t.Fatal("unflipped:", err)
	}
}

func TestWithoutExpiryNeverExpires(t *testing.T) {
	r := Ephemeral()
	if _, err := r.Open("p", nil, r.Seal("p", nil, nil, time.Time{}), now.AddDate(100, 0, 0)); err != nil {
		t.Error(err)
	}
}

func TestTheLargestTokenOpens(t *testing.T) {
	r := Ephemeral()
	if _, err := r.Open("p", nil, r.Seal("p", nil, make([]byte, MaxPlain), later), now); err != nil {
		t.Error("MaxPlain:", err)
	}
	if _, err := r.Open("p", nil, r.Seal("p", nil, make([]byte, MaxPlain+1), later), now); err != ErrAltered {
		t.Error("one more:", err)
	}
}

func TestRotateKeepsTheLastKeys(t *testing.T) {
	for name, ring := range map[string]func(t *testing.T) *Ring{
		"memory": func(*testing.T) *Ring { return Ephemeral() },
		"file":   func(t *testing.T) *Ring { return load(t, filepath.Join(t.TempDir(), "keys")) },
	} {
		t.Run(name, func(t *testing.T) {
			r := ring(t)
			token := r.Seal("p", nil, []byte("x"), later)
			for i := 1; i <= keepKeys; i++ {
				if _, err := r.Open("p", nil, token, now); err != nil {
					t.Fatalf("after %d rotations: %v", i-1, err)
				}
				if err := r.Rotate(); err != nil {
					t.Fatal(err)
				}
				if next := r.Seal("p", nil, []byte("x"), later); next[:7] == token[:7] {
					t.Fatal("the old key still seals")
				}
			}
			if _, err := r.Open("p", nil, token, now); err != ErrAltered {
				t.Errorf("a forgotten key opens: %v", err)
			}
		})
	}
}

func TestRingsRefuseBadKeys(t *testing.T) {
	k := NewKey()
	for name, keys := range map[string][]Key{"none": {}, "twice": {k, k}, "empty": {{ID: 1}}} {
		if _, err := NewRing(keys...); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestProcessesThatRaceGetTheSameKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "keys")
	rings := make([]*Ring, 16)
	var wg sync.WaitGroup
	for i := range rings {
		wg.Go(func() { rings[i] = load(t, path) })
	}
	wg.Wait()
	for i, r := range rings {
		if _, err := rings[0].Open("p", nil, r.Seal("p", nil, nil, later), now); err != nil {
			t.Errorf("ring %d has other keys", i)
		}
	}
	left, _ := filepath.Glob(path + ".*")
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if info, _ := os.Stat(path); runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("mode %o", info.Mode().Perm())
	}
}

func TestARotationElsewhereIsSeen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	a, b := load(t, path), load(t, path)
	var wg sync.WaitGroup
	for _, r := range []*Ring{a, b} {
		wg.Go(func() {
			if err := r.Rotate(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if _, err := a.Open("p", nil, b.Seal("p", nil, nil, later), now); err != nil {
		t.Error("a cannot open b's:", err)
	}
	if _, err := b.Open("p", nil, a.Seal("p", nil, nil, later), now); err != nil {
		t.Error("b cannot open a's:", err)
	}
}

func TestLoadRefusesFilesThatAreNotGood(t *testing.T) {
	for _, c := range []struct {
		name, content, want string
		mode                os.FileMode
	}{
		{"readable by others", `{"keys":[]}`, "chmod 600", 0o644},
		{"empty", ``, "not a key file", 0o600},
		{"no keys", `{"keys":[]}`, "at least one key", 0o600},
		{"short secret", `{"keys":[{"id":1,"secret":"c2VjcmV0"}]}`, "32 bytes", 0o600},
		{"too long", strings.Repeat(" ", maxFile+1), "longer than", 0o600},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.mode != 0o600 && runtime.GOOS == "windows" {
				t.Skip("modes mean nothing here")
			}
			path := filepath.Join(t.TempDir(), "keys")
			os.WriteFile(path, []byte(c.content), c.mode)
			os.Chmod(path, c.mode)
			_, err := Load(path)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "c2VjcmV0") {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestKeysDoNotPrint(t *testing.T) {
	k := NewKey()
	for i := range k.Secret {
		k.Secret[i] = 'S'
	}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "key", k, "keys", []Key{k})
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "key", k, "keys", []Key{k})
	j, _ := json.Marshal(k)
	all := fmt.Sprintf("%v %+v %#v %s %x %d %v", k, k, k, k, k, k, []*Key{&k}) + log.String() + string(j)
	if strings.Contains(all, "SSS") || strings.Contains(all, "5353") || strings.Contains(all, "83 83") {
		t.Error(all)
	}
}

func load(t *testing.T, path string) *Ring {
	t.Helper()
	r, err := Load(path)
	if err != nil {
		t.Error(err)
		return Ephemeral()
	}
	return r
}

func FuzzOpen(f *testing.F) {
	r := Ephemeral()
	f.Add("state", []byte("alice"), r.Seal("state", []byte("alice"), []byte("x"), later))
	f.Add("", []byte{}, "")
	f.Add("state", []byte("alice"), "AQAAAAA")
	f.Fuzz(func(t *testing.T, purpose string, bind []byte, token string) {
		got, err := r.Open(purpose, bind, token, now)
		if err != nil && !errors.Is(err, ErrAltered) && !errors.Is(err, ErrExpired) {
			t.Errorf("unexpected error %v", err)
		}
		// Only the seed can be opened, and only for its purpose.
		if err == nil && (purpose != "state" || string(bind) != "alice" || string(got) != "x") {
			t.Errorf("%q opened for %q, %q: %q", token, purpose, bind, got)
		}
	})
}

func FuzzKeyFile(f *testing.F) {
	f.Add([]byte(`{"keys":[{"id":1,"secret":"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if keys, err := parseKeys(b); err == nil {
			openers(keys)
		}
	})
}

func BenchmarkSealOpen(b *testing.B) {
	r, plain := Ephemeral(), make([]byte, 1024)
	for b.Loop() {
		if _, err := r.Open("p", nil, r.Seal("p", nil, plain, later), now); err != nil {
			b.Fatal(err)
		}
	}
}
