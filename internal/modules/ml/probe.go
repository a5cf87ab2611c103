package ml

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/modules/ml/backend"
	"gatehouse/internal/modules/ml/probe"
	"gatehouse/internal/modules/ml/score"
	"gatehouse/internal/telemetry/metrics"
	"gatehouse/tool"
)

const probeHelp = `Asks a model 23 questions of 16 categories whose answers rules can check, and grades the answers.

- categories selects some: arithmetic, algebra, probability, geometry, sequences, percentages, deduction, puzzles,
  sets, analogy, causal, spatial, temporal, pattern, code, word. extended adds json, tool, instruction and context,
  which test obedience, structure and memory.
- low and high enclose the true share of right answers with 95 % confidence: few questions say little.
- A question that the backend did not answer counts as wrong; its response begins with error:.
- Results are recorded as metrics: ml.probe with 1 or 0 as value and the labels model, backend, category and id.`

type probeIn struct {
	Backend    string `json:"backend,omitempty" max:"64"`
	Model      string `json:"model,omitempty" max:"200"`
	Categories string `json:"categories,omitempty" max:"500" doc:"such as arithmetic,code; left out, all"`
	Extended   bool   `json:"extended,omitempty" doc:"also json, tool, instruction and context"`
	Timeout    int    `json:"timeout,omitempty" min:"0" max:"1800" doc:"seconds"`
}

type probeOut struct {
	Total      int           `json:"total"`
	Passed     int           `json:"passed"`
	Rate       float64       `json:"rate" doc:"passed of total"`
	Low        float64       `json:"low" doc:"of the rate, with 95 % confidence"`
	High       float64       `json:"high"`
	Backend    string        `json:"backend,omitempty"`
	Model      string        `json:"model,omitempty"`
	Millis     float64       `json:"ms_per_token,omitempty"`
	Categories []categoryOut `json:"categories"`
	Results    []probeOneOut `json:"results"`
	Warning    string        `json:"warning,omitempty"`
}

type categoryOut struct {
	Category string `json:"category"`
	Total    int    `json:"total"`
	Passed   int    `json:"passed"`
}

type probeOneOut struct {
	ID       string `json:"id"`
	Category string `json:"category"`
	Response string `json:"response"`
	Passed   bool   `json:"passed"`
	Expected string `json:"expected,omitempty" doc:"of a wrong answer"`
	Millis   int64  `json:"ms"`
	Tokens   int    `json:"tokens"`
}

// What the probes ask with.
const (
	probeTemperature = 0.7
	probeTokens      = 2048
	clientTokens     = 120 // of the client's model: all answers of a call are kept until its end
)

func (s *service) probe(ctx context.Context, c *tool.Call, in probeIn) (probeOut, error) {
	ctx, cancel := timeout(ctx, in.Timeout)
	defer cancel()
	selected, err := selectProbes(in)
	if err != nil {
		return probeOut{}, err
	}
	temperature := probeTemperature
	all := make([]question, len(selected))
	for i, p := range selected {
		all[i] = question{key: p.ID, Ask: backend.Ask{
			Owner: c.Caller.Owner, Backend: in.Backend,
			Request: backend.Request{
				Model: in.Model, Messages: []backend.Message{{Role: "user", Text: p.Prompt}}, Temperature: &temperature,
				MaxTokens: probeTokens, Schema: p.Schema,
			},
		}}
	}
	replies, err := s.askProbes(ctx, c, all)
	if err != nil {
		return probeOut{}, err
	}
	out := gradeProbes(selected, replies)
	if err := s.recordProbes(ctx, c, out); err != nil {
		out.Warning = "the results could not be recorded as metrics: " + err.Error()
	}
	return out, nil
}

