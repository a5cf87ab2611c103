// Package ml is the module with which agents ask other language models, and grade answers and models.
package ml

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/access/operator"
	"gatehouse/internal/access/secret"
	"gatehouse/internal/modules/ml/backend"
	"gatehouse/internal/telemetry/metrics"
	"gatehouse/module"
	"gatehouse/tool"
)

// Settings are the settings of the module, which the configuration of a host embeds.
type Settings struct {
	Backends []backend.Settings `doc:"Servers of models, in the order of preference. None means Ollama on this machine, if it runs. Without any that answers, the model of the connected client is asked."`
	NoClient bool               `doc:"Never ask the model of the connected client (sampling)."`
	Influx   Influx             `doc:"The database with the progress of training, for ml_status."`
}

// Influx is where the progress of training is recorded.
type Influx struct {
	URL   string `yaml:"url" doc:"Base URL of InfluxDB; left out, http://localhost:8086. A call that names another one needs an administrator."`
	Token string `doc:"Its token, best as a reference: ${secret:NAME}."`
}

// Config is what the module is given.
type Config struct {
	Settings
	// Fill replaces references to secrets; nil means that the host has no secrets.
	Fill func(map[string]string) (map[string]secret.Text, error) `json:"-"`
	// reports whether a caller is an administrator
	Rules operator.Func `json:"-"`
	// Record stores the results of probes under the context of the call; nil records none.
	Record func(ctx context.Context, context string, events ...metrics.Event) error `json:"-"`
}

type service struct {
	cfg   Config
	pool  *backend.Pool
	deps  module.Deps
	offer module.Offer
}

// defaultBackends are those of a host that configures none.
var defaultBackends = []backend.Settings{{Name: "ollama", Kind: backend.Ollama, URL: "http://127.0.0.1:11434"}}

// DefaultInflux is the database that ml_status reads if no other is named.
const DefaultInflux = "http://localhost:8086"

// longest is the longest time of one call.
const longest = 30 * time.Minute

// New returns what makes the module with a configuration.
func New(cfg Config) module.New {
	return func(_ context.Context, d module.Deps) (module.Module, error) {
		if cfg.Backends == nil {
			cfg.Backends = defaultBackends
		}
		if cfg.Influx.URL == "" {
			cfg.Influx.URL = DefaultInflux
		}
		s := &service{cfg: cfg, deps: d, pool: backend.New(backend.Options{Servers: cfg.Backends, Fill: cfg.Fill})}
		s.offer.Tools = s.modelTools()
		return s, nil
	}
}

func (s *service) modelTools() []tool.Tool {
	return []tool.Tool{
		tool.New(tool.Def{
			Name: "ml_generate", Title: "Ask a model", Effects: tool.Reads | tool.OpenWorld, Timeout: longest,
			Budget:      -1,
			Description: "Asks another language model for an answer, as text or as JSON that obeys a schema.",
			Help:        generateHelp,
		}, s.generate),
		tool.New(tool.Def{
			Name: "ml_score", Title: "Score an answer", Effects: tool.Reads | tool.OpenWorld, Timeout: longest,
			Description: "Scores the response to a prompt: by its words, against a reference, " +
				"or by a model that judges it.",
			Help: scoreHelp,
		}, s.score),
		tool.New(tool.Def{
			Name: "ml_probe", Title: "Probe a model", Effects: tool.Reads | tool.Writes | tool.OpenWorld,
			Timeout:     longest,
			Description: "Asks a model questions with known answers and grades it by category.",
			Help:        probeHelp,
		}, s.probe),
		tool.New(tool.Def{
			Name: "ml_status", Title: "Show models at work", Effects: tool.Reads | tool.OpenWorld, Timeout: time.Minute,
			Budget:      -1,
			Description: "Shows what the backends do, and the progress of training and generation from InfluxDB.",
			Help:        statusHelp,
		}, s.status),
		tool.New(tool.Def{
			Name: "ml_backends", Title: "List backends", Effects: tool.Reads | tool.OpenWorld,
			Description: "Lists the servers of models with what was measured of them: availability, times, " +
				"failures, models.",
		}, s.backends),
	}
}

// Offer implements module.Module.
func (s *service) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &s.offer, nil
}

// Close implements module.Module.
func (s *service) Close(context.Context) error {
	backend.CloseIdle()
	return nil
}

// refuse makes a refusal of an error of a backend.
func (s *service) refuse(err error) error {
	next := "ml_backends shows what is available."
	var unknown *backend.Unknown
	var f *backend.Failure
	switch {
	case errors.As(err, &unknown):
		names := s.pool.Names()
		if !s.cfg.NoClient {
			names = append(names, backend.Client)
		}
		return &tool.Refusal{
			Code: tool.CodeNotFound, Message: err.Error(),
			Next: "Expected a backend of " + strings.Join(names, ", ") + ". ml_backends lists their models.",
		}
	case errors.Is(err, backend.ErrNone):
		if !s.cfg.NoClient {
			next += " A client with sampling needs none: its own model is asked."
		}
		return &tool.Refusal{Code: tool.CodeUnavailable, Message: err.Error(), Next: next}
	case errors.Is(err, backend.ErrQueue):
		return &tool.Refusal{Code: tool.CodeBusy, Message: err.Error(), Next: "Call again later."}
	case errors.As(err, &f) && f.Request:
		return &tool.Refusal{
			Code:    tool.CodeInvalidArguments,
			Message: f.Error(),
			Next:    "Change the request, or name another model.",
		}
	case errors.As(err, &f):
		return &tool.Refusal{Code: tool.CodeUnavailable, Message: f.Error(), Next: next}
	}
	return err
}

