package app

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/access/audit"
	"gatehouse/internal/config"
	"gatehouse/internal/dispatch"
	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/modules/administration"
	metricsmodule "gatehouse/internal/modules/metrics"
	"gatehouse/internal/telemetry/metrics"
	"gatehouse/tool"
)

// metricsModule is in the administration context as well as where the settings name it.
const metricsModule = "metrics"

// addAdministration adds the modules with which administrators manage this host.
func (a *App) addAdministration(ctx context.Context) error {
	if !a.opts.OneCall {
		a.addPart("what waits", a.tree.showWaiting)
	}
	c := administration.Config{
		Rules: a.rules, Users: a.who, Approvals: a.approvals, Alerts: a.alerts, Ledger: a.ledger, Tasks: a.stage, Settings: a.opts.Editor,
		Doctor: a.opts.Doctor, CheckContext: a.checkContext,
		Changed: func(subject, name, by string) {
			a.publish(subject, struct {
				Name string `json:"name"`
				By   string `json:"by"`
			}{name, by})
		},
	}
	if !a.opts.Private && a.cfg.Folders.Config != "" {
		c.Secrets = a.secretStore()
	}
	for _, m := range administration.Modules(c) {
		if err := a.host.AddFor(ctx, contextstore.Admin, m.Name, m.New); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(a.enabled, func(g enabledModule) bool { return g.Name == metricsModule }) {
		return nil
	}
	deps := metricsmodule.Config{Store: a.openMetrics(), Usage: a.usage, Rules: a.rules}
	return a.host.AddFor(ctx, contextstore.Admin, metricsModule, metricsmodule.New(deps))
}

// openUsage opens the sums of the calls of this host. A private host records none.
func (a *App) openUsage(context.Context) error {
	if a.opts.Private {
		return nil
	}
	a.usage = metrics.OpenUsage(filepath.Join(a.cfg.Folders.State, "usage.db"),
		metrics.UsageOptions{PackageOf: a.packageOf})
	a.closing("usage", func(context.Context) error { return a.usage.Close() })
	a.addPart("measured usage", func(ctx context.Context) error {
		a.usage.Run(ctx, func(err error) { a.log.Warn("usage could not be recorded", "err", err) })
		return nil
	})
	return nil
}

// measure counts a call of a tool.
func (a *App) measure() func(dispatch.Measured) {
	if a.usage == nil {
		return nil
	}
	return func(m dispatch.Measured) {
		a.usage.Count(metrics.Call{
			Tool: m.Tool, Principal: m.Principal, Took: m.Took, Failed: m.Failed, In: m.In, Out: m.Out,
		})
	}
}

// packageOf returns the package that offers a tool, "" if none does.
func (a *App) packageOf(name string) string {
	if a.manager == nil {
		return ""
	}
	for _, t := range a.manager.Tools() {
		if t.Name == name {
			return t.Package
		}
	}
	return ""
}

// checkContext returns an error if no context of this host has a name.
func (a *App) checkContext(name string) error {
	var names []string
	for _, s := range a.contexts.Definitions() {
		names = append(names, s.Name)
	}
	for _, r := range a.contextStore.Current().Records {
		names = append(names, r.Name)
	}
	if name == contextstore.Admin || slices.Contains(names, name) {
		return nil
	}
	return fmt.Errorf("there is no context %q; expected one of %s", name, strings.Join(names, ", "))
}

// SettingsInForce returns the settings that the host uses now.
func (a *App) SettingsInForce() config.Config {
	a.settings.mu.Lock()
	defer a.settings.mu.Unlock()
	return a.settings.now
}

// waitingState is a call that waits for an operator, without its arguments.
type waitingState struct {
	Tool    string    `json:"tool"`
	Owner   string    `json:"owner"`
	Rule    string    `json:"rule"`
	Created time.Time `json:"created"`
	Until   time.Time `json:"until"`
}

// seesNothing hides what only administrators may see, who see everything.
func seesNothing(tool.Caller) func(string, any) bool { return func(string, any) bool { return false } }

// waitingInterval is the time between two looks for approvals and lines of the ledger, which other processes make
// too.
const waitingInterval = time.Second

// showWaiting keeps what waits for an operator, and the number of the newest line of the ledger, in the tree.
func (l *liveTree) showWaiting(ctx context.Context) error {
	tick := time.NewTicker(waitingInterval)
	defer tick.Stop()
	known, last := map[string]waitingState{}, int64(0)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if list, err := l.app.approvals.Pending(false); err == nil {
			now := map[string]waitingState{}
			for _, r := range list {
				now[r.ID] = waitingState{r.Tool, r.Owner, r.Rule, r.Created, r.Until}
			}
			if !maps.Equal(now, known) {
				if _, err := l.waiting.Set(ctx, now); err == nil {
					known = now
				}
			}
		}
		if l.app.ledger == nil {
			continue
		}
		seq, err := l.app.ledger.Last(ctx)
		if err != nil || seq == last {
			continue
		}
		if !l.app.onlyLooks(ctx, last) {
			if _, err := l.ledger.Set(ctx, map[string]int64{"last": seq}); err != nil {
				continue
			}
		}
		last = seq
	}
}

// mostLooks is how many lines of the ledger are read to find out whether they are worth showing.
const mostLooks = 100

// looking are the tools that pages call again by themselves when the ledger or the approvals change.
var looking = []string{"alert_list", "approval_list", "audit_query", "metrics_series"}

// onlyLooks reports whether all lines of the ledger after a number are about reading the ledger, the approvals, the
// alerts and the tree. Two pages that follow the ledger would otherwise have each other read it forever.
func (a *App) onlyLooks(ctx context.Context, after int64) bool {
	n := 0
	for line, err := range a.ledger.Query(ctx, audit.Filter{After: after}) {
		looks := slices.Contains(looking, line.Tool) || strings.HasPrefix(line.Tool, "gatehouse:///public") ||
			strings.HasPrefix(line.Kind, "session.")
		if n++; err != nil || n > mostLooks || !looks {
			return false
		}
	}
	return true
}
