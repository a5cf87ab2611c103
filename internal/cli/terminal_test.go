package cli

import (
	"io"
	"os"
	"strings"
	"testing"
)

// TestWhatIsNoTerminal checks that a character device such as /dev/null is not a terminal, because no user answers
// a question there.
func TestWhatIsNoTerminal(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	for _, stream := range []any{null, r, w, strings.NewReader(""), io.Discard, nil} {
		if isTerminal(stream) {
			t.Errorf("%v is a terminal", stream)
		}
	}
}
