package embed

import (
	"encoding/binary"
	"encoding/json"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const tableTokenizer = `{"normalizer":{"type":"BertNormalizer","lowercase":true},"model":{"type":"WordPiece",
	"unk_token":"[UNK]","continuing_subword_prefix":"##","vocab":{"[PAD]":0,"[UNK]":1,"cat":2,"##s":3,"mat":4}}}`

// writeTable writes a table of 5 tokens and 3 dimensions, with other tensors.
func writeTable(t *testing.T, name, tokenizer string, more map[string][]float32) string {
	all := map[string][]float32{name: {9, 9, 9, 9, 9, 9, 1, 0, 0, 0, 1, 0, 0, 0, 2}}
	maps.Copy(all, more)
	header, data := map[string]tensor{}, []byte(nil)
	for n, v := range all {
		from := int64(len(data))
		for _, x := range v {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(x))
		}
		shape := []int{len(v)}
		if n == name {
			shape = []int{5, len(v) / 5}
		}
		header[n] = tensor{"F32", shape, [2]int64{from, int64(len(data))}}
	}
	text, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	weights := append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)
	for file, content := range map[string][]byte{
		"tokenizer.json": []byte(tokenizer), "model.safetensors": append(weights, data...),
	} {
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestATableOfVectors(t *testing.T) {
	third := 1 / math.Sqrt(3)
	for _, c := range []struct {
		table string
		more  map[string][]float32
		text  string
		want  [3]float64
	}{
		{"embeddings", nil, "Cats!", [3]float64{math.Sqrt2 / 2, math.Sqrt2 / 2, 0}},
		{"embedding.weight", nil, "the mat", [3]float64{0, 0, 1}}, // unknown words do not count
		{"embeddings", nil, "cat mat", [3]float64{1 / math.Sqrt(5), 0, 2 / math.Sqrt(5)}},
		{"embeddings", map[string][]float32{"weights": {1, 1, 4, 1, 1.5}}, "cat mat", [3]float64{0.8, 0, 0.6}},
		{"embeddings", nil, "кот", [3]float64{third, third, third}},
	} {
		e, err := New(Settings{Kind: Folder, Path: writeTable(t, c.table, tableTokenizer, c.more)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := e.Embed(t.Context(), []string{c.text}, false)
		if err != nil || len(got) != 1 || len(got[0]) != 3 {
			t.Fatalf("%q: got %v, %v", c.text, got, err)
		}
		for d, x := range got[0] {
			if math.Abs(float64(x)-c.want[d]) > 1e-6 {
				t.Errorf("%q with %s: got %v, want %v", c.text, c.table, got[0], c.want)
			}
		}
		if name, dims := e.Space(); dims != 3 || !strings.HasPrefix(name, "static-") {
			t.Errorf("the space is %s, %d", name, dims)
		}
	}
}

// Tokens that share vectors, in a table of fewer rows than tokens.
func TestTokensShareVectors(t *testing.T) {
	dir := writeTable(t, "embeddings", tableTokenizer, map[string][]float32{
		"mapping": {0, 1, 4, 2, 2}, "weights": {1, 1, 1, 1, 3},
	})
	e, err := OpenFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	got, err := e.Embed(t.Context(), []string{"cat mat"}, false)
	if err != nil || math.Abs(float64(got[0][0])-3/math.Sqrt(13)) > 1e-6 || got[0][1] != 0 {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestUnigramPieces(t *testing.T) {
	u, err := newUnigram([]byte(`[["<unk>",0],["▁un",-4],["▁",-3],["un",-4],["happy",-5],["▁unhap",-8],["py",-6],["h",-9],
		["a",-9],["p",-9],["y",-9],["u",-9],["n",-9]]`), true)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string][]int32{
		"Unhappy":  {1, 4}, // -9: better than ▁unhap and py, -14
		"py\t un":  {2, 6, 1},
		"u\u00a0?": {2, 11, 2, -1},
		"":         nil,
	} {
		if got := u.split(text, 100); !slices.Equal(got, want) {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
}

func TestBytePairs(t *testing.T) {
	for _, merges := range []string{`["▁ a","a b","▁a b"]`, `[["▁","a"],["a","b"],["▁a","b"]]`} {
		b, err := newBytePairs([]byte(`{"▁":0,"a":1,"b":2,"▁a":3,"ab":4,"▁ab":5,"<0xC3>":6,"<0xA9>":7}`), []byte(merges))
		if err != nil {
			t.Fatal(err)
		}
		for text, want := range map[string][]int32{
			"ab": {5}, "ab  ab": {5, 0, 5}, "bab": {0, 2, 4}, "é": {0, 6, 7}, "?": {0, -1}, "": {0},
		} {
			if got := b.split(text, 100); !slices.Equal(got, want) {
				t.Errorf("%q: got %v, want %v", text, got, want)
			}
		}
	}
}

func TestTablesThatCannotBeReadAreRefused(t *testing.T) {
	open := func(tokenizer string, more map[string][]float32) error {
		e, err := OpenFolder(writeTable(t, "embeddings", tokenizer, more))
		if err == nil {
			_, err = e.Embed(t.Context(), []string{"cat"}, false)
		}
		return err
	}
	for want, err := range map[string]error{
		"expected WordPiece": open(`{"model":{"type":"WordLevel"}}`, nil),
		"pieces and scores":  open(`{"model":{"type":"Unigram","vocab":{"a":1}}}`, nil),
		"list of pairs":      open(`{"model":{"type":"BPE","byte_fallback":true,"vocab":{"a":1},"merges":7}}`, nil),
		"the end of a word":  open(`{"model":{"type":"BPE","byte_fallback":true,"vocab":{"a▁":1},"merges":[]}}`, nil),
		"names row 7":        open(tableTokenizer, map[string][]float32{"mapping": {0, 1, 2, 3, 7}}),
		"no vocabulary":      open(`{"model":{"type":"WordPiece"}}`, nil),
		"has 5 rows":         open(`{"model":{"type":"WordPiece","vocab":{"a":5}}}`, nil),
		"has 1 rows":         open(tableTokenizer, map[string][]float32{"mapping": {1}}),
		"weights":            open(tableTokenizer, map[string][]float32{"weights": {1}}),
		"direction":          open(tableTokenizer, map[string][]float32{"weights": {1, 1, float32(math.NaN()), 1, 1}}),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", want, err)
		}
	}
	one, err := OpenFolder(writeTable(t, "embeddings", tableTokenizer, nil))
	if err != nil {
		t.Fatal(err)
	}
	two, err := OpenFolder(writeTable(t, "embeddings", strings.Replace(tableTokenizer, "mat", "rug", 1), nil))
	if err != nil {
		t.Fatal(err)
	}
	a, _ := one.Space()
	if b, _ := two.Space(); a == b {
		t.Errorf("tables of other tokens have the same space %s", a)
	}
}
