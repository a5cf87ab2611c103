package hosttest_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"gatehouse/internal/config"
	"gatehouse/internal/tests/chromium"
)

// hostileScript defines two functions for the host at HOST: write makes a call that writes a file, and attack tries
// every way in which a page can send the host a request. attack returns what the page could read.
const hostileScript = `
const site = "http://HOST";
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
const message = (file) => JSON.stringify({jsonrpc: "2.0", id: 1, method: "tools/call", params: {name: "file_write",
  arguments: {path: file, content: "x"}, _meta: {"io.modelcontextprotocol/protocolVersion": "2026-07-28",
  "io.modelcontextprotocol/clientInfo": {name: "page", version: "1"}, "io.modelcontextprotocol/clientCapabilities": {}}}});
const write = (file, options) => fetch(site + "/mcp", Object.assign({method: "POST", body: message(file), credentials: "include",
  headers: {"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
  "Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "file_write",
  "Gatehouse-Key": sessionStorage.getItem("gatehouse.key") ?? ""}}, options));
const login = () => fetch(site + "/auth/login", {method: "POST", headers: {"Content-Type": "application/json"},
  body: JSON.stringify({user: "ann", password: "a long enough password"})}).then(async (r) => {
    sessionStorage.setItem("gatehouse.key", (await r.json()).key);
    return r.status;
  });
const element = async (tag, set) => {
  const e = document.createElement(tag);
  const ended = new Promise((done) => { e.onload = () => done("loaded"); e.onerror = () => done("error"); });
  set(e);
  document.body.append(e);
  return [e, await Promise.race([ended, wait(2000)])];
};
const post = async (type, file) => {
  const name = "frame" + file;
  await element("iframe", (e) => { e.name = name; e.src = "about:blank"; });
  const form = document.createElement("form");
  Object.assign(form, {method: "POST", action: site + "/mcp", enctype: type, target: name});
  const field = document.createElement("input");
  const text = message(file), at = text.lastIndexOf("}}");
  field.name = text.slice(0, at) + ',"pad":"';
  field.value = '"' + text.slice(at);
  form.append(field);
  document.body.append(form);
  form.submit();
  await wait(300);
};
const attack = async (tag) => {
  const read = [];
  const tries = {
    post: () => write(tag + "post").then((r) => r.text()),
    simple: () => write(tag + "simple", {mode: "no-cors", headers: {"Content-Type": "text/plain"}}).then((r) => r.text()),
    blob: () => write(tag + "blob", {body: new Blob([message(tag + "blob")]), headers: {}}).then((r) => r.text()),
    keepalive: () => write(tag + "alive", {mode: "no-cors", keepalive: true, headers: {}}).then((r) => r.text()),
    get: () => fetch(site + "/mcp", {credentials: "include"}).then((r) => r.text()),
    sse: () => fetch(site + "/sse", {credentials: "include"}).then((r) => r.text()),
    health: () => fetch(site + "/health").then((r) => r.text()),
    logout: () => fetch(site + "/auth/logout", {method: "POST", mode: "no-cors", credentials: "include"}).then((r) => r.text()),
    remove: () => fetch(site + "/mcp", {method: "DELETE", credentials: "include"}).then((r) => r.text()),
    xhr: () => new Promise((done, fail) => { const x = new XMLHttpRequest(); x.open("POST", site + "/mcp"); x.withCredentials = true;
      x.onload = () => done(x.responseText); x.onerror = fail; x.send(message(tag + "xhr")); }),
    socket: () => new Promise((done, fail) => { const s = new WebSocket("ws://HOST/ws"); s.onopen = () => done("open"); s.onerror = fail; }),
    events: () => new Promise((done, fail) => { const s = new EventSource(site + "/sse", {withCredentials: true});
      s.onopen = () => { s.close(); done("open"); }; s.onerror = () => { s.close(); fail(); }; }),
    frame: async () => { const [e] = await element("iframe", (e) => { e.src = site + "/"; }); return e.contentDocument.body.innerText; },
    script: async () => { const [, how] = await element("script", (e) => { e.src = site + "/mcp"; }); return how == "loaded" ? how : ""; },
    image: async () => { const [, how] = await element("img", (e) => { e.src = site + "/auth/logout"; }); return how == "loaded" ? how : ""; },
    style: async () => { const [, how] = await element("link", (e) => { e.rel = "stylesheet"; e.href = site + "/"; }); return how == "loaded" ? how : ""; },
  };
  for (const [name, f] of Object.entries(tries)) {
    try {
      const text = await Promise.race([f(), wait(5000)]);
      if (text) read.push(name + ": " + text);
    } catch (e) {}
  }
  navigator.sendBeacon(site + "/mcp", message(tag + "beacon"));
  for (const type of ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]) await post(type, tag + type.length);
  for (const line of ["LINES"]) {
    await fetch("http://" + line + "/", {method: "POST", mode: "no-cors", body: "\n" + message(tag + "line") + "\n"}).catch(() => 0);
  }
  await wait(300);
  return read.join("\n");
};
`

