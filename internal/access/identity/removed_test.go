package identity

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/module"
	"gatehouse/tool"
)

// things is what owners have, by owner.
type things struct {
	mu  sync.Mutex
	all map[string]time.Time
}

func (h *things) handOver(_ context.Context, heir module.Heir) (lines []string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for owner, made := range h.all {
		if to := heir(owner, made); to != "" {
			delete(h.all, owner)
			h.all[to] = made
			lines = append(lines, owner)
		}
	}
	return lines, nil
}

func (h *things) end(_ context.Context, match func(string, time.Time) bool) (lines []string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for owner, made := range h.all {
		if match(owner, made) {
			delete(h.all, owner)
			lines = append(lines, owner)
		}
	}
	return lines, nil
}

func (h *things) owners() (all []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for owner := range h.all {
		all = append(all, owner)
	}
	slices.Sort(all)
	return all
}

// What a removed user has in a context that its heir may use goes to the heir. The rest ends, and nothing of another
// user changes.
func TestRemovalsHandOverOrEndWhatIsOwned(t *testing.T) {
	s := newTestService(t, Options{})
	for _, name := range []string{"ann", "eve"} {
		if err := s.AddUser(t.Context(), name, nil, ""); err != nil {
			t.Fatal(err)
		}
	}
	const ann, bob, eve = "ann", "bob", "eve" // users are their own owners
	now := time.Now().Add(-time.Hour)         // before the removal, whatever the resolution of its time
	held := &things{all: map[string]time.Time{
		ann + "/shared": now, ann + "/closed": now, eve + "/shared": now, bob + "/closed": now,
	}}
	var mu sync.Mutex
	var subjects []string
	r := &Removals{
		Users: s, Log: s.log,
		Holdings: []Holding{{Name: "things", HandOver: held.handOver, EndOwned: held.end}},
		Open:     func(who tool.Caller) []string { return []string{"shared"} },
		Publish: func(subject string, _ any) {
			mu.Lock()
			subjects = append(subjects, subject)
			mu.Unlock()
		},
	}
	if err := r.Follow(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	if err := s.RemoveUserFor(t.Context(), "ann", "bob"); err != nil {
		t.Fatal(err)
	}
	if err := s.followRemovals(); err != nil {
		t.Fatal(err)
	}
	want := []string{bob + "/closed", bob + "/shared", eve + "/shared"}
	slices.Sort(want)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		mu.Lock()
		done := strings.Join(subjects, " ") == "auth.owned_handed_over auth.owned_ended"
		mu.Unlock()
		if done && slices.Equal(held.owners(), want) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("there is %v, want %v; published %v", held.owners(), want, subjects)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
