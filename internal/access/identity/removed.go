package identity

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"gatehouse/module"
	"gatehouse/tool"
)

// lateEnd is the delay before a host looks a second time for what belongs to a removed user, because calls that
// ran when its sessions ended may have created something.
const lateEnd = time.Second

// Holding is a part of the host that holds what belongs to owners. An owner is a principal, "/" and a context.
type Holding struct {
	Name string // in the log
	// HandOver gives what heir names an owner for to that owner, and returns a line for each thing.
	HandOver func(ctx context.Context, heir module.Heir) ([]string, error)
	// EndOwned ends what match accepts and returns a line for each thing; see module.Owned.
	EndOwned func(ctx context.Context, match func(owner string, made time.Time) bool) ([]string, error)
	// First means that HandOver is called only before anything is ended, because ended things are handed over too.
	First bool
}

// Removals ends what belongs to users who are removed, or hands it over to their heirs. Its fields must not be
// changed after Follow.
type Removals struct {
	Users    *Service
	Holdings []Holding // in the order in which they end what they hold
	// Open returns the names of the contexts that a caller may use.
	Open func(tool.Caller) []string
	// Publish publishes an event; its data is encoded as JSON.
	Publish func(subject string, data any)
	Log     *slog.Logger

	mu      sync.Mutex
	waiting []Removal
	wake    chan struct{} // holds a token while some wait
}

// Follow collects the removals in the file of users, at once, and later ones within a second.
func (r *Removals) Follow() error {
	r.wake = make(chan struct{}, 1)
	return r.Users.OnRemoved(func(all []Removal) {
		r.mu.Lock()
		r.waiting = append(r.waiting, all...)
		r.mu.Unlock()
		select {
		case r.wake <- struct{}{}:
		default:
		}
	})
}

// Run handles the collected removals until ctx is done. Follow must have been called.
func (r *Removals) Run(ctx context.Context) error {
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
		r.endRemoved(ctx, all, before)
	}
}

// endRemoved ends what belongs to removed users. Users who were removed before this host began own only what is
// older than the removal, because a later user of the operating system of that name is the same owner.
func (r *Removals) endRemoved(ctx context.Context, all []Removal, began time.Time) {
	until := map[string]time.Time{} // by owner: what was created before then ends
	var now []Removal
	for _, one := range all {
		if until[one.Owner] = one.At; !one.At.Before(began) {
			until[one.Owner] = time.Now().Add(lateEnd)
			now = append(now, one)
		}
	}
	for _, one := range now {
		if err := r.Users.Noticed(ctx, one); err != nil {
			r.Log.Warn("cannot report what is ended of a removed user", "user", one.Name, "err", err)
		}
	}
	handed := r.handOver(ctx, all, until, true)
	ended := r.endOwned(ctx, until)
	if len(now) > 0 {
		select {
		case <-time.After(lateEnd):
		case <-ctx.Done():
		}
		for number, more := range r.handOver(ctx, now, until, false) {
			handed[number] = append(handed[number], more...)
		}
		for owner, more := range r.endOwned(ctx, until) {
			ended[owner] = append(ended[owner], more...)
		}
	}
	r.publishRemovals(all, handed, ended)
	for _, one := range now {
		if err := r.Users.Ended(ctx, one, handed[one.Number], ended[one.Owner]); err != nil && ctx.Err() == nil {
			r.Log.Warn("cannot report what was ended of a removed user", "user", one.Name, "err", err)
		}
	}
}

func (r *Removals) publishRemovals(all []Removal, handed map[int64][]string, ended map[string][]string) {
	for _, one := range all {
		if lines := handed[one.Number]; len(lines) > 0 {
			r.Publish("auth.owned_handed_over", struct {
				Principal, Heir string
				Handed          []string
			}{one.Name, one.Heir, lines})
		}
		if lines := ended[one.Owner]; len(lines) > 0 {
			r.Publish("auth.owned_ended", struct {
				Principal string
				Ended     []string
			}{one.Name, lines})
		}
	}
}

// handOver gives what belongs to removed users to their heirs, in the order of the removals, and returns what it
// gave, by removal. It leaves what was in a context that the heir may not use, because the heir could not reach
// it, and everything of a removal whose heir was removed since. first is true before anything is ended.
func (r *Removals) handOver(
	ctx context.Context, all []Removal, until map[string]time.Time, first bool,
) map[int64][]string {
	handed := map[int64][]string{}
	for _, one := range all {
		if one.Heir == "" {
			continue
		}
		p, ok, err := r.Users.HeirOf(ctx, one)
		if err != nil {
			r.Log.Error("what belongs to a removed user is not handed over", "user", one.Name, "err", err)
		}
		if err != nil || !ok {
			continue
		}
		open := map[string]bool{}
		for _, name := range r.Open(p.Caller()) {
			open[name] = true
		}
		heir := func(owner string, made time.Time) string {
			in := owner[strings.LastIndexByte(owner, '/')+1:]
			if principalOf(owner) != one.Owner || !made.Before(until[one.Owner]) || !open[in] {
				return ""
			}
			return one.Heir + "/" + in
		}
		for _, h := range r.Holdings {
			if h.First && !first {
				continue
			}
			lines, err := h.HandOver(ctx, heir)
			if err != nil {
				r.Log.Error("what belongs to a removed user is not handed over", "of", h.Name, "user", one.Name, "err",
					err)
			}
			handed[one.Number] = append(handed[one.Number], lines...)
		}
	}
	return handed
}

// endOwned ends what belongs to owners and was created before each owner's time, and returns what it ended, by
// owner.
func (r *Removals) endOwned(ctx context.Context, until map[string]time.Time) map[string][]string {
	found := map[string]bool{}
	r.endMatching(ctx, func(owner string, made time.Time) bool { // of many removed users, few have left anything
		of := principalOf(owner)
		if before, removed := until[of]; removed && made.Before(before) {
			found[of] = true
		}
		return false
	})
	ended := map[string][]string{}
	for of := range found {
		ended[of] = r.endMatching(ctx, func(owner string, made time.Time) bool {
			return principalOf(owner) == of && made.Before(until[of])
		})
	}
	return ended
}

// endMatching ends everything that match accepts, and returns a line for each thing.
func (r *Removals) endMatching(ctx context.Context, match func(owner string, made time.Time) bool) (all []string) {
	for _, h := range r.Holdings {
		lines, err := h.EndOwned(ctx, match)
		if err != nil {
			r.Log.Error("what belongs to a removed user goes on", "of", h.Name, "err", err)
		}
		all = append(all, lines...)
	}
	return all
}

// principalOf returns the owner without its context: a user's name, or the id of a user whose name belonged to
// another user before.
func principalOf(owner string) string { return owner[:max(strings.LastIndexByte(owner, '/'), 0)] }
