package embed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"

	"gatehouse/internal/access/secret"
)

// Kinds of rerankers.
const (
	Rerank = "rerank" // llama-server, vLLM, Jina, Cohere: POST /rerank with documents
	TEI    = "tei"    // text-embeddings-inference: POST /rerank with texts
)

// RerankerSettings choose a cross-encoder. The zero value means none.
type RerankerSettings struct {
	Kind  string `doc:"What compares the best passages with the question once more: rerank (a server with POST /rerank as llama-server, vLLM, Jina and Cohere have it), or tei (text-embeddings-inference). Left out, none." enum:"rerank,tei"`
	URL   string `yaml:"url" doc:"Base URL of the server, such as http://127.0.0.1:8081/v1."`
	Key   string `doc:"Key of the server, best as a reference: ${secret:NAME}."`
	Model string `doc:"Model of the server, if it has several."`
}

// Validate returns what is wrong with the settings.
func (s RerankerSettings) Validate() error {
	switch s.Kind {
	case "":
		return nil
	case Rerank, TEI:
		return validateServer(s.URL, s.Key)
	}
	return fmt.Errorf("kind %q: expected rerank or tei", s.Kind)
}

// Reranker is a cross-encoder behind a server. It is safe for concurrent use.
type Reranker struct {
	server *server
	kind   string
}

// NewReranker returns the reranker of settings that are valid, nil if they choose none.
func NewReranker(s RerankerSettings, fill func(map[string]string) (map[string]secret.Text, error)) *Reranker {
	if s.Kind == "" {
		return nil
	}
	return &Reranker{newServer(Settings{URL: s.URL, Key: s.Key, Model: s.Model}, fill), s.Kind}
}

// maxReranked is the size of the part of a text that is compared, in bytes. Models read no more.
const maxReranked = 4 << 10

// Rerank returns for each text how well it answers a question. Only the order of the scores has a meaning.
func (r *Reranker) Rerank(ctx context.Context, question string, texts []string) (scores []float64, err error) {
	part := make([]string, len(texts))
	for i, t := range texts {
		part[i] = strings.ToValidUTF8(t[:min(len(t), maxReranked)], "")
	}
	in := map[string]any{"query": question, "documents": part, "top_n": len(part)}
	if r.server.Model != "" {
		in["model"] = r.server.Model
	}
	if r.kind == TEI {
		in = map[string]any{"query": question, "texts": part, "truncate": true}
	}
	err = retry(ctx, func() error {
		b, err := r.server.post(ctx, "/rerank", in)
		if err == nil {
			scores, err = r.scores(b, len(texts))
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reranker: %w", err)
	}
	return scores, nil
}

// scores reads a response, whose scores may come in any order.
func (r *Reranker) scores(b []byte, n int) ([]float64, error) {
	type score struct {
		Index     int
		Relevance *float64 `json:"relevance_score"`
		Score     *float64
	}
	var out struct{ Results []score }
	var err error
	if r.kind == TEI {
		err = json.Unmarshal(b, &out.Results)
	} else {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		return nil, passing{errors.New("the response is not of the expected form")}
	}
	if len(out.Results) != n {
		return nil, fmt.Errorf("the server returned %d scores for %d texts", len(out.Results), n)
	}
	scores, seen := make([]float64, n), make([]bool, n)
	for _, s := range out.Results {
		value := s.Relevance
		if r.kind == TEI {
			value = s.Score
		}
		if s.Index < 0 || s.Index >= n || seen[s.Index] || value == nil || math.IsNaN(*value) {
			return nil, fmt.Errorf("the server returned no score, or two, for the text %d", s.Index)
		}
		scores[s.Index], seen[s.Index] = *value, true
	}
	return scores, nil
}