// hostile is a server on a loopback address whose pages attack a host.
type hostile struct {
	*httptest.Server
	mu      sync.Mutex
	cookies []string
}

func newHostile(t *testing.T, address, host, lines string) *hostile {
	t.Helper()
	l, err := net.Listen("tcp", address+":0")
	must(t, err)
	script := strings.NewReplacer("HOST", host, "LINES", lines).Replace(hostileScript)
	h := &hostile{}
	h.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		h.cookies = append(h.cookies, r.Header.Values("Cookie")...)
		h.mu.Unlock()
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, "<!doctype html><title>x</title><body><script>%s</script>", script)
	}))
	h.Listener.Close()
	h.Listener = l
	h.Start()
	t.Cleanup(h.Close)
	return h
}

// A user is logged in with a real browser, and opens pages of other servers of this machine: on another port, under
// another name, and at another address, which exposed ports of sandboxes have. No page makes the host do anything,
// or reads an answer.
//
//redteam:attack Origin and Host: a real browser that is logged in opens hostile pages on other ports and addresses of loopback
//redteam:attack Listeners for newline-framed messages reject HTTP: a page in a real browser posts lines to the TCP listener
func TestAHostilePageInARealBrowser(t *testing.T) {
	c := chromium.New(t).NewPage()
	root := ""
	h := sandboxHost(t, func(c *config.Config) {
		c.View.Modules = []string{"file"}
		c.Listen.TCP = "127.0.0.1:0"
		root = c.Roots.Folders[0]
	})
	at, err := url.Parse(h.url)
	must(t, err)
	lines := ""
	for _, d := range h.app.Listeners() {
		if rest, ok := strings.CutPrefix(d.Address, "tcp://"); ok {
			lines = rest
		}
	}
	if lines == "" {
		t.Fatalf("no TCP listener among %v", h.app.Listeners())
	}
	written := func() []string {
		t.Helper()
		entries, err := os.ReadDir(root)
		must(t, err)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	script := strings.NewReplacer("HOST", at.Host, "LINES", lines).Replace(hostileScript)

	// The host's own pages may log in and call.
	own := func(file string) {
		t.Helper()
		c.Open("http://" + at.Host + "/health")
		if got := c.Run(script + `write("` + file + `").then((r) => r.text())`); !strings.Contains(
			fmt.Sprint(got),
			file,
		) {
			t.Errorf("a page of the listener's own: %v", got)
		}
		if _, err := os.Stat(filepath.Join(root, file)); err != nil {
			t.Errorf("a page of the listener's own: %v", err)
		}
		must(t, errors.Join(os.Remove(filepath.Join(root, file))))
	}
	c.Open("http://" + at.Host + "/health")
	if got := c.Run(script + `login()`); got != 200.0 {
		t.Fatalf("login: %v", got)
	}
	own("before")

	port := newHostile(t, "127.0.0.1", at.Host, lines)
	pages := map[string]*hostile{port.URL: port, strings.Replace(port.URL, "127.0.0.1", "localhost", 1): port}
	elsewhere := newHostile(t, "127.77.7.7", at.Host, lines)
	pages[elsewhere.URL] = elsewhere
	for page := range pages {
		c.Open(page + "/")
		if got := c.Run(`attack("` + strings.NewReplacer(":", "", "/", "", ".", "").Replace(page) + `")`); got != "" {
			t.Errorf("%s: the page reads %v", page, got)
		}
		// The same as a navigation, which the rules for fetch do not restrict.
		c.Run(
			`(async () => { await post("text/plain", "frames"); document.forms[0].target = "_top"; document.forms[0].submit(); await wait(1000); })().catch(() => 0), 0`,
		)
		if names := written(); len(names) > 0 {
			t.Fatalf("%s: the page had the host write %q", page, names)
		}
		own("between") // it is still logged in
	}
	elsewhere.mu.Lock()
	defer elsewhere.mu.Unlock()
	if len(elsewhere.cookies) > 0 {
		t.Errorf("the browser sent a server on another address %q", elsewhere.cookies)
	}
	port.mu.Lock()
	defer port.mu.Unlock()
	b, _ := json.Marshal(len(port.cookies))
	t.Logf("a server on another port of the same address was sent cookies with %s requests, as browsers do", b)
}
