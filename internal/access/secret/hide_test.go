package secret

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// However the output is split, the secrets are removed and all other bytes stay.
//
//redteam:attack Keys stay here: a program prints its secret in pieces
func TestSecretsAreHiddenWhereverTheyAreCut(t *testing.T) {
	h := NewHider(New("correct horse"), New(`with "quotes"`), New("short"))
	for said, want := range map[string]string{
		"":                                      "",
		"nothing to see":                        "nothing to see",
		"a correct horse, twice: correct horse": "a [secret], twice: [secret]",
		"correct correct horse":                 "correct [secret]",
		"correct hors":                          "correct hors",
		`{"a":"with \"quotes\""}`:               `{"a":"[secret]"}`,
		`with "quotes" is`:                      `[secret] is`,
		"short":                                 "short",
	} {
		if got := string(h.Hide([]byte(said))); got != want {
			t.Errorf("of %q comes %q, want %q", said, got, want)
		}
		for cut := 1; cut <= max(1, len(said)); cut++ {
			var out bytes.Buffer
			w := h.Writer(&out)
			for rest := []byte(said); len(rest) > 0; {
				n := min(cut, len(rest))
				if took, err := w.Write(rest[:n]); took != n || err != nil {
					t.Fatal(took, err)
				}
				rest = rest[n:]
			}
			if err := w.Flush(); err != nil || out.String() != want {
				t.Errorf("of %q, %d bytes at once, comes %q, want %q: %v", said, cut, out.String(), want, err)
			}
		}
	}
}

// How much is passed on at once depends on lengths and line ends alone, so that a caller cannot guess a secret that a
// program repeats by when its output arrives.
//
//redteam:attack Keys stay here: a secret in a program's output is guessed by what the host holds back
func TestWhatIsHeldDoesNotDependOnTheSecret(t *testing.T) {
	const value = "correct horse battery staple"
	passed := func(said string) int {
		var out strings.Builder
		w := NewHider(New(value)).Writer(&out)
		w.Write([]byte(said))
		w.mu.Lock() // what is held is written later
		defer w.mu.Unlock()
		return out.Len()
	}
	for _, before := range []string{"", "x", strings.Repeat("x", 1000), "line\n", "line\nx"} {
		for size := range len(value) {
			if got, want := passed(before+value[:size]), passed(before+strings.Repeat("x", size)); got != want {
				t.Fatalf("after %d bytes: %d are passed on with %q, and %d without", len(before), got, value[:size],
					want)
			}
		}
	}
	if got := passed("a line\n"); got != len("a line\n") {
		t.Errorf("%d bytes of a whole line are passed on", got)
	}
}

// A prompt is shown when the program waits, and the long beginning of a secret is not.
func TestAnUnfinishedLineWaitsForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		w := NewHider(New("correct horse battery staple")).Writer(&out)
		shown := func() string {
			w.mu.Lock()
			defer w.mu.Unlock()
			return out.String()
		}
		for _, x := range []struct{ said, have string }{
			{"$ ", "$ "},
			{"cor", "$ cor"},
			{"al", "$ coral"},
			{"correct horse", "$ coral"},
			{" battery", "$ coral"},
			{" staple!", "$ coral[secret]!"},
			{"correct hors", "$ coral[secret]!"},
		} {
			before := shown()
			w.Write([]byte(x.said))
			if shown() != before {
				t.Errorf("after %q there is %q at once", x.said, shown())
			}
			time.Sleep(2 * quiet)
			synctest.Wait()
			if shown() != x.have {
				t.Errorf("after %q there is %q, want %q", x.said, shown(), x.have)
			}
		}
		if w.Flush(); shown() != "$ coral[secret]!correct hors" {
			t.Errorf("got %q", out.String())
		}
	})
}

// A key of several lines is hidden as programs, terminals and JSON write it.
func TestTheLinesOfASecretAreHidden(t *testing.T) {
	h := NewHider(New("-----BEGIN KEY-----\nAAAABBBBCCCC\nDDDD\n-----END KEY-----\n"))
	for said, want := range map[string]string{
		"a\n-----BEGIN KEY-----\nAAAABBBBCCCC\nDDDD\n": "a\n[secret]\n[secret]\nDDDD\n",
		"AAAABBBBCCCC\r\n": "[secret]\r\n",
		`{"key":"-----BEGIN KEY-----\nAAAABBBBCCCC\nDDDD\n-----END KEY-----\n"}`: `{"key":"[secret]"}`,
	} {
		if got := string(h.Hide([]byte(said))); got != want {
			t.Errorf("of %q comes %q, want %q", said, got, want)
		}
	}
}

func TestWithoutSecretsEverythingIsPassedOn(t *testing.T) {
	var out bytes.Buffer
	w := Hider{}.Writer(&out)
	if n, err := w.Write([]byte("said")); n != 4 || err != nil || out.String() != "said" {
		t.Errorf("got %d %v %q", n, err, out.String())
	}
	if err := w.Flush(); err != nil {
		t.Error(err)
	}
}

type full struct{}

var errFull = errors.New("full")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestTheWriterBehindMayFail(t *testing.T) {
	w := NewHider(New("correct horse")).Writer(full{})
	if _, err := w.Write([]byte("x\n")); !errors.Is(err, errFull) {
		t.Errorf("got %v", err)
	}
	w.Write([]byte("cor"))
	if err := w.Flush(); !errors.Is(err, errFull) {
		t.Errorf("got %v", err)
	}
}
