package backend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/internal/access/secret"
)

func TestAnAnswerIsStreamed(t *testing.T) {
	f := newFake(t, nil)
	p := New(Options{Servers: []Settings{f.settings("a")}})
	var pieces []string
	a := ask("count")
	a.Text = func(s string) { pieces = append(pieces, s) }
	a.Temperature, a.Seed, a.MaxTokens = new(0.5), new(int64(7)), 20
	res, err := p.Generate(t.Context(), a)
	if err != nil || res.Text != "one two three" || res.Usage != (Usage{7, 3, false}) || res.Model != "tiny" ||
		res.Finish != "stop" {
		t.Fatalf("got %+v, %v", res, err)
	}
	if len(pieces) != 3 || res.Backend != "a" || res.First <= 0 || res.Took < res.First {
		t.Errorf("got %q, %+v", pieces, res)
	}
	q := f.requests[0]
	if *q.Temperature != 0.5 || *q.Seed != 7 || q.MaxTokens != 20 || !q.Stream {
		t.Errorf("the server got %+v", q)
	}
}

func TestStopWordsAndLimitsAreEnforcedHere(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, _ *http.Request, q openAIRequest) {
		if q.MaxTokens > 0 {
			stream(w, strings.Repeat("x", 500))
			return
		}
		stream(w, "alpha EN", "D beta", " gamma")
	})
	p := New(Options{Servers: []Settings{f.settings("a")}})
	a := ask("go")
	a.Stop = []string{"gamma", "END"}
	if res, err := p.Generate(t.Context(), a); err != nil || res.Text != "alpha " || res.Finish != "stop" ||
		!res.Usage.Estimated {
		t.Errorf("got %+v, %v", res, err)
	}
	a = ask("go")
	a.MaxTokens = 2
	if res, err := p.Generate(t.Context(), a); err != nil || len(res.Text) != 2*tokenBytes || res.Finish != "length" {
		t.Errorf("got %+v, %v", res, err)
	}
}

// Each hostile server fails in its own way, within its limits, and another server answers instead.
func TestHostileServers(t *testing.T) {
	good := newFake(t, nil)
	for name, c := range map[string]struct {
		reason string
		asked  int32
		answer func(w http.ResponseWriter, r *http.Request)
	}{
		"500s": {"status 500: busy", attempts, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(500)
			fmt.Fprint(w, `{"error":{"message":"busy"}}`)
		}},
		"hangs before the header": {"sent nothing", attempts,
			func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }},
		"hangs within the answer": {"sent nothing", 1, func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}},
		"half JSON": {"not JSON", attempts, func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"con")
		}},
		"ends early": {"ended before", 1, func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n")
		}},
		"an endless line": {"a line of the response", attempts, func(w http.ResponseWriter, r *http.Request) {
			b := []byte("data: " + strings.Repeat("x", 1<<16))
			for range 64 {
				if _, err := w.Write(b); err != nil {
					return
				}
			}
		}},
		"an endless stream of nothing": {"more than", attempts, func(w http.ResponseWriter, r *http.Request) {
			b := []byte(": " + strings.Repeat("n", 500_000) + "\n")
			for r.Context().Err() == nil {
				if _, err := w.Write(b); err != nil {
					return
				}
			}
		}},
		"an error in the stream": {"out of memory", attempts, func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, "data: {\"error\":{\"message\":\"out of memory\"}}\n\n")
		}},
		"a redirect": {"status 302", 1, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, good.URL+"/v1/chat/completions", http.StatusFound)
		}},
		"a page": {"status 404", 1, func(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			bad := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				io.Copy(io.Discard, r.Body) // only then does the server notice that a client left
				c.answer(w, r)
			}))
			defer bad.Close()
			defer bad.CloseClientConnections()
			servers := []Settings{
				{Name: "bad", Kind: OpenAI, URL: bad.URL + "/v1", Idle: 100 * time.Millisecond},
				good.settings("good"),
			}
			if name == "an endless stream of nothing" || name == "an endless line" {
				servers[0].Idle = 5 * time.Second
			}
			p := New(Options{Servers: servers})
			a := ask("hello")
			a.Backend = "bad"
			_, err := p.Generate(t.Context(), a)
			failure(t, err, c.reason)
			if n := asked.Load(); n != c.asked {
				t.Errorf("it was asked %d times, want %d", n, c.asked)
			}
			var notes []string
			a.Backend, a.Note = "", func(s string) { notes = append(notes, s) }
			res, err := p.Generate(t.Context(), a)
			if err != nil || res.Backend != "good" || res.Text != "one two three" || len(notes) != 1 {
				t.Errorf("no other server answers: %+v, %v, %q", res, err, notes)
			}
		})
	}
}

