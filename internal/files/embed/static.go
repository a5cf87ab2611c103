package embed

import (
	"context"
	"crypto/sha256"
	"encoding/json"
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
	pieces splitter
	name   string
	rows   int
	dims   int
	file   *tensors

	load    func() error
	table   []float32 // rows of dims
	weights []float32 // of each token in the mean; nil weighs all alike
	mapping []float32 // the row of each token; nil means that of its number
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
	s := &Static{rows: shape[0], dims: shape[1], file: f}
	text, err := os.ReadFile(filepath.Join(folder, "tokenizer.json"))
	if err != nil {
		return nil, err
	}
	var ids map[string]int32
	if s.pieces, ids, err = readTokenizer(filepath.Join(folder, "tokenizer.json")); err != nil {
		return nil, err
	}
	tokens := s.rows
	if shape := f.header["mapping"].Shape; len(shape) == 1 {
		tokens = shape[0] // tokens share rows
	}
	for piece, id := range ids {
		if id < 0 || int(id) >= tokens {
			return nil, fmt.Errorf("tokenizer.json: %q has the number %d; the table has %d rows", piece, id, tokens)
		}
	}
	sum := sha256.New()
	sum.Write(f.print)
	sum.Write(text) // the same table means other things with other tokens
	s.name = fmt.Sprintf("static-%x", sum.Sum(nil))[:19]
	s.load = sync.OnceValue(func() error {
		s.table = f.read(table, s.rows*s.dims)
		if f.has("weights") {
			s.weights = f.read("weights", tokens)
		}
		if f.has("mapping") {
			s.mapping = f.read("mapping", tokens)
		}
		s.file = nil
		for _, row := range s.mapping {
			if row < 0 || int(row) >= s.rows {
				f.close()
				return fmt.Errorf("model.safetensors: mapping names row %v; the table has %d", row, s.rows)
			}
		}
		return f.close()
	})
	return s, nil
}

// tokenizer is what is read of a tokenizer.json.
type tokenizer struct {
	Normalizer normalizer
	Model      struct {
		Type         string
		Prefix       *string `json:"continuing_subword_prefix"`
		ByteFallback bool    `json:"byte_fallback"`
		Vocab        json.RawMessage
		Merges       json.RawMessage
	}
}

type normalizer struct {
	Type        string
	Lowercase   *bool
	Normalizers []normalizer // of a Sequence
}

// lowers reports whether capitals become small.
func (n normalizer) lowers() bool {
	return n.Type == "Lowercase" || slices.ContainsFunc(n.Normalizers, normalizer.lowers) ||
		strings.HasPrefix(n.Type, "Bert") && (n.Lowercase == nil || *n.Lowercase)
}

// readTokenizer reads a tokenizer.json with the numbers of its pieces: word pieces, a unigram model, or the byte pairs
// of Llama.
func readTokenizer(path string) (splitter, map[string]int32, error) {
	var t tokenizer
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	if info.Size() > maxVocabulary {
		return nil, nil, errors.New("tokenizer.json is too large")
	}
	if err := readJSON(path, &t); err != nil {
		return nil, nil, err
	}
	m, lower := t.Model, t.Normalizer.lowers()
	switch {
	case m.Type == "Unigram":
		u, err := newUnigram(m.Vocab, lower)
		if err != nil {
			return nil, nil, err
		}
		return u, u.ids, nil
	case m.Type == "BPE" && m.ByteFallback:
		b, err := newBytePairs(m.Vocab, m.Merges)
		if err != nil {
			return nil, nil, err
		}
		return b, b.ids, nil
	case m.Type != "WordPiece":
		return nil, nil, fmt.Errorf("tokenizer.json: its model is %q; expected WordPiece, Unigram, or BPE with byte_fallback",
			m.Type)
	case m.Prefix != nil && *m.Prefix != "##":
		return nil, nil, fmt.Errorf("tokenizer.json: its continuing_subword_prefix is %q; expected ##", *m.Prefix)
	}
	w := &wordPieces{absent: -1, lower: lower}
	if json.Unmarshal(m.Vocab, &w.ids) != nil || len(w.ids) == 0 {
		return nil, nil, errors.New("tokenizer.json has no vocabulary")
	}
	return w, w.ids, nil
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
	v := make([]float32, s.dims)
	for _, id := range s.pieces.split(text, maxStaticTokens) {
		if id < 0 {
			continue // not in the vocabulary
		}
		weight, row := float32(1), int(id)
		if s.weights != nil {
			weight = s.weights[id]
		}
		if s.mapping != nil {
			row = int(s.mapping[id])
		}
		for d, x := range s.table[row*s.dims : (row+1)*s.dims] {
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
