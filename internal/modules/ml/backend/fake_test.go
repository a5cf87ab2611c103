package backend

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// fake is a server with the published API of OpenAI's chat completions. It refuses requests that the API would.
type fake struct {
	*httptest.Server
	t *testing.T

	mu       sync.Mutex
	requests []openAIRequest
	keys     []string
	most     int // requests at once
	running  int

	// answer writes the response; nil streams "one two three".
	answer func(w http.ResponseWriter, r *http.Request, q openAIRequest)
}

func newFake(t *testing.T, answer func(http.ResponseWriter, *http.Request, openAIRequest)) *fake {
	f := &fake{t: t, answer: answer}
	f.Server = httptest.NewServer(f)
	t.Cleanup(func() {
		f.CloseClientConnections()
		f.Close()
		CloseIdle()
	})
	return f
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method + " " + r.URL.Path {
	case "GET /v1/models":
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"object":"list","data":[{"id":"tiny","object":"model"},{"id":"small","object":"model"}]}`)
		return
	case "POST /v1/chat/completions":
	default:
		http.NotFound(w, r)
		return
	}
	var q openAIRequest
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&q); err != nil || len(q.Messages) == 0 {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, `{"error":{"message":"not a request: %v"}}`, err)
		return
	}
	f.mu.Lock()
	f.requests = append(f.requests, q)
	f.keys = append(f.keys, r.Header.Get("Authorization"))
	f.running++
	f.most = max(f.most, f.running)
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.running--
		f.mu.Unlock()
	}()
	if f.answer != nil {
		f.answer(w, r, q)
		return
	}
	stream(w, "one ", "two ", "three")
}

// stream writes pieces as a complete stream, with a usage.
func stream(w http.ResponseWriter, pieces ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, p := range pieces {
		b, _ := json.Marshal(p)
		fmt.Fprintf(w, "data: {\"model\":\"tiny\",\"choices\":[{\"index\":0,\"delta\":{\"content\":%s}}]}\n\n", b)
		w.(http.Flusher).Flush()
	}
	fmt.Fprint(w, "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n")
	fmt.Fprintf(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":%d}}\n\n", len(pieces))
	fmt.Fprint(w, "data: [DONE]\n\n")
}

func (f *fake) asked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.requests)
}

func (f *fake) settings(name string) Settings {
	return Settings{Name: name, Kind: OpenAI, URL: f.URL + "/v1", Timeout: 10 * time.Second, Idle: 5 * time.Second}
}

func ask(text string) Ask {
	return Ask{Owner: "ann/lab", Request: Request{Messages: []Message{{"user", text}}}}
}

// failure returns the error as a Failure whose reason contains a text.
func failure(t *testing.T, err error, reason string) *Failure {
	t.Helper()
	f, ok := err.(*Failure)
	if !ok || !strings.Contains(f.Reason, reason) {
		t.Fatalf("got %v, want a failure with %q", err, reason)
	}
	return f
}
