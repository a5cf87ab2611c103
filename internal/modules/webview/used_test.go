package webview

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/files/roots"
	"gatehouse/internal/modules/webview/chromium"
	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/proxy"
	"gatehouse/module"
	"gatehouse/tool"
)

const usedPage = `<!doctype html><title>Used</title><h1>Used</h1>
<input aria-label=Text value=start><input type=password aria-label=Pass><input aria-label=Plain>
<button onmouseover="out.textContent = 'hovered'">Hover</button>
<div id=from style="width:90px;height:40px;background:#ccc" role=button tabindex=0 aria-label=From>From</div>
<div id=to style="width:90px;height:40px;background:#aaa" role=button tabindex=0 aria-label=To>To</div><p id=out role=status></p>
<div style="height:3000px"></div><p>The bottom</p><script>
let held = false;
from.onmousedown = () => held = true;
to.onmouseup = () => { if (held) out.textContent = "dropped" };
onscroll = () => { if (scrollY > 1000) out.textContent = "scrolled" };
document.querySelector("[type=password]").oninput = (e) => out.textContent = "length " + e.target.value.length;
</script>`

// use is a module with one caller, and a page that it uses.
type use struct {
	m      *manager
	caller *tool.Call
	url    string
	dir    string
	here   place
}

const password = "correct-horse-7"

func newUse(t *testing.T, change func(*Config, string)) use {
	t.Helper()
	if _, err := chromium.FindProgram(""); err != nil {
		t.Skip("there is no chromium: make setup installs it")
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		http.SetCookie(w, &http.Cookie{Name: "seen", Value: "yes", MaxAge: 1000})
		fmt.Fprint(w, usedPage)
	}))
	t.Cleanup(s.Close)
	cfg := Config{
		Settings: Settings{Special: []string{"127.0.0.1:*"}, Secrets: []Secret{{Name: "pass", Origins: []string{s.URL}}}},
		Secret:   func(tool.Caller, string) (secret.Text, bool, error) { return secret.New(password), true, nil },
		Proxy:    proxy.Options{OwnListener: func(netip.AddrPort) (bool, error) { return false, nil }},
	}
	if change != nil {
		change(&cfg, s.URL)
	}
	mod, err := New(cfg)(t.Context(), module.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	m := mod.(*manager)
	t.Cleanup(func() { m.Close(context.Background()) })
	dir := t.TempDir()
	set, err := roots.Open([]roots.Dir{{Path: dir}}, roots.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { set.Close() })
	return use{
		m, &tool.Call{Caller: tool.Caller{Principal: "ann", Owner: "ann/lab"}, Roots: set}, s.URL, dir, place{Session: "default"},
	}
}

