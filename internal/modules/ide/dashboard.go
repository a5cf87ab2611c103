package ide

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"gatehouse/tool"
)

const (
	maxState   = 256 << 10 // bytes of the state of one owner
	mostBuilds = 100       // builds that a summary looks at
)

// callTool calls another tool of the caller's view, and decodes its result. found is false if the view does not have it.
func (m *bridge) callTool(ctx context.Context, c *tool.Call, name string, args, into any) error {
	if m.deps.Call == nil {
		return tool.Refuse(tool.CodeUnavailable, "%s can be called in a host alone", name)
	}
	b, err := json.Marshal(args)
	if err != nil {
		return err
	}
	res, err := m.deps.Call(ctx, c, name, b)
	if err != nil {
		return &tool.Refusal{
			Code:    tool.CodeUnavailable,
			Message: fmt.Sprintf("%s, which has the answer, cannot be called: %v", name, err),
			Next:    "Ask an administrator to serve its module too.",
		}
	}
	if res.IsError {
		var words []string
		for _, block := range res.Content {
			words = append(words, block.Text)
		}
		code, message, _ := strings.Cut(strings.Join(words, "\n"), ": ")
		message, next, _ := strings.Cut(message, "\n")
		return &tool.Refusal{Code: tool.Code(code), Message: message, Next: next}
	}
	raw, err := json.Marshal(res.Structured)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, into)
}

// buildOut is a build, as build_list has it.
type buildOut struct {
	ID        string    `json:"id"`
	Repo      string    `json:"repo"`
	Branch    string    `json:"branch,omitempty"`
	Status    string    `json:"status"`
	Duration  float64   `json:"duration" doc:"seconds"`
	StartedAt time.Time `json:"startedAt"`
	Errors    int       `json:"errors"`
}

type buildIn struct {
	BuildID string `json:"buildId" min:"1" max:"200"`
}

type buildStatusOut struct {
	Build  buildOut `json:"build"`
	Source string   `json:"source"`
}

type buildsIn struct {
	Repo  string `json:"repo,omitempty" max:"500"`
	Limit int    `json:"limit,omitempty" default:"20" min:"1" max:"100"`
}

type buildsOut struct {
	Builds []buildOut `json:"builds"`
	Source string     `json:"source,omitempty"`
}

type logsIn struct {
	BuildID string `json:"buildId" min:"1" max:"200"`
	Tail    int    `json:"tail,omitempty" default:"200" min:"1" max:"2000"`
}

type logsOut struct {
	BuildID string   `json:"buildId"`
	Lines   []string `json:"lines"`
	Source  string   `json:"source"`
}

// buildTools are the tools of builds with the fields of the original; the module build has the builds.
func (m *bridge) buildTools() []tool.Tool {
	return []tool.Tool{
		tool.New(tool.Def{
			Name: "ide_build_status", Title: "Show a build", Effects: tool.Reads,
			Description: "Returns the state of a build of the module build.",
		}, func(ctx context.Context, c *tool.Call, in buildIn) (out buildStatusOut, err error) {
			out.Source = fromHost
			return out, m.callTool(ctx, c, "build_status", map[string]string{"id": in.BuildID}, &out.Build)
		}),
		tool.New(tool.Def{
			Name: "ide_build_list", Title: "List builds", Effects: tool.Reads,
			Description: "Lists your builds, the newest first.",
		}, func(ctx context.Context, c *tool.Call, in buildsIn) (out buildsOut, err error) {
			err = m.callTool(ctx, c, "build_list", in, &out)
			out.Source = fromHost
			return out, err
		}),
		tool.New(tool.Def{
			Name: "ide_build_logs", Title: "Read the end of a build's output", Effects: tool.Reads,
			Description: "Returns the last lines of the output of a build.",
		}, func(ctx context.Context, c *tool.Call, in logsIn) (out logsOut, err error) {
			var log struct{ Text string }
			err = m.callTool(ctx, c, "build_logs", map[string]any{"id": in.BuildID, "tail": in.Tail}, &log)
			out = logsOut{BuildID: in.BuildID, Source: fromHost}
			for line := range strings.Lines(log.Text) {
				out.Lines = append(out.Lines, strings.TrimSuffix(line, "\n"))
			}
			return out, err
		}),
	}
}

type overview struct {
	Repos          int  `json:"repos" doc:"that were built"`
	Services       int  `json:"services" doc:"running processes of the module process"`
	ActiveSessions int  `json:"activeSessions"`
	RecentBuilds   int  `json:"recentBuilds" doc:"of the last 24 hours"`
	BridgeOnline   bool `json:"bridgeOnline" doc:"an agent runs"`
}

