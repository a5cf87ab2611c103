package backend

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
)

// ollama is a server of Ollama, by its own API, which has schemas and log-probabilities.
type ollama struct{ address }

type ollamaRequest struct {
	Model    string          `json:"model"`
	Messages []Message       `json:"messages"`
	Stream   bool            `json:"stream"`
	Format   json.RawMessage `json:"format,omitempty"`
	Options  map[string]any  `json:"options,omitempty"`
	Logprobs bool            `json:"logprobs,omitempty"`
	Top      int             `json:"top_logprobs,omitempty"`
}

type ollamaChunk struct {
	Model   string
	Error   string
	Message struct{ Content, Thinking string }
	Done    bool
	Reason  string `json:"done_reason"`
	In      int    `json:"prompt_eval_count"`
	Out     int    `json:"eval_count"`

	Logprobs []struct {
		Alternative
		Top []Alternative `json:"top_logprobs"`
	}
}

func (o *ollama) generate(ctx context.Context, r *Request, text func(string)) (Response, error) {
	body := ollamaRequest{
		Model: r.Model, Messages: r.Messages, Stream: true, Format: r.Schema, Options: map[string]any{},
		Logprobs: r.Logprobs, Top: r.Top,
	}
	if body.Model == "" {
		list, err := o.models(ctx)
		if err != nil {
			return Response{}, err
		}
		if len(list) == 0 {
			return Response{}, &Failure{Reason: "it has no model; ollama pull NAME fetches one"}
		}
		body.Model = list[0].Name // those in memory are first
	}
	for name, value := range map[string]any{
		"temperature": r.Temperature, "top_p": r.TopP, "seed": r.Seed, "stop": r.Stop, "num_predict": r.MaxTokens,
	} {
		switch v := value.(type) {
		case *float64:
			if v != nil {
				body.Options[name] = *v
			}
		case *int64:
			if v != nil {
				body.Options[name] = *v
			}
		case []string:
			if len(v) > 0 {
				body.Options[name] = v
			}
		case int:
			if v > 0 {
				body.Options[name] = v
			}
		}
	}
	a := newAnswer(r, text)
	finished := false
	_, err := o.do(ctx, http.MethodPost, "/api/chat", body, func(_ string, b []byte) (bool, error) {
		if len(bytes.TrimSpace(b)) == 0 {
			return true, nil
		}
		last, err := a.ollama(b)
		finished = finished || last
		return !a.ended && !last, err
	})
	if err == nil && !finished && !a.ended {
		err = &Failure{Reason: "the response ended before the answer was complete", Again: true}
	}
	return a.done(), err
}

// ollama adds one line of the response.
func (a *answer) ollama(b []byte) (last bool, err error) {
	var c ollamaChunk
	if err := json.Unmarshal(b, &c); err != nil {
		return false, &Failure{Reason: "a part of the response is not JSON of the expected form", Again: true}
	}
	if c.Error != "" {
		return false, &Failure{Reason: errorOf(b), Again: true}
	}
	a.res.Model = c.Model
	list := make([]Token, len(c.Logprobs))
	for i, t := range c.Logprobs {
		list[i] = Token{t.Text, t.Logprob, t.Top}
	}
	a.tokens(list)
	a.thought += len(c.Message.Thinking)
	a.appendText(c.Message.Content)
	if c.Done {
		a.usage(c.In, c.Out)
		if !a.ended {
			a.res.Finish = c.Reason
		}
	}
	return c.Done, nil
}

func (o *ollama) models(ctx context.Context) ([]Model, error) {
	var have struct{ Models []struct{ Name string } }
	if err := o.get(ctx, "/api/tags", &have); err != nil {
		return nil, err
	}
	var running struct {
		Models []struct {
			Name string
			Size int64
		}
	}
	var all []Model
	loaded := map[string]bool{}
	if o.get(ctx, "/api/ps", &running) == nil { // an old server does not have it
		for _, m := range running.Models {
			loaded[m.Name] = true
			all = append(all, Model{m.Name, true, m.Size})
		}
	}
	for _, m := range have.Models {
		if !loaded[m.Name] {
			all = append(all, Model{Name: m.Name})
		}
	}
	return all, nil
}