// Bytes that come slowly put off the end of the wait, but not that of the whole answer.
func TestAServerThatTrickles(t *testing.T) {
	endless := make(chan bool, 1)
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, _ openAIRequest) {
		for _, b := range []byte("data: {\"choices\":[{\"delta\":{\"content\":\"x\"},\"finish_reason\":\"stop\"}]}") {
			w.Write([]byte{b})
			w.(http.Flusher).Flush()
			time.Sleep(time.Millisecond)
		}
		select {
		case <-endless:
			for r.Context().Err() == nil {
				fmt.Fprint(w, "\n: still here")
				w.(http.Flusher).Flush()
				time.Sleep(10 * time.Millisecond)
			}
		default:
			fmt.Fprint(w, "\n\ndata: [DONE]\n\n")
		}
	})
	s := f.settings("a")
	s.Idle, s.Timeout = 10*time.Second, time.Minute
	res, err := New(Options{Servers: []Settings{s}}).Generate(t.Context(), ask("x"))
	if err != nil || res.Text != "x" {
		t.Errorf("got %+v, %v", res, err)
	}
	endless <- true
	s.Timeout = time.Second
	_, err = New(Options{Servers: []Settings{s}}).Generate(t.Context(), ask("x"))
	failure(t, err, "longer than 1s")
}

// OpenAI's models that reason take the limit of tokens by another name.
func TestTheLimitOfTokensHasTwoNames(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, _ *http.Request, q openAIRequest) {
		if q.MaxTokens > 0 {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"error":{"message":"Unsupported parameter: 'max_tokens' is not supported with this model. `+
				`Use 'max_completion_tokens' instead.","code":"unsupported_parameter"}}`)
			return
		}
		stream(w, fmt.Sprint("limit ", q.MaxAnswer))
	})
	a := ask("x")
	a.MaxTokens = 50
	res, err := New(Options{Servers: []Settings{f.settings("a")}}).Generate(t.Context(), a)
	if err != nil || res.Text != "limit 50" || f.asked() != 2 {
		t.Errorf("got %+v, %v after %d requests", res, err, f.asked())
	}
}

func TestImpossibleUsagesAreReplaced(t *testing.T) {
	for _, usage := range []string{`{"prompt_tokens":-5,"completion_tokens":3}`,
		`{"prompt_tokens":9,"completion_tokens":999999999999}`,
		`{"prompt_tokens":9,"completion_tokens":0}`, `null`} {
		f := newFake(t, func(w http.ResponseWriter, _ *http.Request, _ openAIRequest) {
			fmt.Fprintf(
				w,
				"data: {\"choices\":[{\"delta\":{\"content\":\"12345678\"},\"finish_reason\":\"stop\"}],\"usage\":%s}\n\ndata: [DONE]\n",
				usage,
			)
		})
		res, err := New(Options{Servers: []Settings{f.settings("a")}}).Generate(t.Context(), ask("1234"))
		if err != nil || res.Usage != (Usage{1, 2, true}) {
			t.Errorf("%s: got %+v, %v", usage, res.Usage, err)
		}
	}
}

func TestAServerThatDoesNotStreamIsUnderstood(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, _ *http.Request, _ openAIRequest) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(
			w,
			"{\n\"model\":\"m\",\"choices\":[{\"message\":{\"content\":\"all at "+
				"once\"},\"finish_reason\":\"length\"}],\n\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}",
		)
	})
	res, err := New(Options{Servers: []Settings{f.settings("a")}}).Generate(t.Context(), ask("hello"))
	if err != nil || res.Text != "all at once" || res.Finish != "length" || res.Usage.Out != 4 {
		t.Errorf("got %+v, %v", res, err)
	}
}

func TestAWrongRequestIsNotSentToOtherServers(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, _ *http.Request, _ openAIRequest) {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error":{"message":"the prompt is too long"}}`)
	})
	good := newFake(t, nil)
	p := New(Options{Servers: []Settings{f.settings("a"), good.settings("b")}})
	for range 5 {
		_, err := p.Generate(t.Context(), ask("hello"))
		if got := failure(t, err, "the prompt is too long"); !got.Request {
			t.Errorf("got %+v", got)
		}
	}
	if good.asked() != 0 || f.asked() != 5 {
		t.Errorf("the servers were asked %d and %d times", f.asked(), good.asked())
	}
}

