package page

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var soon = 5 * time.Second

func click(t *testing.T, tab *Tab, where string) Element {
	t.Helper()
	e, err := tab.Click(t.Context(), at(t, where), ClickOptions{Timeout: soon})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func holds(t *testing.T, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("got %q, which lacks %q", text, want)
		}
	}
}

// A table of a thousand rows costs its first rows, and the others are given by page and by what they contain.
func TestALongTableIsFolded(t *testing.T) {
	var rows strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&rows,
			"<tr><td>%d<td>Person %d<td>p%d@example.org<td><a href=/p/%d>edit</a> <button>Delete</button>", i, i, i, i)
	}
	b := open(t)
	tab := goTo(
		t,
		b,
		serve(
			t,
			map[string]string{
				"/": "<title>T</title><h1>People</h1><table><tr><th>Id<th>Name<th>Mail<th>Act" + rows.String() +
					"</table><p>The end",
			},
		)+"/",
	)
	s := shot(t, tab, SnapshotOptions{})
	if len(s.Text) > defaultTokens*bytesPerToken {
		t.Errorf("the snapshot has %d bytes", len(s.Text))
	}
	holds(t, s.Text, "table 1000 rows]", "3 | Person 3 | p3@example.org | [e", "more rows [e", "The end")
	table, err := tab.Resolve(t.Context(), at(t, "table"))
	if err != nil {
		t.Fatal(err)
	}
	items, err := tab.Items(t.Context(), table, 40, 20, "")
	if err != nil || len(items.Rows) != 20 || items.Total != 1000 || !strings.Contains(items.Rows[0], "Person 40") {
		t.Errorf("got %v %v", items, err)
	}
	if items, err = tab.Items(t.Context(), table, 0, 20, "p777@"); err != nil || len(items.Rows) != 1 {
		t.Errorf("got %v %v", items, err)
	}
	found, total, err := tab.Find(t.Context(), func(l string) bool { return strings.Contains(l, "Person 812 ") }, 5)
	if err != nil || total != 1 {
		t.Errorf("got %v %v", found, err)
	}
}

// Frames of other origins and open shadow trees are in the one numbering, and can be acted on.
func TestFramesAndShadowTrees(t *testing.T) {
	b := open(t)
	inner := serve(
		t,
		map[string]string{
			"/": `<body style="margin:0;height:900px"><p style="margin-top:500px"><button onclick="this.textContent='pressed in '+location.port">Inner</button><input aria-label=Field>`,
		},
	)
	outer := serve(t, map[string]string{"/": `<h1>Outer</h1><div style="height:120px"></div><x-box></x-box>
<iframe style="border:7px solid;padding:3px" title=Other src="` + strings.Replace(inner, "127.0.0.1", "localhost", 1) + `/"></iframe>
<script>customElements.define("x-box", class extends HTMLElement { connectedCallback() {
 this.attachShadow({mode: "open"}).innerHTML = '<button onclick="this.textContent=\'shadowed\'">Shadow</button><slot></slot>' } })</script>`})
	tab := goTo(t, b, outer+"/")
	s := shot(t, tab, SnapshotOptions{})
	holds(t, s.Text, "# Outer", `button "Shadow"]`, `iframe "Other"]`, ` button "Inner"]`)
	click(t, tab, `button "Shadow"`)
	click(t, tab, `button "Inner"`)
	if _, err := tab.Type(t.Context(), at(t, `textbox "Field"`), "abc", TypeOptions{Timeout: soon}); err != nil {
		t.Error(err)
	}
	s = shot(t, tab, SnapshotOptions{Diff: true})
	holds(t, s.Text, "shadowed", "pressed in ", `= "abc"`)
}

