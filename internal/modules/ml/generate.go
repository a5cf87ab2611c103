package ml

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/mcp/schema"
	"gatehouse/internal/modules/ml/backend"
	"gatehouse/internal/modules/ml/score"
	"gatehouse/tool"
)

const generateHelp = `Asks a language model. Give prompt, or messages for a conversation.

- Without backend the first server that answers is asked: the next one where one fails, and the client's own model
  (sampling) if none answers. A backend that is named is the only one asked; client is the client's own model.
- json_schema is the JSON Schema of the answer. The answer is checked against it; if it does not obey, the model is
  told what is wrong and asked once more. The second answer obeys, or the call fails.
- stop ends the answer before the first of these texts. max_tokens limits it. Both are enforced here, too.
- logprobs gives the log-probability of each token and that many alternatives (0 to 20).
- cache: an equal request of yours within an hour gets the same answer if temperature is 0 or a seed is given (auto),
  never (off), or is asked anew and kept (refresh).
- Progress has the text as it comes. estimated means that the backend gave no counts of tokens, or impossible ones.
- The prompt leaves this host if the backend is another machine.`

type messageIn struct {
	Role    string `json:"role" enum:"system,user,assistant"`
	Content string `json:"content" max:"1000000"`
}

type generateIn struct {
	Prompt      string          `json:"prompt,omitempty" max:"1000000" example:"Say hello." doc:"the question; or messages"`
	Messages    []messageIn     `json:"messages,omitempty" doc:"a conversation instead of prompt, at most 200"`
	System      string          `json:"system,omitempty" max:"100000" doc:"instructions before the conversation"`
	Backend     string          `json:"backend,omitempty" max:"64" doc:"one of ml_backends; left out, the first that answers"`
	Model       string          `json:"model,omitempty" max:"200"`
	Temperature *float64        `json:"temperature,omitempty" min:"0" max:"2"`
	TopP        *float64        `json:"top_p,omitempty" min:"0" max:"1"`
	MaxTokens   int             `json:"max_tokens,omitempty" min:"0" max:"1000000" doc:"0 means the backend's limit"`
	Stop        []string        `json:"stop,omitempty" doc:"at most 16"`
	Seed        *int64          `json:"seed,omitempty"`
	Schema      json.RawMessage `json:"json_schema,omitempty" doc:"JSON Schema that the answer obeys"`
	Logprobs    *int            `json:"logprobs,omitempty" min:"0" max:"20" doc:"give log-probabilities, with this many alternatives"`
	Cache       string          `json:"cache,omitempty" enum:"auto,off,refresh" default:"auto"`
	Timeout     int             `json:"timeout,omitempty" min:"0" max:"1800" doc:"seconds; 0 means the backend's limit"`
}

type generateOut struct {
	Response   string          `json:"response" text:"product"`
	Backend    string          `json:"backend"`
	Model      string          `json:"model,omitempty"`
	Finish     string          `json:"finish" doc:"stop, length, or another word of the backend"`
	In         int             `json:"input_tokens"`
	Out        int             `json:"output_tokens"`
	Estimated  bool            `json:"estimated,omitempty" doc:"the tokens are a quarter of the bytes"`
	Millis     int64           `json:"ms"`
	Rate       float64         `json:"tokens_per_second,omitempty"`
	Cached     bool            `json:"cached,omitempty"`
	Repaired   bool            `json:"repaired,omitempty" doc:"the first answer did not obey json_schema"`
	Ignored    []string        `json:"ignored,omitempty" doc:"arguments that the backend did not obey: the client's model does not know them, or it gave no log-probabilities"`
	Perplexity float64         `json:"perplexity,omitempty" doc:"of the answer, from its log-probabilities"`
	Logprobs   []backend.Token `json:"logprobs,omitempty"`
}

