package app

import (
	"context"
	"time"

	"gatehouse/internal/access/identity"
	"gatehouse/module"
	"gatehouse/tool"
)

// followRemovals ends what belongs to users who are removed while this host runs and, at its start, what earlier
// removed users have left. Jobs end first, because they could start more.
func (a *App) followRemovals(context.Context) error {
	r := &identity.Removals{Users: a.who, Publish: a.publish, Log: a.log, Open: a.openContextNames}
	type match = func(owner string, made time.Time) bool
	r.Holdings = []identity.Holding{
		{
			Name: "jobs", First: true,
			HandOver: func(_ context.Context, heir module.Heir) ([]string, error) {
				lines, err := a.jobs.HandOver(heir)
				a.tree.handJobsOver(heir)
				return lines, err
			},
			EndOwned: func(_ context.Context, m match) ([]string, error) { return a.jobs.EndOwned(m) },
		},
		{
			Name: "modules",
			HandOver: func(ctx context.Context,
				heir module.Heir) ([]string, error) {
				return a.host.HandOver(ctx, heir), nil
			},
			EndOwned: func(ctx context.Context, m match) ([]string, error) { return a.host.EndOwned(ctx, m), nil },
		},
		{
			Name: "long output",
			HandOver: func(_ context.Context,
				heir module.Heir) ([]string, error) {
				return a.spool.HandOver(heir), nil
			},
			EndOwned: func(_ context.Context, m match) ([]string, error) { return a.spool.EndOwned(m), nil },
		},
	}
	a.addPart("removed users", r.Run)
	return r.Follow()
}

// openContextNames returns the names of the contexts that a caller may use.
func (a *App) openContextNames(who tool.Caller) (names []string) {
	for _, s := range a.views.Open(who) {
		names = append(names, s.Name)
	}
	return names
}

// handJobsOver shows ended jobs to their new owner, if heir names one.
func (l *liveTree) handJobsOver(heir module.Heir) {
	l.changeJobs(func(all map[string]jobState) {
		for id, j := range all {
			if to := heir(j.Owner, j.Started); to != "" && j.Status != "working" {
				j.Owner = to
				all[id] = j
			}
		}
	})
}
