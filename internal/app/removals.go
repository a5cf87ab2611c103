package app

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/identity"
)

// lateEnd is after how long a host looks a second time for what belongs to a
// removed user: calls that ran when its sessions ended may have made something.
const lateEnd = time.Second

// removals are users who were removed, until what belonged to them has ended.
type removals struct {
	mu      sync.Mutex
	waiting []identity.Removal
	wake    chan struct{} // holds a token while some wait
}

// followRemovals ends, while this host runs, what belongs to users who are
// removed, and at its start what those left who were removed before.
func (a *App) followRemovals(context.Context) error {
	r := &removals{wake: make(chan struct{}, 1)}
	a.room(Part{"removed users", func(ctx context.Context) error {
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
	}})
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

// endRemoved ends what belongs to removed users. Those who were removed before
// this host began are owners only of what is older than the removal, because a
// user of the operating system of that name is the same owner.
func (a *App) endRemoved(ctx context.Context, all []identity.Removal, began time.Time) {
	until := map[string]time.Time{} // by owner: what was made before then ends
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
	ended := a.endOwned(ctx, until)
	if len(now) > 0 {
		select {
		case <-time.After(lateEnd):
		case <-ctx.Done():
		}
		for owner, more := range a.endOwned(ctx, until) {
			ended[owner] = append(ended[owner], more...)
		}
	}
	for _, r := range all {
		if lines := ended[r.Owner]; len(lines) > 0 {
			a.tell("auth.owned_ended", struct {
				Principal string
				Ended     []string
			}{r.Name, lines})
		}
	}
	for _, r := range now {
		if err := a.who.Ended(ctx, r, ended[r.Owner]); err != nil && ctx.Err() == nil {
			a.log.Warn("cannot report what was ended of a removed user", "user", r.Name, "err", err)
		}
	}
}

// endOwned ends what belongs to owners and was made before a time of each, and
// tells what it ended, by owner.
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

// endMatching ends everything for which match holds; see module.Owned. Jobs are
// first, so that they start nothing more.
func (a *App) endMatching(ctx context.Context, match func(owner string, made time.Time) bool) []string {
	jobs, err := a.jobs.EndOwned(match)
	if err != nil {
		a.log.Error("jobs of a removed user go on", "err", err)
	}
	return slices.Concat(jobs, a.host.EndOwned(ctx, match), a.spool.EndOwned(match))
}

// ownerID is the owner without its context: a user's name, or the id of one whose
// name was another user's before.
func ownerID(owner string) string { return owner[:max(strings.LastIndexByte(owner, '/'), 0)] }
