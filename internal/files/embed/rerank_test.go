package embed

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// Both kinds of servers are asked as their APIs say, and answers that do not fit are refused.
func TestRerankers(t *testing.T) {
	answer, status := "", http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in map[string]any
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil || in["query"] != "q" || r.Header.Get("Authorization") != "Bearer k" {
			t.Errorf("got %v, %v", in, err)
		}
		want := []string{"/v1/rerank", "documents"}
		if strings.HasPrefix(r.URL.Path, "/rerank") {
			want = []string{"/rerank", "texts"}
		}
		if texts, _ := in[want[1]].([]any); r.URL.Path != want[0] || len(texts) != 2 || len(texts[1].(string)) > maxReranked {
			t.Errorf("%s: got %.100v", r.URL.Path, in)
		}
		w.WriteHeader(status)
		fmt.Fprint(w, answer)
	}))
	defer server.Close()
	texts := []string{"one", strings.Repeat("ä", maxReranked)}
	for _, kind := range []string{Rerank, TEI} {
		s := RerankerSettings{Kind: kind, URL: server.URL, Key: "k"}
		good, bad := `[{"index":1,"score":0.9},{"index":0,"score":-2}]`, []string{
			`[{"index":1,"score":1}]`, `[{"index":1,"score":1},{"index":1,"score":1}]`, `[{"index":7,"score":1},{"index":0}]`,
			`[{"index":0,"relevance_score":1},{"index":1,"relevance_score":1}]`, `{`, ``,
		}
		if kind == Rerank {
			s.URL += "/v1"
			wrap := func(list string) string {
				return `{"model":"m","results":` + strings.ReplaceAll(list, `"score"`, `"relevance_score"`) + `}`
			}
			good = wrap(good)
			bad = []string{wrap(bad[0]), wrap(bad[1]), wrap(bad[2]), `{"results":[{"index":0,"score":1},{"index":1,"score":2}]}`, `[]`}
		}
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		r := NewReranker(s, nil)
		answer = good
		if got, err := r.Rerank(t.Context(), "q", texts); err != nil || !slices.Equal(got, []float64{-2, 0.9}) {
			t.Errorf("%s: got %v, %v", kind, got, err)
		}
		for _, answer = range bad {
			if got, err := r.Rerank(t.Context(), "q", texts); err == nil {
				t.Errorf("%s: %s is taken as %v", kind, answer, got)
			}
		}
		answer, status = "no such model", http.StatusBadRequest
		if _, err := r.Rerank(t.Context(), "q", texts); err == nil || !strings.Contains(err.Error(), "no such model") {
			t.Errorf("%s: a refusal: %v", kind, err)
		}
		status = http.StatusOK
	}
	for _, s := range []RerankerSettings{{Kind: "x"}, {Kind: TEI}, {Kind: Rerank, URL: "http://example.org", Key: "k"}} {
		if s.Validate() == nil {
			t.Errorf("%+v is valid", s)
		}
	}
	if NewReranker(RerankerSettings{}, nil) != nil {
		t.Error("there is a reranker without settings")
	}
}
