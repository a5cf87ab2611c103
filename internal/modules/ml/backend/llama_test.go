package backend

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// gguf writes a file in the form of llama.cpp.
type gguf struct {
	b    []byte
	meta int
}

func (g *gguf) text(s string) {
	g.b = binary.LittleEndian.AppendUint64(g.b, uint64(len(s)))
	g.b = append(g.b, s...)
}

// set adds a value: a string, an uint32, a float32, or a list of them.
func (g *gguf) set(name string, value any) {
	g.meta++
	g.text(name)
	list := func(kind uint32, n int) {
		g.b = binary.LittleEndian.AppendUint32(g.b, 9)
		g.b = binary.LittleEndian.AppendUint32(g.b, kind)
		g.b = binary.LittleEndian.AppendUint64(g.b, uint64(n))
	}
	switch v := value.(type) {
	case string:
		g.b = binary.LittleEndian.AppendUint32(g.b, 8)
		g.text(v)
	case int:
		g.b = binary.LittleEndian.AppendUint32(g.b, 4)
		g.b = binary.LittleEndian.AppendUint32(g.b, uint32(v))
	case float32:
		g.b = binary.LittleEndian.AppendUint32(g.b, 6)
		g.b = binary.LittleEndian.AppendUint32(g.b, math.Float32bits(v))
	case []string:
		list(8, len(v))
		for _, s := range v {
			g.text(s)
		}
	case []float32:
		list(6, len(v))
		for _, f := range v {
			g.b = binary.LittleEndian.AppendUint32(g.b, math.Float32bits(f))
		}
	case []int32:
		list(5, len(v))
		for _, i := range v {
			g.b = binary.LittleEndian.AppendUint32(g.b, uint32(i))
		}
	}
}

// writeModel writes a model of the architecture llama with random weights.
func writeModel(t *testing.T, path string) {
	const dim, ff, layers = 64, 128, 2
	g := &gguf{}
	for name, value := range map[string]any{
		"general.architecture": "llama", "llama.context_length": 512, "llama.embedding_length": dim,
		"llama.block_count":         layers,
		"llama.feed_forward_length": ff, "llama.attention.head_count": 4, "llama.attention.head_count_kv": 4,
		"llama.attention.layer_norm_rms_epsilon": float32(1e-5), "llama.rope.dimension_count": dim / 4,
		"tokenizer.ggml.model": "llama", "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
		"tokenizer.ggml.unknown_token_id": 0,
	} {
		g.set(name, value)
	}
	words, kinds, scores := []string{"<unk>", "<s>", "</s>"}, []int32{2, 3, 3}, []float32{0, 0, 0}
	for i := range 256 {
		words, kinds, scores = append(words, fmt.Sprintf("<0x%02X>", i)), append(kinds, 6), append(scores, 0)
	}
	words, kinds, scores = append(words, "\u2581"), append(kinds, 1), append(scores, -1)
	for c := '!'; c < 127; c++ {
		words, kinds, scores = append(words, string(c)), append(kinds, 1), append(scores, -2)
	}
	g.set("tokenizer.ggml.tokens", words)
	g.set("tokenizer.ggml.token_type", kinds)
	g.set("tokenizer.ggml.scores", scores)
	type tensor struct {
		name string
		dims []int // the length of a row first
		size float64
	}
	all := []tensor{
		{"token_embd.weight", []int{dim, len(words)}, 1},
		{"output_norm.weight", []int{dim}, 0},
		{"output.weight", []int{dim, len(words)}, .3},
	}
	for l := range layers {
		at := fmt.Sprintf("blk.%d.", l)
		all = append(all, tensor{at + "attn_norm.weight", []int{dim}, 0}, tensor{at + "ffn_norm.weight", []int{dim}, 0},
			tensor{at + "ffn_gate.weight", []int{dim, ff}, .08}, tensor{at + "ffn_up.weight", []int{dim, ff}, .08},
			tensor{at + "ffn_down.weight", []int{ff, dim}, .08})
		for _, name := range []string{"attn_q", "attn_k", "attn_v", "attn_output"} {
			all = append(all, tensor{at + name + ".weight", []int{dim, dim}, .08})
		}
	}
	out := append([]byte("GGUF"), 3, 0, 0, 0)
	out = binary.LittleEndian.AppendUint64(out, uint64(len(all)))
	out = binary.LittleEndian.AppendUint64(out, uint64(g.meta))
	rng := rand.New(rand.NewPCG(1, 2))
	var data []byte
	for _, one := range all {
		g.text(one.name)
		g.b = binary.LittleEndian.AppendUint32(g.b, uint32(len(one.dims)))
		n := 1
		for _, d := range one.dims {
			g.b = binary.LittleEndian.AppendUint64(g.b, uint64(d))
			n *= d
		}
		g.b = binary.LittleEndian.AppendUint32(g.b, 0) // float32
		g.b = binary.LittleEndian.AppendUint64(g.b, uint64(len(data)))
		for range n {
			x := float32(1)
			if one.size > 0 {
				x = float32(rng.NormFloat64() * one.size)
			}
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(x))
		}
	}
	out = append(out, g.b...)
	for len(out)%32 != 0 {
		out = append(out, 0)
	}
	if err := os.WriteFile(path, append(out, data...), 0o600); err != nil {
		t.Fatal(err)
	}
}

