package backend

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
)

// openAI is a server with the chat completions of OpenAI. llama-server has the same.
type openAI struct{ address }

type openAIRequest struct {
	Model       string         `json:"model,omitempty"`
	Messages    []Message      `json:"messages"`
	Stream      bool           `json:"stream"`
	Options     map[string]any `json:"stream_options"`
	Temperature *float64       `json:"temperature,omitempty"`
	TopP        *float64       `json:"top_p,omitempty"`
	MaxTokens   int            `json:"max_tokens,omitempty"`
	MaxAnswer   int            `json:"max_completion_tokens,omitempty"` // the same, of OpenAI's reasoning models
	Stop        []string       `json:"stop,omitempty"`
	Seed        *int64         `json:"seed,omitempty"`
	Logprobs    bool           `json:"logprobs,omitempty"`
	Top         int            `json:"top_logprobs,omitempty"`
	Format      any            `json:"response_format,omitempty"`
}

// openAIChunk is a piece of a stream, or a whole response of a server that does not stream.
type openAIChunk struct {
	Model   string
	Error   json.RawMessage
	Choices []struct {
		Delta, Message struct {
			Content   string
			Reasoning string `json:"reasoning_content"` // of llama-server and others
			Thoughts  string `json:"reasoning"`         // of Ollama, vLLM and gateways
		}
		Finish   string `json:"finish_reason"`
		Logprobs struct {
			Content []struct {
				Alternative
				Top []Alternative `json:"top_logprobs"`
			}
		}
	}
	Usage *struct {
		In  int `json:"prompt_tokens"`
		Out int `json:"completion_tokens"`
	}
}

func (o *openAI) generate(ctx context.Context, r *Request, text func(string)) (Response, error) {
	body := openAIRequest{
		Model: r.Model, Messages: r.Messages, Stream: true, Options: map[string]any{"include_usage": true},
		Temperature: r.Temperature, TopP: r.TopP, MaxTokens: r.MaxTokens, Stop: r.Stop, Seed: r.Seed,
		Logprobs: r.Logprobs, Top: r.Top,
	}
	if r.Schema != nil {
		body.Format = map[string]any{
			"type":        "json_schema",
			"json_schema": map[string]any{"name": "answer", "schema": r.Schema},
		}
	}
	res, err := o.complete(ctx, r, body, text)
	if f, ok := errors.AsType[*Failure](err); ok && f.Request && r.MaxTokens > 0 &&
		strings.Contains(f.Reason, "max_completion_tokens") {
		body.MaxTokens, body.MaxAnswer = 0, r.MaxTokens // models that reason have another name for it
		return o.complete(ctx, r, body, text)
	}
	return res, err
}

// complete sends a request and reads its answer.
func (o *openAI) complete(ctx context.Context, r *Request, body openAIRequest, text func(string)) (Response, error) {
	a := newAnswer(r, text)
	finished := false
	_, err := o.do(ctx, http.MethodPost, "/chat/completions", body, func(kind string, b []byte) (bool, error) {
		if kind != "application/json" {
			data, ok := bytes.CutPrefix(b, []byte("data:"))
			if !ok {
				return true, nil // a comment, or another field of the event
			}
			if b = bytes.TrimSpace(data); string(b) == "[DONE]" {
				finished = true
				return false, nil
			}
		}
		last, err := a.openAI(b)
		finished = finished || last
		return !a.ended, err
	})
	if err == nil && !finished && !a.ended {
		err = &Failure{Reason: "the response ended before the answer was complete", Again: true}
	}
	return a.done(), err
}

// openAI adds one chunk. last means that the server said why the answer ends.
func (a *answer) openAI(b []byte) (last bool, err error) {
	var c openAIChunk
	if err := json.Unmarshal(b, &c); err != nil {
		return false, &Failure{Reason: "a part of the response is not JSON of the expected form", Again: true}
	}
	if len(c.Error) > 0 && string(c.Error) != "null" {
		return false, &Failure{Reason: errorOf(b), Again: true}
	}
	if c.Model != "" {
		a.res.Model = c.Model
	}
	if c.Usage != nil {
		a.usage(c.Usage.In, c.Usage.Out)
	}
	if len(c.Choices) == 0 {
		return false, nil
	}
	one := c.Choices[0]
	list := make([]Token, len(one.Logprobs.Content))
	for i, t := range one.Logprobs.Content {
		list[i] = Token{t.Text, t.Logprob, t.Top}
	}
	a.tokens(list)
	a.thought += len(one.Delta.Reasoning) + len(one.Message.Reasoning) + len(one.Delta.Thoughts) +
		len(one.Message.Thoughts)
	a.appendText(one.Delta.Content)
	a.appendText(one.Message.Content)
	if one.Finish != "" && !a.ended {
		a.res.Finish = one.Finish
	}
	return one.Finish != "", nil
}

func (o *openAI) models(ctx context.Context) ([]Model, error) {
	var out struct{ Data []struct{ ID string } }
	if err := o.get(ctx, "/models", &out); err != nil {
		return nil, err
	}
	var all []Model
	for _, m := range out.Data {
		all = append(all, Model{Name: m.ID})
	}
	return all, nil
}
