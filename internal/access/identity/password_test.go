package identity

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
)

func TestPasswordsAreKeptAsArgon2id(t *testing.T) {
	p := newPasswords(cheap)
	kept, err := p.hash(t.Context(), "correct horse")
	if err != nil || !strings.HasPrefix(kept, "$argon2id$v=19$m=8,t=1,p=1$") {
		t.Fatalf("kept is %s, %v", kept, err)
	}
	again, err := p.hash(t.Context(), "correct horse")
	if err != nil || again == kept {
		t.Errorf("two hashes of one password are equal (%v)", err)
	}
	for password, want := range map[string]bool{
		"correct horse": true, "correct horse ": false, "Correct horse": false, "": false, "correct horse\x00": false,
		strings.Repeat("x", mostPassword): false, strings.Repeat("x", mostPassword+1): false,
	} {
		if ok, stale, err := p.verify(t.Context(), kept, password); ok != want || stale || err != nil {
			t.Errorf("%.20q: %t, %t, %v; want %t", password, ok, stale, err, want)
		}
	}
	for _, password := range []string{strings.Repeat("y", leastPassword), strings.Repeat("y", mostPassword)} {
		kept, err := p.hash(t.Context(), password)
		if ok, _, _ := p.verify(t.Context(), kept, password); err != nil || !ok {
			t.Errorf("a password of %d bytes is refused: %v", len(password), err)
		}
	}
}

// The hash was made by the reference implementation of argon2.
func TestOtherProgramsHashesAreRead(t *testing.T) {
	const kept = "$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc"
	if ok, stale, err := newPasswords(cheap).verify(t.Context(), kept, "password"); !ok || !stale || err != nil {
		t.Errorf("got %t, %t, %v", ok, stale, err)
	}
}

// If the cost has changed, a login renews the hash.
func TestHashesAreRenewed(t *testing.T) {
	s := newTestService(t, Options{})
	s.pass.cost = cost{memory: 16, passes: 2, threads: 1}
	logIn(t, s, "alice", "correct horse", false)
	a, _, err := s.findAccount(t.Context(), "name = 'alice'")
	if err != nil || !strings.HasPrefix(a.kept, "$argon2id$v=19$m=16,t=2,p=1$") {
		t.Errorf("kept is %s, %v", a.kept, err)
	}
	logIn(t, s, "alice", "correct horse", false)
}

// An altered hash matches no password and does not exhaust memory.
func TestAlteredHashesAreNone(t *testing.T) {
	good, err := newPasswords(cheap).hash(t.Context(), "correct horse")
	if err != nil {
		t.Fatal(err)
	}
	for _, kept := range []string{
		"", "x", "plain:correct horse", strings.Replace(good, "argon2id", "argon2i", 1),
		strings.Replace(good, "v=19", "v=16", 1),
		strings.Replace(good, "m=8", "m=4294967295", 1), strings.Replace(good, "t=1", "t=0", 1),
		strings.Replace(good, "t=1", "t=99", 1),
		strings.Replace(good, "p=1", "p=0", 1), strings.Replace(good, "m=8", "m=08", 1), good + "$", good + "A",
		good[:len(good)-1],
	} {
		if _, ok := parseHash(kept); ok {
			t.Errorf("%s is read", kept)
		}
		if ok, _, err := newPasswords(cheap).verify(t.Context(), kept, "correct horse"); ok || err != nil {
			t.Errorf("%s: %t, %v", kept, ok, err)
		}
	}
}

// Memory is bounded: a caller that finds all slots in use waits for a limited time.
func TestFewAreHashedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPasswords(cheap)
		hold := make(chan struct{})
		p.derive = func(password, salt []byte, c cost) []byte { <-hold; return make([]byte, keySize) }
		for range cap(p.slots) {
			go p.hash(context.Background(), "correct horse")
		}
		synctest.Wait()
		if _, err := p.hash(t.Context(), "correct horse"); !errors.Is(err, errBusy) {
			t.Errorf("got %v, want %v", err, errBusy)
		}
		close(hold)
		if _, err := p.hash(t.Context(), "correct horse"); err != nil {
			t.Error(err)
		}
	})
}

func FuzzHash(f *testing.F) {
	f.Add("$argon2id$v=19$m=65536,t=2,p=1$c29tZXNhbHQ$CTFhFdXPJO1aFaMaO6Mm5c8y7cJHAph8ArZWb2GRPPc")
	f.Add("$argon2id$v=19$m=8,t=1,p=1$$")
	f.Fuzz(func(t *testing.T, s string) {
		if h, ok := parseHash(s); ok && (h.String() != s || !h.sane()) {
			t.Errorf("%q is read as %q", s, h)
		}
	})
}

// A mistyped token is recognized by its checksum, without reading the file.
func TestTyposAreFound(t *testing.T) {
	const alphabet = "abcdefghijklmnopqrstuvwxyz234567"
	for _, prefix := range []string{tokenPrefix, localPrefix} {
		token := newSecret(prefix)
		want := map[string]spelling{tokenPrefix: ours, localPrefix: locals}[prefix]
		if got := spell(token); got != want {
			t.Errorf("%s is %d, want %d", token, got, want)
		}
		for i := len(prefix); i < len(token); i++ {
			for _, c := range alphabet {
				typo := token[:i] + string(c) + token[i+1:]
				if typo != token && spell(typo) != mistyped {
					t.Errorf("%s passes for %s", typo, token)
				}
			}
			if i > len(prefix) && token[i] != token[i-1] {
				swapped := token[:i-1] + token[i:i+1] + token[i-1:i] + token[i+1:]
				if spell(swapped) != mistyped {
					t.Errorf("%s passes for %s", swapped, token)
				}
			}
		}
		for _, cut := range []string{token[:len(token)-1], token + "a", token[:len(prefix)],
			prefix + strings.ToUpper(token[len(prefix):])} {
			if spell(cut) != mistyped {
				t.Errorf("%s is not found to be mistyped", cut)
			}
		}
	}
}

func FuzzToken(f *testing.F) {
	f.Add(newSecret(tokenPrefix))
	f.Add(newSecret(localPrefix))
	f.Add("gh_")
	f.Add("eyJhbGciOiJub25lIn0.e30.")
	s, err := Open("", Options{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { s.Close() })
	f.Fuzz(func(t *testing.T, token string) {
		spell(token)
		if p, err := s.bearer(t.Context(), token, true); err == nil {
			t.Errorf("%q stands for %s", token, p.Name)
		}
	})
}