type overviewOut struct {
	Overview overview `json:"overview"`
	Source   string   `json:"source"`
	Missing  []string `json:"missing,omitempty" doc:"tools that could not be called, so that their numbers are 0"`
}

type activityIn struct {
	Limit int `json:"limit,omitempty" default:"20" min:"1" max:"100"`
}

type activity struct {
	Type      string    `json:"type"`
	Message   string    `json:"message"`
	Timestamp time.Time `json:"timestamp"`
}

type activityOut struct {
	Events  []activity `json:"events"`
	Source  string     `json:"source"`
	Missing []string   `json:"missing,omitempty"`
}

type metricsIn struct {
	Period string `json:"period,omitempty" default:"24h" enum:"1h,24h,7d"`
}

type metrics struct {
	BuildsTotal   int     `json:"buildsTotal"`
	BuildsSuccess int     `json:"buildsSuccess"`
	BuildsFailed  int     `json:"buildsFailed"`
	AvgBuildTime  float64 `json:"avgBuildTime" doc:"seconds"`
	AgentSessions int     `json:"agentSessions"`
	MessagesTotal int     `json:"messagesTotal"`
	SuccessRate   float64 `json:"successRate" doc:"0 to 1"`
	Calls         int64   `json:"calls" doc:"of tools"`
}

type metricsOut struct {
	Period  string   `json:"period"`
	Metrics metrics  `json:"metrics"`
	Source  string   `json:"source"`
	Missing []string `json:"missing,omitempty"`
}

func (m *bridge) dashboardTools() []tool.Tool {
	return []tool.Tool{
		tool.New(tool.Def{
			Name: "ide_dashboard_overview", Title: "Show an overview", Effects: tool.Reads,
			Description: "Counts your built projects, running processes, sessions with agents and builds.",
		}, m.overview),
		tool.New(tool.Def{
			Name: "ide_dashboard_activity", Title: "Show what happened", Effects: tool.Reads,
			Description: "Lists your latest builds and sessions with agents, the newest first.",
		}, m.activity),
		tool.New(tool.Def{
			Name: "ide_dashboard_metrics", Title: "Show numbers of a period", Effects: tool.Reads,
			Description: "Sums your builds, sessions, messages and calls of tools over a period.",
		}, m.metrics),
		tool.New(tool.Def{
			Name: "ide_dashboard_state", Title: "Read the state of a dashboard", Effects: tool.Reads,
			Description: "Returns the values that you stored with ide_dashboard_update.",
		}, m.dashboardState),
		tool.New(tool.Def{
			Name: "ide_dashboard_update", Title: "Change the state of a dashboard",
			Effects:     tool.Writes | tool.Idempotent,
			Description: "Stores values by their names; null removes one.",
		}, m.dashboardUpdate),
	}
}

// builds returns the caller's latest builds. missing names the tool if it cannot be called.
func (m *bridge) builds(ctx context.Context, c *tool.Call) (all []buildOut, missing []string) {
	var out buildsOut
	if m.callTool(ctx, c, "build_list", map[string]int{"limit": mostBuilds}, &out) != nil {
		return nil, []string{"build_list"}
	}
	return out.Builds, nil
}

func (m *bridge) overview(ctx context.Context, c *tool.Call, _ struct{}) (out overviewOut, err error) {
	all, missing := m.builds(ctx, c)
	repos := map[string]bool{}
	for _, b := range all {
		repos[b.Repo] = true
		if time.Since(b.StartedAt) < 24*time.Hour {
			out.Overview.RecentBuilds++
		}
	}
	var processes struct{ Processes []json.RawMessage }
	if m.callTool(ctx, c, "process_list", map[string]bool{"running_only": true}, &processes) != nil {
		missing = append(missing, "process_list")
	}
	n := m.running(c.Caller.Owner)
	out.Overview.Repos, out.Overview.Services = len(repos), len(processes.Processes)
	out.Overview.ActiveSessions, out.Overview.BridgeOnline = n, n > 0
	out.Source, out.Missing = fromHost, missing
	return out, nil
}

