package hosttest_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"gatehouse/internal/modules/ml"
	"gatehouse/internal/modules/ml/backend"
	"gatehouse/internal/modules/ml/probe"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
)

// sampledBy answers questions to the client's model with what a function makes of the last message.
func sampledBy(t *testing.T, answer func(system, question string) string) hosttest.Answer {
	return func(method string, params json.RawMessage) json.RawMessage {
		var p struct {
			System   string `json:"systemPrompt"`
			Messages []struct{ Content struct{ Text string } }
			Max      int `json:"maxTokens"`
		}
		if err := json.Unmarshal(params, &p); err != nil || method != "sampling/createMessage" || p.Max <= 0 {
			t.Errorf("the client was asked %s %s", method, params)
		}
		text := answer(p.System, p.Messages[len(p.Messages)-1].Content.Text)
		b, _ := json.Marshal(map[string]any{
			"role": "assistant", "model": "the-clients", "stopReason": "endTurn",
			"content": map[string]string{"type": "text", "text": text},
		})
		return b
	}
}

// With no server of models, every kind of client that can be asked answers with its own model: a text, JSON that is
// repaired, probes that are graded, and a judgement.
func TestTheClientsOwnModelServesAllTools(t *testing.T) {
	known := map[string]string{}
	for _, p := range probe.Standard {
		known[p.Prompt] = p.Answer
	}
	answer := sampledBy(t, func(system, question string) string {
		switch {
		case strings.Contains(question, "does not obey the JSON Schema"):
			return `{"city":"Lund"}`
		case strings.Contains(system, "JSON Schema") && strings.Contains(system, "grade"):
			return `{"sovereignty":7,"ethical_depth":6,"creative_expression":5,"self_concept":8,"reasoning":9}`
		case strings.Contains(system, "JSON Schema"):
			return `{"town":"Lund"}`
		case known[question] != "":
			return "The answer is " + known[question]
		}
		return "hello from " + question
	})
	for _, n := range hosttest.Harnesses() {
		t.Run(n.Name, func(t *testing.T) {
			h := n.Make(t, hosttest.Options{Modules: map[string]module.New{
				"ml": ml.New(ml.Config{Settings: ml.Settings{Backends: []backend.Settings{}}}),
			}})
			if !h.Traits().CanAsk() {
				if r := hosttest.Call(h, "ml_generate", `{"prompt":"me"}`, nil); !r.IsError() ||
					!strings.Contains(r.Text(), "no backend is available") {
					t.Errorf("got %s", r.Result)
				}
				return
			}
			for _, c := range []struct{ tool, args, want string }{
				{"ml_backends", `{}`, `"default":"client"`},
				{"ml_generate", `{"prompt":"me"}`, `"text":"hello from me"`},
				{"ml_generate", `{"prompt":"where?","json_schema":{"type":"object","properties":{"city":{"type":"string"}},` +
					`"required":["city"],"additionalProperties":false}}`, `"repaired":true`},
				{"ml_score", `{"prompt":"p","response":"r","suites":"semantic"}`, `"self_concept":8`},
				{"ml_probe", `{"categories":"arithmetic,algebra"}`, `"passed":4`},
				{"ml_probe", `{}`, `"total":23`},
			} {
				r := hosttest.Call(h, c.tool, c.args, answer)
				if r.Error != nil || r.IsError() || !strings.Contains(string(r.Result), c.want) {
					t.Errorf("%s %s: got %v %s, want %s", c.tool, c.args, r.Error, r.Result, c.want)
				}
			}
		})
	}
}

// A server's answer reaches every kind of client, and as progress those that are told before the answer.
func TestAServersAnswerReachesAllClients(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for _, piece := range []string{"one ", "two ", "three"} {
			fmt.Fprintf(w, "data: {\"model\":\"m\",\"choices\":[{\"delta\":{\"content\":%q}}]}\n\n", piece)
		}
		fmt.Fprint(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n")
	}))
	defer server.Close()
	for _, n := range hosttest.Harnesses() {
		t.Run(n.Name, func(t *testing.T) {
			h := n.Make(t, hosttest.Options{Modules: map[string]module.New{"ml": ml.New(ml.Config{Settings: ml.Settings{
				Backends: []backend.Settings{{Name: "a", Kind: backend.OpenAI, URL: server.URL + "/v1"}},
			}})}})
			r := hosttest.Call(h, "ml_generate", `{"prompt":"count"}`, nil)
			if r.IsError() || r.Text() != "one two three" ||
				!strings.Contains(string(r.Result), "output_tokens=3;") {
				t.Fatalf("got %v %s", r.Error, r.Result)
			}
			var text strings.Builder
			for _, p := range r.Notifications("notifications/progress") {
				var note struct{ Message string }
				json.Unmarshal(p, &note)
				text.WriteString(note.Message)
			}
			if text.String() != "one two three" && !h.Traits().Mute {
				t.Errorf("the progress has %q", text.String())
			}
		})
	}
}
