package metrics

import (
	"context"
	"errors"
	"time"

	"gatehouse/internal/telemetry/metrics"
	"gatehouse/tool"
)

const seriesHelp = `Sums of all calls of this host by the minute, hour or day, kept for 90 days.

- by is tool, principal, package or total; name selects one of them.
- since and until are ages, such as 7d, 12h or 30m; step is 1m, 1h or 1d. At most 5000 points are returned.
- The 50 names with the most calls are returned; more is the number of the others. Of each kind 500 names are counted
  apart, the others as "other". Minutes are kept for fewer days if there are more than a million of them.
- Latencies are in milliseconds and exact to a fifth. tokens is an estimate: a quarter of the bytes.`

type seriesIn struct {
	By    string `json:"by,omitempty" doc:"what the calls are summed by" enum:"tool,principal,package,total" default:"total"`
	Name  string `json:"name,omitempty" doc:"only this tool, principal or package" max:"200"`
	Since string `json:"since,omitempty" doc:"age of the oldest sum" default:"1h"`
	Until string `json:"until,omitempty" doc:"age of the newest sum; default: now"`
	Step  string `json:"step,omitempty" doc:"width of a sum" enum:"1m,1h,1d" default:"1m"`
}

type seriesOut struct {
	Series []usageSeries `json:"series" doc:"most calls first"`
	More   int           `json:"more,omitempty" doc:"names that were left out"`
}

type usageSeries struct {
	Name   string       `json:"name"`
	Calls  int64        `json:"calls"`
	Points []usagePoint `json:"points" doc:"oldest first; points without calls are left out"`
}

type usagePoint struct {
	At     time.Time `json:"at" doc:"its beginning"`
	Calls  int64     `json:"calls"`
	Errors int64     `json:"errors" doc:"calls that failed or were refused"`
	Mean   float64   `json:"mean"`
	P50    float64   `json:"p50"`
	P95    float64   `json:"p95"`
	P99    float64   `json:"p99"`
	In     int64     `json:"bytesIn" doc:"of arguments"`
	Out    int64     `json:"bytesOut" doc:"of results"`
	Tokens int64     `json:"tokens"`
}

func (m *measures) series(ctx context.Context, c *tool.Call, in seriesIn) (out seriesOut, err error) {
	if err := m.rules.Check(c, "see the usage of all callers"); err != nil {
		return out, err
	}
	if m.usage == nil {
		return out, tool.Refuse(tool.CodeUnsupported, "this host records no usage")
	}
	now := time.Now()
	q := metrics.UsageQuery{Kind: in.By, Name: in.Name}
	since, err := parseSpan("since", in.Since)
	if err != nil {
		return out, err
	}
	q.Since = now.Add(-since)
	if in.Until != "" {
		until, err := parseSpan("until", in.Until)
		if err != nil {
			return out, err
		}
		q.Until = now.Add(-until)
	}
	if q.Step, err = parseSpan("step", in.Step); err != nil {
		return out, err
	}
	all, more, err := m.usage.Series(ctx, q)
	if bad, ok := errors.AsType[*metrics.Invalid](err); ok {
		return out, &tool.Refusal{Code: tool.CodeInvalidArguments, Message: bad.Error()}
	}
	out.More = more
	for _, s := range all {
		one := usageSeries{Name: s.Name, Calls: s.Calls}
		for _, p := range s.Points {
			one.Points = append(one.Points, usagePoint{
				p.At, p.Calls, p.Failed, p.Mean, p.P50, p.P95, p.P99, p.In, p.Out, p.Tokens,
			})
		}
		out.Series = append(out.Series, one)
	}
	return out, err
}