func TestAFailingServerIsLeftAlone(t *testing.T) {
	var broken atomic.Bool
	broken.Store(true)
	f := newFake(t, func(w http.ResponseWriter, _ *http.Request, _ openAIRequest) {
		if broken.Load() {
			w.WriteHeader(http.StatusNotFound) // it is not repeated
			return
		}
		stream(w, "fine")
	})
	var clock atomic.Int64
	now := func() time.Time { return time.Unix(1000, clock.Load()) }
	p := New(Options{Servers: []Settings{f.settings("a")}, Now: now})
	for range failuresToRest {
		_, err := p.Generate(t.Context(), ask("x"))
		failure(t, err, "status 404")
	}
	if _, err := p.Generate(t.Context(), ask("x")); !errors.Is(err, ErrNone) || f.asked() != failuresToRest {
		t.Errorf("got %v after %d requests", err, f.asked())
	}
	if s := p.Status(t.Context())[0]; s.Available || s.Resting != firstRest || s.Failures != failuresToRest {
		t.Errorf("got %+v", s)
	}
	clock.Add(int64(firstRest))
	_, err := p.Generate(t.Context(), ask("x"))
	failure(t, err, "status 404")
	if s := p.Status(t.Context())[0]; s.Resting != 2*firstRest {
		t.Errorf("the second rest is %v", s.Resting)
	}
	clock.Add(int64(2 * firstRest))
	broken.Store(false)
	if res, err := p.Generate(t.Context(), ask("x")); err != nil || res.Text != "fine" {
		t.Errorf("got %+v, %v", res, err)
	}
	if s := p.Status(t.Context())[0]; !s.Available || s.Resting != 0 {
		t.Errorf("got %+v", s)
	}
}

