package ml

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/modules/ml/backend"
	"gatehouse/internal/modules/ml/probe"
	"gatehouse/internal/telemetry/metrics"
	"gatehouse/module"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

func TestTheModuleKeepsTheContract(t *testing.T) {
	moduletest.Run(t, New(Config{Settings: Settings{Backends: []backend.Settings{}}}), moduletest.Options{})
}

// model is a server with OpenAI's API whose answers are a function of the last message.
type model struct {
	*httptest.Server
	mu    sync.Mutex
	asked []string
}

func newModel(t *testing.T, answer func(n int, question string) string) *model {
	m := &model{}
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/models") {
			fmt.Fprint(w, `{"data":[{"id":"m1"}]}`)
			return
		}
		var q struct{ Messages []backend.Message }
		json.NewDecoder(r.Body).Decode(&q)
		var text strings.Builder
		for _, one := range q.Messages {
			text.WriteString(one.Text + "\n")
		}
		m.mu.Lock()
		m.asked = append(m.asked, text.String())
		n := len(m.asked)
		m.mu.Unlock()
		b, _ := json.Marshal(answer(n, text.String()))
		fmt.Fprintf(
			w,
			"data: {\"model\":\"m1\",\"choices\":[{\"delta\":{\"content\":%s},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n",
			b,
		)
	}))
	t.Cleanup(m.Close)
	return m
}

func start(t *testing.T, cfg Config, models ...*model) module.Module {
	t.Helper()
	cfg.Backends = []backend.Settings{}
	for i, m := range models {
		cfg.Backends = append(cfg.Backends,
			backend.Settings{Name: fmt.Sprint("b", i+1), Kind: backend.OpenAI, URL: m.URL + "/v1"})
	}
	m, err := New(cfg)(t.Context(), module.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(context.Background()) })
	return m
}

func call(t *testing.T, m module.Module, name, args string, out any) (refused string, peer *moduletest.Peer) {
	t.Helper()
	c := moduletest.NewCall(t, args)
	return c.Ask(t, m, name, out), c.Peer
}

func TestAModelIsAsked(t *testing.T) {
	m := start(t, Config{}, newModel(t, func(int, string) string { return "It is 42." }))
	var out generateOut
	bad, peer := call(t, m, "ml_generate", `{"prompt":"what is it?","system":"be brief","temperature":0}`, &out)
	if bad != "" || out.Response != "It is 42." || out.Backend != "b1" || out.Model != "m1" || out.In != 4 ||
		out.Out != 2 {
		t.Fatalf("got %q, %+v", bad, out)
	}
	if len(peer.Progressed) == 0 || peer.Progressed[0].Note != "It is 42." {
		t.Errorf("progress is %+v", peer.Progressed)
	}
	bad, _ = call(t, m, "ml_generate", `{"prompt":"what is it?","system":"be brief","temperature":0}`, &out)
	if bad != "" || !out.Cached {
		t.Errorf("an equal request was not answered from memory: %q %+v", bad, out)
	}
	for args, want := range map[string]string{
		`{}`: "invalid_arguments: prompt",
		`{"prompt":"x","messages":[{"role":"user","content":"y"}]}`: "invalid_arguments: prompt and messages",
		`{"prompt":"x","backend":"nope"}`:                           "not_found: there is no backend",
		`{"prompt":"x","json_schema":{"type":7}}`:                   "invalid_arguments: json_schema",
	} {
		if bad, _ := call(t, m, "ml_generate", args, nil); !strings.HasPrefix(bad, want) {
			t.Errorf("%s: got %q, want %q", args, bad, want)
		}
	}
}

const citySchema = `{"type":"object","properties":{"city":{"type":"string"}},"required":["city"],"additionalProperties":false}`

