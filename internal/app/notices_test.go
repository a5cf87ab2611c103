package app

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/access/approvals"
	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/modules/publicstate"
)

func (c *tenant) unread() any {
	v, _ := c.readPublic("default", publicstate.PublicURI+"/serverInfo/unreadNotificationCount")
	return v
}

func TestWhatHappensBecomesANotification(t *testing.T) {
	cfg := ruled(t, "notification", "server")
	a, client := liveOn(t, cfg, Options{})
	admin, eve := client("ann", "admin"), client("eve")
	if n := eve.unread(); n != 0.0 {
		t.Fatalf("%v are unread at first", n)
	}
	a.bus.Publish(
		bus.Event{
			Subject: "module.backup.notification",
			At:      time.Now(),
			Data: json.RawMessage(
				`{"title":"Backup failed","level":"error","packageId":"host","code":"backup.failed"}`,
			),
		},
	)
	eventually(t, "the first arrived", func() bool { return eve.unread() == 1.0 })
	if _, err := a.approvals.Ask("bob/default", "file_delete", "rule 1", approvals.Caller{}, json.RawMessage(`{}`),
		func(approvals.Request) {}); err != nil {
		t.Fatal(err)
	}
	if err := a.who.AddUser(t.Context(), "carol", nil, ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all arrived", func() bool { return eve.unread() == 3.0 })
	got := fmt.Sprint(admin.result("notification_list", `{}`))
	expect(
		t,
		got,
		"title:Backup failed",
		"packageId:backup",
		"level:error",
		"title:file_delete waits for an operator's approval",
		"title:A user was added: carol",
	)
	// When a caller receives the answer, the tree contains the change.
	if admin.result("notification_mark_seen_before", `{"before":100}`); eve.unread() != 0.0 {
		t.Errorf("%v are unread after all were seen", eve.unread())
	}
	if got := fmt.Sprint(eve.result("notification_list", `{}`)); !strings.Contains(got, "denied") {
		t.Errorf("eve reads %s", got)
	}
	// Another host of the same data folder has the notifications and receives updates.
	b, other := liveOn(t, cfg, Options{})
	root := other("root", "admin")
	if got := fmt.Sprint(root.result("notification_list", `{}`)); strings.Count(got, "seen:true") != 3 {
		t.Errorf("the other host has %s", got)
	}
	root.result("notification_mark_unseen", `{"ids":[1]}`)
	eventually(t, "both count one", func() bool {
		first, _, _ := a.tree.info.Get()
		second, _, _ := b.tree.info.Get()
		return first.Unread == 1 && second.Unread == 1
	})
}

// A change made by a command becomes a notification of the running hosts.
func TestWhatACommandChangesBecomesANotification(t *testing.T) {
	cfg := ruled(t, "notification", "server")
	fact := func(kind string) bus.Event {
		return bus.Event{Subject: "auth." + kind, At: time.Now(), Data: json.RawMessage(`{"Principal":"dora"}`)}
	}
	if err := Notify(t.Context(), cfg.Folders, fact("user_added")); err != nil {
		t.Fatal(err)
	}
	_, client := liveOn(t, cfg, Options{})
	admin := client("ann", "admin")
	if n := admin.unread(); n != 0.0 {
		t.Errorf("%v are unread on a host that was never started before", n)
	}
	if err := Notify(t.Context(), cfg.Folders, fact("user_added"), fact("token_created"), fact("token_revoked"),
		fact("login")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "three arrived", func() bool { return admin.unread() == 3.0 })
	got := fmt.Sprint(admin.result("notification_list", `{}`))
	expect(t, got, "A user was added: dora", "A token was created for dora", "A token was revoked for dora")
}
