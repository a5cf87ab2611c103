package webtest

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/config"
	"gatehouse/internal/tests/chromium"
)

// pushed replaces what Chromium gets from a push service of its vendor, which a test has not: the subscription.
const pushed = `PushManager.prototype.subscribe = async function (o) {
	window.asked = { visible: o.userVisibleOnly, bytes: o.applicationServerKey.length };
	return { toJSON: () => ({ endpoint: "https://127.0.0.1:9/push/1", keys: {
		p256dh: "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4", auth: "BTBZMqHH6r4Tts7J_aSIgg" } }) };
};`

// counting makes a service worker count the notifications that are displayed. The list of notifications is not asked for
// before: with it Chromium forgets those that it has kept but not yet displayed.
const counting = `self.displayed = 0;
{ const show = ServiceWorkerRegistration.prototype.showNotification;
  ServiceWorkerRegistration.prototype.showNotification = async function (...a) { await show.apply(this, a); displayed++; }; } 0`

// A call waits: a webhook gets a link and nothing else, and leads to the page with the call. An administrator
// subscribes the browser, whose service worker shows what arrives and nothing that it says of itself. A push service
// at an address that is not public is not reached.
func TestAPersonIsAlerted(t *testing.T) {
	told := make(chan string, 8)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		told <- string(b)
	}))
	defer hook.Close()
	cfg := settings(t)
	cfg.Auth.Required = true
	cfg.Approvals.Webhook = hook.URL + "/secret"
	cfg.Rules = []config.Rule{{Names: []string{"file_write"}, Then: "ask-operator"}}
	h := start(t, cfg)
	h.people()
	b := chromium.New(t)
	p := h.blank(b)
	p.Do("Browser.grantPermissions", map[string]any{"origin": h.url, "permissions": []string{"notifications"}})
	p.Do("Page.addScriptToEvaluateOnNewDocument", map[string]any{"source": pushed})
	p.Open(h.url + "/#/approvals")
	logIn(p, "ann")
	got := play(p, `await story.press("Alert this browser"); await story.text("127.0.0.1:9");
		return JSON.stringify(window.asked)`)
	if got != `{"visible":true,"bytes":65}` {
		t.Errorf("the browser is asked for %v", got)
	}
	play(p, `await story.press("Try"); await story.text("this address is not public")`)
	heard(t, told)

	h.call(h.token(), "/mcp", "file_write", `{"path":"plan.txt","content":"a secret plan"}`)
	said := heard(t, told)
	link, ok := strings.CutPrefix(said, `{"link":"`+h.url)
	link, _, _ = strings.Cut(link, `"`)
	if !ok || !strings.HasPrefix(link, "/#/approvals/ap_") || strings.Contains(said, "plan") ||
		strings.Contains(said, "file_write") {
		t.Fatalf("the webhook is told %s", said)
	}
	shown := play(p, `location.hash = "`+strings.TrimPrefix(link, "/")+`"; await story.text("a secret plan");
		const r = await navigator.serviceWorker.getRegistration("/ui/push/");
		await story.until("an active worker", () => r.active);
		return [new URL(r.scope).pathname, r.active.scriptURL.includes("/push.js?title=A%20call") || r.active.scriptURL.includes("/push.js?title=A+call")].join()`)
	if shown != "/ui/push/,true" {
		t.Errorf("the service worker is %v", shown)
	}
	worker := b.ServiceWorker("/push.js")
	worker.Run(counting)
	deliver(t, b, p, h.url, `{"link":"`+link+`"}`)
	deliver(t, b, p, h.url, `{"link":"https://evil.example/","title":"<b>evil</b>"}`)
	deliver(t, b, p, h.url, `{"link":"/#/review/st_1"}`)
	worker.Until("self.displayed === 3")
	notes := play(p, `const r = await navigator.serviceWorker.getRegistration("/ui/push/");
		return (await r.getNotifications()).map((n) => n.title + " " + n.body + n.data.link).sort().join("; ")`)
	if want := "A call waits for approval /#/approvals; A call waits for approval " + link +
		"; A staged task expires soon /#/review/st_1"; notes != want {
		t.Errorf("the notifications are %v, want %s", notes, want)
	}
}

// heard returns the next thing that the webhook was told.
func heard(t *testing.T, told <-chan string) string {
	t.Helper()
	select {
	case said := <-told:
		return said
	case <-time.After(2 * time.Minute):
		t.Fatal("the webhook was not told")
		return ""
	}
}

// deliver has the service worker of the pages get a message, as from a push service.
func deliver(t *testing.T, b *chromium.Browser, p *chromium.Page, origin, data string) {
	t.Helper()
	p.Do("ServiceWorker.enable", nil)
	check(t, until(func() error {
		p.Run("1") // the registrations are told meanwhile
		if b.Workers[origin+"/ui/push/"] == "" {
			return errors.New("no service worker is registered")
		}
		return nil
	}))
	p.Do("ServiceWorker.deliverPushMessage",
		map[string]any{"origin": origin, "registrationId": b.Workers[origin+"/ui/push/"], "data": data})
}
