package embed

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"gatehouse/internal/access/secret"
)

// tinyModel writes a model whose weights follow from a formula. kind is the type of its tensors.
func tinyModel(t *testing.T, kind string) string {
	const hidden, between, layers, positions = 8, 16, 2, 16
	vocabulary := strings.Fields("[PAD] [UNK] [CLS] [SEP] the cat ##s sat . mat")
	shapes := map[string][]int{
		"embeddings.word_embeddings.weight":       {len(vocabulary), hidden},
		"embeddings.position_embeddings.weight":   {positions, hidden},
		"embeddings.token_type_embeddings.weight": {2, hidden},
		"embeddings.LayerNorm.weight":             {hidden}, "embeddings.LayerNorm.bias": {hidden},
	}
	for l := range layers {
		at := fmt.Sprintf("encoder.layer.%d.", l)
		for name, shape := range map[string][]int{
			"attention.self.query": {hidden, hidden}, "attention.self.key": {hidden, hidden},
			"attention.self.value": {hidden, hidden}, "attention.output.dense": {hidden, hidden},
			"intermediate.dense": {between, hidden}, "output.dense": {hidden, between},
		} {
			shapes[at+name+".weight"], shapes[at+name+".bias"] = shape, shape[:1]
		}
		for _, name := range []string{"attention.output.LayerNorm", "output.LayerNorm"} {
			shapes[at+name+".weight"], shapes[at+name+".bias"] = []int{hidden}, []int{hidden}
		}
	}
	var data []byte
	header := map[string]any{"__metadata__": map[string]string{"format": "pt"}}
	for name, shape := range shapes {
		n := 1
		for _, s := range shape {
			n *= s
		}
		from := len(data)
		for i := range n {
			x := 0.2 * math.Sin(0.37*float64(i)+float64(len(name)))
			if strings.HasSuffix(name, "LayerNorm.weight") {
				x++
			}
			bits := math.Float32bits(float32(x))
			if kind == "BF16" {
				data = binary.LittleEndian.AppendUint16(data, uint16((bits+1<<15)>>16))
			} else {
				data = binary.LittleEndian.AppendUint32(data, bits)
			}
		}
		header[name] = tensor{kind, shape, [2]int64{int64(from), int64(len(data))}}
	}
	text, err := json.Marshal(header)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string][]byte{
		"config.json": []byte(`{"model_type":"bert","hidden_size":8,"intermediate_size":16,"num_hidden_layers":2,
			"num_attention_heads":2,"max_position_embeddings":16,"vocab_size":10,"layer_norm_eps":1e-12,"hidden_act":"gelu"}`),
		"vocab.txt":         []byte(strings.Join(vocabulary, "\n") + "\n"),
		"model.safetensors": append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...), data...),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// The values are those of the same model written with numpy.
func TestTheEncoderComputesWhatNumpyDoes(t *testing.T) {
	want := []float64{0.189513, 0.579761, 0.065082, 0.511315, -0.247818, 0.273916, -0.474823, 0.019560}
	for kind, most := range map[string]float64{"F32": 1e-5, "BF16": 0.02} {
		b, err := OpenBERT(tinyModel(t, kind))
		if err != nil {
			t.Fatal(err)
		}
		got, err := b.Embed(t.Context(), []string{"The cats  sat.\tдом"}, false)
		if err != nil || len(got) != 1 || len(got[0]) != len(want) {
			t.Fatalf("%s: got %v, %v", kind, got, err)
		}
		for i, x := range got[0] {
			if math.Abs(float64(x)-want[i]) > most {
				t.Errorf("%s: got %v, want %v", kind, got[0], want)
				break
			}
		}
	}
}

func TestTextsAreCutIntoPieces(t *testing.T) {
	w, err := readVocabulary(filepath.Join(tinyModel(t, "F32"), "vocab.txt"), true)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"The CATS sat.":           "[2 4 5 6 7 8 3]",
		"":                        "[2 3]",
		"thé\x00 мат mat\u200b":   "[2 4 1 9 3]",
		"catsat":                  "[2 1 3]",
		"...":                     "[2 8 8 8 3]",
		strings.Repeat("a", 200):  "[2 1 3]",
		strings.Repeat("mat ", 9): "[2 9 9 9 9 9 9 3]",
	} {
		if got := fmt.Sprint(w.tokens(text, 8)); got != want {
			t.Errorf("%.20q: got %s, want %s", text, got, want)
		}
	}
}

