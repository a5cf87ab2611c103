package packages

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A document whose digest is named is that document, or it is refused.
func TestADocumentOfAnAddressHasItsDigest(t *testing.T) {
	const text = `{"openapi":"3.0.0"}`
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) }))
	t.Cleanup(s.Close)
	right := fmt.Sprintf("#sha256=%x", sha256.Sum256([]byte(text)))
	for fragment, want := range map[string]string{
		"": "", right: "", "#sha256=" + strings.Repeat("0", 64): "was asked for",
	} {
		got, err := downloadDocument(t.Context(), s.URL+fragment)
		if want == "" && (err != nil || string(got) != text) ||
			want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got %q, %v", fragment, got, err)
		}
	}
}
