package notifier

import (
	"encoding/json"
	"testing"
	"time"

	"gatehouse/internal/dispatch/bus"
	"gatehouse/internal/dispatch/notify"
)

func TestNotificationsOfEvents(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct{ subject, data, want string }{
		{"auth.login_limited", `{"Kind":"login_limited","Principal":"bob","From":"10.0.0.1"}`,
			"warning: Too many attempts to log in as bob. It came from 10.0.0.1."},
		{"auth.login", `{"Principal":"bob"}`, ""},
		{"auth.login_failed", `{"Principal":"bob"}`, ""},
		{"auth.password_changed", `{"Principal":"bob"}`, "info: The password was changed for bob"},
		{"auth.user_added", `{`, ""},
		{"config.changed", `{"live":["rules"],"restart":null}`, ""},
		{"config.changed", `{"restart":["listen.tcp"]}`,
			"warning: Some settings need a restart. They were changed while the host runs and apply after a " +
				"restart: listen.tcp"},
		{"module.x.notification", `{"title":"hello","packageId":"y"}`, ": hello from x"},
		{"module.x.notification", `[]`, ""},
	} {
		note, ok := Of(bus.Event{Subject: c.subject, At: at, Data: json.RawMessage(c.data)})
		got := ""
		if ok {
			got = string(note.Level) + ": " + note.Title
			if note.Message != "" {
				got += ". " + note.Message
			}
			if note.PackageID != "" {
				got += " from " + note.PackageID
			}
		}
		if got != c.want {
			t.Errorf("%s %s is %q, want %q", c.subject, c.data, got, c.want)
		}
	}
	var first, second notify.Notification
	first, _ = Of(bus.Event{Subject: "auth.login_limited", At: at, Data: json.RawMessage(`{"Principal":"bob"}`)})
	second, _ = Of(
		bus.Event{Subject: "auth.login_limited", At: at.Add(time.Minute), Data: json.RawMessage(`{"Principal":"bob"}`)},
	)
	if first.Once == "" || first.Once != second.Once {
		t.Errorf("many attempts are notified many times: %q and %q", first.Once, second.Once)
	}
}
