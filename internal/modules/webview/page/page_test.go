package page

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/modules/webview/chromium"
	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/namespaces"
	"gatehouse/internal/sandbox/proxy"
)

// open starts a browser whose pages reach loopback. It is in a sandbox if this machine can make
// them, as it is in a host.
func open(t *testing.T) *Browser {
	t.Helper()
	return openWith(t, confining(t, proxy.Options{OwnListener: notOurs}) != nil, sandbox.Network{
		Allow: []string{"127.0.0.0/8:*", "*:*"}, Special: []string{"127.0.0.0/8:*"},
	}, proxy.Options{OwnListener: notOurs})
}

// notOurs has the proxy treat the listeners of tests as those of other programs.
func notOurs(netip.AddrPort) (bool, error) { return false, nil }

// confining returns a driver of sandboxes, or nil if this machine cannot make any.
func confining(t *testing.T, o proxy.Options) sandbox.Driver {
	t.Helper()
	d, err := namespaces.New(namespaces.Options{Proxy: o})
	if err != nil {
		t.Log(err)
		return nil
	}
	t.Cleanup(func() { d.Close() })
	for _, f := range d.Doctor(t.Context()) {
		if f.Needed && !f.OK {
			t.Log(f.Name, f.Detail)
			return nil
		}
	}
	return d
}

// openWith starts a browser, in a sandbox or not.
func openWith(t *testing.T, confined bool, n sandbox.Network, o proxy.Options) *Browser {
	t.Helper()
	if _, err := chromium.FindProgram(""); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("there is no chromium, which continuous integration needs: make setup installs it")
		}
		t.Skip("there is no chromium: make setup installs it")
	}
	c := chromium.Options{NoSandbox: chromium.NeedsNoSandbox()}
	if confined {
		d := confining(t, o)
		if d == nil {
			t.Skip("this machine cannot make sandboxes")
		}
		c.Driver = d
	}
	b, err := Open(t.Context(), Options{Chromium: c, Network: n, Proxy: o})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if b.Confined() != confined {
		t.Fatalf("the browser is confined: %t, want %t", b.Confined(), confined)
	}
	return b
}

// serve serves pages by their paths.
func serve(t *testing.T, pages map[string]string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := pages[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprint(w, strings.ReplaceAll(text, "HOST", r.Host))
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func goTo(t *testing.T, b *Browser, url string) *Tab {
	t.Helper()
	tab, err := b.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tab.Navigate(t.Context(), url, 30*time.Second); err != nil {
		t.Fatal(err)
	}
	return tab
}

func shot(t *testing.T, tab *Tab, o SnapshotOptions) Snapshot {
	t.Helper()
	s, err := tab.Snapshot(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func at(t *testing.T, text string) Target {
	t.Helper()
	x, err := ParseTarget(text)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

const formPage = `<!doctype html><title>Join</title><h1>Sign up</h1><form onsubmit="event.preventDefault(); out.textContent='Hello '+who.value+' '+plan.value+' '+news.checked">
<label>Name <input id=who required></label><label><input type=checkbox id=news> News</label>
<label for=plan>Plan</label><select id=plan><option>Free<option value=pro>Professional</select>
<input type=password aria-label=Password><button>Join</button></form><p id=out role=status></p>
<ul>` + `<li>One <a href="/a">first</a><li>Two</ul><table><caption>People</caption><tr><th>Name<th>Age<tr><td>Ann<td>41<tr><td>Ben<td>35</table>`

// A form is worded, filled with real events, and the difference says what came of it.
func TestAFormIsFilled(t *testing.T) {
	b := open(t)
	tab := goTo(t, b, serve(t, map[string]string{"/": formPage})+"/")
	s := shot(t, tab, SnapshotOptions{})
	t.Log("\n" + s.Text)
	for _, want := range []string{"# Sign up", `textbox "Name" required`, `checkbox "News"`,
		`combobox "Plan" = "Free" options: Free | Professional`, `button "Join"`, "- One [e",
		`table "People" 2 rows`, "Ann | 41"} {
		if !strings.Contains(s.Text, want) {
			t.Errorf("the snapshot lacks %q", want)
		}
	}
	o := TypeOptions{Timeout: 5 * time.Second}
	for place, value := range map[string]string{`textbox "Name"`: "Ann Ø", "#news": "true",
		`combobox "Plan"`: "Professional"} {
		if _, err := tab.Fill(t.Context(), at(t, place), value, o); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	if _, err := tab.Click(t.Context(), at(t, `button "Join"`), ClickOptions{Timeout: 5 * time.Second}); err != nil {
		t.Fatal(err)
	}
	t.Log("click", time.Since(began))
	d := shot(t, tab, SnapshotOptions{Diff: true})
	if !strings.Contains(d.Text, "Hello Ann Ø pro true") {
		t.Errorf("got the difference\n%s", d.Text)
	}
}

// A page of a file reaches only files that the caller's server of files gives.
func TestFilesAreServedByTheCaller(t *testing.T) {
	b := open(t)
	var mu sync.Mutex
	asked := map[string]bool{}
	b.current.ServeFiles(func(path string) ([]byte, string, error) {
		mu.Lock()
		defer mu.Unlock()
		asked[path] = true
		if path != "/a.html" {
			return nil, "", os.ErrPermission
		}
		return []byte(
			`<h1>Hi</h1><script src="/etc/hostname"></script><iframe src="file:///etc/passwd"></iframe>`,
		), "text/html", nil
	})
	s := shot(t, goTo(t, b, "file:///a.html"), SnapshotOptions{})
	if !strings.Contains(s.Text, "# Hi") || strings.Contains(s.Text, "root:") {
		t.Errorf("got the page\n%s", s.Text)
	}
	mu.Lock()
	defer mu.Unlock()
	if !asked["/etc/passwd"] || !asked["/etc/hostname"] {
		t.Errorf("the browser asked for %v only, and read other files itself", asked)
	}
}