// A page that is rendered anew on every key is typed into and clicked to the end.
func TestAPageThatRendersAnew(t *testing.T) {
	b := open(t)
	tab := goTo(t, b, serve(t, map[string]string{"/": `<div id=app></div><script>
let text = "", clicks = 0;
function render() {
 const had = document.activeElement && document.activeElement.id == "f";
 app.innerHTML = '<label>Word <input id=f></label><button>Add</button><p>text ' + text + ' clicks ' + clicks + '</p>';
 const f = document.getElementById("f"); f.value = text;
 f.oninput = () => { text = f.value; render() };
 app.querySelector("button").onclick = () => { clicks++; render() };
 }
render()</script>`})+"/")
	holds(t, shot(t, tab, SnapshotOptions{}).Text, `[e1 textbox "Word"]`, `[e2 button "Add"]`)
	steps := 100
	if testing.Short() {
		steps = 20
	}
	healed := 0
	for i := range steps / 2 {
		e, err := tab.Type(t.Context(), at(t, "e1"), "x", TypeOptions{Timeout: soon})
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
		if e.Healed != "" {
			healed++
		}
		if _, err := tab.Click(t.Context(), at(t, "e2"), ClickOptions{Timeout: soon}); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
	holds(t, shot(t, tab, SnapshotOptions{}).Text,
		fmt.Sprintf("text %s clicks %d", strings.Repeat("x", steps/2), steps/2))
	if healed == 0 {
		t.Error("no answer says that a ref was healed")
	}
	if _, err := tab.Type(t.Context(), at(t, "e1"), "yyy", TypeOptions{Timeout: soon}); err != nil {
		t.Fatal(err)
	}
	holds(t, shot(t, tab, SnapshotOptions{}).Text, "xyyy clicks")
}

// A ref whose role and name several elements have now is refused with all of them.
func TestAStaleRefIsNotGuessed(t *testing.T) {
	b := open(t)
	tab := goTo(t, b, serve(t, map[string]string{"/": `<div id=a><button>Go</button></div>`})+"/")
	holds(t, shot(t, tab, SnapshotOptions{}).Text, `[e1 button "Go"]`)
	if _, err := tab.Eval(t.Context(), `a.innerHTML = "<button>Go</button><button>Go</button>"`); err != nil {
		t.Fatal(err)
	}
	_, err := tab.Click(t.Context(), at(t, "e1"), ClickOptions{Timeout: soon})
	var stale *StaleError
	if !errors.As(err, &stale) || len(stale.Now) != 2 {
		t.Errorf("got %v", err)
	}
}

// Dialogs are a state of the tab that holds up no call.
func TestDialogsAreAState(t *testing.T) {
	b := open(t)
	tab := goTo(
		t,
		b,
		serve(
			t,
			map[string]string{
				"/": `<button onclick="out.textContent = 'said ' + prompt('Name?', 'nobody')">Ask</button><p id=out></p>`,
			},
		)+"/",
	)
	began := time.Now()
	click(t, tab, `button "Ask"`)
	d := tab.Dialog()
	if d == nil || d.Type != "prompt" || d.Message != "Name?" || time.Since(began) > 10*time.Second {
		t.Fatalf("got %+v after %v", d, time.Since(began))
	}
	if _, err := tab.Snapshot(t.Context(), SnapshotOptions{}); !errors.Is(err, ErrDialog) {
		t.Errorf("got %v", err)
	}
	if err := tab.AnswerDialog(t.Context(), true, "Ann"); err != nil {
		t.Fatal(err)
	}
	holds(t, shot(t, tab, SnapshotOptions{}).Text, "said Ann")
}

// What covers or disables an element is named instead of clicked.
func TestWhatCannotBeClicked(t *testing.T) {
	b := open(t)
	tab := goTo(
		t,
		b,
		serve(
			t,
			map[string]string{
				"/": `<button>Under</button><button disabled>Off</button><div id=veil style="position:fixed;inset:0">Wait</div>`,
			},
		)+"/",
	)
	for target, why := range map[string]string{`button "Under"`: "covered by <div#veil>", `button "Off"`: "disabled"} {
		_, err := tab.Click(t.Context(), at(t, target), ClickOptions{Timeout: 200 * time.Millisecond})
		if err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: got %v", target, err)
		}
	}
}

// within waits for a state of the browser.
func within(t *testing.T, b *Browser, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := b.until(ctx, holds); err != nil {
		for _, tab := range b.tabs {
			t.Logf("%s: %s ready=%v life=%v frames=%d", tab.ID, tab.URL(), tab.isReady, tab.life, len(tab.frames))
		}
		t.Fatalf("%s: %v", what, err)
	}
}

