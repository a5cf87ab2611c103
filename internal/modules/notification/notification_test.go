package notification

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"gatehouse/internal/dispatch/notify"
	"gatehouse/internal/state"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

// person calls the tools of one store.
type person struct {
	t     *testing.T
	store *Store
	role  string
}

func newPerson(t *testing.T, unread func(int)) person {
	t.Helper()
	m, err := state.Attach[Stored](t.Context(), state.New(state.Options{}), "/private/notifications", state.Live)
	if err != nil {
		t.Fatal(err)
	}
	return person{t, NewStore(m, unread), "admin"}
}

// call gives a result, or the text of a refusal.
func (p person) call(name, args string, into any) string {
	p.t.Helper()
	deps := moduletest.NewHost(p.t).Deps()
	cfg := Config{Store: p.store, Rules: func(who tool.Caller) bool { return slices.Contains(who.Roles, "admin") }}
	m, err := New(cfg)(p.t.Context(), deps)
	if err != nil {
		p.t.Fatal(err)
	}
	defer m.Close(context.Background())
	c := moduletest.NewCall(p.t, args)
	c.Caller.Roles = []string{p.role}
	return c.Ask(p.t, m, name, into)
}

func (p person) tell(titles ...string) {
	p.t.Helper()
	for _, title := range titles {
		if _, err := p.store.Add(p.t.Context(), notify.Notification{Title: title}); err != nil {
			p.t.Fatal(err)
		}
	}
}

// listed is the ids and marks of a list, newest first.
func (p person) listed(args string) string {
	p.t.Helper()
	var out listOut
	if bad := p.call("notification_list", args, &out); bad != "" {
		return bad
	}
	all := []string{}
	for _, n := range out.Notifications {
		mark := ""
		if n.Seen {
			mark = "*"
		}
		all = append(all, fmt.Sprint(n.ID, mark))
	}
	return fmt.Sprint(strings.Join(all, " "), ", ", out.Unread, " unread")
}

func TestTheModuleKeepsTheContract(t *testing.T) {
	moduletest.Run(t, New(Config{}), moduletest.Options{})
}

func TestNotificationsAreReadMarkedAndRemoved(t *testing.T) {
	var unread []int
	p := newPerson(t, func(n int) { unread = append(unread, n) })
	p.tell("a", "b", "c", "d", "e")
	for _, step := range []struct{ tool, args, want, then string }{
		{"notification_list", `{}`, "", "5 4 3 2 1, 5 unread"},
		{"notification_mark_seen", `{"ids":[2,4]}`, "{2 3}", "5 4* 3 2* 1, 3 unread"},
		{"notification_mark_seen", `{"ids":[4,5]}`, "{1 2}", "5* 4* 3 2* 1, 2 unread"},
		{"notification_mark_seen", `{"ids":[3,99]}`, "not_found: there is no notification 99; none was marked",
			"5* 4* 3 2* 1, 2 unread"},
		{"notification_mark_unseen", `{"ids":[5]}`, "{1 3}", "5 4* 3 2* 1, 3 unread"},
		{"notification_mark_unseen", `{"ids":[-1]}`, "not_found: there is no notification -1; none was marked",
			"5 4* 3 2* 1, 3 unread"},
		{"notification_mark_seen_before", `{"before":3}`, "{1 2}", "5 4* 3 2* 1*, 2 unread"},
		{"notification_remove", `{"ids":[1,77]}`, "{1 2}", "5 4* 3 2*, 2 unread"},
		{"notification_remove_before", `{"before":4}`, "{2 1}", "5 4*, 1 unread"},
		{"notification_remove_before", `{"before":4}`, "{0 1}", "5 4*, 1 unread"},
	} {
		var out changedOut
		got := p.call(step.tool, step.args, &out)
		if got == "" && step.want != "" {
			got = fmt.Sprint(out)
		}
		if got, _, _ = strings.Cut(got, "\n"); got != step.want {
			t.Errorf("%s %s: %s, want %s", step.tool, step.args, got, step.want)
		}
		if got := p.listed(`{}`); got != step.then {
			t.Errorf("after %s %s: %s, want %s", step.tool, step.args, got, step.then)
		}
	}
	if p.tell("f"); p.listed(`{}`) != "6 5 4*, 2 unread" {
		t.Errorf("an id was given twice: %s", p.listed(`{}`))
	}
	if want := []int{1, 2, 3, 4, 5, 3, 2, 3, 2, 2, 1, 1, 2}; !slices.Equal(unread, want) {
		t.Errorf("told %v, want %v", unread, want)
	}
}

func TestListsArePaged(t *testing.T) {
	p := newPerson(t, nil)
	for range 50 {
		p.tell("x")
	}
	p.call("notification_mark_seen", `{"ids":[49]}`, nil)
	for args, want := range map[string]string{
		`{"limit":3}`:               "50 49* 48, 49 unread",
		`{"limit":2,"before":48}`:   "47 46, 49 unread",
		`{"before":3}`:              "2 1, 49 unread",
		`{"before":1}`:              ", 49 unread",
		`{"unseen":true,"limit":2}`: "50 48, 49 unread",
	} {
		if got := p.listed(args); got != want {
			t.Errorf("%s: %s, want %s", args, got, want)
		}
	}
	if got := p.listed(`{}`); strings.Count(got, " ") != 41 { // 40 and what is unread
		t.Errorf("without a limit: %s", got)
	}
}

