package page

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/proxy"
)

// names resolves names for tests; rebind has a public address, and a private one once it has moved.
type names struct{ moved atomic.Bool }

func (n *names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	switch strings.TrimSuffix(host, ".") {
	case "public.test":
		return []netip.Addr{netip.MustParseAddr("93.184.216.34")}, nil
	case "rebind.test":
		if !n.moved.Load() {
			return []netip.Addr{netip.MustParseAddr("93.184.216.34")}, nil
		}
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	case "private.test":
		return []netip.Addr{netip.MustParseAddr("10.1.2.3")}, nil
	}
	return nil, &net.DNSError{Err: "no such host", IsNotFound: true}
}

// Whatever a page of a public address tries, it reaches no private address and no file, in a sandbox or not.
//
//redteam:attack Web pages reach what the rules allow: redirects, files, WebSocket, names that change their address, data, blob, workers, service workers, popups, frames, beacons, prefetch and WebRTC
func TestTheAddressPolicy(t *testing.T) {
	for name, confined := range map[string]bool{"confined": true, "process": false} {
		t.Run(name, func(t *testing.T) { tryToEscape(t, confined) })
	}
}

func tryToEscape(t *testing.T, confined bool) {
	var mu sync.Mutex
	var reached []string
	private := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		reached = append(reached, r.Method+" "+r.URL.Path)
	}))
	t.Cleanup(private.Close)
	at := private.Listener.Addr().String()
	public := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/redirect":
			http.Redirect(w, r, "http://"+at+"/redirected", http.StatusFound)
		case "/tofile":
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
		case "/worker.js":
			w.Header().Set("Content-Type", "text/javascript")
			w.Write([]byte(`fetch("http://` + at + `/worker").catch(() => {}); addEventListener("fetch", () => {})`))
		default:
			w.Header().Set("Content-Type", "text/html")
			w.Write([]byte(strings.ReplaceAll(attackPage, "PRIVATE", at)))
		}
	}))
	t.Cleanup(public.Close)
	var resolver names
	b := openPolicy(t, confined, public.Listener.Addr().String(), &resolver)
	tab := goTo(t, b, "http://public.test/")
	if err := tab.Await(t.Context(), Condition{Script: "window.finished"}); err != nil {
		t.Fatal(err)
	}
	refused := map[string]string{
		"http://" + at + "/direct": "this host itself", "http://private.test/": "a private network",
		"http://[::1]:80/": "this host itself", "http://169.254.169.254/latest": "metadata",
		"http://public.test/redirect": "this host itself", "data:text/html,x": "scheme",
		"javascript:alert(1)": "scheme",
		"chrome://settings":   "scheme", "view-source:http://public.test/": "scheme",
		"blob:http://public.test/x": "scheme",
		"file:///etc/passwd":        "not allowed", "http://0x7f000001:80/": "this host itself",
	}
	for url, why := range refused {
		_, err := tab.Navigate(t.Context(), url, 10*time.Second)
		var no *RefusedError
		if !errors.As(err, &no) || !strings.Contains(no.Reason, why) {
			t.Errorf("%s: got %v, want a refusal with %q", url, err, why)
		}
	}
	if _, err := tab.Navigate(t.Context(), "http://public.test/tofile", 10*time.Second); err == nil {
		t.Error("a redirect to a file was followed")
	}
	if _, err := tab.Navigate(t.Context(), "http://rebind.test/", 10*time.Second); err != nil {
		t.Error(err)
	}
	resolver.moved.Store(true)
	if _, err := tab.Navigate(t.Context(), "http://rebind.test/again", 10*time.Second); err == nil {
		t.Error("a name that leads to another address now was followed")
	}
	mu.Lock()
	defer mu.Unlock()
	if len(reached) > 0 {
		t.Errorf("the private server was reached: %v", reached)
	}
}

// openPolicy starts a browser that reaches what is public; all public addresses lead to one server.
func openPolicy(t *testing.T, confined bool, public string, resolver *names) *Browser {
	t.Helper()
	return openWith(t, confined, sandbox.Network{
		Allow: []string{"*:*", "0.0.0.0/0:*", "[::/0]:*"}, Resolve: resolver,
	}, proxy.Options{
		OwnListener: notOurs,
		Dial: func(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
			to := a.String()
			if a.Addr() == netip.MustParseAddr("93.184.216.34") {
				to = public
			}
			return (&net.Dialer{}).DialContext(ctx, "tcp", to)
		},
	})
}

const attackPage = `<title>attack</title><body><script>
const at = "PRIVATE", wait = (ms) => new Promise((d) => setTimeout(d, ms));
const tries = {
 fetch: () => fetch("http://" + at + "/fetch", {mode: "no-cors"}),
 beacon: () => navigator.sendBeacon("http://" + at + "/beacon", "x"),
 image: () => new Promise((d) => { const i = new Image(); i.onload = i.onerror = d; i.src = "http://" + at + "/image" }),
 script: () => new Promise((d) => { const s = document.createElement("script"); s.onload = s.onerror = d; s.src = "http://" + at + "/script"; document.head.append(s) }),
 frame: () => new Promise((d) => { const f = document.createElement("iframe"); f.onload = d; f.src = "http://" + at + "/frame"; document.body.append(f) }),
 file: () => new Promise((d) => { const f = document.createElement("iframe"); f.onload = d; f.src = "file:///etc/passwd"; document.body.append(f); wait(300).then(d) }),
 socket: () => new Promise((d) => { const s = new WebSocket("ws://" + at + "/socket"); s.onopen = s.onerror = d }),
 events: () => new Promise((d) => { const s = new EventSource("http://" + at + "/events"); s.onopen = s.onerror = () => { s.close(); d() } }),
 worker: () => new Promise((d) => { const w = new Worker("/worker.js"); setTimeout(d, 400) }),
 service: () => navigator.serviceWorker ? navigator.serviceWorker.register("/worker.js").catch(() => {}) : 0,
 blob: () => new Promise((d) => { const f = document.createElement("iframe"); f.onload = d; f.src = URL.createObjectURL(new Blob(["<img src=http://" + at + "/blob>"], {type: "text/html"})); document.body.append(f) }),
 data: () => new Promise((d) => { const f = document.createElement("iframe"); f.onload = d; f.src = "data:text/html,<img src=http://" + at + "/data>"; document.body.append(f) }),
 popup: () => { open("http://" + at + "/popup"); return wait(300) },
 prefetch: () => { const l = document.createElement("link"); l.rel = "prefetch"; l.href = "http://" + at + "/prefetch"; document.head.append(l); return wait(200) },
 redirect: () => fetch("/redirect", {mode: "no-cors"}),
 rtc: () => { try { const c = new RTCPeerConnection({iceServers: [{urls: "stun:" + at}]}); c.createDataChannel("x"); return c.createOffer().then((o) => c.setLocalDescription(o)) } catch (e) {} },
};
(async () => { for (const f of Object.values(tries)) { try { await Promise.race([f(), wait(1500)]) } catch (e) {} } await wait(300); window.finished = true })();
</script>`
