package app

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/config"
	"gatehouse/internal/files/embed"
)

// The embedder of the settings finds a tool by a query that has none of its words, and its file is kept.
func TestTheEmbedderFindsTools(t *testing.T) {
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in struct{ Input []string }
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil || r.Header.Get("Authorization") != "Bearer sesame" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		type vector struct {
			Index     int       `json:"index"`
			Embedding []float32 `json:"embedding"`
		}
		out := struct {
			Data []vector `json:"data"`
		}{}
		for i, text := range in.Input {
			v := vector{i, []float32{0.6, 0.8}}
			if strings.Contains(text, "qwxz") || strings.Contains(text, "file search") {
				v.Embedding = []float32{1, 0}
			}
			out.Data = append(out.Data, v)
		}
		json.NewEncoder(w).Encode(out)
	}))
	defer model.Close()
	cfg := settings(t)
	cfg.View.Modules = []string{"file"}
	cfg.Contexts = []config.Context{{Name: "agent", Modules: []string{"file"}, List: "search"}}
	cfg.Modules.RAG.Embedder = embed.Settings{
		Kind: embed.OpenAI, URL: model.URL, Key: "sesame", Model: "test", Dimensions: 2,
	}
	_, client := liveOn(t, cfg, Options{})
	ann := client("ann")
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if got := ann.told("tool_search", `{"query":"qwxz"}`); strings.HasPrefix(got, "file_search(") {
			break
		} else if time.Now().After(end) {
			t.Fatalf("the last search found %s", got)
		}
	}
}