func TestAnswersObeyASchema(t *testing.T) {
	for name, c := range map[string]struct {
		answers  []string
		want     string
		refused  string
		repaired bool
	}{
		"at once":          {[]string{"```json\n{\"city\":\"Lund\"}\n```"}, `{"city":"Lund"}`, "", false},
		"after thinking":   {[]string{"<think>{\"x\":1}</think>{\"city\":\"Lund\"}"}, `{"city":"Lund"}`, "", false},
		"after one repair": {[]string{`{"town":"Lund"}`, `{"city":"Lund"}`}, `{"city":"Lund"}`, "", true},
		"never": {[]string{`Lund`, `{"city":5}`}, "",
			"failed: the model m1 did not obey json_schema twice", true},
		"half JSON, then not": {[]string{`{"city":"Lu`, `sorry`}, "", "failed: ", true},
	} {
		t.Run(name, func(t *testing.T) {
			server := newModel(t, func(n int, _ string) string { return c.answers[min(n, len(c.answers))-1] })
			var out generateOut
			bad, _ := call(
				t,
				start(t, Config{}, server),
				"ml_generate",
				`{"prompt":"where?","json_schema":`+citySchema+`}`,
				&out,
			)
			if !strings.HasPrefix(bad, c.refused) ||
				c.refused == "" && (bad != "" || out.Response != c.want || out.Repaired != c.repaired) {
				t.Errorf("got %q, %+v", bad, out)
			}
			if len(server.asked) != len(c.answers) {
				t.Errorf("it was asked %d times, want %d", len(server.asked), len(c.answers))
			}
			if c.repaired && !strings.Contains(server.asked[1], "does not obey the JSON Schema") {
				t.Errorf("the second question is %q", server.asked[1])
			}
		})
	}
}

func sample(text string) json.RawMessage {
	b, _ := json.Marshal(map[string]any{
		"role": "assistant", "model": "claude", "stopReason": "endTurn",
		"content": map[string]any{"type": "text", "text": text},
	})
	return b
}

// Without a backend that answers, the client's own model is asked, also for the repair.
func TestTheModelOfTheClientIsAsked(t *testing.T) {
	gone := newModel(t, nil)
	gone.Close()
	for name, m := range map[string]module.Module{"none": start(t, Config{}), "gone": start(t, Config{}, gone)} {
		c := moduletest.NewCall(
			t,
			`{"prompt":"where?","system":"be brief","seed":4,"stop":["STOP"],"json_schema":`+citySchema+`}`,
		)
		c.Peer.Answers["generate"] = sample(`Lund`)
		c.Peer.Answers["repair"] = sample(`{"city":"Lund"}STOP more`)
		var out generateOut
		if bad := c.Ask(t, m, "ml_generate", &out); bad != "" || out.Response != `{"city":"Lund"}` ||
			out.Backend != "client" ||
			out.Model != "claude" ||
			!out.Estimated ||
			!out.Repaired ||
			fmt.Sprint(out.Ignored) != "[seed]" {
			t.Errorf("%s: got %q, %+v", name, bad, out)
		}
		var p sampling
		if len(c.Peer.Asked) != 2 || json.Unmarshal(c.Peer.Asked[0][0].Params, &p) != nil ||
			!strings.HasPrefix(p.System, "be brief\n\nAnswer with JSON") || p.MaxTokens == 0 {
			t.Errorf("%s: the client was asked %+v", name, c.Peer.Asked)
		}
		c = moduletest.NewCall(t, `{"prompt":"where?"}`)
		c.Caller.Can = 0
		if bad := c.Ask(t, m, "ml_generate", nil); !strings.HasPrefix(bad, "unavailable: ") {
			t.Errorf("%s: without sampling: got %q", name, bad)
		}
		c = moduletest.NewCall(t, `{"prompt":"where?","backend":"client","logprobs":2}`)
		if bad := c.Ask(t, m, "ml_generate", nil); !strings.HasPrefix(bad, "unsupported: ") {
			t.Errorf("%s: log-probabilities of the client: got %q", name, bad)
		}
	}
	m := start(t, Config{Settings: Settings{NoClient: true}})
	if bad, _ := call(t, m, "ml_generate", `{"prompt":"x","backend":"client"}`, nil); !strings.HasPrefix(
		bad,
		"unsupported: ",
	) {
		t.Errorf("got %q", bad)
	}
}

