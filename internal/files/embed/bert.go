package embed

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"sync"
)

// bertConfig is config.json of a model.
type bertConfig struct {
	Type      string  `json:"model_type"`
	Hidden    int     `json:"hidden_size"`
	Between   int     `json:"intermediate_size"`
	Layers    int     `json:"num_hidden_layers"`
	Heads     int     `json:"num_attention_heads"`
	Positions int     `json:"max_position_embeddings"`
	Words     int     `json:"vocab_size"`
	Epsilon   float64 `json:"layer_norm_eps"`
	Act       string  `json:"hidden_act"`
}

// BERT is a BERT encoder whose vectors are the means of its last layer, such as MiniLM. It computes in plain Go on two
// cores: a text of 200 tokens takes about a second with six layers of 384 dimensions. The weights are read at the
// first use.
type BERT struct {
	cfg    bertConfig
	pieces *wordPieces
	most   int // tokens of a text
	name   string
	file   *tensors

	load func() error
	w    weights
}

// weights are those of a model, each matrix with one row for each output.
type weights struct {
	words, positions, kinds []float32
	norm                    scaleShift
	layers                  []layer
}

type scaleShift struct{ scale, shift []float32 }

type dense struct {
	weight, bias []float32
	in, out      int
}

type layer struct {
	query, key, value, attended, between, output dense
	first, last                                  scaleShift
}

// OpenBERT opens the model of a folder: config.json, vocab.txt and model.safetensors, as sentence-transformers stores
// them. It checks their form and reads the weights at the first use.
func OpenBERT(folder string) (*BERT, error) {
	b := &BERT{most: 256}
	if err := readJSON(filepath.Join(folder, "config.json"), &b.cfg); err != nil {
		return nil, fmt.Errorf("open the model in %s: %w", folder, err)
	}
	c := b.cfg
	switch {
	case c.Type != "bert":
		return nil, fmt.Errorf("open the model in %s: it is a %q model; expected bert", folder, c.Type)
	case c.Act != "gelu":
		return nil, fmt.Errorf("open the model in %s: its hidden_act is %q; expected gelu", folder, c.Act)
	case c.Hidden < 1 || c.Hidden > maxDims || c.Between < 1 || c.Between > 4*maxDims || c.Layers < 1 ||
		c.Layers > 64 ||
		c.Heads < 1 || c.Hidden%c.Heads != 0 || c.Positions < 2 || c.Words < 2 || c.Words > 1<<20:
		return nil, fmt.Errorf("open the model in %s: config.json has sizes that are not possible", folder)
	}
	var limit struct {
		Most int `json:"max_seq_length"`
	}
	if readJSON(filepath.Join(folder, "sentence_bert_config.json"), &limit) == nil && limit.Most > 1 {
		b.most = limit.Most
	}
	b.most = min(b.most, c.Positions, 512)
	tokenizer := struct {
		Lower *bool `json:"do_lower_case"`
	}{}
	readJSON(filepath.Join(folder, "tokenizer_config.json"), &tokenizer) // without it, capitals do not count
	var err error
	if b.pieces, err = readVocabulary(filepath.Join(folder, "vocab.txt"), tokenizer.Lower == nil ||
		*tokenizer.Lower); err != nil {
		return nil, fmt.Errorf("open the model in %s: %w", folder, err)
	}
	if b.file, err = openTensors(filepath.Join(folder, "model.safetensors")); err != nil {
		return nil, fmt.Errorf("open the model in %s: %w", folder, err)
	}
	b.name = fmt.Sprintf("bert-%x", sha256.Sum256(b.file.print))[:17]
	b.load = sync.OnceValue(b.readWeights)
	return b, nil
}

func readJSON(path string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return nil
}

// Space implements Embedder.
func (b *BERT) Space() (name string, dims int) { return b.name, b.cfg.Hidden }