func (s *service) generate(ctx context.Context, c *tool.Call, in generateIn) (generateOut, error) {
	ctx, cancel := timeout(ctx, in.Timeout)
	defer cancel()
	q, compiled, err := in.question(c)
	if err != nil {
		return generateOut{}, err
	}
	stream := &streamed{peer: c.Peer, total: in.MaxTokens}
	q.Text, q.Note = stream.appendPiece, stream.note
	r, err := s.one(ctx, c, q)
	if err != nil {
		return generateOut{}, err
	}
	stream.flush()
	repaired := false
	if compiled != nil {
		q.key = "repair"
		if r, repaired, err = s.obey(ctx, c, q, r, compiled); err != nil {
			return generateOut{}, err
		}
		stream.flush()
	}
	out := generateOut{
		Response: r.Text, Backend: r.Backend, Model: r.Model, Finish: r.Finish, In: r.Usage.In, Out: r.Usage.Out,
		Estimated: r.Usage.Estimated, Millis: r.Took.Milliseconds(), Cached: r.Cached, Repaired: repaired,
		Logprobs: r.Tokens, Perplexity: perplexity(r.Tokens),
	}
	if r.Took > 0 && !r.Cached {
		out.Rate = round(float64(r.Usage.Out) / r.Took.Seconds())
	}
	if r.Backend == backend.Client {
		out.Ignored = in.ignoredByClient()
	}
	if in.Logprobs != nil && len(r.Tokens) == 0 {
		out.Ignored = append(out.Ignored, "logprobs")
	}
	return out, nil
}

// question makes the request of the arguments.
func (in generateIn) question(c *tool.Call) (q question, compiled *schema.Schema, err error) {
	q.key = "generate"
	q.Ask = backend.Ask{
		Owner: c.Caller.Owner, Backend: in.Backend,
		Request: backend.Request{
			Model: in.Model, Temperature: in.Temperature, TopP: in.TopP, MaxTokens: in.MaxTokens, Stop: in.Stop,
			Seed: in.Seed,
		},
	}
	switch {
	case in.Prompt == "" && len(in.Messages) == 0:
		return q, nil, tool.Refuse(tool.CodeInvalidArguments, "prompt: expected a text, or messages")
	case in.Prompt != "" && len(in.Messages) > 0:
		return q, nil, tool.Refuse(tool.CodeInvalidArguments, "prompt and messages: expected one of them")
	case len(in.Messages) > 200:
		return q, nil, tool.Refuse(tool.CodeInvalidArguments, "messages: at most 200, got %d", len(in.Messages))
	case len(in.Stop) > 16:
		return q, nil, tool.Refuse(tool.CodeInvalidArguments, "stop: at most 16, got %d", len(in.Stop))
	}
	if in.System != "" {
		q.Messages = append(q.Messages, backend.Message{Role: "system", Text: in.System})
	}
	for _, m := range in.Messages {
		q.Messages = append(q.Messages, backend.Message{Role: m.Role, Text: m.Content})
	}
	if in.Prompt != "" {
		q.Messages = append(q.Messages, backend.Message{Role: "user", Text: in.Prompt})
	}
	if in.Logprobs != nil {
		q.Logprobs, q.Top = true, *in.Logprobs
	}
	if len(in.Schema) > 0 {
		if compiled, err = schema.Compile(in.Schema); err != nil {
			return q, nil, tool.Refuse(tool.CodeInvalidArguments, "json_schema: %v", err)
		}
		q.Schema = in.Schema
	}
	steady := in.Temperature != nil && *in.Temperature == 0 || in.Seed != nil
	q.Cache = in.Cache == "auto" && steady
	q.Keep = in.Cache != "off" && (steady || in.Cache == "refresh")
	return q, compiled, nil
}

func (in generateIn) ignoredByClient() (all []string) {
	if in.TopP != nil {
		all = append(all, "top_p")
	}
	if in.Seed != nil {
		all = append(all, "seed")
	}
	return all
}

// one asks one question.
func (s *service) one(ctx context.Context, c *tool.Call, q question) (backend.Response, error) {
	replies, err := s.askModel(ctx, c, []question{q})
	if err == nil {
		err = replies[0].err
	}
	if err != nil {
		return backend.Response{}, s.refuse(err)
	}
	return replies[0].res, nil
}