// askProbes asks the probes some at a time, with progress.
func (s *service) askProbes(ctx context.Context, c *tool.Call, all []question) (replies []reply, err error) {
	const batch = 8
	if _, again := c.Peer.Recall("by-client"); again || all[0].Backend == backend.Client {
		for i := range all {
			all[i].MaxTokens = clientTokens
		}
		return s.askClient(c, all) // in one round, because a call has few
	}
	replies, err = s.askModel(ctx, c, all[:1]) // which shows whether a backend answers at all
	if _, again := c.Peer.Recall("by-client"); again {
		return s.askProbes(ctx, c, all)
	}
	if err != nil {
		return nil, err
	}
	if err := replies[0].err; err != nil {
		return nil, s.refuse(err)
	}
	for part := range slices.Chunk(all[1:], batch) {
		got, err := s.askModel(ctx, c, part)
		if err != nil {
			return nil, err
		}
		replies = append(replies, got...)
		c.Peer.Progress(float64(len(replies)), float64(len(all)), "probes answered")
	}
	return replies, nil
}

func selectProbes(in probeIn) (selected []probe.Probe, err error) {
	all := probe.Standard
	if in.Extended {
		all = slices.Concat(all, probe.Extended)
	}
	known := map[string]bool{}
	for _, p := range slices.Concat(probe.Standard, probe.Extended) {
		known[p.Category] = true
	}
	wanted := map[string]bool{}
	for name := range strings.SplitSeq(in.Categories, ",") {
		if name = strings.TrimSpace(strings.ToLower(name)); name == "" {
			continue
		}
		if !known[name] {
			return nil, &tool.Refusal{
				Code: tool.CodeInvalidArguments, Message: fmt.Sprintf("categories: there is no category %q", name),
				Next: "Expected some of " + strings.Join(slices.Sorted(maps.Keys(known)), ", ") + ".",
			}
		}
		if wanted[name] = true; !in.Extended {
			all = slices.Concat(probe.Standard, probe.Extended) // one that is named need not be enabled
		}
	}
	for _, p := range all {
		if len(wanted) == 0 || wanted[p.Category] {
			selected = append(selected, p)
		}
	}
	return selected, nil
}

func gradeProbes(selected []probe.Probe, replies []reply) probeOut {
	out := probeOut{Total: len(selected), Categories: []categoryOut{}}
	var took time.Duration
	tokens := 0
	for i, p := range selected {
		r := replies[i]
		one := probeOneOut{ID: p.ID, Category: p.Category, Response: clip(r.res.Text, 4000)}
		if r.err != nil {
			one.Response = "error: " + r.err.Error()
		} else {
			one.Passed = p.Passed(r.res.Text)
			one.Millis, one.Tokens = r.res.Took.Milliseconds(), r.res.Usage.Out
			out.Backend, out.Model = r.res.Backend, r.res.Model
			took, tokens = took+r.res.Took, tokens+r.res.Usage.Out
		}
		at := slices.IndexFunc(out.Categories, func(c categoryOut) bool { return c.Category == p.Category })
		if at < 0 {
			at = len(out.Categories)
			out.Categories = append(out.Categories, categoryOut{Category: p.Category})
		}
		out.Categories[at].Total++
		if one.Passed {
			out.Passed++
			out.Categories[at].Passed++
		} else {
			one.Expected = p.Answer
		}
		out.Results = append(out.Results, one)
	}
	out.Rate = round(float64(out.Passed) / float64(max(out.Total, 1)))
	low, high := score.Wilson(out.Passed, out.Total)
	out.Low, out.High = round(low), round(high)
	if tokens > 0 && took > 0 {
		out.Millis = round(float64(took.Milliseconds()) / float64(tokens))
	}
	return out
}

// recordProbes stores the results as metrics.
func (s *service) recordProbes(ctx context.Context, c *tool.Call, out probeOut) error {
	if s.cfg.Record == nil {
		return nil
	}
	var events []metrics.Event
	for _, r := range out.Results {
		value := 0.0
		if r.Passed {
			value = 1
		}
		events = append(events, metrics.Event{
			Type: "ml.probe", Value: &value,
			Labels: map[string]string{
				"model": clip(out.Model, metrics.MaxName-3), "backend": out.Backend, "category": r.Category, "id": r.ID,
			},
		})
	}
	return s.cfg.Record(ctx, c.Caller.Context, events...)
}
