package secret

import (
	"bytes"
	"errors"
	"strings"
	"testing"
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

// Bytes that can no longer begin a secret are not held.
func TestOnlyTheBeginningOfASecretWaits(t *testing.T) {
	var out strings.Builder
	w := NewHider(New("correct horse")).Writer(&out)
	for _, x := range []struct{ said, have string }{{"$ ", "$ "}, {"cor", "$ "}, {"al", "$ coral"}, {"correct", "$ coral"}} {
		w.Write([]byte(x.said))
		if out.String() != x.have {
			t.Errorf("after %q there is %q, want %q", x.said, out.String(), x.have)
		}
	}
	if w.Flush(); out.String() != "$ coralcorrect" {
		t.Errorf("got %q", out.String())
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
	if _, err := w.Write([]byte("x")); !errors.Is(err, errFull) {
		t.Errorf("got %v", err)
	}
	w.Write([]byte("cor"))
	if err := w.Flush(); !errors.Is(err, errFull) {
		t.Errorf("got %v", err)
	}
}