func (m *bridge) activity(ctx context.Context, c *tool.Call, in activityIn) (out activityOut, err error) {
	all, missing := m.builds(ctx, c)
	for _, b := range all {
		out.Events = append(out.Events, activity{"build." + b.Status, "build of " + b.Repo, b.StartedAt})
	}
	sessions, err := m.store.sessions(ctx, c.Caller.Owner)
	if err != nil {
		return out, err
	}
	for _, s := range sessions {
		out.Events = append(out.Events, activity{"session.created", s.Name + " with " + s.Agent, s.Created})
	}
	slices.SortStableFunc(out.Events, func(a, b activity) int { return b.Timestamp.Compare(a.Timestamp) })
	out.Events = out.Events[:min(in.Limit, len(out.Events))]
	out.Source, out.Missing = fromHost, missing
	return out, nil
}

func (m *bridge) metrics(ctx context.Context, c *tool.Call, in metricsIn) (out metricsOut, err error) {
	since := time.Now().
		Add(-map[string]time.Duration{"1h": time.Hour, "24h": 24 * time.Hour, "7d": 168 * time.Hour}[in.Period])
	all, missing := m.builds(ctx, c)
	x := &out.Metrics
	seconds := 0.0
	for _, b := range all {
		if b.StartedAt.Before(since) || b.Status == "running" {
			continue
		}
		x.BuildsTotal++
		seconds += b.Duration
		switch b.Status {
		case "success":
			x.BuildsSuccess++
		case "failed":
			x.BuildsFailed++
		}
	}
	if x.BuildsTotal > 0 {
		x.AvgBuildTime = seconds / float64(x.BuildsTotal)
		x.SuccessRate = float64(x.BuildsSuccess) / float64(x.BuildsTotal)
	}
	sessions, err := m.store.sessions(ctx, c.Caller.Owner)
	if err != nil {
		return out, err
	}
	for _, s := range sessions {
		if s.Created.After(since) {
			x.AgentSessions++
		}
	}
	if x.MessagesTotal, err = m.store.count(ctx, c.Caller.Owner, since); err != nil {
		return out, err
	}
	var calls struct{ Total int64 }
	if m.callTool(ctx, c, "metrics_query", map[string]string{"since": in.Period, "type": "call.*"}, &calls) != nil {
		missing = append(missing, "metrics_query")
	}
	x.Calls = calls.Total
	out.Period, out.Source, out.Missing = in.Period, fromHost, missing
	return out, nil
}

type stateOut struct {
	State     map[string]any `json:"state"`
	UpdatedAt *time.Time     `json:"updatedAt,omitempty"`
}

func (m *bridge) dashboardState(ctx context.Context, c *tool.Call, _ struct{}) (out stateOut, err error) {
	out.State = map[string]any{}
	if !m.store.file.Exists() {
		return out, nil
	}
	var last int64
	err = m.store.query(ctx, func(rows *sql.Rows) error {
		var name, value string
		var at int64
		if err := rows.Scan(&name, &value, &at); err != nil {
			return err
		}
		last = max(last, at)
		var v any
		err := json.Unmarshal([]byte(value), &v)
		out.State[name] = v
		return err
	}, `SELECT name, value, at FROM dashboard WHERE owner = ?`, c.Caller.Owner)
	if last > 0 {
		at := time.Unix(0, last).UTC()
		out.UpdatedAt = &at
	}
	return out, err
}

type updateIn struct {
	State map[string]any `json:"state" doc:"values by name"`
}

func (m *bridge) dashboardUpdate(ctx context.Context, c *tool.Call, in updateIn) (out stateOut, err error) {
	now, err := m.dashboardState(ctx, c, struct{}{})
	if err != nil {
		return out, err
	}
	for name, v := range in.State {
		if now.State[name] = v; v == nil {
			delete(now.State, name)
		}
	}
	if b, err := json.Marshal(now.State); err != nil || len(b) > maxState {
		return out, tool.Refuse(tool.CodeTooLarge, "the state would have more than %d bytes", maxState)
	}
	db, err := m.store.file.DB()
	if err != nil {
		return out, err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return out, err
	}
	defer tx.Rollback()
	for name, v := range in.State {
		b, err := json.Marshal(v)
		if err != nil {
			return out, err
		}
		if v == nil {
			_, err = tx.ExecContext(ctx, `DELETE FROM dashboard WHERE owner = ? AND name = ?`, c.Caller.Owner, name)
		} else {
			_, err = tx.ExecContext(ctx, `INSERT INTO dashboard VALUES (?, ?, ?, ?) ON CONFLICT (owner, name)
				DO UPDATE SET value = excluded.value, at = excluded.at`, c.Caller.Owner, name, string(b), time.Now().UnixNano())
		}
		if err != nil {
			return out, err
		}
	}
	if err := tx.Commit(); err != nil {
		return out, err
	}
	return m.dashboardState(ctx, c, struct{}{})
}