func (u use) navigate(t *testing.T, url string) navigateOut {
	t.Helper()
	out, err := u.m.navigate(t.Context(), u.caller, navigateIn{
		place: u.here, URL: url, showing: showing{Snapshot: "full"}, Timeout: 45,
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (u use) act(t *testing.T, in actIn) acted {
	t.Helper()
	in.place, in.Timeout, in.Snapshot = u.here, 45, "diff"
	out, err := u.m.actOn(t.Context(), u.caller, in)
	if err != nil {
		t.Fatalf("%s: %v", in.Action, err)
	}
	return out
}

func wants(t *testing.T, text string, all ...string) {
	t.Helper()
	for _, want := range all {
		if !strings.Contains(text, want) {
			t.Errorf("got %q, which lacks %q", text, want)
		}
	}
}

// The mouse hovers, drags and scrolls, and keys copy and paste.
func TestMouseAndClipboard(t *testing.T) {
	u := newUse(t, nil)
	u.navigate(t, u.url+"/")
	wants(t, u.act(t, actIn{Action: "hover", Target: `button "Hover"`}).Text, "+", "hovered")
	wants(t, u.act(t, actIn{Action: "drag", Target: "css=#from", To: "css=#to"}).Text, "dropped")
	for _, key := range []string{"Control+A", "Control+C"} {
		u.act(t, actIn{Action: "press", Target: `textbox "Text"`, Key: key})
	}
	wants(t, u.act(t, actIn{Action: "press", Target: `textbox "Plain"`, Key: "Control+V"}).Text, `textbox "Plain" = "start"`)
	u.act(t, actIn{Action: "press", Target: `textbox "Plain"`, Key: "Control+A"})
	wants(t, u.act(t, actIn{Action: "press", Target: `textbox "Plain"`, Key: "Control+X"}).Text, `textbox "Plain"`)
	u.act(t, actIn{Action: "scroll", To: "bottom"})
	out, err := u.m.waitFor(t.Context(), u.caller, waitIn{place: u.here, Text: "scrolled", Timeout: 45})
	if err != nil || !out.Success {
		t.Errorf("got %+v %v", out, err)
	}
}

// A stored secret is typed into password fields of its origins alone, and no answer shows it.
//
//redteam:attack Web pages reach what the rules allow: a stored secret into a field that shows it, into another origin, and read back by a script
func TestASecretIsTyped(t *testing.T) {
	u := newUse(t, nil)
	u.navigate(t, u.url+"/")
	typed, err := u.m.typeText(t.Context(), u.caller, typeIn{
		place: u.here, Target: `textbox "Pass"`, Secret: "pass", showing: showing{Snapshot: "diff"}, timed: timed{45},
	})
	if err != nil {
		t.Fatal(err)
	}
	wants(t, typed.Text, fmt.Sprint("length ", len(password)), "filled")
	read, err := u.m.eval(t.Context(), u.caller, evalIn{place: u.here, Script: `document.querySelector("[type=password]").value`})
	if err != nil || strings.Contains(read.Result, password) || read.Result == `""` {
		t.Errorf("got %+v %v, want a value that is hidden", read, err)
	}
	if _, err := u.m.typeText(t.Context(), u.caller, typeIn{
		place: u.here, Target: `textbox "Plain"`, Secret: "pass", timed: timed{45},
	}); err == nil || !strings.Contains(err.Error(), "password fields only") {
		t.Errorf("got %v for a field that shows what is typed", err)
	}
	u.navigate(t, strings.Replace(u.url, "127.0.0.1", "localhost", 1)+"/")
	if _, err := u.m.typeText(t.Context(), u.caller, typeIn{
		place: u.here, Target: `textbox "Pass"`, Secret: "pass", timed: timed{45},
	}); err == nil || !strings.Contains(err.Error(), "may not be typed") {
		t.Errorf("got %v for another origin", err)
	}
}

// Logins are saved and restored in another browser, and shown HTML is replaced in parts.
func TestStorageAndShownHTML(t *testing.T) {
	u := newUse(t, nil)
	u.navigate(t, u.url+"/")
	script := func(at place, text string) string {
		out, err := u.m.eval(t.Context(), u.caller, evalIn{place: at, Script: text})
		if err != nil || !out.Success {
			t.Fatalf("got %+v %v", out, err)
		}
		return out.Result
	}
	script(u.here, `localStorage.setItem("k", "v")`)
	path := filepath.Join(u.dir, "logins.json")
	if _, err := u.m.storage(t.Context(), u.caller, storageIn{place: u.here, Action: "save", Path: path}); err != nil {
		t.Fatal(err)
	}
	other := u
	other.here.Session = "other"
	other.navigate(t, "about:blank")
	if _, err := u.m.storage(t.Context(), u.caller, storageIn{place: other.here, Action: "load", Path: path}); err != nil {
		t.Fatal(err)
	}
	other.navigate(t, u.url+"/")
	wants(t, script(other.here, `localStorage.getItem("k") + document.cookie`), "v", "seen=yes")

	shown, err := u.m.render(t.Context(), u.caller, renderIn{
		Session: "default", ID: "list", HTML: "<h1>Shown</h1><ul id=l><li>one</ul>", showing: showing{Snapshot: "full"},
	})
	if err != nil {
		t.Fatal(err)
	}
	wants(t, shown.Text, "# Shown", "- one")
	shown, err = u.m.update(t.Context(), u.caller, updateIn{
		Session: "default", ID: "list", HTML: "<li>two", Selector: "#l", showing: showing{Snapshot: "diff"},
	})
	if err != nil {
		t.Fatal(err)
	}
	wants(t, shown.Text, "-- one", "+- two")
	if _, err := u.m.update(t.Context(), u.caller, updateIn{Session: "default", ID: "none", HTML: "x"}); err == nil {
		t.Error("what is not shown was changed")
	}
}

// Where no sandbox can be made, a browser starts with the sandbox of Chromium alone, which Chromium has not as root: then it
// starts only if the settings say so.
func TestWithoutSandboxes(t *testing.T) {
	for _, setting := range []string{"", "auto", confineRequired, confineOff} {
		u := newUse(t, func(c *Config, _ string) {
			c.Confinement = setting
			c.Confining = func(context.Context) (sandbox.Driver, error) { return nil, errors.New("no namespaces") }
		})
		out, err := u.m.connect(t.Context(), u.caller, connectIn{Session: "default", Timeout: 45})
		allowed := setting == confineOff || setting != confineRequired && !chromium.NeedsNoSandbox()
		switch {
		case allowed && err != nil:
			t.Errorf("%q: %v", setting, err)
		case allowed && !strings.Contains(out.Message, "sandbox"):
			t.Errorf("%q: the answer does not say that there is no sandbox: %s", setting, out.Message)
		case !allowed && (err == nil || !strings.Contains(err.Error(), "sandbox") || !strings.Contains(err.Error(), "no namespaces")):
			t.Errorf("%q: got %v", setting, err)
		}
	}
}

// A browser that runs already is used at its debug address if the settings name it. Its requests are judged, and it goes
// on when the session ends.
func TestAttachToABrowser(t *testing.T) {
	program, err := chromium.FindProgram("")
	if err != nil {
		t.Skip("there is no chromium: make setup installs it")
	}
	profile, err := chromium.MakeFolder("")
	if err != nil {
		t.Fatal(err)
	}
	args := []string{
		"--headless", "--remote-debugging-port=0", "--user-data-dir=" + filepath.Join(profile, "p"), "--disable-gpu",
		"--disable-dev-shm-usage", "about:blank",
	}
	if chromium.NeedsNoSandbox() {
		args = append([]string{"--no-sandbox"}, args...)
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "TMPDIR="+profile)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := make(chan string, 1)
	read := make(chan struct{})
	go func() {
		defer close(read)
		var all []byte
		for b := make([]byte, 4096); ; {
			n, err := stderr.Read(b)
			all = append(all, b[:n]...)
			if m := regexp.MustCompile(`ws://(127\.0\.0\.1:\d+)/`).FindSubmatch(all); m != nil && len(said) == 0 {
				said <- "http://" + string(m[1])
				all = nil
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-read
		cmd.Wait()
		for range 100 { // its processes can write a little longer than it runs
			if os.RemoveAll(profile) == nil {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
	var address string
	select {
	case address = <-said:
	case <-time.After(time.Minute):
		t.Fatal("the browser names no debug address")
	}
	u := newUse(t, func(c *Config, _ string) { c.Attach = []string{address} })
	if _, err := u.m.connect(t.Context(), u.caller, connectIn{
		Session: "default", DebugURL: "http://127.0.0.1:1", Timeout: 30,
	}); err == nil || !strings.Contains(err.Error(), "do not allow") {
		t.Errorf("got %v for an address that is not in the settings", err)
	}
	out, err := u.m.connect(t.Context(), u.caller, connectIn{Session: "default", DebugURL: address, Timeout: 45})
	if err != nil || !strings.Contains(out.Message, "attached to") {
		t.Fatalf("got %+v %v", out, err)
	}
	wants(t, u.navigate(t, u.url+"/").Text, "# Used", `button "Hover"`)
	if _, err := u.m.navigate(t.Context(), u.caller, navigateIn{place: u.here, URL: "http://10.1.2.3/", Timeout: 45}); err == nil {
		t.Error("an attached browser reached a private address")
	}
	if _, err := u.m.disconnect(t.Context(), u.caller, disconnectIn{Session: "default"}); err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get(address + "/json/version")
	if err != nil {
		t.Fatal("the browser ended with the session:", err)
	}
	resp.Body.Close()
}
