package backend

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A server with the published API of Ollama, which refuses options that it does not have.
func fakeOllama(t *testing.T) (url string, last *map[string]any) {
	last = new(map[string]any)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method + " " + r.URL.Path {
		case "GET /api/tags":
			fmt.Fprint(w, `{"models":[{"name":"llama3.2:latest","size":1},{"name":"qwen3:4b","size":2}]}`)
		case "GET /api/ps":
			fmt.Fprint(w, `{"models":[{"name":"qwen3:4b","size":3221225472}]}`)
		case "POST /api/chat":
			json.NewDecoder(r.Body).Decode(last)
			for name := range (*last)["options"].(map[string]any) {
				if !strings.Contains(" temperature top_p seed stop num_predict ", " "+name+" ") {
					http.Error(w, `{"error":"unknown option"}`, http.StatusBadRequest)
				}
			}
			if (*last)["model"] == "gone" {
				w.WriteHeader(http.StatusNotFound)
				fmt.Fprint(w, `{"error":"model 'gone' not found"}`)
				return
			}
			fmt.Fprint(
				w,
				`{"model":"qwen3:4b","message":{"role":"assistant","content":"","thinking":"hm"},"done":false}`+"\n",
			)
			fmt.Fprint(
				w,
				`{"model":"qwen3:4b","message":{"role":"assistant","content":"forty"},"done":false,"logprobs":[{"token":"forty","logprob":-0.1,"top_logprobs":[{"token":"forty","logprob":-0.1},{"token":"four","logprob":-3}]}]}`+"\n",
			)
			fmt.Fprint(w, `{"model":"qwen3:4b","message":{"role":"assistant","content":" two"},"done":false}`+"\n")
			fmt.Fprint(
				w,
				`{"model":"qwen3:4b","message":{"role":"assistant","content":""},"done":true,"done_reason":"stop","prompt_eval_count":11,"eval_count":5}`+"\n",
			)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, last
}

func TestOllama(t *testing.T) {
	url, last := fakeOllama(t)
	p := New(Options{Servers: []Settings{{Name: "o", Kind: Ollama, URL: url}}})
	a := ask("what is it?")
	a.Seed, a.Stop, a.MaxTokens, a.Logprobs, a.Top = new(int64(1)), []string{"\n\n"}, 50, true, 2
	a.Schema = json.RawMessage(`{"type":"string"}`)
	res, err := p.Generate(t.Context(), a)
	if err != nil || res.Text != "forty two" || res.Usage != (Usage{11, 5, false}) || res.Model != "qwen3:4b" {
		t.Fatalf("got %+v, %v", res, err)
	}
	if len(res.Tokens) != 1 || len(res.Tokens[0].Top) != 2 || res.Tokens[0].Top[1].Logprob != -3 {
		t.Errorf("got %+v", res.Tokens)
	}
	q := *last
	o := q["options"].(map[string]any)
	if q["model"] != "qwen3:4b" || o["num_predict"] != 50.0 || o["seed"] != 1.0 || q["format"] == nil ||
		q["logprobs"] != true {
		t.Errorf("the server got %v", q)
	}
	s := p.Status(t.Context())[0]
	if !s.Available || len(s.Models) != 2 || !s.Models[0].Loaded || s.Models[0].Bytes != 3<<30 {
		t.Errorf("got %+v", s)
	}
	a.Model = "llama3.2" // without its tag
	if _, err := p.Generate(t.Context(), a); err != nil || (*last)["model"] != "llama3.2" {
		t.Errorf("got %v, the server %v", err, *last)
	}
	a.Model, a.Backend = "gone", "o"
	_, err = p.Generate(t.Context(), a)
	failure(t, err, "model 'gone' not found")
}