// Files are uploaded and downloaded, and what a page opens is a tab.
func TestUploadDownloadAndTabs(t *testing.T) {
	b := open(t)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		switch r.URL.Path {
		case "/file":
			w.Header().Set("Content-Disposition", `attachment; filename="../x.txt"`)
			fmt.Fprint(w, "content")
		case "/new":
			fmt.Fprint(w, "<h1>New tab</h1>")
		default:
			fmt.Fprint(
				w,
				`<input type=file aria-label=Data onchange="out.textContent = this.files[0].name + ' ' + this.files[0].size"><p id=out></p>
<a href=/file>Get</a> <a href=/new target=_blank>Open</a>`,
			)
		}
	}))
	t.Cleanup(s.Close)
	tab := goTo(t, b, s.URL+"/")
	folder, err := b.UploadFolder()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(folder, "data.bin")
	if err := os.WriteFile(path, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	field := at(t, `file "Data"`)
	if _, err := tab.Upload(t.Context(), &field, []string{path}); err != nil {
		t.Fatal(err)
	}
	holds(t, shot(t, tab, SnapshotOptions{}).Text, "data.bin 5")
	click(t, tab, `link "Get"`)
	within(t, b, "the download begins", func() bool { return len(b.downloads) > 0 })
	got := b.Downloads(t.Context())
	if len(got) != 1 || got[0].State != "completed" || strings.Contains(got[0].Name, "/") {
		t.Fatalf("got %+v", got)
	}
	if content, err := os.ReadFile(got[0].Path); err != nil || string(content) != "content" {
		t.Errorf("got %q %v", content, err)
	}
	click(t, tab, `link "Open"`)
	within(t, b, "the new tab is read", func() bool {
		return b.current != nil && b.current != tab && b.current.isReady && b.current.loadedLocked("load")
	})
	now, err := b.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	holds(t, shot(t, now, SnapshotOptions{}).Text, "# New tab")
	if err := b.CloseTab(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	if back, _ := b.Current(t.Context()); back != tab {
		t.Error("the tab that opened it is not the current one again")
	}
}

// The console and the requests are kept, and pictures, PDF, storage and scripts work.
func TestReportsAndPictures(t *testing.T) {
	b := open(t)
	tab := goTo(
		t,
		b,
		serve(
			t,
			map[string]string{
				"/": `<h1>R</h1><script>console.warn("careful", {a: 1}); localStorage.k = "v"; fetch("/missing").then(r => console.log("status", r.status)); setTimeout(() => { throw new Error("late") })</script>`,
			},
		)+"/",
	)
	if err := tab.Await(t.Context(), Condition{Idle: true}); err != nil {
		t.Fatal(err)
	}
	all, _ := tab.Console(0)
	text := fmt.Sprint(all)
	holds(t, text, "careful {a: 1}", "status 404", "Error: late")
	requests, _ := tab.Network(0)
	if !strings.Contains(fmt.Sprint(requests), "/missing") {
		t.Errorf("got %v", requests)
	}
	for _, o := range []ShotOptions{{}, {PNG: true, Full: true, Marks: true}} {
		if picture, err := tab.Screenshot(t.Context(), o); err != nil || len(picture) < 500 {
			t.Errorf("got %d bytes, %v", len(picture), err)
		}
	}
	if pdf, err := tab.PDF(t.Context(), false); err != nil || !strings.HasPrefix(string(pdf), "%PDF") {
		t.Error(err)
	}
	if v, err := tab.Eval(t.Context(), `document.querySelector("h1")`); err != nil ||
		!strings.Contains(string(v), `"ref":"e`) {
		t.Errorf("got %s %v", v, err)
	}
	if v, err := tab.Eval(t.Context(), `const x = await Promise.resolve({a: [1, 2]}); return x`); err != nil ||
		string(v) != `{"a":[1,2]}` {
		t.Errorf("got %s %v", v, err)
	}
	state, err := tab.SaveState(t.Context())
	if err != nil || len(state.Origins) != 1 || state.Origins[0].Local["k"] != "v" {
		t.Errorf("got %+v %v", state, err)
	}
}
