// Package metrics is the module with which agents record measurements and query
// their sums.
package metrics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"gatehouse/internal/access/operator"
	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/telemetry/metrics"
	"gatehouse/module"
	"gatehouse/tool"
)

// Config is what the module is given.
type Config struct {
	// Store has the events. The module does not close it; nil means a store in
	// memory.
	Store *metrics.Store `json:"-"`
	// Usage has the sums of the host's calls, for administrators. The module does not close it; nil means that
	// there are none.
	Usage *metrics.Usage `json:"-"`
	Rules operator.Func  `json:"-"` // decides who is an administrator; nil means no caller
}

type measures struct {
	store *metrics.Store
	own   bool // the store is closed with the module
	usage *metrics.Usage
	rules operator.Func
	offer module.Offer
	admin module.Offer // in the administration context
}

// New returns what makes the module with a configuration.
func New(cfg Config) module.New {
	return func(_ context.Context, d module.Deps) (module.Module, error) {
		m := &measures{store: cfg.Store, usage: cfg.Usage, rules: cfg.Rules}
		if m.store == nil {
			m.store, m.own = metrics.Open("", metrics.Options{}), true
		}
		m.offer.Tools = []tool.Tool{
			tool.New(tool.Def{
				Name: "metrics_record", Title: "Record a metric", Effects: tool.Writes,
				Description: "Records an event, optionally with a measured value.",
				Help:        recordHelp,
			}, m.record),
			tool.New(tool.Def{
				Name: "metrics_query", Title: "Query metrics", Effects: tool.Reads,
				Description: "Adds up recorded events: totals, by type, repository and agent, over time, and the " +
					"last events.",
				Help: queryHelp,
			}, m.query),
		}
		m.offer.Personal, m.admin.Personal = true, true
		m.admin.Tools = append(slices.Clone(m.offer.Tools), tool.New(tool.Def{
			Name: "metrics_series", Title: "Show usage over time", Effects: tool.Reads, Task: tool.TaskNever,
			Budget: -1,
			Description: "Returns the calls of this host over time for each tool, principal or package: number, errors, " +
				"latencies, bytes and tokens.",
			Help: seriesHelp,
		}, m.series))
		return m, nil
	}
}

// Offer implements module.Module. What concerns the whole host is offered in the administration context alone, and
// to a reader of all offers.
func (m *measures) Offer(_ context.Context, to module.Audience) (*module.Offer, error) {
	if to == (module.Audience{}) || to.Context == contextstore.Admin {
		return &m.admin, nil
	}
	return &m.offer, nil
}

// Close implements module.Module.
func (m *measures) Close(context.Context) error {
	if m.own {
		return m.store.Close()
	}
	return nil
}

const recordHelp = `Records one event. When it returns, the event is on disk, unless warning says otherwise.

- type names the event, such as build.finished; value is an optional measurement.
- agent_id and repo are the agent and the repository; labels are further keys to group by; data is stored and returned.
- All callers of your context can see it; callers of other contexts cannot.
- Single events and sums by the hour are kept for 90 days, sums by the day for 900 days.`

const queryHelp = `Adds up the events of your context.

- since is a number with d, h or m: 7d, 12h, 30m. type may be a pattern: build.*
- group_by is type, repo, agent_id, or a label: then groups has count, sum, avg, min and max of each.
- step, such as 1h or 1d, adds steps, the sums over time, at most 500; steps without events are omitted.
- events are the 10 newest. A list has at most 100 entries, largest first; more is the number of omitted ones.
- The host records its calls as type call.TOOL, or call.TOOL.failed, with milliseconds as value.`

type recordIn struct {
	Type   string            `json:"type" doc:"name of the event" min:"1" max:"200"`
	Agent  string            `json:"agent_id,omitempty" doc:"the agent" max:"200"`
	Repo   string            `json:"repo,omitempty" doc:"the repository" max:"200"`
	Value  *float64          `json:"value,omitempty" doc:"the measurement"`
	Labels map[string]string `json:"labels,omitempty" doc:"names and values to group by"`
	Data   json.RawMessage   `json:"data,omitempty" doc:"anything else, at most 8 kB"`
}

type recordOut struct {
	Success   bool   `json:"success"`
	Timestamp string `json:"timestamp"`
	Warning   string `json:"warning,omitempty"`
}

func (m *measures) record(ctx context.Context, c *tool.Call, in recordIn) (recordOut, error) {
	e := metrics.Event{
		At:     time.Now(),
		Type:   in.Type,
		Agent:  in.Agent,
		Repo:   in.Repo,
		Value:  in.Value,
		Labels: in.Labels,
		Data:   in.Data,
	}
	folded, err := m.store.Record(ctx, c.Caller.Context, e)
	if bad, ok := errors.AsType[*metrics.Invalid](err); ok {
		return recordOut{}, &tool.Refusal{Code: tool.CodeInvalidArguments, Message: bad.Error()}
	}
	if err != nil {
		return recordOut{}, err
	}
	out := recordOut{Success: true, Timestamp: e.At.UTC().Format(time.RFC3339Nano)}
	switch {
	case !m.store.Durable():
		out.Warning = "this host has no data folder; the event is lost when the host stops"
	case folded:
		out.Warning = fmt.Sprintf("there are already %d combinations of type, repo and agent_id; this event was "+
			"counted as %q", metrics.MaxSeries, metrics.Other)
	}
	return out, nil
}

// parseSpan parses a time such as 7d, 12h or 30m.
func parseSpan(name, text string) (time.Duration, error) {
	units := map[string]time.Duration{"d": 24 * time.Hour, "h": time.Hour, "m": time.Minute, "s": time.Second}
	if n := len(text) - 1; n > 0 {
		count, err := strconv.Atoi(strings.TrimPrefix(text[:n], "+"))
		if unit := units[text[n:]]; err == nil && count > 0 && unit > 0 && count <= int(100*365*24*time.Hour/unit) {
			return time.Duration(count) * unit, nil
		}
	}
	return 0, &tool.Refusal{
		Code:    tool.CodeInvalidArguments,
		Message: fmt.Sprintf("%s is %q; expected a number with a unit", name, text),
		Next:    "Give a number with d, h, m or s, such as 7d.",
	}
}