func TestProbesAreGraded(t *testing.T) {
	right := map[string]string{}
	for _, p := range probe.Standard {
		right[p.Prompt] = p.Answer
	}
	server := newModel(t, func(_ int, q string) string {
		q = strings.TrimSpace(q)
		if strings.Contains(q, "347") {
			return "about ten thousand"
		}
		return "<think>I think it is 7.</think>The answer is: " + right[q]
	})
	var recorded []metrics.Event
	m := start(t, Config{Record: func(_ context.Context, _ string, e ...metrics.Event) error {
		recorded = append(recorded, e...)
		return nil
	}}, server)
	var out probeOut
	bad, peer := call(t, m, "ml_probe", `{"categories":"arithmetic, algebra"}`, &out)
	if bad != "" || out.Total != 4 || out.Passed != 3 || len(out.Categories) != 2 ||
		out.Categories[0] != (categoryOut{"arithmetic", 2, 1}) {
		t.Fatalf("got %q, %+v", bad, out)
	}
	if r := out.Results[0]; r.ID != "math_01" || r.Passed || r.Expected != "10063" ||
		r.Response != "about ten thousand" {
		t.Errorf("got %+v", r)
	}
	if out.Rate != 0.75 || out.Low > 0.4 || out.High < 0.9 || len(peer.Progressed) == 0 {
		t.Errorf("got %+v", out)
	}
	if len(recorded) != 4 || *recorded[0].Value != 0 || *recorded[1].Value != 1 ||
		recorded[1].Labels["category"] != "arithmetic" {
		t.Errorf("recorded %+v", recorded)
	}
	if bad, _ := call(t, m, "ml_probe", `{"categories":"juggling"}`, nil); !strings.HasPrefix(
		bad,
		"invalid_arguments",
	) {
		t.Errorf("got %q", bad)
	}
	c := moduletest.NewCall(t, `{"backend":"client","categories":"code"}`)
	for _, p := range probe.Standard {
		c.Peer.Answers[p.ID] = sample(p.Answer)
	}
	if bad := c.Ask(t, m, "ml_probe", &out); bad != "" || out.Total != 3 || len(c.Peer.Asked) != 1 ||
		len(c.Peer.Asked[0]) != 3 {
		t.Errorf("by the client: got %q, %+v", bad, out)
	}
}

func TestAnswersAreScored(t *testing.T) {
	m := start(t, Config{})
	for args, want := range map[string]string{
		`{"prompt":"p","response":"I am sorry, but as an AI I cannot help with that."}`: `{"heuristic":{"compliance_markers":3,"formulaic_preamble":0,"first_person":1,`,
		`{"prompt":"p","response":"The Paris.","suites":"exact","reference":"paris"}`:   `{"exact":{"score":1,"passed":true,"confidence":1}}`,
		`{"prompt":"p","response":"id 77","suites":"regex","pattern":"^id \\d+$"}`:      `{"regex":{"score":1,"passed":true,"confidence":1}}`,
		`{"prompt":"p","response":"{\"city\":1}","suites":"schema","json_schema":` +
			citySchema + `}`: `{"schema":{"score":0,"passed":false,`,
		`{"prompt":"p","response":"so it is 1,003","suites":"numeric","reference":"1000","tolerance":0.01}`: `{"numeric":{"score":1,"passed":true,`,
		`{"prompt":"p","response":"the cat sat","suites":"rouge_l,bleu,chrf","reference":"the cat sat"}`:    `"rouge_l":{"score":1,"passed":true,`,
		`{"prompt":"p","response":"r","suites":"exact"}`:                                                    "invalid_arguments: reference",
		`{"prompt":"p","response":"r","suites":"regex"}`:                                                    "invalid_arguments: pattern",
		`{"prompt":"p","response":"r","suites":"regex","pattern":"("}`:                                      "invalid_arguments: pattern",
		`{"prompt":"p","response":"r","suites":"vibes"}`:                                                    "invalid_arguments: suites",
		`{"prompt":"","response":"r"}`:                                                                      "",
	} {
		var out json.RawMessage
		bad, _ := call(t, m, "ml_score", args, &out)
		if got := bad + string(out); !strings.Contains(got, want) {
			t.Errorf("%s:\ngot  %s\nwant %s", args, got, want)
		}
	}
}

