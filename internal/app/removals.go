package app

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/access/identity"
	"gatehouse/internal/state"
	"gatehouse/module"
)

// lateEnd is the delay before a host looks a second time for what belongs to a removed user, because calls that
// ran when its sessions ended may have created something.
const lateEnd = time.Second

// removals holds the removed users until what belonged to them has ended.
type removals struct {
	mu      sync.Mutex
	waiting []identity.Removal
	wake    chan struct{} // holds a token while some wait
}

// followRemovals ends what belongs to users who are removed while this host runs and, at its start, what earlier
// removed users have left.
func (a *App) followRemovals(context.Context) error {
	r := &removals{wake: make(chan struct{}, 1)}
	a.addPart("removed users", func(ctx context.Context) error {
		before := time.Now() // this host was built
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-r.wake:
			}
			r.mu.Lock()
			all := r.waiting
			r.waiting = nil
			r.mu.Unlock()
			a.endRemoved(ctx, all, before)
		}
	})
	return a.who.OnRemoved(func(all []identity.Removal) {
		r.mu.Lock()
		r.waiting = append(r.waiting, all...)
		r.mu.Unlock()
		select {
		case r.wake <- struct{}{}:
		default:
		}
	})
}

// endRemoved ends what belongs to removed users. Users who were removed before this host began own only what is
// older than the removal, because a later user of the operating system of that name is the same owner.
func (a *App) endRemoved(ctx context.Context, all []identity.Removal, began time.Time) {
	until := map[string]time.Time{} // by owner: what was created before then ends
	var now []identity.Removal
	for _, r := range all {
		if until[r.Owner] = r.At; !r.At.Before(began) {
			until[r.Owner] = time.Now().Add(lateEnd)
			now = append(now, r)
		}
	}
	for _, r := range now {
		if err := a.who.Noticed(ctx, r); err != nil {
			a.log.Warn("cannot report what is ended of a removed user", "user", r.Name, "err", err)
		}
	}
	handed := a.handOver(ctx, all, until, true)
	ended := a.endOwned(ctx, until)
	if len(now) > 0 {
		select {
		case <-time.After(lateEnd):
		case <-ctx.Done():
		}
		for number, more := range a.handOver(ctx, now, until, false) {
			handed[number] = append(handed[number], more...)
		}
		for owner, more := range a.endOwned(ctx, until) {
			ended[owner] = append(ended[owner], more...)
		}
	}
	for _, r := range all {
		if lines := handed[r.Number]; len(lines) > 0 {
			a.publish("auth.owned_handed_over", struct {
				Principal, Heir string
				Handed          []string
			}{r.Name, r.Heir, lines})
		}
		if lines := ended[r.Owner]; len(lines) > 0 {
			a.publish("auth.owned_ended", struct {
				Principal string
				Ended     []string
			}{r.Name, lines})
		}
	}
	for _, r := range now {
		if err := a.who.Ended(ctx, r, handed[r.Number], ended[r.Owner]); err != nil && ctx.Err() == nil {
			a.log.Warn("cannot report what was ended of a removed user", "user", r.Name, "err", err)
		}
	}
}

// handOver gives what belongs to removed users to their heirs, in the order of the removals, and returns what it
// gave, by removal. It leaves what was in a context that the heir may not use, because the heir could not reach
// it, and everything of a removal whose heir was removed since. The records of ended jobs are included if records
// is true, which it is before jobs are ended.
func (a *App) handOver(
	ctx context.Context, all []identity.Removal, until map[string]time.Time, records bool,
) map[int64][]string {
	handed := map[int64][]string{}
	for _, r := range all {
		if r.Heir == "" {
			continue
		}
		p, ok, err := a.who.HeirOf(ctx, r)
		if err != nil {
			a.log.Error("what belongs to a removed user is not handed over", "user", r.Name, "err", err)
		}
		if err != nil || !ok {
			continue
		}
		open := map[string]bool{}
		for _, s := range a.views.Open(p.Caller()) {
			open[s.Name] = true
		}
		heir := func(owner string, made time.Time) string {
			in := owner[strings.LastIndexByte(owner, '/')+1:]
			if ownerID(owner) != r.Owner || !made.Before(until[r.Owner]) || !open[in] {
				return ""
			}
			return r.Heir + "/" + in
		}
		var jobs []string
		if records {
			if jobs, err = a.jobs.HandOver(heir); err != nil {
				a.log.Error("jobs of a removed user are not handed over", "user", r.Name, "err", err)
			}
			a.tree.handJobsOver(heir)
		}
		handed[r.Number] = slices.Concat(jobs, a.host.HandOver(ctx, heir), a.spool.HandOver(heir))
	}
	return handed
}

// handJobsOver shows ended jobs to their new owner, if heir names one.
func (l *liveTree) handJobsOver(heir module.Heir) {
	if _, err := l.jobs.Update(context.Background(), state.Any, func(all *map[string]jobState) error {
		for id, j := range *all {
			if to := heir(j.Owner, j.Started); to != "" && j.Status != "working" {
				j.Owner = to
				(*all)[id] = j
			}
		}
		return nil
	}); err != nil {
		l.app.log.Warn("jobs of a removed user are not shown to the new owner", "err", err)
	}
}

// endOwned ends what belongs to owners and was created before each owner's time, and returns what it ended, by
// owner.
func (a *App) endOwned(ctx context.Context, until map[string]time.Time) map[string][]string {
	found := map[string]bool{}
	a.endMatching(ctx, func(owner string, made time.Time) bool { // of many removed users, few have left anything
		of := ownerID(owner)
		if before, removed := until[of]; removed && made.Before(before) {
			found[of] = true
		}
		return false
	})
	ended := map[string][]string{}
	for of := range found {
		ended[of] = a.endMatching(ctx, func(owner string, made time.Time) bool {
			return ownerID(owner) == of && made.Before(until[of])
		})
	}
	return ended
}

// endMatching ends everything that match accepts; see module.Owned. Jobs end first, because they could start more.
func (a *App) endMatching(ctx context.Context, match func(owner string, made time.Time) bool) []string {
	jobs, err := a.jobs.EndOwned(match)
	if err != nil {
		a.log.Error("jobs of a removed user keep running", "err", err)
	}
	return slices.Concat(jobs, a.host.EndOwned(ctx, match), a.spool.EndOwned(match))
}

// ownerID returns the owner without its context: a user's name, or the id of a user whose name belonged to another
// user before.
func ownerID(owner string) string { return owner[:max(strings.LastIndexByte(owner, '/'), 0)] }