//redteam:attack Matters of the whole host are for administrators: an ordinary user reads the host's notifications
func TestNotificationsAreForThoseWhoRule(t *testing.T) {
	p := newPerson(t, nil)
	p.tell("secret")
	p.role = "writer"
	for name, args := range map[string]string{
		"notification_list": `{}`, "notification_remove": `{"ids":[1]}`, "notification_remove_before": `{"before":9}`,
		"notification_mark_seen": `{"ids":[1]}`, "notification_mark_unseen": `{"ids":[1]}`,
		"notification_mark_seen_before": `{"before":9}`,
	} {
		if got := p.call(name, args, nil); !strings.HasPrefix(got, "denied: ") {
			t.Errorf("%s: %q", name, got)
		}
	}
	if p.role = "admin"; p.listed(`{}`) != "1, 1 unread" {
		t.Error("something was changed")
	}
}

func TestNewsAreBroughtIntoForm(t *testing.T) {
	p := newPerson(t, nil)
	for name, bad := range map[string]notify.Notification{"no title": {}, "blank": {Title: " \n"},
		"no such level": {Title: "x", Level: "fatal"}} {
		if _, err := p.store.Add(t.Context(), bad); err == nil {
			t.Errorf("%s was kept", name)
		}
	}
	n, err := p.store.Add(t.Context(), notify.Notification{
		Title: strings.Repeat("ä", 500), Message: "\xff" + strings.Repeat("y", 9000),
		Data: json.RawMessage(`"` + strings.Repeat("z", maxData) + `"`), Level: notify.Error,
	})
	if err != nil || len(n.Title) > maxTitle || len(n.Message) > maxMessage || n.Data != nil || n.Code != "news" {
		t.Errorf(
			"%v: title %d, message %d, data %d bytes, code %s", err, len(n.Title), len(n.Message), len(n.Data), n.Code,
		)
	}
	if n, err = p.store.Add(t.Context(),
		notify.Notification{Title: "x", Data: json.RawMessage(`{"big":12345678901234567890}`)}); err != nil ||
		string(n.Data) != `{"big":12345678901234567890}` {
		t.Errorf("%v %s", err, n.Data)
	}
	if n, err = p.store.Add(t.Context(), notify.Notification{Title: "x", Data: json.RawMessage(`{`)}); err != nil ||
		n.Data != nil {
		t.Errorf("%v %s", err, n.Data)
	}
}

func TestWhatWasToldSince(t *testing.T) {
	p := newPerson(t, nil)
	if n, err := p.store.Newest(); n != 0 || err != nil {
		t.Errorf("the newest of none is %d, %v", n, err)
	}
	p.tell("a", "b", "c", "d")
	p.call("notification_remove", `{"ids":[3,4]}`, nil)
	since, err := p.store.Since(1)
	if n, _ := p.store.Newest(); err != nil || n != 4 || len(since) != 1 || since[0].Title != "b" {
		t.Errorf("the newest is %d, since the first %+v, %v", n, since, err)
	}
}

func TestWhatIsToldOnceIsNotToldTwice(t *testing.T) {
	p := newPerson(t, nil)
	for _, id := range []int64{1, 0} {
		if n, err := p.store.Add(t.Context(), notify.Notification{Title: "x", Once: "approval 1"}); err != nil ||
			n.ID != id {
			t.Errorf("%+v, %v; want id %d", n, err, id)
		}
	}
	p.call("notification_remove", `{"ids":[1]}`, nil)
	if n, err := p.store.Add(t.Context(), notify.Notification{Title: "x", Once: "approval 1"}); err != nil ||
		n.ID != 2 {
		t.Errorf("after the first was removed: %+v, %v", n, err)
	}
}

// A store from which no notification is removed keeps the newest.
func TestTheOldestGo(t *testing.T) {
	p := newPerson(t, nil)
	if _, err := p.store.mount.Set(t.Context(), Stored{Last: maxNotes, Notes: func() map[string]Note {
		all := map[string]Note{}
		for id := range int64(maxNotes) {
			all[key(id+1)] = Note{ID: id + 1, Notification: notify.Notification{Title: "old", Level: notify.Info}}
		}
		return all
	}()}); err != nil {
		t.Fatal(err)
	}
	p.tell("one more")
	all, _, err := p.store.all()
	if err != nil || len(all) != maxNotes || all[0].ID != maxNotes+1 || all[maxNotes-1].ID != 2 {
		t.Errorf("%d are kept, %d to %d, %v", len(all), all[0].ID, all[len(all)-1].ID, err)
	}
}

// Two hosts of one folder of data share a store: none overwrites what the
// other has told, and both start again with all of it.
func TestHostsShareAShelf(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state.db")
	host := func() *Store {
		log, err := state.OpenFile(file, state.FileOptions{})
		if err != nil {
			t.Fatal(err)
		}
		tree := state.New(state.Options{Log: log})
		t.Cleanup(func() { tree.Close(); log.Close() })
		m, err := state.Attach[Stored](t.Context(), tree, "/private/notifications", state.Durable)
		if err != nil {
			t.Fatal(err)
		}
		return NewStore(m, nil)
	}
	var all sync.WaitGroup
	for _, s := range []*Store{host(), host()} {
		all.Go(func() {
			for range 10 {
				if _, err := s.Add(t.Context(), notify.Notification{Title: "x"}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	notes, unread, err := host().all()
	if err != nil || len(notes) != 20 || unread != 20 || notes[0].ID != 20 {
		t.Errorf("%d notifications, %d unread, %v", len(notes), unread, err)
	}
}