// Embed implements Embedder. It computes two texts at a time.
func (b *BERT) Embed(ctx context.Context, texts []string, _ bool) ([][]float32, error) {
	if err := b.load(); err != nil {
		return nil, err
	}
	all := make([][]float32, len(texts))
	next := make(chan int)
	var wait sync.WaitGroup
	var failed error
	var once sync.Once
	for range min(2, runtime.GOMAXPROCS(0), len(texts)) {
		wait.Go(func() {
			for i := range next {
				v := b.encode(b.pieces.tokens(texts[i], b.most))
				if err := unit(v); err != nil {
					once.Do(func() { failed = err })
				}
				all[i] = v
			}
		})
	}
	for i := range texts {
		if ctx.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	wait.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	return all, failed
}

func (b *BERT) readWeights() error {
	defer func() { b.file = nil }()
	f, c := b.file, b.cfg
	prefix := ""
	if f.has("bert.embeddings.word_embeddings.weight") {
		prefix = "bert."
	}
	get := func(name string, size int) []float32 { return f.read(prefix+name, size) }
	norm := func(name string) scaleShift {
		return scaleShift{get(name+".weight", c.Hidden), get(name+".bias", c.Hidden)}
	}
	full := func(name string, out, in int) dense {
		return dense{get(name+".weight", in*out), get(name+".bias", out), in, out}
	}
	b.w = weights{
		words:     get("embeddings.word_embeddings.weight", c.Words*c.Hidden),
		positions: get("embeddings.position_embeddings.weight", c.Positions*c.Hidden),
		kinds:     get("embeddings.token_type_embeddings.weight", 0),
		norm:      norm("embeddings.LayerNorm"),
	}
	for i := range c.Layers {
		at := fmt.Sprintf("encoder.layer.%d.", i)
		b.w.layers = append(b.w.layers, layer{
			query:    full(at+"attention.self.query", c.Hidden, c.Hidden),
			key:      full(at+"attention.self.key", c.Hidden, c.Hidden),
			value:    full(at+"attention.self.value", c.Hidden, c.Hidden),
			attended: full(at+"attention.output.dense", c.Hidden, c.Hidden),
			first:    norm(at + "attention.output.LayerNorm"),
			between:  full(at+"intermediate.dense", c.Between, c.Hidden),
			output:   full(at+"output.dense", c.Hidden, c.Between),
			last:     norm(at + "output.LayerNorm"),
		})
	}
	if f.err == nil && len(b.w.kinds) < c.Hidden {
		f.err = fmt.Errorf("model.safetensors: token_type_embeddings are too short")
	}
	return f.close()
}

// encode returns the mean of the last layer over the tokens.
func (b *BERT) encode(tokens []int32) []float32 {
	n, h := len(tokens), b.cfg.Hidden
	x := make([]float32, n*h)
	for t, id := range tokens {
		id = min(id, int32(b.cfg.Words-1))
		for d := range h {
			x[t*h+d] = b.w.words[int(id)*h+d] + b.w.positions[t*h+d] + b.w.kinds[d]
		}
	}
	b.w.norm.apply(x, h, b.cfg.Epsilon)
	for i := range b.w.layers {
		b.layer(&b.w.layers[i], x, n)
	}
	mean := make([]float32, h)
	for t := range n {
		for d := range h {
			mean[d] += x[t*h+d] / float32(n)
		}
	}
	return mean
}

func (b *BERT) layer(l *layer, x []float32, n int) {
	h := b.cfg.Hidden
	attended := l.attended.apply(b.attend(l, x, n), n)
	for i, v := range attended {
		x[i] += v
	}
	l.first.apply(x, h, b.cfg.Epsilon)
	between := l.between.apply(x, n)
	for i, v := range between {
		between[i] = float32(0.5 * float64(v) * (1 + math.Erf(float64(v)/math.Sqrt2)))
	}
	for i, v := range l.output.apply(between, n) {
		x[i] += v
	}
	l.last.apply(x, h, b.cfg.Epsilon)
}

// attend returns what each token takes from all others, by heads.
func (b *BERT) attend(l *layer, x []float32, n int) []float32 {
	h, size := b.cfg.Hidden, b.cfg.Hidden/b.cfg.Heads
	q, k, v := l.query.apply(x, n), l.key.apply(x, n), l.value.apply(x, n)
	out := make([]float32, n*h)
	scores := make([]float64, n)
	scale := 1 / math.Sqrt(float64(size))
	for head := range b.cfg.Heads {
		at := head * size
		for t := range n {
			most := math.Inf(-1)
			own := q[t*h+at : t*h+at+size]
			for u := range n {
				var sum float32
				for d, y := range k[u*h+at : u*h+at+size] {
					sum += own[d] * y
				}
				scores[u] = float64(sum) * scale
				most = max(most, scores[u])
			}
			total := 0.0
			for u := range n {
				scores[u] = math.Exp(scores[u] - most)
				total += scores[u]
			}
			to := out[t*h+at : t*h+at+size]
			for u := range n {
				w := float32(scores[u] / total)
				for d, y := range v[u*h+at : u*h+at+size] {
					to[d] += w * y
				}
			}
		}
	}
	return out
}

// apply normalises each row of x to the scale and shift.
func (s scaleShift) apply(x []float32, h int, epsilon float64) {
	for from := 0; from < len(x); from += h {
		row := x[from : from+h]
		var mean, square float64
		for _, v := range row {
			mean += float64(v)
		}
		mean /= float64(h)
		for _, v := range row {
			square += (float64(v) - mean) * (float64(v) - mean)
		}
		by := 1 / math.Sqrt(square/float64(h)+epsilon)
		for d, v := range row {
			row[d] = float32((float64(v)-mean)*by)*s.scale[d] + s.shift[d]
		}
	}
}

// apply multiplies each of n rows with the matrix, and adds the bias. It takes four rows at a time, so that each
// weight is read once for them.
func (m dense) apply(x []float32, n int) []float32 {
	out := make([]float32, n*m.out)
	zero := make([]float32, m.in)
	for t := 0; t < n; t += 4 {
		var rows [4][]float32
		for r := range rows {
			if rows[r] = zero; t+r < n {
				rows[r] = x[(t+r)*m.in : (t+r+1)*m.in]
			}
		}
		for o := range m.out {
			w := m.weight[o*m.in : (o+1)*m.in]
			a, b, c, d := rows[0][:len(w)], rows[1][:len(w)], rows[2][:len(w)], rows[3][:len(w)]
			var s [4]float32
			var s0, s1, s2, s3 float32
			for i, v := range w {
				s0 += a[i] * v
				s1 += b[i] * v
				s2 += c[i] * v
				s3 += d[i] * v
			}
			s = [4]float32{s0, s1, s2, s3}
			for r := 0; r < 4 && t+r < n; r++ {
				out[(t+r)*m.out+o] = s[r] + m.bias[o]
			}
		}
	}
	return out
}
