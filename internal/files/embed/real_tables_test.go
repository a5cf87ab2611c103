package embed

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

// TestRealTables compares published tables with what other programs compute of them: the library tokenizers of Hugging
// Face with numpy for that of wordllama (byte pairs, float16), and the package tokenlearn-static-model for its own
// (model2vec: unigram, int8, tokens that share vectors). GATEHOUSE_TABLES is a folder with both.
func TestRealTables(t *testing.T) {
	dir := os.Getenv("GATEHOUSE_TABLES")
	if dir == "" {
		t.Skip("GATEHOUSE_TABLES is not set: make verify-knowledge gets the tables")
	}
	const text = "The harbour opens at 06:30.\n\n\tfunc parseHTTPRequest(w io.Writer) error { return nil } // 漢字 😀 " +
		"ﬁne\u00a0print, naïve café №5"
	for name, want := range map[string]struct {
		dims, tokens, sum int
		cosines           [3]float64
	}{
		"wordllama":  {256, 52, 758511, [3]float64{.0619, .04273, .01019}},
		"tokenlearn": {64, 46, 486446, [3]float64{.65247, .23882, .38893}},
	} {
		e, err := OpenFolder(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		tokens, sum := e.(*Static).pieces.split(text, maxStaticTokens), 0
		for _, id := range tokens {
			sum += int(max(id, 0))
		}
		if len(tokens) != want.tokens || sum != want.sum {
			t.Errorf("%s: %d tokens with the sum %d; want %d and %d: %v", name, len(tokens), sum, want.tokens, want.sum,
				tokens)
		}
		v, err := e.Embed(t.Context(), []string{
			"I went to the car", "I went to the pawn shop", "Déjà vu: naïve façade, 42 km!",
		}, false)
		if err != nil || len(v[0]) != want.dims {
			t.Fatalf("%s: %d dimensions, %v", name, len(v[0]), err)
		}
		for i, pair := range [][2]int{{0, 1}, {0, 2}, {1, 2}} {
			var cosine float64
			for d, x := range v[pair[0]] {
				cosine += float64(x) * float64(v[pair[1]][d])
			}
			if math.Abs(cosine-want.cosines[i]) > 1e-4 {
				t.Errorf("%s: cosine %d is %.5f, want %.5f", name, i, cosine, want.cosines[i])
			}
		}
	}
}