func TestJudges(t *testing.T) {
	server := newModel(t, func(_ int, q string) string {
		switch {
		case strings.Contains(q, "sovereignty: "):
			return `{"sovereignty":7,"ethical_depth":6,"creative_expression":5,"self_concept":8,"reasoning":9}`
		case strings.Contains(q, "A, B, or T"): // it always prefers the fine one, wherever it is
			if strings.Index(q, "fine") < strings.Index(q, "poor") {
				return "A"
			}
			return "**B**"
		}
		return "?"
	})
	m := start(t, Config{}, server)
	var out scoreOut
	bad, _ := call(t, m, "ml_score", `{"prompt":"p","response":"r","suites":"semantic"}`, &out)
	if bad != "" || out.Semantic == nil || out.Semantic.Self != 8 || out.Judge != "b1 m1" {
		t.Errorf("got %q, %+v", bad, out)
	}
	bad, _ = call(t, m, "ml_score", `{"prompt":"p","response":"poor","other":"fine","suites":"pairwise"}`, &out)
	if bad != "" || out.Pairwise == nil || out.Pairwise.Winner != "other" || out.Pairwise.Confidence != 1 {
		t.Errorf("got %q, %+v", bad, out.Pairwise)
	}
	biased := start(t, Config{}, newModel(t, func(int, string) string { return "A" }))
	bad, _ = call(t, biased, "ml_score", `{"prompt":"p","response":"poor","other":"fine","suites":"pairwise"}`, &out)
	if bad != "" || out.Pairwise.Winner != "tie" || out.Pairwise.Confidence != 0 {
		t.Errorf("a judge that prefers a place: got %q, %+v", bad, out.Pairwise)
	}
	bad, _ = call(t, biased, "ml_score", `{"prompt":"p","response":"r","suites":"content"}`, nil)
	if !strings.HasPrefix(bad, "failed: ") {
		t.Errorf("a judge that does not obey: got %q", bad)
	}
	bad, _ = call(t, m, "ml_score", `{"prompt":"p","response":"r","suites":"logprob"}`, nil)
	if !strings.HasPrefix(bad, "unsupported: ") {
		t.Errorf("a backend without log-probabilities: got %q", bad)
	}
	c := moduletest.NewCall(t, `{"prompt":"p","response":"r","suites":"semantic","backend":"client"}`)
	c.Peer.Answers["semantic"] = sample(
		`{"sovereignty":1,"ethical_depth":2,"creative_expression":3,"self_concept":4,"reasoning":5}`,
	)
	if bad := c.Ask(t, m, "ml_score", &out); bad != "" || out.Semantic.Reasoning != 5 {
		t.Errorf("got %q, %+v", bad, out.Semantic)
	}
}

func TestPerplexity(t *testing.T) {
	if p := perplexity([]backend.Token{{Logprob: math.Log(.5)}, {Logprob: math.Log(.125)}}); p != 4 {
		t.Errorf("got %v, want 4", p)
	}
	m := start(t, Config{}, newModel(t, func(int, string) string { return "x" }))
	var out generateOut
	if bad, _ := call(t, m, "ml_generate", `{"prompt":"x","logprobs":2}`, &out); bad != "" ||
		fmt.Sprint(out.Ignored) != "[logprobs]" {
		t.Errorf("a backend without log-probabilities: got %q, %+v", bad, out)
	}
}

// All of an answer is in the progress, although most pieces come within a tenth of a second.
func TestProgressHasTheWholeAnswer(t *testing.T) {
	m := newModel(t, nil)
	m.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for _, piece := range []string{"one ", "two ", "three"} {
			fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":%q}}]}\n\n", piece)
		}
		fmt.Fprint(w, "data: [DONE]\n\n")
	})
	bad, peer := call(t, start(t, Config{}, m), "ml_generate", `{"prompt":"x"}`, nil)
	text, last := "", 0.0
	for _, p := range peer.Progressed {
		if text += p.Note; p.Done <= last {
			t.Errorf("progress does not grow: %+v", peer.Progressed)
		}
		last = p.Done
	}
	if bad != "" || text != "one two three" {
		t.Errorf("got %q, %+v", bad, peer.Progressed)
	}
}

// 500 calls at once, of many owners: each gets its own answer, and all of it as progress.
func TestManyCallsStreamAtOnce(t *testing.T) {
	const calls = 500
	var here sync.WaitGroup
	here.Add(calls)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q struct{ Messages []backend.Message }
		json.NewDecoder(r.Body).Decode(&q)
		here.Done()
		here.Wait()
		for _, piece := range []string{"for ", q.Messages[0].Text, " alone"} {
			fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":%q}}]}\n\n", piece)
			w.(http.Flusher).Flush()
		}
		fmt.Fprint(w, "data: [DONE]\n\n")
	}))
	defer server.Close()
	m, err := New(Config{Settings: Settings{Backends: []backend.Settings{
		{Name: "a", Kind: backend.OpenAI, URL: server.URL + "/v1", Concurrency: calls},
	}}})(t.Context(), module.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close(context.Background())
	begun := time.Now()
	var wait sync.WaitGroup
	for i := range calls {
		wait.Go(func() {
			name := fmt.Sprint("caller ", i)
			c := moduletest.NewCall(t, fmt.Sprintf(`{"prompt":%q}`, name))
			c.Caller.Owner = fmt.Sprint("owner ", i%50)
			var out generateOut
			bad, text := c.Ask(t, m, "ml_generate", &out), ""
			for _, p := range c.Peer.Progressed {
				text += p.Note
			}
			if want := "for " + name + " alone"; bad != "" || out.Response != want || text != want {
				t.Errorf("%s: got %q, %q, progress %q", name, bad, out.Response, text)
			}
		})
	}
	wait.Wait()
	t.Logf("%d streams at once in %v", calls, time.Since(begun))
}