func TestDamagedModelsAreRefused(t *testing.T) {
	for want, change := range map[string]func(dir string) error{
		"expected bert": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"model_type":"gpt2"}`), 0o600)
		},
		"not possible": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "config.json"),
				[]byte(`{"model_type":"bert","hidden_act":"gelu","hidden_size":-1}`), 0o600)
		},
		"has no [": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "vocab.txt"), []byte("a\nb\n"), 0o600)
		},
		"its header has": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "model.safetensors"),
				[]byte("\xff\xff\xff\xff\xff\xff\xff\x7f"), 0o600)
		},
		"expected": func(dir string) error { // the end is missing
			info, err := os.Stat(filepath.Join(dir, "model.safetensors"))
			if err != nil {
				return err
			}
			return os.Truncate(filepath.Join(dir, "model.safetensors"), info.Size()-100)
		},
	} {
		dir := tinyModel(t, "F32")
		if err := change(dir); err != nil {
			t.Fatal(err)
		}
		b, err := OpenBERT(dir)
		if err == nil {
			_, err = b.Embed(t.Context(), []string{"the cat"}, false)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", want, err)
		}
	}
}

// With a real MiniLM, texts that mean the same are nearer than others that share their words.
func TestRealModel(t *testing.T) {
	dir := os.Getenv("GATEHOUSE_MINILM")
	if dir == "" {
		t.Skip("GATEHOUSE_MINILM is not set: make verify-knowledge sets it")
	}
	b, err := OpenBERT(dir)
	if err != nil {
		t.Fatal(err)
	}
	v, err := b.Embed(t.Context(), []string{
		"How do I delete a directory?", "removing a folder", "How do I delete a comment?", "The cat sits outside",
		"A man is playing guitar",
	}, false)
	if err != nil {
		t.Fatal(err)
	}
	cosine := func(i, j int) (sum float64) {
		for d, x := range v[i] {
			sum += float64(x) * float64(v[j][d])
		}
		return sum
	}
	t.Logf("paraphrase %.4f, same words %.4f, unrelated %.4f", cosine(0, 1), cosine(0, 2), cosine(3, 4))
	if cosine(0, 1) < 0.5 || cosine(0, 1) <= cosine(0, 2) || cosine(3, 4) > 0.2 {
		t.Errorf("paraphrase %.4f, same words %.4f, unrelated %.4f", cosine(0, 1), cosine(0, 2), cosine(3, 4))
	}
}

func TestAServerMakesVectors(t *testing.T) {
	var failures atomic.Int32
	var last map[string]any
	answer := ""
	fake := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/embeddings" || r.Header.Get("Authorization") != "Bearer k3y" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if failures.Add(-1) >= 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		last = nil
		json.NewDecoder(r.Body).Decode(&last)
		if answer != "" {
			fmt.Fprint(w, answer)
			return
		}
		var parts []string
		for i := range last["input"].([]any) {
			parts = append(parts, fmt.Sprintf(`{"object":"embedding","index":%d,"embedding":[%d,0,4]}`, i, i))
		}
		for i := range len(parts) / 2 { // any order
			parts[i], parts[len(parts)-1-i] = parts[len(parts)-1-i], parts[i]
		}
		fmt.Fprintf(w, `{"object":"list","data":[%s]}`, strings.Join(parts, ","))
	}))
	defer fake.Close()
	s := Settings{Kind: OpenAI, URL: fake.URL + "/v1/", Key: "${secret:K}", Model: "m", Dimensions: 3, Query: "query: "}
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	store := secret.In(t.TempDir(), "")
	if err := store.Set("K", secret.New("k3y")); err != nil {
		t.Fatal(err)
	}
	e, err := New(s, store.Fill)
	if err != nil {
		t.Fatal(err)
	}
	failures.Store(2)
	texts := make([]string, 40)
	texts[3] = "three"
	got, err := e.Embed(t.Context(), texts, true)
	if err != nil || len(got) != 40 || math.Abs(float64(got[3][0])-0.6) > 1e-6 ||
		math.Abs(float64(got[35][0])-0.6) > 1e-6 {
		t.Fatalf("got %v, %v", got, err)
	}
	if last["model"] != "m" || last["input"].([]any)[0] != "query: " {
		t.Errorf("the server got %v", last)
	}
	if name, dims := e.Space(); dims != 3 || !strings.HasPrefix(name, "openai/m (") {
		t.Errorf("the space is %s, %d", name, dims)
	}
	for want, bad := range map[string]string{
		"expected form": "{", "0 vectors": `{"data":[]}`, "2 dimensions": `{"data":[{"embedding":[1,2]}]}`,
		"the index 7": `{"data":[{"index":7,"embedding":[1,2,3]}]}`, "direction": `{"data":[{"embedding":[0,0,0]}]}`,
	} {
		answer = bad
		if _, err := e.Embed(t.Context(), []string{"x"}, false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", want, err)
		}
	}
}

func TestSettingsThatCannotWorkAreRefused(t *testing.T) {
	for want, s := range map[string]Settings{
		"kind": {Kind: "x"}, "path": {Kind: Folder}, "url": {Kind: OpenAI},
		"model":      {Kind: OpenAI, URL: "https://x/v1"},
		"dimensions": {Kind: OpenAI, URL: "https://x/v1", Model: "m"},
		"encryption": {Kind: OpenAI, URL: "http://x/v1", Key: "k", Model: "m", Dimensions: 3},
	} {
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", want, err)
		}
	}
	if e, err := New(Settings{}, nil); e != nil || err != nil {
		t.Errorf("no settings give %v, %v", e, err)
	}
}
