package embed

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Static is a table of one vector for each token, such as model2vec and StaticEmbedding of sentence-transformers make
// them. The vector of a text is the mean of its tokens' vectors, so that a text costs microseconds. The table is read
// at the first use.
type Static struct {
	pieces *wordPieces
	name   string
	rows   int
	dims   int
	file   *tensors

	load    func() error
	table   []float32 // rows of dims
	weights []float32 // of each token in the mean; nil weighs all alike
}

// maxStaticTokens is how many tokens of a text count.
const maxStaticTokens = 8192

// tableNames are the tensors that a table of tokens can be.
var tableNames = []string{"embeddings", "embedding.weight"}

// OpenFolder opens the model of a folder: a table of tokens (model.safetensors and tokenizer.json), or a BERT model as
// OpenBERT reads it.
func OpenFolder(folder string) (Embedder, error) {
	f, err := openTensors(filepath.Join(folder, "model.safetensors"))
	if err != nil {
		return OpenBERT(folder) // its error names what is missing
	}
	for _, name := range tableNames {
		if !f.has(name) {
			continue
		}
		s, err := newStatic(folder, f, name)
		if err != nil {
			f.close()
			return nil, fmt.Errorf("open the model in %s: %w", folder, err)
		}
		return s, nil
	}
	f.close()
	return OpenBERT(folder)
}

func newStatic(folder string, f *tensors, table string) (*Static, error) {
	shape := f.header[table].Shape
	if len(shape) != 2 || shape[0] < 1 || shape[0] > 1<<21 || shape[1] < 2 || shape[1] > maxDims {
		return nil, fmt.Errorf("model.safetensors: %s has the shape %v; expected tokens and dimensions", table, shape)
	}
	if f.has("mapping") {
		return nil, errors.New("model.safetensors: tokens that share vectors (mapping) are not read")
	}
	s := &Static{rows: shape[0], dims: shape[1], file: f}
	text, err := os.ReadFile(filepath.Join(folder, "tokenizer.json"))
	if err != nil {
		return nil, err
	}
	if s.pieces, err = readTokenizer(filepath.Join(folder, "tokenizer.json")); err != nil {
		return nil, err
	}
	for piece, id := range s.pieces.ids {
		if id < 0 || int(id) >= s.rows {
			return nil, fmt.Errorf("tokenizer.json: %q has the number %d; the table has %d rows", piece, id, s.rows)
		}
	}
	sum := sha256.New()
	sum.Write(f.print)
	sum.Write(text) // the same table means other things with other tokens
	s.name = fmt.Sprintf("static-%x", sum.Sum(nil))[:19]
	s.load = sync.OnceValue(func() error {
		s.table = f.read(table, s.rows*s.dims)
		if f.has("weights") {
			s.weights = f.read("weights", s.rows)
		}
		s.file = nil
		return f.close()
	})
	return s, nil
}

// readTokenizer reads the word pieces of a tokenizer.json.
func readTokenizer(path string) (*wordPieces, error) {
	var t struct {
		Normalizer struct {
			Type      string
			Lowercase *bool
		}
		Model struct {
			Type   string
			Prefix *string `json:"continuing_subword_prefix"`
			Vocab  map[string]int32
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxVocabulary {
		return nil, errors.New("tokenizer.json is too large")
	}
	if err := readJSON(path, &t); err != nil {
		return nil, err
	}
	m := t.Model
	switch {
	case m.Type != "WordPiece":
		return nil, fmt.Errorf("tokenizer.json: its model is %q; expected WordPiece", m.Type)
	case m.Prefix != nil && *m.Prefix != "##":
		return nil, fmt.Errorf("tokenizer.json: its continuing_subword_prefix is %q; expected ##", *m.Prefix)
	case len(m.Vocab) == 0:
		return nil, errors.New("tokenizer.json has no vocabulary")
	}
	w := &wordPieces{ids: m.Vocab, absent: -1}
	w.lower = strings.HasPrefix(t.Normalizer.Type, "Bert") && (t.Normalizer.Lowercase == nil || *t.Normalizer.Lowercase)
	return w, nil
}

// Space implements Embedder.
func (s *Static) Space() (name string, dims int) { return s.name, s.dims }

// Embed implements Embedder.
func (s *Static) Embed(ctx context.Context, texts []string, _ bool) ([][]float32, error) {
	if err := s.load(); err != nil {
		return nil, err
	}
	all := make([][]float32, len(texts))
	for i, text := range texts {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		all[i] = s.mean(text)
		if err := unit(all[i]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// mean returns the sum of the vectors of a text's tokens, which has the direction of their mean. A text without a known
// token gets the same direction as all such texts, so that it can be stored.
func (s *Static) mean(text string) []float32 {
	var tokens []int32
	s.pieces.words(text, func(word string) bool {
		tokens = s.pieces.pieces(tokens, word)
		return len(tokens) < maxStaticTokens
	})
	v := make([]float32, s.dims)
	for _, id := range tokens {
		if id < 0 {
			continue // not in the vocabulary
		}
		weight := float32(1)
		if s.weights != nil {
			weight = s.weights[id]
		}
		for d, x := range s.table[int(id)*s.dims : (int(id)+1)*s.dims] {
			v[d] += weight * x
		}
	}
	if !slices.ContainsFunc(v, func(x float32) bool { return x != 0 }) {
		for d := range v {
			v[d] = 1
		}
	}
	return v
}