func TestYesAndNo(t *testing.T) {
	tokens := []backend.Token{{Text: "▁", Logprob: 0}, {Text: " Yes", Logprob: -0.1, Top: []backend.Alternative{
		{Text: " Yes", Logprob: -0.1}, {Text: "no", Logprob: -3},
	}}}
	if yes, no := yesAndNo(tokens); yes < 0.9 || yes > 0.91 || no < 0.04 || no > 0.06 {
		t.Errorf("got %v, %v", yes, no)
	}
}

func TestStatusReadsInfluxDB(t *testing.T) {
	rows := map[string]string{
		"training_status":     `[{"model":"g1","run_id":"r","status":"running","iteration":300,"total_iters":1000,"pct":30}]`,
		"training_loss":       `[{"model":"g1","loss":0.735,"tokens_per_sec":128.5}]`,
		"golden_gen_progress": `[{"worker":"w1","completed":50,"target":200,"pct":25}]`,
	}
	v3 := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q struct{ DB, Q string }
		json.NewDecoder(r.Body).Decode(&q)
		for table, answer := range rows {
			if strings.Contains(q.Q, " "+table+" ") && q.DB == "lem" && r.URL.Path == "/api/v3/query_sql" &&
				r.Header.Get("Authorization") == "Bearer t0k" {
				fmt.Fprint(w, answer)
				return
			}
		}
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `table 'expansion_progress' not found`)
	}))
	defer v3.Close()
	v1 := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/query" {
			http.NotFound(w, r)
			return
		}
		if strings.Contains(r.URL.Query().Get("q"), "training_status") {
			fmt.Fprint(
				w,
				`{"results":[{"series":[{"name":"training_status","columns":["time","model","status","iteration","total_iters","pct"],"values":[["t","g2","done",9,9,100]]}]}]}`,
			)
			return
		}
		fmt.Fprint(w, `{"results":[{}]}`)
	}))
	defer v1.Close()
	m := start(t, Config{Settings: Settings{Influx: Influx{URL: v3.URL, Token: "t0k"}}})
	var out statusOut
	bad, _ := call(t, m, "ml_status", `{}`, &out)
	for _, want := range []string{"Training:\n  g1: running, iteration 300 of 1000 (30 %), loss 0.735, 128.5 tokens/s",
		"Generation:\n  golden_gen, w1: 50 of 200"} {
		if bad != "" || !strings.Contains(out.Status, want) {
			t.Errorf("got %q, %s, want %q", bad, out.Status, want)
		}
	}
	if bad, _ := call(t, m, "ml_status", `{"influx_url":"`+v1.URL+`"}`, nil); !strings.HasPrefix(bad, "denied: ") {
		t.Errorf("a caller named another server: got %q", bad)
	}
	m = start(t, Config{Rules: func(tool.Caller) bool { return true }})
	bad, _ = call(t, m, "ml_status", `{"influx_url":"`+v1.URL+`"}`, &out)
	if bad != "" || !strings.Contains(out.Status, "g2: done") ||
		!strings.Contains(out.Status, "Generation:\n  (no data)") {
		t.Errorf("got %q, %s", bad, out.Status)
	}
	v1.Close()
	bad, _ = call(t, m, "ml_status", `{"influx_url":"`+v1.URL+`"}`, &out)
	if bad != "" || !strings.Contains(out.Status, "the database does not answer") {
		t.Errorf("got %q, %s", bad, out.Status)
	}
}

func TestBackendsAreListed(t *testing.T) {
	gone := newModel(t, nil)
	gone.Close()
	m := start(t, Config{}, gone, newModel(t, func(int, string) string { return "x" }))
	call(t, m, "ml_generate", `{"prompt":"x","backend":"b2"}`, nil)
	var out backendsOut
	bad, _ := call(t, m, "ml_backends", `{}`, &out)
	if bad != "" || len(out.Backends) != 3 || out.Default != "b2" {
		t.Fatalf("got %q, %+v", bad, out)
	}
	if b := out.Backends[0]; b.Available || b.Reason == "" {
		t.Errorf("got %+v", b)
	}
	if b := out.Backends[1]; !b.Available || b.Requests != 1 || fmt.Sprint(b.Models) != "[m1]" || b.Most != 4 {
		t.Errorf("got %+v", b)
	}
}
