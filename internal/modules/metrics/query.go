package metrics

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"time"

	"gatehouse/internal/telemetry/metrics"
	"gatehouse/tool"
)

// callPrefix is the prefix of the types that the host itself records: calls of
// tools. A query returns them only if its type asks for them.
const callPrefix = "call."

// maxEntries is the number of entries in a list of a result.
const maxEntries = 100

type queryIn struct {
	Since string `json:"since,omitempty" doc:"age of the oldest events: 7d, 12h, 30m" default:"7d"`
	Type  string `json:"type,omitempty" doc:"a type or a pattern of types; default: all except call.*, the calls of this host" max:"200"`
	Group string `json:"group_by,omitempty" doc:"type, repo, agent_id or a label" max:"200"`
	Step  string `json:"step,omitempty" doc:"interval of sums over time: 1h, 1d"`
}

type queryOut struct {
	Total   int64   `json:"total"`
	ByType  []entry `json:"by_type"`
	ByRepo  []entry `json:"by_repo"`
	ByAgent []entry `json:"by_agent"`
	Groups  []group `json:"groups,omitempty"`
	Steps   []step  `json:"steps,omitempty"`
	Events  []event `json:"events"`
	More    int     `json:"more,omitempty"`
}

type entry struct {
	Key   string `json:"key"`
	Count int64  `json:"count"`
}

// values are missing if no event had a value.
type values struct {
	Sum *float64 `json:"sum,omitempty"`
	Avg *float64 `json:"avg,omitempty"`
	Min *float64 `json:"min,omitempty"`
	Max *float64 `json:"max,omitempty"`
}

type group struct {
	Key   string `json:"key"`
	Count int64  `json:"count"`
	values
}

type step struct {
	At    string `json:"at"`
	Key   string `json:"key,omitempty"`
	Count int64  `json:"count"`
	values
}

type event struct {
	Type      string            `json:"type"`
	Timestamp string            `json:"timestamp"`
	Agent     string            `json:"agent_id,omitempty"`
	Repo      string            `json:"repo,omitempty"`
	Value     *float64          `json:"value,omitempty"`
	Count     int64             `json:"count,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Data      json.RawMessage   `json:"data,omitempty" doc:"any JSON"`
}

func (m *measures) query(ctx context.Context, c *tool.Call, in queryIn) (queryOut, error) {
	since, err := parseSpan("since", in.Since)
	if err != nil {
		return queryOut{}, err
	}
	q := metrics.Query{Scope: c.Caller.Context, Since: time.Now().Add(-since), Type: in.Type, Group: in.Group, Last: 10}
	if in.Type == "" {
		q.Not = callPrefix
	}
	if in.Step != "" {
		if q.Step, err = parseSpan("step", in.Step); err != nil {
			return queryOut{}, err
		}
	}
	a, err := m.store.Query(ctx, q)
	if bad, ok := errors.AsType[*metrics.Invalid](err); ok {
		return queryOut{}, &tool.Refusal{Code: tool.CodeInvalidArguments, Message: bad.Error()}
	}
	if err != nil {
		return queryOut{}, err
	}
	return newQueryOut(a), nil
}

func newQueryOut(a metrics.Answer) queryOut {
	out := queryOut{Total: a.Count, Events: []event{}}
	out.ByType, out.ByRepo, out.ByAgent = out.entries(a.Types), out.entries(a.Repos), out.entries(a.Agents)
	for _, n := range first(&out, a.Groups, maxEntries) {
		out.Groups = append(out.Groups, group{n.Name, n.Count, valuesOf(n.Sum)})
	}
	for _, s := range first(&out, a.Steps, 2*metrics.MaxSteps) {
		out.Steps = append(out.Steps, step{s.At.Format(time.RFC3339), s.Group, s.Count, valuesOf(s.Sum)})
	}
	for _, e := range a.Events {
		shown := event{
			Type:      e.Type,
			Timestamp: e.At.Format(time.RFC3339Nano),
			Agent:     e.Agent,
			Repo:      e.Repo,
			Value:     e.Value,
			Labels:    e.Labels,
			Data:      e.Data,
		}
		if e.Count > 1 {
			shown.Count = e.Count
		}
		out.Events = append(out.Events, shown)
	}
	return out
}

func (o *queryOut) entries(all []metrics.Named) []entry {
	out := []entry{}
	for _, n := range first(o, all, maxEntries) {
		out = append(out, entry{n.Name, n.Count})
	}
	return out
}

// first returns the first n elements of a list, and adds the number of the others
// to o.More.
func first[T any](o *queryOut, all []T, n int) []T {
	n = min(n, len(all))
	o.More += len(all) - n
	return all[:n]
}

func valuesOf(s metrics.Sum) values {
	if s.Valued == 0 {
		return values{}
	}
	avg := s.Sum / float64(cmp.Or(s.Valued, 1))
	return values{&s.Sum, &avg, &s.Min, &s.Max}
}