// obey makes sure that an answer obeys a schema. If it does not, q is asked once more, with what is wrong.
func (s *service) obey(
	ctx context.Context, c *tool.Call, q question, r backend.Response, compiled *schema.Schema,
) (res backend.Response, repaired bool, err error) {
	value, bad := score.JSON(r.Text, compiled)
	if bad == nil {
		r.Text = string(value)
		return r, false, nil
	}
	first := r
	q.Backend = r.Backend // the same one
	q.Cache = false
	q.Messages = append(q.Messages[:len(q.Messages):len(q.Messages)],
		backend.Message{Role: "assistant", Text: clip(r.Text, 20_000)},
		backend.Message{Role: "user", Text: fmt.Sprintf(
			"That answer does not obey the JSON Schema: %v\nAnswer again with the corrected JSON value alone. "+
				"The schema is:\n%s",
			bad,
			q.Schema,
		)},
	)
	if r, err = s.one(ctx, c, q); err != nil {
		return r, true, err
	}
	if value, bad = score.JSON(r.Text, compiled); bad != nil {
		next := "Simplify json_schema, name a larger model, or call without json_schema."
		if r.Finish == "length" {
			next = "The answer was cut: raise max_tokens."
		}
		return r, true, &tool.Refusal{
			Code: tool.CodeFailed,
			Message: fmt.Sprintf("the model %s did not obey json_schema twice: %v. It answered: %s", r.Model, bad,
				clip(r.Text, 500)),
			Next: next,
		}
	}
	r.Text = string(value)
	r.Usage.In, r.Usage.Out, r.Took = r.Usage.In+first.Usage.In, r.Usage.Out+first.Usage.Out, r.Took+first.Took
	return r, true, nil
}

// clip returns the beginning of a text, of at most n bytes.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "..."
}

// perplexity is the exponential of the mean negative log-probability; 0 means that there are none.
func perplexity(tokens []backend.Token) float64 {
	if len(tokens) == 0 {
		return 0
	}
	sum := 0.0
	for _, t := range tokens {
		sum -= min(t.Logprob, 0)
	}
	return round(math.Exp(min(sum/float64(len(tokens)), 30)))
}

func round(f float64) float64 { return float64(int64(f*1000+0.5)) / 1000 }

// streamed sends an answer as progress while it comes: the text since the last sign, at most ten times a second.
type streamed struct {
	peer  tool.Peer
	total int

	mu    sync.Mutex
	n     int
	tail  []byte
	last  time.Time
	extra float64
}

const tailBytes = 4 << 10

func (s *streamed) appendPiece(piece string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	if s.tail = append(s.tail, piece...); len(s.tail) > tailBytes {
		s.tail = s.tail[len(s.tail)-tailBytes:]
	}
	if now := time.Now(); now.Sub(s.last) >= 100*time.Millisecond {
		s.last = now
		s.peer.Progress(float64(s.n)+s.extra, float64(max(s.total, 0)), strings.ToValidUTF8(string(s.tail), ""))
		s.tail = s.tail[:0]
	}
}

// flush sends what came since the last sign.
func (s *streamed) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.tail) > 0 {
		s.extra += 0.01
		s.peer.Progress(float64(s.n)+s.extra, float64(max(s.total, 0)), strings.ToValidUTF8(string(s.tail), ""))
		s.tail = s.tail[:0]
	}
}

// note tells that another backend is tried: the text that came is void.
func (s *streamed) note(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.extra += 0.01 // progress has to increase
	s.tail = s.tail[:0]
	s.peer.Progress(float64(s.n)+s.extra, float64(max(s.total, 0)), "["+text+"]")
}

// readSample reads the result of sampling/createMessage, whose content is one block or a list of them.
func readSample(raw tool.Answer) (text, model, finish string, err error) {
	var r struct {
		Content json.RawMessage
		Model   string
		Stop    string `json:"stopReason"`
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return "", "", "", errors.New("its answer is not of the expected form")
	}
	var blocks []struct{ Type, Text string }
	if json.Unmarshal(r.Content, &blocks) != nil {
		blocks = make([]struct{ Type, Text string }, 1)
		if err := json.Unmarshal(r.Content, &blocks[0]); err != nil {
			return "", "", "", errors.New("its answer has no content")
		}
	}
	var b strings.Builder
	for _, block := range blocks {
		if block.Type == "text" {
			b.WriteString(block.Text)
		}
	}
	switch r.Stop {
	case "", "endTurn", "stopSequence":
		finish = "stop"
	case "maxTokens":
		finish = "length"
	default:
		finish = r.Stop
	}
	return b.String(), r.Model, finish, nil
}
