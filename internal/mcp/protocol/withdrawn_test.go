package protocol_test

import (
	"strings"
	"testing"
	"time"

	"gatehouse/internal/access/permit"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/tests/hosttest"
)

// rules returns the rules of a host whose default context is open and refuses some resources.
func rules(t *testing.T, refused ...string) views.Rules {
	t.Helper()
	o := permit.Options{Default: permit.Allow}
	if len(refused) > 0 {
		o.Rules = []permit.Rule{{Methods: []string{"resources/read"}, Names: refused, Then: permit.Refuse}}
	}
	p, err := permit.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return views.Rules{Policy: p, Specs: []views.Spec{{Name: "default"}}}
}

// A client that may no longer read a resource is no longer notified of it, in either era, also for
// earlier subscriptions.
func TestSubscriptionsEndWithThePermission(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		l, m := h.dial(t), h.dial(t)
		l.hello("2025-11-25", "{}")
		l.ask("resources/subscribe", `"uri":"test://plain"`)
		l.ask("resources/subscribe", `"uri":"test://ask"`)
		m.listen(`"resourceSubscriptions":["test://plain","test://ask"]`)
		h.Views.Set(rules(t, "test://plain"))
		h.Engine.Changed()
		time.Sleep(time.Second)
		l.rest()
		m.rest()
		h.touch("test://plain")
		time.Sleep(time.Second)
		l.quiet()
		m.quiet()
		h.touch("test://ask")
		time.Sleep(time.Second)
		equal(t, "the session hears of what it may read", len(l.rest()), 1)
		equal(t, "so does the subscription", len(m.rest()), 1)

		// A client that may read it again is notified at once, and of every later change.
		h.Views.Set(rules(t))
		h.Engine.Changed()
		time.Sleep(time.Second)
		has(t, strings.Join(l.rest(), "\n"), `"notifications/resources/updated"`, `"uri":"test://plain"`)
		has(t, strings.Join(m.rest(), "\n"), `"notifications/resources/updated"`, `"uri":"test://plain"`)
		h.touch("test://plain")
		time.Sleep(time.Second)
		equal(t, "the session hears of it", len(l.rest()), 1)
		equal(t, "so does the subscription", len(m.rest()), 1)
		l.ask("resources/unsubscribe", `"uri":"test://plain"`)
		h.touch("test://plain")
		time.Sleep(time.Second)
		l.quiet()
		equal(t, "the subscription hears on", len(m.rest()), 1)
	})
}

// A client in a context that is removed is notified that everything has changed, then finds the context
// missing, and gets no more notifications. If the context is added again, they resume.
func TestAContextThatGoes(t *testing.T) {
	visit(t, hosttest.Options{}, func(t *testing.T, h *testHost) {
		l, m := h.dial(t), h.dial(t)
		l.hello("2025-11-25", "{}")
		l.ask("resources/subscribe", `"uri":"test://plain"`)
		l.rest()
		id := m.listen(`"toolsListChanged":true,"resourceSubscriptions":["test://plain"]`)
		was := rules(t)
		away := was
		away.Specs, away.Default = []views.Spec{{Name: "other"}}, "other"
		h.Views.Set(away)
		h.Engine.Changed()
		time.Sleep(time.Second)
		told := strings.Join(l.rest(), "\n")
		for _, list := range []string{"tools", "prompts", "resources"} {
			equal(t, list, strings.Count(told, `"notifications/`+list+`/list_changed"`), 1)
		}
		ended := m.rest()
		equal(t, "the subscription ends", len(ended), 1)
		has(t, ended[0], `"id":`+id, `"resultType":"complete"`)
		for _, method := range []string{"tools/list", "prompts/list", "resources/list", "resources/templates/list"} {
			equal(t, method, l.ask(method, "").Error.Message, "Context not found")
		}
		h.touch("test://plain")
		h.Engine.Changed()
		time.Sleep(time.Second)
		l.quiet()
		m.quiet()

		h.Views.Set(was)
		h.Engine.Changed()
		time.Sleep(time.Second)
		told = strings.Join(l.rest(), "\n")
		has(t, told, `"notifications/tools/list_changed"`, `"notifications/resources/updated"`, `"uri":"test://plain"`)
		h.touch("test://plain")
		time.Sleep(time.Second)
		equal(t, "the session hears of the resource again", len(l.rest()), 1)
		equal(t, "watches", h.watchers(), 1)
	})
}