// llamaProgram serves a model with the server of llama.cpp, until its input ends.
const llamaProgram = `
import sys, xllamacpp
p = xllamacpp.CommonParams()
p.model.path, p.port, p.hostnames, p.n_ctx, p.n_parallel = sys.argv[1], 0, ["127.0.0.1"], 1024, 2
p.cpuparams.n_threads = 1
s = xllamacpp.Server(p)
print("listening", s.listening_address, flush=True)
sys.stdin.read()
`

// llamaVariable names a Python that has xllamacpp, which is the server of llama.cpp as a package.
const llamaVariable = "GATEHOUSE_LLAMA_PYTHON"

func startLlama(t *testing.T) (url string) {
	python := os.Getenv(llamaVariable)
	if python == "" {
		t.Skip(llamaVariable + " is not set: make verify-models sets it")
	}
	model := filepath.Join(t.TempDir(), "tiny.gguf")
	writeModel(t, model)
	c := exec.CommandContext(t.Context(), python, "-c", llamaProgram, model)
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		c.Process.Kill()
		c.Wait()
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if at, ok := strings.CutPrefix(lines.Text(), "listening "); ok {
			go io.Copy(io.Discard, out)
			return at + "/v1"
		}
	}
	t.Fatal("the server of llama.cpp did not start")
	return ""
}

// The server of llama.cpp answers with a model of random weights: streams, seeds, log-probabilities, stop words,
// schemas and counts.
func TestRealLlamaServer(t *testing.T) {
	p := New(Options{Servers: []Settings{{Name: "l", Kind: Llama, URL: startLlama(t), Timeout: time.Minute}}})
	a := ask("Tell me something.")
	a.MaxTokens, a.Seed, a.Logprobs, a.Top = 24, new(int64(7)), true, 3
	pieces := 0
	a.Text = func(string) { pieces++ }
	first, err := p.Generate(t.Context(), a)
	if err != nil || first.Text == "" || first.Usage.Estimated || first.Usage.Out != 24 || first.Finish != "length" {
		t.Fatalf("got %+v, %v", first, err)
	}
	if pieces < 5 || len(first.Tokens) < 10 || len(first.Tokens[5].Top) != 3 || first.Tokens[5].Logprob > 0 {
		t.Errorf("%d pieces, %d tokens", pieces, len(first.Tokens))
	}
	if again, err := p.Generate(t.Context(), a); err != nil || again.Text != first.Text {
		t.Errorf("the same seed gives %q and %q, %v", first.Text, again.Text, err)
	}
	b := ask("Give a number.")
	b.MaxTokens = 100
	b.Schema = json.RawMessage(
		`{"type":"object","properties":{"n":{"type":"integer","minimum":0,"maximum":99}},"required":["n"],"additionalProperties":false}`,
	)
	res, err := p.Generate(t.Context(), b)
	var value struct{ N *int }
	if err != nil || json.Unmarshal([]byte(res.Text), &value) != nil || value.N == nil {
		t.Errorf("with a schema: got %q, %v", res.Text, err)
	}
	c := ask("x")
	c.Request.Temperature = new(-1.0)
	c.Messages[0].Role = "nobody"
	c.Top = 5 // without logprobs, which the server refuses
	if _, err := p.Generate(t.Context(), c); err != nil {
		failure(t, err, "")
	}
	if s := p.Status(t.Context())[0]; !s.Available || len(s.Models) != 1 || s.Rate <= 0 {
		t.Errorf("got %+v", s)
	}
}