func TestAServerThatAsksForARestGetsIt(t *testing.T) {
	f := newFake(t, func(w http.ResponseWriter, _ *http.Request, _ openAIRequest) {
		w.Header().Set("Retry-After", "30")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	good := newFake(t, nil)
	p := New(Options{Servers: []Settings{f.settings("a"), good.settings("b")}})
	for range 3 {
		if res, err := p.Generate(t.Context(), ask("x")); err != nil || res.Backend != "b" {
			t.Fatalf("got %+v, %v", res, err)
		}
	}
	if f.asked() != 1 {
		t.Errorf("it was asked %d times", f.asked())
	}
}

func TestEqualRequestsGetTheSameAnswer(t *testing.T) {
	var n atomic.Int32
	f := newFake(t, func(w http.ResponseWriter, _ *http.Request, _ openAIRequest) {
		stream(w, fmt.Sprint("answer ", n.Add(1)))
	})
	p := New(Options{Servers: []Settings{f.settings("a")}})
	a := ask("x")
	a.Cache, a.Keep = true, true
	first, _ := p.Generate(t.Context(), a)
	again, err := p.Generate(t.Context(), a)
	if err != nil || again.Text != first.Text || !again.Cached || first.Cached {
		t.Errorf("got %+v, then %+v, %v", first, again, err)
	}
	other := a
	other.Owner = "bob/lab"
	if res, _ := p.Generate(t.Context(), other); res.Cached || res.Text == first.Text {
		t.Errorf("another owner got %+v", res)
	}
	hot := a
	hot.Request.Temperature = new(1.0)
	if res, _ := p.Generate(t.Context(), hot); res.Cached {
		t.Errorf("another request got %+v", res)
	}
}

func TestTheCacheHasALimit(t *testing.T) {
	c := cache{now: time.Now}
	text := strings.Repeat("x", 1<<20)
	for i := range 200 {
		c.put([32]byte{byte(i)}, "ann", Response{Text: text})
	}
	if c.size > cacheOwner || len(c.at) < 10 || c.owners["ann"] != c.size {
		t.Errorf("%d bytes of %d answers", c.size, len(c.at))
	}
	for i := range 200 {
		c.put([32]byte{1, byte(i)}, fmt.Sprint("owner", i%20), Response{Text: text})
	}
	if c.size > cacheBytes || c.order.Len() != len(c.at) {
		t.Errorf("%d bytes of %d answers, %d in order", c.size, len(c.at), c.order.Len())
	}
}

func TestKeysComeFromTheStoreOfSecrets(t *testing.T) {
	f := newFake(t, nil)
	s := f.settings("a")
	s.Key = "${secret:MODEL_KEY}"
	store := secret.In(t.TempDir(), "")
	p := New(Options{Servers: []Settings{s}, Fill: store.Fill})
	_, err := p.Generate(t.Context(), ask("x"))
	failure(t, err, "gatehouse secret set MODEL_KEY")
	if err := store.Set("MODEL_KEY", secret.New("sk-12345")); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Generate(t.Context(), ask("x")); err != nil || f.keys[0] != "Bearer sk-12345" {
		t.Errorf("got %v, the server %q", err, f.keys)
	}
}

func TestRequestsWaitForAPlaceByTurns(t *testing.T) {
	release := make(chan struct{})
	var order []string
	var mu sync.Mutex
	f := newFake(t, func(w http.ResponseWriter, _ *http.Request, q openAIRequest) {
		mu.Lock()
		order = append(order, q.Messages[0].Text)
		mu.Unlock()
		<-release
		stream(w, "ok")
	})
	s := f.settings("a")
	s.Concurrency = 1
	p := New(Options{Servers: []Settings{s}})
	var wait sync.WaitGroup
	send := func(owner string, waiting int) {
		a := ask(owner)
		a.Owner = owner
		wait.Go(func() {
			if _, err := p.Generate(t.Context(), a); err != nil {
				t.Error(err)
			}
		})
		for p.members[0].gate.waitingRequests() != waiting || f.asked() == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	send("ann", 0)
	for i := range 5 {
		send("ann", i+1)
	}
	send("bob", 6)
	gone, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the caller left"))
	if _, err := p.Generate(gone, ask("x")); err == nil || err.Error() != "the caller left" {
		t.Errorf("got %v", err)
	}
	close(release)
	wait.Wait()
	if len(order) != 7 || order[2] != "bob" || f.most != 1 {
		t.Errorf("the order was %q, %d at once", order, f.most)
	}
}

func TestRoutesByModel(t *testing.T) {
	f, g := newFake(t, nil), newFake(t, nil)
	a, b := f.settings("a"), g.settings("b")
	a.Models, b.Model = []string{"llama*"}, "tiny"
	p := New(Options{Servers: []Settings{a, b}})
	for model, want := range map[string]string{"llama3": "a", "tiny": "b", "small": "b", "": "a"} {
		q := ask("x")
		q.Model = model
		if res, err := p.Generate(t.Context(), q); err != nil || res.Backend != want {
			t.Errorf("%q: got %+v, %v", model, res, err)
		}
	}
	q := ask("x")
	q.Model = "unknown"
	_, err := p.Generate(t.Context(), q)
	if u, ok := errors.AsType[*Unknown](err); !ok || u.Name != "unknown" {
		t.Errorf("got %v", err)
	}
	q.Backend = "nowhere"
	if _, err := p.Generate(t.Context(), q); err == nil || !strings.Contains(err.Error(), `no backend "nowhere"`) {
		t.Errorf("got %v", err)
	}
}

func TestSettingsThatCannotWorkAreRefused(t *testing.T) {
	good := Settings{Name: "a", Kind: OpenAI, URL: "https://models.example.com/v1", Key: "${secret:K}"}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Settings){
		"name":               func(s *Settings) { s.Name = "a b" },
		"client's own":       func(s *Settings) { s.Name = Client },
		"kind":               func(s *Settings) { s.Kind = "x" },
		"url":                func(s *Settings) { s.URL = "ftp://x" },
		"without encryption": func(s *Settings) { s.URL = "http://models.example.com/v1" },
		"concurrency":        func(s *Settings) { s.Concurrency = -1 },
		"models":             func(s *Settings) { s.Models = []string{"["} },
		"not closed":         func(s *Settings) { s.Key = "${secret:K" },
	} {
		s := good
		change(&s)
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", want, err)
		}
	}
}

// 500 callers stream at once; each gets all of its own answer.
func TestManyStreamsAtOnce(t *testing.T) {
	const callers = 500
	var here sync.WaitGroup
	here.Add(callers)
	f := newFake(t, func(w http.ResponseWriter, _ *http.Request, q openAIRequest) {
		here.Done()
		here.Wait() // all of them are under way
		stream(w, "for ", q.Messages[0].Text, " alone")
	})
	s := f.settings("a")
	s.Concurrency, s.Idle, s.Timeout = callers, time.Minute, time.Minute
	p := New(Options{Servers: []Settings{s}})
	var wait sync.WaitGroup
	for i := range callers {
		wait.Go(func() {
			name := fmt.Sprint("caller ", i)
			if res, err := p.Generate(t.Context(), ask(name)); err != nil || res.Text != "for "+name+" alone" {
				t.Errorf("%s: got %q, %v", name, res.Text, err)
			}
		})
	}
	wait.Wait()
	if f.most != callers {
		t.Errorf("%d were under way at once", f.most)
	}
}

// BenchmarkGenerate measures what a call costs beside its backend, which is in the same process.
func BenchmarkGenerate(b *testing.B) {
	server := httptest.NewServer(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { stream(w, "one ", "two ", "three") }),
	)
	defer server.Close()
	p := New(Options{Servers: []Settings{{Name: "a", Kind: OpenAI, URL: server.URL + "/v1"}}})
	for b.Loop() {
		if _, err := p.Generate(b.Context(), ask("x")); err != nil {
			b.Fatal(err)
		}
	}
}