// question is a request with the name under which the client is asked it.
type question struct {
	key string
	backend.Ask
}

// reply is the answer to a question, or why there is none.
type reply struct {
	res backend.Response
	err error
}

// askModel puts questions to the backend that they name, all to the same. Without a name, the model of the client is asked
// if no server answers any of them. The error ends the call: it is ErrAsked if the client has to answer first.
func (s *service) askModel(ctx context.Context, c *tool.Call, all []question) ([]reply, error) {
	const recorded = "by-client"
	name := all[0].Backend
	_, again := c.Peer.Recall(recorded)
	if name == backend.Client || again {
		return s.askClient(c, all)
	}
	replies := make([]reply, len(all))
	work := make(chan int)
	done := make(chan struct{})
	workers := min(len(all), 8)
	for range workers {
		go func() {
			defer func() { done <- struct{}{} }()
			for i := range work {
				res, err := s.pool.Generate(ctx, all[i].Ask)
				replies[i] = reply{res, err}
			}
		}()
	}
	for i := range all {
		work <- i
	}
	close(work)
	for range workers {
		<-done
	}
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	silent := !slices.ContainsFunc(replies, func(r reply) bool { return r.err == nil })
	if name == "" && all[0].Model == "" && silent && !s.cfg.NoClient && c.Caller.Can&tool.CanSample != 0 {
		if f, ok := errors.AsType[*backend.Failure](replies[0].err); !ok || !f.Request {
			if err := c.Peer.Record(recorded, true); err != nil {
				return nil, err
			}
			return s.askClient(c, all)
		}
	}
	return replies, nil
}

// sampling is the params of sampling/createMessage.
type sampling struct {
	Messages    []sampleMessage `json:"messages"`
	System      string          `json:"systemPrompt,omitempty"`
	Temperature *float64        `json:"temperature,omitempty"`
	MaxTokens   int             `json:"maxTokens"`
	Stop        []string        `json:"stopSequences,omitempty"`
	Preferences any             `json:"modelPreferences,omitempty"`
}

type sampleMessage struct {
	Role    string       `json:"role"`
	Content tool.Content `json:"content"`
}

// sampleTokens is the limit of an answer of the client's model if the request has none: answers of all rounds of a
// call have to fit into what the host remembers between them.
const sampleTokens = 1500

// askClient puts questions to the model of the client, all at once.
func (s *service) askClient(c *tool.Call, all []question) ([]reply, error) {
	if s.cfg.NoClient {
		return nil, tool.Refuse(tool.CodeUnsupported,
			"the settings do not allow asking the client's model (modules.ml.no_client)")
	}
	if all[0].Logprobs {
		return nil, tool.Refuse(tool.CodeUnsupported,
			"the client's model gives no log-probabilities; name another backend")
	}
	asked := make([]tool.Question, len(all))
	for i, q := range all {
		p := sampling{Temperature: q.Temperature, MaxTokens: q.MaxTokens, Stop: q.Stop}
		if p.MaxTokens == 0 {
			p.MaxTokens = sampleTokens
		}
		if q.Model != "" {
			p.Preferences = map[string]any{"hints": []any{map[string]string{"name": q.Model}}}
		}
		for _, m := range q.Messages {
			if m.Role == "system" {
				p.System = strings.TrimSpace(p.System + "\n\n" + m.Text)
				continue
			}
			p.Messages = append(p.Messages, sampleMessage{m.Role, tool.Text(m.Text)})
		}
		if q.Schema != nil {
			p.System = strings.TrimSpace(
				p.System + "\n\nAnswer with JSON alone, which obeys this JSON Schema:\n" + string(q.Schema),
			)
		}
		asked[i] = tool.Sample(q.key, p)
	}
	answers, err := c.Peer.Ask(asked...)
	if err != nil {
		return nil, err
	}
	replies := make([]reply, len(all))
	for i, q := range all {
		replies[i].res, replies[i].err = sampled(answers[q.key], q.Ask)
	}
	return replies, nil
}

// sampled reads the answer of a client's model.
func sampled(raw tool.Answer, q backend.Ask) (backend.Response, error) {
	text, model, finish, err := readSample(raw)
	if err != nil {
		return backend.Response{}, &backend.Failure{Backend: backend.Client, Reason: err.Error()}
	}
	for _, stop := range q.Stop {
		if i := strings.Index(text, stop); stop != "" && i >= 0 {
			text, finish = text[:i], "stop"
		}
	}
	in := 0
	for _, m := range q.Messages {
		in += len(m.Text)
	}
	return backend.Response{
		Text: text, Finish: finish, Backend: backend.Client, Model: model,
		Usage: backend.Usage{In: (in + 3) / 4, Out: (len(text) + 3) / 4, Estimated: true},
	}, nil
}

// timeout returns a context with the time limit of a call.
func timeout(ctx context.Context, seconds int) (context.Context, context.CancelFunc) {
	if seconds <= 0 {
		return context.WithCancel(ctx)
	}
	limit := time.Duration(seconds) * time.Second
	return context.WithTimeoutCause(ctx, limit, &tool.Refusal{
		Code: tool.CodeTimeout, Message: fmt.Sprintf("there was no answer within %v", limit),
		Next: "Give more time with timeout, or ask for less with max_tokens.",
	})
}
